package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// SeesAllVMs reports whether it is known which VMs of the cluster there are, and
// whose they are.
func SeesAllVMs(o cluster.Observed) bool {
	for _, vm := range o.VMs {
		if isUnseen(vm) {
			return false
		}
	}
	return o.Orphans.Known
}

// isUnseen reports whether it is not known whether a VM is there, or whose it is.
func isUnseen(vm cluster.VM) bool {
	return vm.Presence == cluster.PresenceUnknown || vm.Presence == cluster.Present && vm.Owner == cluster.OwnerUnknown
}

// planOrphans reports VMs of this cluster that the inventory no longer names.
func (m *planner) planOrphans() {
	if !m.o.Orphans.Known {
		return
	}
	for _, vm := range m.o.Orphans.Value {
		i := slices.IndexFunc(m.d.Spec.Nodes, func(n cluster.Node) bool { return n.Name == vm.Node })
		switch {
		case slices.ContainsFunc(m.d.Spec.Nodes, func(n cluster.Node) bool { return n.VMID == vm.VMID && m.plan.Phases[n.Name] == cluster.PhaseForeign }):
			continue // reported at the node that has its VMID now
		case i >= 0 && m.plan.Phases[vm.Node] == cluster.PhaseAbsent:
			continue // reported at the node
		case i >= 0:
			m.block(cluster.Block{Subject: vm.Node,
				Reason: cluster.DuplicateVM, Message: fmt.Sprintf("vm %d is a second machine for it: the inventory's is vm %d", vm.VMID, m.d.Spec.Nodes[i].VMID),
				Hint: fmt.Sprintf("if vm %d is the right one, write `vmid: %d` at %s in nodes.yaml; else, when nothing on it is needed, remove it by hand: `qm stop %d && qm destroy %d --purge` on %s",
					vm.VMID, vm.VMID, vm.Node, vm.VMID, vm.VMID, vm.Host)})
			continue
		}
		m.block(cluster.Block{Subject: vm.Node,
			Reason: cluster.OrphanVM, Message: fmt.Sprintf("vm %d (%s) belongs to this cluster but is no longer in the inventory; removing nodes is not supported yet", vm.VMID, vm.Node),
			Hint: fmt.Sprintf("put the node back into nodes.yaml; a worker can be removed by hand: `kubectl drain %s --ignore-daemonsets --delete-emptydir-data`, `kubectl delete node %s`, and on %s `qm stop %d && qm destroy %d --purge`",
				vm.Node, vm.Node, vm.Host, vm.VMID, vm.VMID)})
	}
}

// isOrphanVM reports whether a name is that of a VM which planOrphans reports:
// its member of etcd and its Node object are part of the same story.
func (m *planner) isOrphanVM(name string) bool {
	return m.o.Orphans.Known && slices.ContainsFunc(m.o.Orphans.Value, func(vm cluster.VM) bool { return vm.Node == name })
}

// planOrphanMembers reports members of etcd that are no control plane of the
// inventory: each counts for the quorum, be it dead or alive.
func (m *planner) planOrphanMembers() {
	voters := 0
	for _, mem := range m.o.Members.Value {
		if !mem.Learner {
			voters++
		}
	}
	for _, mem := range m.o.Members.Value {
		owner, sure := ownerOf(m.o.Members.Value, mem, m.d.Spec.ControlPlanes())
		switch {
		case owner != "" && sure, m.isOrphanVM(mem.Name):
			continue
		case owner != "":
			m.block(cluster.Block{Subject: owner, Reason: cluster.OrphanEtcdMember, About: mem.HexID(),
				Message: fmt.Sprintf("etcd has more than one member for it: %s at %s may be the one too many", mem.HexID(), cmp.Or(mem.Address, "no address")),
				Hint:    fmt.Sprintf("`talosctl%s etcd status` shows the id of its own member; remove the other: `talosctl%s etcd remove-member ID`", m.onNode(owner), m.onNode(owner))})
			continue
		}
		message := fmt.Sprintf("etcd has a member that is no control plane of the inventory: %s at %s, id %s; %d of its %d voters must run", cmp.Or(mem.Name, "one without a name"), cmp.Or(mem.Address, "no address"), mem.HexID(), voters/2+1, voters)
		hint := fmt.Sprintf("put the node back into nodes.yaml; or, when its machine is switched off for good: %s", m.removal(mem))
		if mem.Name == "" {
			// A member has no name before it runs for the first time, and may come
			// over an address that the inventory does not have.
			m.wait(cluster.Wait{Subject: m.d.Spec.Name, Reason: cluster.OrphanEtcdMember, About: mem.HexID(), Message: message, Hint: hint, Within: etcdWithin})
			continue
		}
		m.block(cluster.Block{Subject: mem.Name, Reason: cluster.OrphanEtcdMember, About: mem.HexID(), Message: message, Hint: hint})
	}
}

// ownerOf returns whose member of etcd one is, "" when no control plane's. A
// control plane may seem to have several, and then that is its own which has both
// its name and its address; sure is false for the others, and for all where none
// or several have both.
func ownerOf(members []cluster.Member, mem cluster.Member, planes []cluster.Node) (owner string, sure bool) {
	i := slices.IndexFunc(planes, func(n cluster.Node) bool { return isMember(mem, n) })
	if i < 0 {
		return "", false
	}
	n, candidates, exact := planes[i], 0, 0
	isExact := func(mem cluster.Member) bool { return mem.Name == n.Name && mem.Address == n.IP.String() }
	for _, other := range members {
		if isMember(other, n) {
			candidates++
		}
		if isExact(other) {
			exact++
		}
	}
	return n.Name, candidates == 1 || exact == 1 && isExact(mem)
}

// lostHint is what to do about a control plane that was a member of etcd and has
// lost its data.
func (m *planner) lostHint(n cluster.Node) string {
	const never = "; never bring an old copy of it back"
	i := slices.IndexFunc(m.o.Members.Value, func(mem cluster.Member) bool { return isMember(mem, n) })
	if i < 0 {
		return "remove its member on another control plane: `talosctl etcd members` shows its id, and `talosctl etcd remove-member ID` removes it" + never
	}
	return "remove its member: " + m.removal(m.o.Members.Value[i]) + never
}

// removal is the command that removes a member of etcd, asked of another one
// that is healthy.
func (m *planner) removal(mem cluster.Member) string {
	on := ""
	if i := slices.IndexFunc(m.etcd.healthy, func(name string) bool { return name != mem.Name }); i >= 0 {
		on = m.onNode(m.etcd.healthy[i])
	}
	return fmt.Sprintf("`talosctl%s etcd remove-member %s`", on, mem.HexID())
}

// onNode is the option of talosctl for a node.
func (m *planner) onNode(name string) string {
	n, ok := m.d.Spec.Node(name)
	if !ok {
		return ""
	}
	return " -n " + n.IP.String()
}

// planOrphanNodes reports Node objects that are no node of the inventory.
func (m *planner) planOrphanNodes() {
	for _, name := range slices.Sorted(maps.Keys(m.o.Nodes.Value)) {
		if _, ok := m.d.Spec.Node(name); ok || m.isOrphanVM(name) {
			continue
		}
		how := "is Ready"
		if kn := m.o.Nodes.Value[name]; !kn.Ready {
			how = "is NotReady" + colon(kn.Why)
		}
		m.block(cluster.Block{Subject: name, Reason: cluster.OrphanNodeObject, Message: "Kubernetes has a Node that the inventory does not; it " + how,
			Hint: fmt.Sprintf("put the node back into nodes.yaml; or, when its machine is switched off for good: `kubectl delete node %s`", name)})
	}
}
