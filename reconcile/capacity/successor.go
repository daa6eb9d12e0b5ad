package capacity

import (
	"maps"
	"slices"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// LackSuccessor returns what there is too little of for the VM of a node on a host, when another VM
// is deleted first, in whose place it is made. What the other one takes of a storage counts as free,
// in full: how much of a thin volume is written is not known.
func (l *Ledger) LackSuccessor(n cluster.Node, host string, old cluster.VM) []cluster.Block {
	o := l.o
	o.Hosts = maps.Clone(o.Hosts)
	for name, h := range o.Hosts {
		h.Guests = slices.DeleteFunc(slices.Clone(h.Guests), func(g cluster.Guest) bool { return g.VMID == old.VMID })
		h.Storages.Value = maps.Clone(h.Storages.Value)
		for store, st := range h.Storages.Value {
			st.FreeBytes = min(st.FreeBytes+st.Volumes.Value[old.VMID], st.TotalBytes)
			st.Volumes.Value = maps.Clone(st.Volumes.Value)
			delete(st.Volumes.Value, old.VMID)
			h.Storages.Value[store] = st
		}
		o.Hosts[name] = h
	}
	o.Orphans.Value = slices.DeleteFunc(slices.Clone(o.Orphans.Value), func(vm cluster.VM) bool { return vm.VMID == old.VMID })
	after := &Ledger{d: l.d, o: o, p: l.p, made: maps.Clone(l.made), growing: maps.Clone(l.growing), given: maps.Clone(l.given), memory: map[string]*room{}, cores: map[string]*room{}, disks: map[string]*room{}}
	after.made[n.Name], after.growing[n.Name] = false, false
	return after.TakeVM(n, host)
}
