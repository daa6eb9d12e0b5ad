// Package ha decides what Proxmox VE's HA manager is to do about the VMs of a cluster. It is pure: it is handed what is seen,
// and knows no actions.
//
// A VM is the manager's while its node is in service. For the turn of the node the manager is asked to ignore it, which leaves
// its resource and its rules as they are: else it would start again, or elsewhere, what the agent takes down. What that has begun
// is not noted anywhere: a node that is ignored, is Ready and has no turn any more is put back.
package ha

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/availability"
	"github.com/talos-agent/talos-agent/reconcile/upgrade"
)

// Owns reports whether the resource of a VM is the agent's own: what others have made is left as it is.
func Owns(o cluster.Observed, vm cluster.VM) bool {
	return vm.VMID != 0 && o.Availability.Known && o.Availability.Value.Resources[vm.VMID].Own
}

// IsUnseen reports whether it is not seen whose the resource of a VM is that the manager manages, and it may be the agent's own.
func IsUnseen(d cluster.Desired, o cluster.Observed, vm cluster.VM) bool {
	return vm.Managed && d.Spec.Availability && !o.Availability.Known
}

// IsOthers reports whether the manager manages a VM by a resource that somebody else has made, or will when it is armed again.
func IsOthers(d cluster.Desired, o cluster.Observed, vm cluster.VM) bool {
	r, there := o.Availability.Value.Resources[vm.VMID]
	keeps := vm.VMID != 0 && o.Availability.Known && there && r.State != availability.Ignored
	return (vm.Managed || keeps) && !Owns(o, vm) && !IsUnseen(d, o, vm)
}

// Holds reports whether the manager may act on a VM that is the agent's own there: it does so until it has released it, which is a
// round after it was asked to.
func Holds(o cluster.Observed, vm cluster.VM) bool {
	return vm.Managed || Owns(o, vm) && !isReleased(vm)
}

// isReleased reports whether the manager has no state of a VM in which it would start it again.
func isReleased(vm cluster.VM) bool {
	return !vm.Managed && (vm.HA == "" || vm.HA == string(availability.Ignored))
}

// Next is what is next for one node: at most one of these.
type Next struct {
	Set   bool
	State availability.State // of Set
	Wait  cluster.Wait
	Block cluster.Block
}

// awaitManager is the wait of a cluster, or of a node, until it is seen what the manager holds.
func awaitManager(subject string, o cluster.Observed, within time.Duration) cluster.Wait {
	return cluster.Wait{Subject: subject, Reason: cluster.HAUnknown, Message: "cannot see what Proxmox VE's HA manager holds: " + cmp.Or(o.Availability.Why, "it has not answered yet"), Within: within,
		Hint: "`talos-agent doctor` shows which right the token lacks"}
}

// OfNode is what is next for the VM of a node that is not deleted. ready: the node is Ready, and in service. within is how long what the
// manager holds may not be seen.
func OfNode(d cluster.Desired, o cluster.Observed, n cluster.Node, vm cluster.VM, ready bool, within time.Duration) Next {
	seen := o.Availability
	r, there := seen.Value.Resources[vm.VMID]
	free := vm.Presence == cluster.Present && vm.Owner == cluster.Ours && !vm.Deleting && !isOccupied(o, vm)
	report := func(about, message, hint string) Next {
		return Next{Block: cluster.Block{Subject: n.Name, Reason: cluster.HANotHeld, About: about, Message: fmt.Sprintf("vm %d is not kept running: %s", vm.VMID, message), Hint: hint}}
	}
	switch {
	case n.Locked:
		return Next{}
	case !d.Spec.Availability && there && r.Own && free:
		return Next{Set: true, State: availability.Removed}
	case !d.Spec.Availability:
		return Next{}
	case !seen.Known && seen.Why != "":
		return Next{Wait: awaitManager(d.Spec.Name, o, within)}
	case there && !r.Own && r.State == availability.Ignored:
		return report("", "somebody else has made its HA resource, and has it ignored", fmt.Sprintf("`ha-manager remove vm:%d` leaves it to the agent", vm.VMID))
	case !seen.Known, there && !r.Own, vm.Power != cluster.PowerRunning:
		return Next{}
	case seen.Value.HasRules && d.Spec.HAGroup != "":
		return Next{Block: cluster.Block{Subject: d.Spec.Name, Reason: cluster.HANotHeld, About: "group", Message: fmt.Sprintf("its VMs are not given to Proxmox VE's HA manager: this Proxmox VE has rules in the place of groups (%s)", d.Spec.HAGroup),
			Hint: "remove `group` from `ha`, and write a node affinity rule under Datacenter, HA, Affinity Rules"}}
	case there && vm.HA == "error":
		return report("", upgrade.DescribeBusy(vm), upgrade.HintOfBusy(n, vm))
	case !free, !ready, !o.Hosts[vm.Carrier(n)].Storages.Known:
		return Next{}
	case there && r.State == availability.Started && r.Group == d.Spec.HAGroup:
		return Next{}
	}
	if store := localStore(o, n, vm); store != "" {
		return report(store, fmt.Sprintf("it has disks on %s, which is not shared, so that Proxmox VE's HA manager could not start it on another host", store), "write a shared storage in `proxmox`, or `ha: {enabled: false}`")
	}
	return Next{Set: true, State: availability.Started}
}

