package pveconf

import (
	"slices"
	"strings"
)

// ListContent are the content types of a storage, in order.
func ListContent(list Scalar) []string {
	out := strings.FieldsFunc(string(list), func(r rune) bool { return r == ',' || r == ' ' })
	slices.Sort(out)
	return out
}

// IsThin reports whether a disk on a storage of this type takes what was written to it,
// not its size. On ZFS that is so where the storage is sparse, as the installer of
// Proxmox VE makes it; where it is not, what is used is what is promised, and to count
// promises comes to the same.
func IsThin(kind string) bool {
	return slices.Contains([]string{"lvmthin", "zfspool", "dir", "nfs", "cifs", "btrfs", "cephfs", "glusterfs", "rbd"}, kind)
}
