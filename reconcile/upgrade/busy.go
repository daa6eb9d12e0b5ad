package upgrade

import (
	"fmt"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// IsBusy reports whether Proxmox VE does something with a VM, or is about to, in which that is not to be taken down: it has locked
// it, a task runs on it, or its HA manager has a request for it.
func IsBusy(vm cluster.VM) bool { return vm.Lock != "" || vm.Task != nil || HasRequest(vm) }

// HasRequest reports whether the HA manager of Proxmox VE is about to do something with a VM, or waits to. PVE 8.4 and 9.2
// pve-ha-manager: the states in which nothing is asked of a service are those of a resource that has what was asked for
// (started, stopped, and for the stopped one disabled), and ignored; enabled is an older word for started. All others are on the
// way from one to another: request_stop, request_start, request_start_balance, migrate, relocate, freeze, fence, recovery, error.
// A word that is not known is taken for one of those.
func HasRequest(vm cluster.VM) bool {
	switch vm.HA {
	case "", "started", "enabled", "stopped", "disabled", "ignored":
		return false
	}
	return true
}

// DescribeBusy is what Proxmox VE does with a VM that is busy.
func DescribeBusy(vm cluster.VM) string {
	switch {
	case vm.Lock != "":
		return "Proxmox VE has locked it (" + vm.Lock + ")"
	case vm.Task != nil:
		return "a task runs on it (" + vm.Task.Type + ")"
	case vm.HA == "error":
		return "Proxmox VE's HA manager has given it up (error)"
	case vm.HA == "freeze":
		return "Proxmox VE's HA manager has frozen it (freeze)"
	case vm.HA == "fence", vm.HA == "recovery":
		return "Proxmox VE's HA manager takes it from a host that was lost (" + vm.HA + ")"
	}
	return "Proxmox VE's HA manager has a request for it (" + vm.HA + ")"
}

// requestWithin is how long the HA manager may take for what is no migration: a host that comes back from its own reboot does within it.
const requestWithin = 30 * time.Minute

// BusyWithin is how long a VM may be busy; locked is how long it may be locked, and a migration is such a lock. What the HA
// manager has given up it does not take up again by itself.
func BusyWithin(vm cluster.VM, locked time.Duration) time.Duration {
	switch {
	case vm.Lock != "", vm.Task != nil, vm.HA == "migrate", vm.HA == "relocate":
		return locked
	case vm.HA == "error":
		return time.Second
	}
	return requestWithin
}

// HintOfBusy is what to do about a VM that is busy for long.
func HintOfBusy(n cluster.Node, vm cluster.VM) string {
	host := vm.Carrier(n)
	switch {
	case vm.Lock != "" || vm.Task != nil:
		return "see what runs in Proxmox VE"
	case vm.HA == "error":
		return fmt.Sprintf("`ha-manager status` on %s and the log of pve-ha-lrm show what has failed; then `ha-manager set vm:%d --state disabled`, and `--state started` when that is settled", host, n.VMID)
	case vm.HA == "fence":
		return fmt.Sprintf("`ha-manager status` on a host with quorum shows which one is fenced; the VM is free when that one is back, or it was recovered elsewhere: %s had it", host)
	case vm.HA == "recovery":
		return fmt.Sprintf("`ha-manager status` shows what it waits for; where no other host can have it, as with a local disk: bring back %s, or `ha-manager set vm:%d --state disabled`", host, n.VMID)
	case vm.HA == "freeze":
		return fmt.Sprintf("%s is rebooted, or its HA services are, and the VM is free when they are back; or HA is disarmed, and `ha-manager crm-command arm-ha` arms it again; `ha-manager status` shows which", host)
	}
	return fmt.Sprintf("`ha-manager status` on %s shows the request", host)
}

// AwaitFree is the wait of other nodes until the VM of a node, which is busy, is not any more; locked is how long it may be locked.
func AwaitFree(name string, n cluster.Node, vm cluster.VM, locked time.Duration) cluster.Wait {
	return cluster.Wait{About: n.Name, Reason: cluster.VMLocked, Message: fmt.Sprintf("waits to be upgraded until vm %d of %s is free: %s", n.VMID, n.Name, DescribeBusy(vm)), Within: BusyWithin(vm, locked),
		Hint: fmt.Sprintf("%s; `talos-agent upgrade %s --despite %s` does not wait for it", HintOfBusy(n, vm), name, n.Name)}
}
