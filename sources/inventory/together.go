package inventory

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"path"
	"slices"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// claim is something that only one node of a Proxmox VE host or cluster can
// have.
type claim struct {
	what  string // "VMID 110"
	where string // the scope in which it must be unique
}

// claimant is who has it.
type claimant struct {
	snap  cluster.Snapshot
	owner string // "dev-cp-1", or "the VIP"
	field string
}

// CheckTogether finds what clusters of the same agent cannot both have: a
// name, VMIDs, MAC addresses, and addresses on the same bridge of the same
// host. Each clash is reported once, at the cluster that sorts last by name.
func CheckTogether(snaps []cluster.Snapshot) cluster.Problems {
	snaps = slices.Clone(snaps)
	slices.SortStableFunc(snaps, func(a, b cluster.Snapshot) int {
		return cmp.Or(cmp.Compare(a.Spec.Name, b.Spec.Name), cmp.Compare(a.Where[""].File, b.Where[""].File))
	})
	var problems cluster.Problems
	names := map[string]claimant{}
	held := map[claim]claimant{}
	take := func(by claimant, c claim, hint string) {
		first, taken := held[c]
		if !taken {
			held[c] = by
			return
		}
		if first.snap.Where[""] == by.snap.Where[""] {
			return // within one cluster, which Load has checked
		}
		problems = append(problems, by.snap.At(cluster.Error, by.field,
			fmt.Sprintf("%s of %s is that of %s in cluster %s (%s)", c.what, by.owner, first.owner, first.snap.Spec.Name, describePlace(first)), hint))
	}
	for _, s := range snaps {
		me := claimant{s, s.Spec.Name, "cluster_name"}
		if first, taken := names[s.Spec.Name]; taken {
			problems = append(problems, s.At(cluster.Error, me.field, fmt.Sprintf("%s is the name of another cluster (%s)", s.Spec.Name, describePlace(first)),
				"every cluster needs a name of its own: the identity of its nodes follows from it"))
		} else {
			names[s.Spec.Name] = me
		}
		takeAuthorities(s, take)
		for _, n := range s.Spec.Nodes {
			by := claimant{s, n.Name, "nodes." + n.Name}
			network := fmt.Sprintf("%s/%s/%d", n.Placement.Pin, n.Bridge, s.Spec.Network.VLAN)
			take(by, claim{what: fmt.Sprintf("VMID %d", n.VMID)}, "write another vmid, or move proxmox.vmid_ranges of one cluster")
			take(by, claim{"MAC address " + n.MAC, network}, "write another mac for one of them")
			take(by, claim{"address " + n.IP.String(), network}, "give every machine on a bridge an address of its own")
			takeVIP(s, network, take)
		}
	}
	problems.Sort()
	return slices.Compact(problems)
}

// takeAuthorities claims the keys of a cluster's secrets. With those of another one
// its nodes could join the other's etcd, and whoever opens one opens both.
func takeAuthorities(s cluster.Snapshot, take func(claimant, claim, string)) {
	for _, name := range slices.Sorted(maps.Keys(s.Authorities)) {
		sum := s.Authorities[name]
		take(claimant{s, "the secrets", "secrets"}, claim{"an authority's key", hex.EncodeToString(sum[:])},
			"every cluster needs secrets of its own: remove the copied file, and make one with `talos-agent secrets new --cluster "+path.Base(path.Dir(s.Where[""].File))+" DIR`")
	}
}

// takeVIP claims the cluster's VIP on a network where it has nodes.
func takeVIP(s cluster.Snapshot, network string, take func(claimant, claim, string)) {
	if vip := s.Spec.Network.VIP; vip != (netip.Addr{}) {
		take(claimant{s, "the VIP", "network.vip"}, claim{"address " + vip.String(), network}, "give the cluster an address of its own")
	}
}

func describePlace(c claimant) string {
	p := c.snap.At(cluster.Error, c.field, "", "")
	if p.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d", p.File, p.Line)
}
