// Package leftover is what the world shows of machines that the inventory no longer has, or that
// are no longer there: nodes to remove, members of etcd without a machine.
//
// It is pure: what is not known is never taken for absent.
package leftover

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/quorum"
	"github.com/talos-agent/talos-agent/reconcile/readiness"
)

// SeesAllVMs reports whether it is known which VMs of the cluster there are, and
// whose they are.
func SeesAllVMs(o cluster.Observed) bool {
	for _, vm := range o.VMs {
		if IsUnseen(vm) {
			return false
		}
	}
	return o.Orphans.Known
}

// IsUnseen reports whether it is not known whether a VM is there, or whose it is.
func IsUnseen(vm cluster.VM) bool {
	return vm.Presence == cluster.PresenceUnknown || vm.Presence == cluster.Present && vm.Owner == cluster.OwnerUnknown
}

// RemovedNodes are the nodes that the inventory no longer has and of which a VM or a
// member of etcd is left, by name. What is to be known of each follows from the world:
// whether it is a control plane is seen in etcd and on its Node object.
func RemovedNodes(d cluster.Desired, o cluster.Observed) []cluster.Node {
	if !o.Orphans.Known {
		return d.StillRemoved()
	}
	found := map[string]cluster.VM{}
	for _, vm := range o.Orphans.Value {
		if _, ok := d.Spec.Node(vm.Node); !ok {
			found[vm.Node] = vm
		}
	}
	for _, mem := range o.Members.Value {
		_, seen := found[mem.Name]
		if owner, _ := quorum.OwnerOf(o.Members.Value, mem, d.Spec.ControlPlanes()); owner == "" && mem.Name != "" && !seen {
			found[mem.Name] = cluster.VM{}
		}
	}
	var out []cluster.Node
	for name, vm := range found {
		out = append(out, removedNode(d, o, name, vm))
	}
	slices.SortFunc(out, func(a, b cluster.Node) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// removedNode is a removed node, as far as the world shows it.
func removedNode(d cluster.Desired, o cluster.Observed, name string, vm cluster.VM) cluster.Node {
	var before cluster.Node
	if i := slices.IndexFunc(d.Removed, func(n cluster.Node) bool { return n.Name == name }); i >= 0 {
		before = d.Removed[i]
	}
	n := cluster.Node{Name: name, Role: cluster.Worker, VMID: vm.VMID, UUID: cluster.NodeUUID(d.Spec.ID, name), Placement: cluster.Placement{Pin: vm.Host},
		MAC: cmp.Or(vm.Hardware.Value.MAC, before.MAC), Datastore: vm.Hardware.Value.System.Datastore}
	kn := o.Nodes.Value[name]
	i := slices.IndexFunc(o.Members.Value, func(mem cluster.Member) bool { return mem.Name == name })
	_, hasEtcd := o.Machines[name].Services["etcd"]
	if i >= 0 || kn.ControlPlane || hasEtcd || before.Role == cluster.ControlPlane {
		n.Role = cluster.ControlPlane
	}
	address, _, _ := strings.Cut(vm.Hardware.Value.Address, "/")
	texts := []string{address, kn.Address}
	if i >= 0 {
		texts = append(texts, o.Members.Value[i].Address)
	}
	for _, text := range texts {
		if ip, err := netip.ParseAddr(text); err == nil && !n.IP.IsValid() {
			n.IP = ip
		}
	}
	if !n.IP.IsValid() {
		n.IP = before.IP
	}
	return n
}

// LostFor is how long a member of etcd must be seen to have no machine before it is
// removed: what is seen once may be a moment between two others.
const LostFor = time.Minute

// LostMembers are the members of etcd that are seen to have no machine: a control plane
// without a VM, or whose disk is empty, or one of ours that the inventory no longer has,
// without a VM and silent: its Node object shows that it was ours, and where somebody has deleted
// that, what the agent knows of its VM. A member that has no name has not run yet. That nothing answers
// for a machine that was never ours, which joined by hand, shows nothing.
func LostMembers(d cluster.Desired, o cluster.Observed) []uint64 {
	if !o.Members.Known || !o.Nodes.Known || !SeesAllVMs(o) {
		return nil
	}
	var out []uint64
	for _, mem := range o.Members.Value {
		if isLost(d, o, mem) {
			out = append(out, mem.ID)
		}
	}
	return out
}

// isLost is LostMembers for one. Whose a member is shows its name: its address may have
// been given to another node since.
func isLost(d cluster.Desired, o cluster.Observed, mem cluster.Member) bool {
	if mem.Name != "" && slices.ContainsFunc(o.Orphans.Value, func(vm cluster.VM) bool { return vm.Node == mem.Name }) {
		return false
	}
	planes := d.Spec.ControlPlanes()
	if n, stays := d.Spec.Node(mem.Name); stays && n.Role != cluster.ControlPlane {
		planes = append(planes, n) // moved in the inventory: its machine runs as what it was
	}
	byName := slices.IndexFunc(planes, func(n cluster.Node) bool { return n.Name == mem.Name })
	i := slices.IndexFunc(planes, func(n cluster.Node) bool { return mem.IsOf(n) })
	if byName >= 0 {
		i = byName
	}
	silent := o.Machines[mem.Name].Reach == cluster.Silent
	if i >= 0 {
		phase, kn := readiness.Classify(planes[i], o), o.Nodes.Value[planes[i].Name]
		empty := phase == cluster.PhaseAbsent || phase == cluster.PhaseMaintenance && !kn.Ready
		if byName >= 0 || mem.Name == "" {
			return empty
		}
		silent = phase == cluster.PhaseAbsent && o.Machines[planes[i].Name].Reach == cluster.Silent
	}
	kn, registered := o.Nodes.Value[mem.Name]
	return mem.Name != "" && silent && !kn.Ready && (IsOwn(d, kn) || !registered && wasOwn(o.Facts, mem))
}

// wasOwn reports whether a member of etcd has the name and, unless a DHCP server gave it, the address
// of a node that the inventory had, with a VM of ours.
func wasOwn(f cluster.Facts, mem cluster.Member) bool {
	card, known := f.Cards[mem.Name]
	_, address, _ := strings.Cut(card, " ")
	ip, _, _ := strings.Cut(address, "/")
	return known && cmp.Or(ip, mem.Address) == mem.Address
}

// EvictedPlanes are the control planes whose members somebody has removed from etcd while their
// machines ran: Talos starts such an etcd again every few seconds, for ever, and it ends each time
// (Talos 1.13.9: seen). One that joins is a member before its etcd runs for the first time, and one that
// founded another etcd is healthy. Before are those that were seen to be so: while
// the members are not known, none of them ends.
func EvictedPlanes(d cluster.Desired, o cluster.Observed, before map[string]time.Time) (out []string) {
	for _, n := range d.Spec.ControlPlanes() {
		mach, etcd := o.Machines[n.Name], o.Machines[n.Name].Services["etcd"]
		_, known := before[n.Name]
		runs := etcd.State == "Running" && !etcd.Healthy || etcd.State == "Waiting" && known
		isMember := slices.ContainsFunc(o.Members.Value, func(mem cluster.Member) bool { return mem.IsOf(n) })
		if mach.Reach == cluster.Configured && (runs && o.Members.Known && !isMember || known && !o.Members.Known) {
			out = append(out, n.Name)
		}
	}
	return out
}

// IsEvicted reports whether a control plane was seen for long enough to be one of EvictedPlanes.
func IsEvicted(o cluster.Observed, node string) bool {
	since, evicted := o.EvictedSince[node]
	return evicted && o.Now.Sub(since) >= LostFor
}

// IsOwn reports whether a Node object is of a machine that the agent made.
func IsOwn(d cluster.Desired, kn cluster.KubeNode) bool {
	return kn.Name != "" && strings.EqualFold(kn.UUID, cluster.NodeUUID(d.Spec.ID, kn.Name))
}

// ObjectOf reports whether the machine of a node without a VM has left a Node object, or may have,
// and what its deletion waits for; no Reason: nothing. Kubernetes would take the next machine for
// the one before, with its cordon, its pods and its volumes. That a machine is not there any longer
// that the agent has not removed is seen by three: Proxmox VE, its own address, and Kubernetes.
func ObjectOf(d cluster.Desired, o cluster.Observed, n cluster.Node) (left bool, w cluster.Wait) {
	kn := o.Nodes.Value[n.Name]
	wait := func(reason cluster.Reason, message, hint string) (bool, cluster.Wait) {
		return true, cluster.Wait{Subject: n.Name, Reason: reason, About: "destroyed", Message: "its vm does not exist" + message, Hint: hint}
	}
	switch {
	case !o.Nodes.Known && o.Facts.Settled[n.Name] != "" && (n.Role == cluster.Worker || !lacksAPI(d, o)):
		return wait(cluster.NodesUnknown, "; waits until the nodes in Kubernetes are seen, to delete the Node object of its last machine"+text.Colon(o.Nodes.Why), "")
	case !IsOwn(d, kn):
		return false, w
	case kn.Turn == cluster.TurnRemoval: // it was removed, or this was decided
		return true, w
	case o.Machines[n.Name].Reach != cluster.Silent:
		return wait(cluster.NodeUnknown, ", and it is not known yet whether its machine answers", "")
	case kn.Ready:
		return wait(cluster.OrphanNodeObject, ", and Kubernetes still has its Node as Ready; when its kubelet is silent that is deleted, and the vm is made again",
			"if its machine runs where the agent does not see it: put its vm back into the pool, or switch it off")
	}
	return true, w
}

// silentFor is how long no kube-apiserver must have answered before a control plane is made without
// one: it may be what that takes.
const silentFor = 2 * time.Minute

// lacksAPI reports whether no control plane that is reached has been ready for long.
func lacksAPI(d cluster.Desired, o cluster.Observed) bool {
	return !slices.ContainsFunc(d.Spec.ControlPlanes(), func(cp cluster.Node) bool {
		mach := o.Machines[cp.Name]
		return mach.Reach == cluster.Configured && (mach.Ready || o.Now.Sub(mach.Since) < silentFor)
	})
}

// EtcdOf is the etcd of the nodes that the inventory has, and of those that leave it.
func EtcdOf(d cluster.Desired, o cluster.Observed) quorum.Etcd {
	return quorum.Of(slices.Concat(d.Spec.Nodes, RemovedNodes(d, o)), o)
}

// Settle lets the world do by itself what the plan waits for of what is left over, for a forecast. It reports whether anything
// changed.
func Settle(d cluster.Desired, o *cluster.Observed) (changed bool) {
	for _, n := range RemovedNodes(d, *o) {
		if _, watched := o.Machines[n.Name]; !watched { // it is taken to work
			mach := cluster.Machine{Reach: cluster.Configured, Stage: "running"}
			if n.Role == cluster.ControlPlane {
				mach.Services = map[string]cluster.Service{"etcd": {State: "Running", Healthy: true}}
			}
			o.Machines[n.Name] = mach
			changed = true
		}
	}
	for _, id := range LostMembers(d, *o) {
		if since, ok := o.LostSince[id]; !ok || o.Now.Sub(since) < LostFor {
			o.LostSince[id] = o.Now.Add(-LostFor)
			changed = true
		}
	}
	return changed
}

// IsKeptByName reports whether the VM of another name at the VMID of a node of the
// inventory stays: the node was renamed, and no new machine was asked for. That is so,
// too, while what the node has cannot be seen.
func IsKeptByName(d cluster.Desired, o cluster.Observed, vm cluster.VM) bool {
	_, stays := d.Spec.Node(vm.Node)
	return slices.ContainsFunc(d.Spec.Nodes, func(n cluster.Node) bool { return n.VMID == vm.VMID && (stays || !TakesPlace(d, o, n, vm)) })
}

// TakesPlace reports whether a node is to have a new machine in the place of one of another
// name: it has a token that neither has had, and no machine elsewhere.
func TakesPlace(d cluster.Desired, o cluster.Observed, n cluster.Node, vm cluster.VM) bool {
	asked := n.Replace != "" && n.Replace != vm.Replace && !o.Facts.WasReplaced(n.Name, n.Replace) && !o.Facts.WasReplaced(vm.Node, n.Replace)
	return asked && !n.Locked && !n.Protect && !d.Spec.IsOnlyPlane(n) &&
		!slices.ContainsFunc(o.Orphans.Value, func(other cluster.VM) bool { return other.Node == n.Name })
}

// IsDrained reports whether a node was drained to be removed, and has not
// booted since.
func IsDrained(kn cluster.KubeNode) bool {
	return kn.Cordoned && kn.Turn == cluster.TurnRemoval && kn.Drained != "" && kn.Drained == kn.BootID
}
