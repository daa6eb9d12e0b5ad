package inventory

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"net/netip"
	"path"
	"slices"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// claim is something that only one node of a Proxmox VE host or cluster can
// have: one of these, within a segment where that matters.
type claim struct {
	vmid      int
	mac       string
	ip        netip.Addr
	authority [sha256.Size]byte
	port      string // of the host, with its protocol
	segment   segment
}

// String names what is claimed.
func (c claim) String() string {
	switch {
	case c.vmid > 0:
		return fmt.Sprintf("VMID %d", c.vmid)
	case c.mac != "":
		return "MAC address " + c.mac
	case c.ip.IsValid():
		return "address " + c.ip.String()
	case c.port != "":
		return "port " + c.port
	}
	return "an authority's key"
}

// segment is where a MAC address and an IP address are one machine's.
type segment struct {
	host, bridge string
	vlan         int
}

// claimant is who has it.
type claimant struct {
	snap  *cluster.Snapshot
	owner string // "dev-cp-1", or "the VIP"
	field string
}

// maxClashes is how many clashes with other clusters a cluster is shown at most. Folders
// that are copied clash in every node, each with each.
const maxClashes = 50

// clashes are those of one cluster.
type clashes struct {
	problems cluster.Problems
	more     int
}

// add adds a clash, which is made only where it is shown.
func (c *clashes) add(describe func() cluster.Problem) {
	if len(c.problems) == maxClashes {
		c.more++
		return
	}
	c.problems = append(c.problems, describe())
}

// CheckTogether finds what clusters of the same agent cannot both have: a
// name, VMIDs, MAC addresses, addresses on the same bridge of the same host, ports of the
// host, and keys. What several have is a problem of each of them, described at those that sort later
// by name. It returns the problems of each snapshot, at most so many as are worth reading,
// in time proportional to the nodes.
func CheckTogether(snaps []cluster.Snapshot) []cluster.Problems {
	order := make([]int, len(snaps))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(snaps[a].Spec.Name, snaps[b].Spec.Name), cmp.Compare(snaps[a].Where[""].File, snaps[b].Where[""].File))
	})
	found := make([]clashes, len(snaps))
	names, held, indexes := map[string]claimant{}, map[claim]claimant{}, map[*cluster.Snapshot]int{}
	report := func(first, by claimant, describe func() cluster.Problem) {
		found[indexes[first.snap]].add(describe)
		found[indexes[by.snap]].add(describe)
	}
	take := func(by claimant, c claim, hint string) {
		first, taken := held[c]
		if !taken {
			held[c] = by
			return
		}
		if first.snap == by.snap {
			return // within one cluster, which Load has checked
		}
		report(first, by, func() cluster.Problem {
			return by.snap.At(cluster.Error, by.field,
				fmt.Sprintf("%s of %s is that of %s in cluster %s (%s)", c, by.owner, first.owner, first.snap.Spec.Name, describePlace(first)), hint)
		})
	}
	for _, i := range order {
		s := &snaps[i]
		indexes[s] = i
		me := claimant{s, s.Spec.Name, "cluster_name"}
		if first, taken := names[s.Spec.Name]; taken {
			report(first, me, func() cluster.Problem {
				return s.At(cluster.Error, me.field, fmt.Sprintf("%s is the name of another cluster (%s)", s.Spec.Name, describePlace(first)),
					"every cluster needs a name of its own: the identity of its nodes follows from it")
			})
		} else {
			names[s.Spec.Name] = me
		}
		takeAuthorities(s, take)
		for i, f := range s.Spec.Forwards {
			take(claimant{s, "the host", fmt.Sprintf("port_forwards[%d]", i)}, claim{port: f.String()}, "a port of the host leads to one cluster: take another port for one of them")
		}
		seen := map[segment]bool{}
		for _, n := range s.Spec.Nodes {
			by := claimant{s, n.Name, "nodes." + n.Name}
			take(by, claim{vmid: n.VMID}, "write another vmid, or move proxmox.vmid_ranges of one cluster")
			for _, host := range n.Placement.Hosts() {
				at := segment{host, n.Bridge, s.Spec.Network.VLAN}
				take(by, claim{mac: n.MAC, segment: at}, "write another mac for one of them")
				for _, ip := range []netip.Addr{n.IP, n.IP6} {
					if ip.IsValid() {
						take(by, claim{ip: ip, segment: at}, "give every machine on a bridge an address of its own")
					}
				}
				for _, c := range n.Devices.Cards {
					at := segment{host, c.Bridge, c.VLAN}
					take(by, claim{mac: c.MAC, segment: at}, "write another name for one of the nodes")
					if c.Address.IsValid() {
						take(by, claim{ip: c.Address.Addr(), segment: at}, "give every machine on a bridge an address of its own")
					}
				}
				if !seen[at] {
					seen[at] = true
					takeVIP(s, at, take)
				}
			}
		}
	}
	out := make([]cluster.Problems, len(snaps))
	for i, c := range found {
		out[i] = c.list(&snaps[i])
	}
	return out
}

// list lists the clashes of a cluster.
func (c clashes) list(s *cluster.Snapshot) cluster.Problems {
	c.problems.Sort()
	out := slices.Compact(c.problems)
	if c.more > 0 {
		out = append(out, s.At(cluster.Error, "", fmt.Sprintf("%d more clashes with other clusters are not shown", c.more), "correct the others first"))
	}
	return out
}

// takeAuthorities claims the keys of a cluster's secrets. With those of another one
// its nodes could join the other's etcd, and whoever opens one opens both.
func takeAuthorities(s *cluster.Snapshot, take func(claimant, claim, string)) {
	for _, name := range slices.Sorted(maps.Keys(s.Authorities)) {
		take(claimant{s, "the secrets", "secrets"}, claim{authority: s.Authorities[name]},
			"every cluster needs secrets of its own: remove the copied file, and make one with `talos-agent secrets new --cluster "+path.Base(path.Dir(s.Where[""].File))+" DIR`")
	}
}

// takeVIP claims the cluster's VIP on a network where it has nodes.
func takeVIP(s *cluster.Snapshot, at segment, take func(claimant, claim, string)) {
	if vip := s.Spec.Network.OwnVIP(); vip != (netip.Addr{}) {
		take(claimant{s, "the VIP", "network.vip"}, claim{ip: vip, segment: at}, "give the cluster an address of its own")
	}
}

func describePlace(c claimant) string {
	p := c.snap.At(cluster.Error, c.field, "", "")
	if p.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d", p.File, p.Line)
}
