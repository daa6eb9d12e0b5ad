package ha

import (
	"fmt"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/upgrade"
)

// disarmedWithin is how long the manager may be disarmed: somebody works on the hosts.
const disarmedWithin = 24 * time.Hour

// IsDisarmed reports whether somebody has disarmed the manager. Then nothing is asked of it: it would note that, and start, stop and
// release no VM before it is armed again (PVE 9.2 pve-ha-manager 5.1.3: Manager.pm, handle_disarm).
func IsDisarmed(o cluster.Observed) bool {
	return o.Availability.Known && o.Availability.Value.Disarmed != ""
}

// IsKept reports whether the manager has a VM that is the agent's own there, or may, and does not release it because it is disarmed.
func IsKept(o cluster.Observed, vm cluster.VM) bool {
	return IsDisarmed(o) && Owns(o, vm) && Holds(o, vm)
}

// CannotFollow reports whether a node could not have its turn now because of its VM, and AwaitFree is the wait of other nodes for it.
func CannotFollow(o cluster.Observed, vm cluster.VM) bool { return IsKept(o, vm) || upgrade.IsBusy(vm) }

// AwaitFree is the wait of nodes that are upgraded after one with such a VM; locked is how long that may be locked.
func AwaitFree(o cluster.Observed, name string, n cluster.Node, vm cluster.VM, locked time.Duration) cluster.Wait {
	if !IsKept(o, vm) {
		return upgrade.AwaitFree(name, n, vm, locked)
	}
	w := AwaitArmed(o, "", fmt.Sprintf("waits to be upgraded until vm %d of %s is free", n.VMID, n.Name))
	w.About, w.Hint = n.Name, fmt.Sprintf("%s; `talos-agent upgrade %s --despite %s` does not wait for it", w.Hint, name, n.Name)
	return w
}

// isOccupied is upgrade.IsBusy, but for the states of a manager that is disarmed: it has no request for a VM, and frozen ones stay as they are.
func isOccupied(o cluster.Observed, vm cluster.VM) bool {
	if IsDisarmed(o) {
		vm.HA = ""
	}
	return upgrade.IsBusy(vm)
}

// AwaitArmed is the wait until the manager is armed again, with the message for people and what would be corrected.
func AwaitArmed(o cluster.Observed, subject, message string, corrects ...cluster.FieldDifference) cluster.Wait {
	return cluster.Wait{Subject: subject, Reason: cluster.HADisarmed, Message: fmt.Sprintf("%s: Proxmox VE's HA manager is disarmed (%s)", message, o.Availability.Value.Disarmed),
		Within: disarmedWithin, Hint: "`ha-manager crm-command arm-ha` on a host arms it again, when the work on the hosts is done", Drift: corrects}
}

// AwaitRemoval is the wait of a node that leaves, whose VM is taken out of HA for that, until it is seen what the manager holds, and
// until that is armed.
func AwaitRemoval(o cluster.Observed, name, verb string, within time.Duration) cluster.Wait {
	w := cluster.Wait{Subject: name, Reason: cluster.HAUnknown, Message: "is " + verb + ": cannot see what Proxmox VE's HA manager holds", Within: within}
	switch {
	case IsDisarmed(o):
		w = AwaitArmed(o, name, "is "+verb)
	case o.Availability.Why != "":
		w.Message += ": " + o.Availability.Why
	}
	w.About = "removal"
	return w
}

// AwaitStart is the wait for the VM of a node that is off, which the manager has to start: it refuses to have it started beside it.
func AwaitStart(o cluster.Observed, n cluster.Node, vm cluster.VM, within time.Duration, corrects ...cluster.FieldDifference) cluster.Wait {
	if message := fmt.Sprintf("vm %d is stopped, and managed by Proxmox VE's HA, which has to start it", n.VMID); !IsDisarmed(o) {
		return cluster.Wait{Subject: n.Name, Reason: cluster.VMManaged, About: "start", Message: message, Within: within, Drift: corrects,
			Hint: fmt.Sprintf("`ha-manager status` on %s shows what keeps it; `ha-manager set vm:%d --state started` has it started; or take it out of HA: `ha-manager remove vm:%[2]d`", vm.Carrier(n), n.VMID)}
	}
	w := AwaitArmed(o, n.Name, fmt.Sprintf("vm %d is stopped, and is not started again", n.VMID), corrects...)
	w.About = "start"
	return w
}
