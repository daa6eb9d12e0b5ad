package plan

import (
	"maps"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/capacity"
	"github.com/talos-agent/talos-agent/reconcile/drift"
)

// judgeCapacity decides for which of the nodes without a VM there is room, and for what of
// those that have one is to become larger: in the order of the inventory, as far as hosts
// and storages are seen. A node that is out of service for its turn comes first, or what it was
// drained for would be another one's. What is there already is counted and never judged.
func (m *planner) judgeCapacity() {
	m.lacks, m.short = map[string][]cluster.Block{}, map[string][]string{}
	ledger := capacity.NewLedger(m.d, m.o, m.p, m.isMade, m.isGrowing)
	m.ledger = ledger
	fresh := true
	begun := func(n cluster.Node) bool { return m.o.Nodes.Value[n.Name].Turn != "" }
	first := slices.DeleteFunc(slices.Clone(m.d.Spec.Nodes), func(n cluster.Node) bool { return !begun(n) })
	for _, n := range slices.Concat(first, slices.DeleteFunc(slices.Clone(m.d.Spec.Nodes), begun)) {
		made := m.isMade(n)
		fresh = fresh && !made
		if made {
			m.judgeGrowth(ledger, n)
			continue
		}
		host := m.placeNode(n)
		if n.Locked || !m.o.Hosts[host].Known {
			continue
		}
		if lacks := ledger.TakeVM(n, host); len(lacks) > 0 {
			if n.Placement.Full {
				lacks[0].Message += "; and none of " + strings.Join(n.Placement.Among, ", ") + " has room for it"
			}
			m.lacks[n.Name] = lacks
		}
	}
	m.tooLarge = fresh && len(m.lacks) > 0
	clear(m.turns) // which depend on the room there is
}

// judgeGrowth decides what of a VM that is there may become larger, and reports what may
// not: nothing is taken down for that, and whatever needs no room is changed all the same.
func (m *planner) judgeGrowth(ledger *capacity.Ledger, n cluster.Node) {
	vm := m.o.VMs[n.Name]
	host := vm.Carrier(n)
	h := m.o.Hosts[host]
	if !h.Known || n.Locked || vm.Owner != cluster.Ours || vm.Deleting || !vm.Hardware.Known || m.isGrowing(n) || drift.IsReplaced(n, vm, m.o.Facts) || m.isDead(n.Name) {
		return
	}
	lack := func(b cluster.Block, fields ...string) {
		if b.Reason != "" && !m.isRunning(cluster.ChangeVM, n.Name) {
			m.short[n.Name] = append(m.short[n.Name], fields...)
			m.block(b)
		}
	}
	if n.Cores != vm.Hardware.Value.Cores {
		lack(ledger.LackCores(n, host), string(cluster.FieldCores))
	}
	if more := (n.MemoryMiB - vm.Hardware.Value.MemoryMiB) << 20; more > 0 {
		lack(ledger.TakeMemory(n, host, more), string(cluster.FieldMemory))
	}
	options, names := capacity.NewOptions(n, vm.Hardware.Value)
	for _, b := range ledger.TakeOptions(n, host, options) {
		lack(b, names...)
	}
	more, fields := capacity.GrowthByStore(n, vm.Hardware.Value)
	for _, store := range slices.Sorted(maps.Keys(more)) {
		if !m.storesUsable(n, host, h, []capacity.Need{{Name: store, Content: "images", Field: "datastore of a disk"}}, more) {
			m.short[n.Name] = append(m.short[n.Name], fields[store]...)
			continue
		}
		lack(ledger.TakeDisk(n, host, store, more[store]), fields[store]...)
	}
}

// fitDrifts is what of some drifts of a VM there is room for.
func (m *planner) fitDrifts(n cluster.Node, drifts []drift.Drift) []drift.Drift {
	return slices.DeleteFunc(drifts, func(dr drift.Drift) bool { return slices.Contains(m.short[n.Name], dr.Field) })
}

// holdCapacity reports whether a node has to wait because there is no room for it, or,
// while nothing of its cluster is there, for another node: half a cluster is of no
// use, and takes the room of another one.
func (m *planner) holdCapacity(n cluster.Node) bool {
	for _, b := range m.lacks[n.Name] {
		m.block(b)
	}
	if len(m.lacks[n.Name]) > 0 {
		return true
	}
	if m.tooLarge {
		m.wait(cluster.Wait{Subject: n.Name, Reason: cluster.WaitingForCapacity, Message: "waits until there is room for all nodes: no part of a new cluster is made before"})
	}
	return m.tooLarge
}

// isMade reports whether a node has a VM, or may have one, or is getting one.
func (m *planner) isMade(n cluster.Node) bool {
	return m.plan.Phases[n.Name] != cluster.PhaseAbsent || m.isRunning(cluster.CreateVM, n.Name)
}

// isGrowing reports whether the disks of a node's VM may not have their size yet.
func (m *planner) isGrowing(n cluster.Node) bool {
	return m.plan.Phases[n.Name] == cluster.PhaseCreating || m.isRunning(cluster.CreateVM, n.Name) || drift.IsUnmade(m.o.VMs[n.Name])
}
