package drift

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/quorum"
)

// AtEndpoint are the nodes that would lose the Kubernetes API with the machine of a node: those
// that reach it at the address of that node, by the config that they are seen to run or would be
// made with, although the inventory has another endpoint. One whose config is not seen is one of
// them unless it was seen to be as the inventory has it. Where a name in place of an address
// leads to is not known here.
func AtEndpoint(d cluster.Desired, o cluster.Observed, n cluster.Node) (names []string) {
	addresses := []string{n.IP.String(), o.Nodes.Value[n.Name].Address}
	for _, mem := range o.Members.Value {
		if mem.Name == n.Name {
			addresses = append(addresses, mem.Address)
		}
	}
	isOf := func(host string) bool { return host != "" && slices.Contains(addresses, host) }
	if u, err := url.Parse(d.Repository().Spec.Network.Endpoint); err != nil || u.Hostname() == "" || isOf(u.Hostname()) {
		return nil
	}
	for _, other := range d.Spec.Nodes {
		if mach := o.Machines[other.Name]; other.Name != n.Name && (reaches(d, o, other, mach, isOf) || hidesConfig(d, o, other)) {
			names = append(names, other.Name)
		}
	}
	return names
}

// reaches reports whether the config of a node has such an endpoint: the one that its machine
// runs, or, before it has any, the one that it would be given.
func reaches(d cluster.Desired, o cluster.Observed, n cluster.Node, mach cluster.Machine, isOf func(string) bool) bool {
	if mach.Reach == cluster.Configured {
		return mach.ConfigDigest != d.Repository().Configs[n.Name].Digest && isOf(mach.Summary.Endpoint)
	}
	return (o.VMs[n.Name].Presence == cluster.Absent || isTaken(o, n) || mach.Reach == cluster.Maintenance) && isOf(d.Configs[n.Name].Summary.Endpoint)
}

// hidesConfig reports whether a machine may run with a config that is not seen, and that may be
// an earlier one than that of the inventory.
func hidesConfig(d cluster.Desired, o cluster.Observed, n cluster.Node) bool {
	mach := o.Machines[n.Name]
	if o.VMs[n.Name].Presence == cluster.Absent || isTaken(o, n) || mach.Reach == cluster.Maintenance || mach.Reach == cluster.Configured && mach.ConfigDigest != "" {
		return false
	}
	origin := OriginOf(d, o, n, FieldConfig)
	return !origin.Known || origin.Pushed
}

// isTaken reports whether the VM at the VMID of a node is that of another one, so that the node has
// no machine before that is deleted.
func isTaken(o cluster.Observed, n cluster.Node) bool {
	return slices.ContainsFunc(o.Orphans.Value, func(vm cluster.VM) bool { return vm.VMID == n.VMID && vm.Node != n.Name })
}

// LosesEndpoint reports whether a machine reaches the Kubernetes API at an address that leads
// nowhere, or soon will not lead anywhere: that of no control plane that the inventory has and
// keeps, or of one that has left etcd, and not the endpoint of the inventory.
func LosesEndpoint(d cluster.Desired, o cluster.Observed, n cluster.Node) bool {
	addr, err := netip.ParseAddr(o.Machines[n.Name].Summary.Endpoint)
	if u, bad := url.Parse(d.Repository().Spec.Network.Endpoint); err != nil || bad != nil || u.Hostname() == addr.String() {
		return false
	}
	return !slices.ContainsFunc(d.Spec.ControlPlanes(), func(cp cluster.Node) bool {
		return cp.IP == addr && !IsReplaced(cp, o.VMs[cp.Name], o.Facts) && o.VMs[cp.Name].Presence != cluster.Absent && !isTaken(o, cp) && !FindsNoEtcd(o, cp)
	})
}

// FindsNoEtcd reports whether a control plane that is no member of etcd reaches the Kubernetes API at its
// own address: no kube-apiserver serves there, so that it does not find the others and boots for ever.
// Where it has discovery it finds them by that.
func FindsNoEtcd(o cluster.Observed, n cluster.Node) bool {
	has := o.Machines[n.Name].Summary
	_, isMember := quorum.MemberOf(o, n)
	return n.Role == cluster.ControlPlane && o.Members.Known && len(o.Members.Value) > 0 && has.Endpoint == n.IP.String() && !has.Discovery && !isMember
}

// EndpointToCome is what is to be so before a machine is given the endpoint of the inventory, where
// it has another one and nothing would answer there: the control plane with that address has not
// joined etcd yet; or it is the VIP, which control planes take with their configs, and a worker that
// restarts before that waits for a certificate for ever. "": nothing, or it is not known, or the VM of
// that control plane cannot be made before another is deleted.
func EndpointToCome(d cluster.Desired, o cluster.Observed, n cluster.Node) string {
	u, err := url.Parse(d.Repository().Spec.Network.Endpoint)
	has, vip := o.Machines[n.Name].Summary.Endpoint, d.Repository().Spec.Network.VIP
	switch {
	case err != nil || has == "" || has == u.Hostname():
		return ""
	case n.Role == cluster.Worker && u.Hostname() == vip.String() && o.VIP.Known && !o.VIP.Value.Served:
		return fmt.Sprintf("a kube-apiserver answers at the new endpoint %s, the VIP", vip)
	case !o.Members.Known:
		return ""
	}
	for _, cp := range d.Spec.ControlPlanes() {
		joined := slices.ContainsFunc(o.Members.Value, func(mem cluster.Member) bool { return mem.IsOf(cp) && !mem.Learner })
		if cp.IP.String() == u.Hostname() && !joined && !isTaken(o, cp) {
			return cp.Name + ", at whose address the new endpoint is, has joined etcd"
		}
	}
	return ""
}