// OfDeleted is what is next for a VM that is to be deleted: nothing when the manager has nothing to do with it any more.
func OfDeleted(d cluster.Desired, o cluster.Observed, name string, vm cluster.VM, within time.Duration) Next {
	switch {
	case Owns(o, vm):
		return Next{Set: true, State: availability.Removed}
	case IsUnseen(d, o, vm):
		return Next{Wait: awaitManager(name, o, within)}
	case d.Spec.Availability && !isReleased(vm) && IsDisarmed(o):
		return Next{Wait: AwaitArmed(o, name, fmt.Sprintf("waits until Proxmox VE's HA manager has released vm %d (%s)", vm.VMID, vm.HA))}
	case d.Spec.Availability && !isReleased(vm):
		return Next{Wait: cluster.Wait{Subject: name, Reason: cluster.VMManaged, About: "release", Message: fmt.Sprintf("waits until Proxmox VE's HA manager has released vm %d (%s)", vm.VMID, vm.HA), Within: within}}
	}
	return Next{}
}

// localStore is a storage of a VM that its host does not share with others, "" where there is none.
func localStore(o cluster.Observed, n cluster.Node, vm cluster.VM) string {
	stores := []string{n.Datastore, n.CloudInitDatastore}
	for _, d := range n.Disks {
		stores = append(stores, d.Datastore)
	}
	for _, s := range stores {
		if !o.Hosts[vm.Carrier(n)].Storages.Value[s].Shared {
			return s
		}
	}
	return ""
}

// Restart reports whether the manager, which has a VM that is off, is to be asked to have it running again: it switches on by itself
// what it has as started, and it has given up what is in error.
func Restart(o cluster.Observed, vm cluster.VM) bool {
	state := o.Availability.Value.Resources[vm.VMID].State
	return Owns(o, vm) && vm.HA != "error" && state != availability.Started
}

// Apart are the VMs that the rule of a cluster is to keep on hosts of their own, and whether it is to be made, changed or, with
// fewer than two, deleted: its control planes that the agent has given to the manager. There is none where they have fewer hosts than
// there are of them, which the manager refuses. A rule that somebody has disabled is left so.
func Apart(d cluster.Desired, o cluster.Observed) (vmids []int, change bool) {
	m := o.Availability.Value
	if !o.Availability.Known || !m.HasRules {
		return nil, false
	}
	hosts := map[string]bool{}
	for _, n := range d.Spec.ControlPlanes() {
		if d.Spec.Availability && m.Resources[n.VMID].Own {
			vmids = append(vmids, n.VMID)
		}
		for _, h := range n.Placement.Hosts() {
			hosts[h] = true
		}
	}
	if slices.Sort(vmids); len(vmids) < 2 || len(hosts) < len(vmids) {
		return nil, m.Apart != nil
	}
	return vmids, m.Apart == nil || m.Apart.Together || !slices.Equal(m.Apart.VMs, vmids)
}

// BlockApart reports a rule that the manager does not follow; no Reason: it does, or there is none.
func BlockApart(d cluster.Desired, o cluster.Observed) cluster.Block {
	r := o.Availability.Value.Apart
	switch {
	case !d.Spec.Availability || r == nil || r.Broken == "" && !r.Disabled:
		return cluster.Block{}
	case r.Disabled:
		return cluster.Block{Subject: d.Spec.Name, Reason: cluster.HANotHeld, About: "rule", Message: "somebody has disabled the rule of Proxmox VE that keeps its control planes on hosts of their own",
			Hint: "enable it under Datacenter, HA, Affinity Rules"}
	}
	return cluster.Block{Subject: d.Spec.Name, Reason: cluster.HANotHeld, About: "rule", Message: "Proxmox VE does not follow the rule that keeps its control planes on hosts of their own: " + r.Broken,
		Hint: "change the other rule that it names, under Datacenter, HA, Affinity Rules"}
}
