package setup

import (
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
)

// Facts are what was seen of a host.
type Facts struct {
	Version string   // of Proxmox VE, "9.2.11"
	Host    string   // the name of this machine in Proxmox VE
	Hosts   []string // of all machines of its cluster, this one included
	// NoQuorum is true when too few machines of the cluster are there for anything
	// that they share to be changed.
	NoQuorum bool
	Pools    map[string]string   // comments by name
	Roles    map[string][]string // privileges by role
	Users    map[string]Account
	ACL      []Entry
	Storages []Storage
	Bridges  []Bridge
	VMs      []VM
	// Files holds what was found at the paths of Files: what is not in it is not
	// there.
	Files map[string]File
	// Certificate is that of the API where it is not Proxmox VE's own.
	Certificate *Certificate
	// ServiceUser reports whether there is the user and group the unit runs as.
	ServiceUser bool
	Unit        Unit
}

// Account is a user of Proxmox VE.
type Account struct {
	Disabled bool
	Comment  string
	Tokens   []string // names
}

// Entry is an entry of the access control list: who, a user or a token, has
// which role where.
type Entry struct {
	Path, Who, Role string
	Propagate       bool
}

// Storage is one as it is configured.
type Storage struct {
	Name, Type string
	Content    []string // content types
	Digest     string   // of the configuration that sets it
}

// Holds reports whether a storage takes a type of content.
func (s Storage) Holds(content string) bool { return slices.Contains(s.Content, content) }

// fileBased are the types of storage that hold files: the others cannot have
// the content type import.
var fileBased = []string{"dir", "nfs", "cifs", "cephfs", "btrfs", "glusterfs"}

// Bridge is a bridge of this machine.
type Bridge struct {
	Name    string
	Address string // of the machine on it, with the length of the prefix; "" without one
}

// VM is a VMID in use.
type VM struct {
	ID   int
	Name string
	Pool string
	Host string
}

// File is a file that was found. What it holds may be a secret.
type File struct {
	Data []byte
	Mode fs.FileMode // permissions
	// Group is the group's name; "" where it was not looked at.
	Group string
}

// String keeps what a file holds out of logs and errors.
func (f File) String() string { return fmt.Sprintf("file of %d bytes, mode %04o", len(f.Data), f.Mode) }

// Certificate is one of the API that Proxmox VE did not make itself.
type Certificate struct {
	Fingerprint string   // SHA-256, in hex with colons
	Names       []string // that it is good for
	// Trusted reports whether the system's authorities vouch for it.
	Trusted bool
}

// nameOf is the first name that the certificate is good for. Where it has only
// wildcards, it is the host's in the domain of the first.
func (c Certificate) nameOf(host string) string {
	wildcard := func(name string) bool { return strings.HasPrefix(name, "*") }
	if i := slices.IndexFunc(c.Names, func(name string) bool { return !wildcard(name) }); i >= 0 {
		return c.Names[i]
	}
	return host + strings.TrimPrefix(c.Names[0], "*")
}

// Unit is the agent's service.
type Unit struct{ Installed, Active bool }

// storage returns the storage of that name; false when there is none.
func (f Facts) storage(name string) (Storage, bool) {
	i := slices.IndexFunc(f.Storages, func(s Storage) bool { return s.Name == name })
	if i < 0 {
		return Storage{}, false
	}
	return f.Storages[i], true
}

// DiskStorages are the storages that take disks of VMs, and ImageStorages those that
// can hold Talos images, if only once they are let.
func (f Facts) DiskStorages() []Storage {
	return slices.DeleteFunc(slices.Clone(f.Storages), func(s Storage) bool { return !s.Holds("images") })
}

func (f Facts) ImageStorages() []Storage {
	return slices.DeleteFunc(slices.Clone(f.Storages), func(s Storage) bool { return !s.Holds("import") && !slices.Contains(fileBased, s.Type) })
}

// inPool returns the VMs of a pool.
func (f Facts) inPool(pool string) []VM {
	return slices.DeleteFunc(slices.Clone(f.VMs), func(v VM) bool { return v.Pool != pool })
}

// isSupported reports whether the agent works with a version of Proxmox VE.
func isSupported(version string) bool {
	major, rest, _ := strings.Cut(version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	a, errA := strconv.Atoi(major)
	b, errB := strconv.Atoi(minor)
	return errA == nil && errB == nil && (a == 9 || a == 8 && b >= 4)
}

// sortedBy returns the names of a list's elements, in order.
func sortedBy[T any](list []T, name func(T) string) []string {
	var out []string
	for _, e := range list {
		out = append(out, name(e))
	}
	slices.Sort(out)
	return out
}
