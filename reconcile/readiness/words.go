package readiness

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// HintOfSilent is where to look when nothing answers for a node whose VM runs.
func HintOfSilent(n cluster.Node, vm cluster.VM, o cluster.Observed) string {
	hint := fmt.Sprintf("look at its console: `qm terminal %d` on %s; has it booted the nocloud image, and does its bridge %s reach the agent?", n.VMID, cmp.Or(vm.Host, n.Placement.Pin), cmp.Or(vm.Hardware.Value.Bridge, n.Bridge))
	if mayInstall(n, vm, o) {
		// Talos 1.13.9, haltIfInstalled: what an installer has begun counts as an installation.
		hint += " Where it finds Talos installed and halts, its installation was interrupted: give it another `replace`"
	}
	return hint
}

// HintOfStop is the way to have the VM of a node that is not reached changed all the same; "" : it is
// reached, or something else is to be done.
func HintOfStop(o cluster.Observed, n cluster.Node, kind cluster.ActionKind) string {
	if kind != cluster.ChangeVM || o.Machines[n.Name].Reach == cluster.Configured {
		return ""
	}
	return fmt.Sprintf("if its network keeps it from working: `qm shutdown %d` on %s, or `qm stop %[1]d` where it does not obey; a vm that is stopped is changed at once, and started then", n.VMID, o.VMs[n.Name].Carrier(n))
}

// LockedBy mentions the lock on a VM that runs: a backup slows it down, and may have
// stopped it.
func LockedBy(vm cluster.VM) string {
	if vm.Lock == "" {
		return ""
	}
	return fmt.Sprintf("; Proxmox VE has locked the vm (%s)", vm.Lock)
}

// WhyUnseen is why a node cannot be seen, and what to do about it where that is known.
func WhyUnseen(vm cluster.VM, mach cluster.Machine) (why, hint string) {
	switch {
	case vm.Why != "":
		return vm.Why, ""
	case mach.Why != "":
		return mach.Why, mach.Hint
	default:
		return "there is no answer yet", ""
	}
}

// AwaitSeen is the wait for a node that cannot be seen, for so long.
func AwaitSeen(n cluster.Node, vm cluster.VM, mach cluster.Machine, o cluster.Observed, within time.Duration) cluster.Wait {
	why, hint := WhyUnseen(vm, mach)
	w := cluster.Wait{Subject: n.Name, Reason: cluster.NodeUnknown, Message: "cannot see it: " + why, Hint: hint, Within: within}
	if n.Leased && vm.Why == "" && vm.Power == cluster.PowerRunning && mach.Reach == cluster.ReachUnknown {
		w.Reason, w.Within, w.Hint = cluster.WaitingForAddress, BootWithin, cmp.Or(hint, HintOfSilent(n, vm, o))
	}
	if mach.Stage == "installing" {
		// It has no certificate of the cluster before a control plane signs it, which may install itself meanwhile.
		w.Reason, w.Message, w.Hint, w.Within = cluster.WaitingForTalos, "Talos is installing", "", installWithin
	}
	return w
}

// HintOfRefused is what to do about an addon whose pods Pod Security refuses.
func HintOfRefused(a cluster.Addon) string {
	const label = "pod-security.kubernetes.io/enforce"
	switch {
	case cluster.SharedNamespace(a.Namespace):
		return fmt.Sprintf("give the addon a namespace of its own, and it the label `namespace_labels: {%s: privileged}`, in %s", label, a.File)
	case a.Asks.Labels[label] != "":
		return fmt.Sprintf("if these pods are wanted, write `%s: privileged` into namespace_labels in %s; the cluster tries again by itself, after 17 minutes at most", label, a.File)
	case a.Ownership == cluster.BootstrapOnly:
		return fmt.Sprintf("if these pods are wanted: `kubectl label namespace %s %s=privileged`", a.Namespace, label)
	}
	return fmt.Sprintf("if these pods are wanted, write `namespace_labels: {%s: privileged}` into %s", label, a.File)
}

// EndOfLog is the end of a task's log in words.
func EndOfLog(log []string) string {
	lines := slices.DeleteFunc(slices.Clone(log), func(l string) bool { return strings.TrimSpace(l) == "" })
	if len(lines) == 0 {
		return ""
	}
	return "; its log ends: " + strings.TrimSpace(lines[len(lines)-1])
}

// HintOfLocked is how a person removes a VM that a task left locked. Its config
// names none of the volumes that were made for it: a plain destroy leaves them, and
// the next creation would stumble over them.
func HintOfLocked(vm cluster.VM, host string) string {
	return cluster.RemoveLocked(vm.VMID, host) + ", which deletes every volume with its number"
}

// OwnEndpoint returns why a new machine of a control plane would not find the etcd of the others:
// the endpoint in its config is its own address. No Reason: it would.
// Talos 1.13: a machine that joins etcd has the addresses of the others from the Kubernetes API
// at the endpoint (k8s.EndpointController), or from discovery.
func OwnEndpoint(d cluster.Desired, n cluster.Node) cluster.Block {
	u, err := url.Parse(d.Spec.Network.Endpoint)
	if err != nil || n.Role != cluster.ControlPlane || len(d.Spec.ControlPlanes()) == 1 || u.Hostname() != n.IP.String() || d.Configs[n.Name].Summary.Discovery {
		return cluster.Block{}
	}
	return cluster.Block{Subject: n.Name, Reason: cluster.EndpointIsNode,
		Message: fmt.Sprintf("the endpoint of the cluster, %s, is its own address: a new machine of it would not find the etcd of the others", d.Spec.Network.Endpoint),
		Hint:    "write a `vip`, or an `endpoint` that leads to all control planes, under network in cluster.yaml; the nodes get that first"}
}

// RootOf is what the first of some waits comes from: what it is about may wait itself.
func RootOf(waits []cluster.Wait) cluster.Wait {
	w := waits[0]
	for range waits { // two may wait for each other
		i := slices.IndexFunc(waits, func(of cluster.Wait) bool { return of.Subject == w.About })
		if i < 0 || waits[i].Key() == waits[0].Key() {
			break
		}
		w = waits[i]
	}
	return w
}
