package system

import (
	"crypto/sha1"
	"encoding/binary"
	"net/netip"
	"strconv"
	"time"
)

// MemberID computes a member's id as etcd does: founding members from their
// peer URL and the cluster's token alone, so that the same address founds with
// the same id; later ones from the time too.
func MemberID(address netip.Addr, joined time.Time) uint64 {
	seed := PeerURL(address) + "etcd-cluster"
	if !joined.IsZero() {
		seed += strconv.FormatInt(joined.Unix(), 10)
	}
	sum := sha1.Sum([]byte(seed))
	return binary.BigEndian.Uint64(sum[:8])
}

// PeerURL is where a member talks to the others.
func PeerURL(a netip.Addr) string { return "https://" + netip.AddrPortFrom(a, 2380).String() }

// ClientURL is where it serves.
func ClientURL(a netip.Addr) string { return "https://" + netip.AddrPortFrom(a, 2379).String() }
