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
	token := "etcd-cluster"
	if !joined.IsZero() {
		token += strconv.FormatInt(joined.Unix(), 10)
	}
	return hashMember(address, token)
}

// RecoveredID computes the id of the member that an etcd begins with that is made of a snapshot: then
// there is no token (recorded: 10.5.0.11 is 11578889183172514425).
func RecoveredID(address netip.Addr) uint64 { return hashMember(address, "") }

func hashMember(address netip.Addr, token string) uint64 {
	sum := sha1.Sum([]byte(PeerURL(address) + token))
	return binary.BigEndian.Uint64(sum[:8])
}

// PeerURL is where a member talks to the others.
func PeerURL(a netip.Addr) string { return "https://" + netip.AddrPortFrom(a, 2380).String() }

// ClientURL is where it serves.
func ClientURL(a netip.Addr) string { return "https://" + netip.AddrPortFrom(a, 2379).String() }
