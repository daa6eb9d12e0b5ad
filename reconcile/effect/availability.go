package effect

import (
	"maps"
	"slices"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/availability"
	"github.com/talos-agent/talos-agent/reconcile/action"
)

// setAvailability has the HA manager hold a VM in a state, or not at all. It switches on what it has as started.
func setAvailability(d *cluster.Desired, o *cluster.Observed, a action.SetAvailability) {
	held := maps.Clone(o.Availability.Value.Resources)
	if held == nil {
		held = map[int]availability.Resource{}
	}
	if held[a.VM.VMID] = (availability.Resource{State: a.State, Group: d.Spec.HAGroup, Own: true}); a.State == availability.Removed {
		delete(held, a.VM.VMID)
	}
	o.Availability.Value.Resources = held
	set := func(vm cluster.VM) cluster.VM {
		if vm.Managed, vm.HA = a.State == availability.Started, string(a.State); a.State == availability.Started {
			vm.Power = cluster.PowerRunning
		}
		return vm
	}
	if vm := o.VMs[a.Node.Name]; vm.VMID == a.VM.VMID {
		o.VMs[a.Node.Name] = set(vm)
	}
	o.Orphans.Value = slices.Clone(o.Orphans.Value)
	for i, vm := range o.Orphans.Value {
		if vm.VMID == a.VM.VMID {
			o.Orphans.Value[i] = set(vm)
		}
	}
}
