package upgrade

import (
	"fmt"
	"slices"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/bounds"
	"github.com/talos-agent/talos-agent/reconcile/drift"
)

// How long a machine may be silent after the reboot of its upgrade: so many times what a reboot took at most so
// far, and no less than returnLeast. Talos 1.14.0 with isolated workloads needs minutes of every boot.
const (
	returnTimes = 3
	returnLeast = 5 * time.Minute
)

// Return is how it stands with a node whose machine does not come back from the reboot of its upgrade. The zero
// value is a node that is not such a one.
type Return struct {
	Due     bool            // its VM is to be reset now
	Note    string          // when it will be, or was, for people
	Stopped []cluster.Block // why nothing more is done about it; none: something is, or will be
}

// JudgeReturn judges a node that does not answer. Its VM is reset once for each revision of the cluster's files, when its machine has
// been silent for long since it was rebooted into another Talos, and nothing else runs on it that a reset would
// interrupt: no installer, no action of ours, no task and no lock of Proxmox VE. A node that Kubernetes
// has seen in another boot since has come back, and while no other machine answers it may be this host that reaches none.
func JudgeReturn(d cluster.Desired, o cluster.Observed, p cluster.Policy, n cluster.Node) Return {
	r, in := o.Facts.Restarts[n.Name], o.Facts.Installs[n.Name]
	vm, kn := o.VMs[n.Name], o.Nodes.Value[n.Name]
	upgraded := r.Boot != "" && !r.Returned && in.Boot == r.Boot && in.Failed == ""
	silent := vm.Owner == cluster.Ours && vm.Power == cluster.PowerRunning && !vm.Deleting && o.Machines[n.Name].Reach == cluster.Silent
	if back := kn.Ready || kn.BootID != "" && kn.BootID != r.Boot; !upgraded || !silent || back {
		return Return{}
	}
	version, within := in.Version(), returnsWithin(o, r, in)
	if wasReset(d, o, n) {
		return judgeReset(n, vm, version, r, o.Now, within)
	}
	due := latest(o.Machines[n.Name].Since, r.At, r.Reset.At, o.Now.Add(-vm.Uptime)).Add(within)
	if in.Unseen() { // it may run still
		due = latest(due, in.At.Add(InstallWithin))
	}
	keeps := keepsFromReset(d, o, n, vm)
	switch mode, _ := bounds.Upgrade(d.Spec, p); {
	case due.After(o.Now):
		return Return{Note: fmt.Sprintf("; it was rebooted into Talos %s, and its vm is reset if it does not answer by %s", version, text.Moment(due))}
	case keeps != "":
		return Return{Note: fmt.Sprintf("; it was rebooted into Talos %s, and its vm is not reset now: %s", version, keeps)}
	case d.Spec.ApplyOff, p.ApplyOff, mode == cluster.UpgradeOff:
		return Return{Stopped: []cluster.Block{{Subject: n.Name, Reason: cluster.UpgradeStuck, About: version,
			Message: fmt.Sprintf("it was rebooted into Talos %s and does not answer; its vm is not reset, because apply, or upgrade, is off", version),
			Hint:    fmt.Sprintf("see its console, `qm terminal %d` on %s, and reset it there: `qm reset %[1]d`; or set `apply: auto` and `upgrade: auto`, in cluster.yaml or in the host's policy, whichever has the other", n.VMID, vm.Carrier(n))}}}
	}
	return Return{Due: true}
}

// judgeReset judges a node whose VM was reset for its last reboot, or for one before it that was for the same.
func judgeReset(n cluster.Node, vm cluster.VM, version string, r cluster.Restart, now time.Time, within time.Duration) Return {
	at := text.Moment(r.Reset.At)
	if now.Sub(latest(r.Reset.At, r.At)) < within {
		return Return{Note: fmt.Sprintf("; its vm was reset at %s, because it did not come back from a reboot into Talos %s", at, version)}
	}
	return Return{Stopped: []cluster.Block{{Subject: n.Name, Reason: cluster.UpgradeStuck, About: version,
		Message: fmt.Sprintf("it was rebooted into Talos %s and does not answer, nor since its vm was reset at %s; it is not reset again, and no other node is upgraded", version, at),
		Hint:    fmt.Sprintf("`qm terminal %d` on %s shows how far it boots; a commit that changes the cluster's files has its vm reset once more; one that is lost: give it another `replace` in nodes.yaml", n.VMID, vm.Carrier(n))}}}
}

// keepsFromReset is why the VM of a node is not reset for now; "" : nothing keeps it from that.
func keepsFromReset(d cluster.Desired, o cluster.Observed, n cluster.Node, vm cluster.VM) string {
	host := vm.Carrier(n)
	switch h := o.Hosts[host]; {
	case slices.ContainsFunc(o.Running, func(a cluster.Running) bool { return a.Node == n.Name && a.Kind != cluster.ResetVM }):
		return "something is done to it"
	case !h.Known || h.Quorate.Known && !h.Quorate.Value:
		return "host " + host + " is not seen, or has no quorum"
	case vm.Lock != "":
		return "Proxmox VE has locked it"
	case vm.Task != nil:
		return "a task (" + vm.Task.Type + ") runs on it"
	case vm.Managed || HasRequest(vm):
		return "Proxmox VE's HA manages it"
	case isAlone(d, o, n):
		return "no other machine answers either, so that it may be this host that reaches none"
	}
	return ""
}

// returnsWithin is how long the machine of a node may be silent after a reboot into what was installed. Where the reboot installs,
// what that took is in the time of both.
func returnsWithin(o cluster.Observed, r cluster.Restart, in cluster.Install) time.Duration {
	kind := cluster.RebootNode
	if !in.At.Before(r.At) {
		kind = cluster.UpgradeTalos
	}
	return max(returnLeast, returnTimes*o.Usual[kind])
}

// wasReset reports whether the VM of a node was reset at this revision because its machine did not come back.
func wasReset(d cluster.Desired, o cluster.Observed, n cluster.Node) bool {
	reset := o.Facts.Restarts[n.Name].Reset
	return !reset.At.IsZero() && reset.Revision == drift.Attempt(d, o.Facts)
}

// isAlone reports whether a node has others, and the machine of none of them answers.
func isAlone(d cluster.Desired, o cluster.Observed, n cluster.Node) bool {
	others := 0
	for _, other := range d.Spec.Nodes {
		switch {
		case other.Name == n.Name:
		case o.Machines[other.Name].Reach == cluster.Configured:
			return false
		default:
			others++
		}
	}
	return others > 0
}

// latest is the last of some times.
func latest(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }
