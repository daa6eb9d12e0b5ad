package readiness

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/drift"
)

// BootWithin is how long a machine may take from its start until it answers.
const BootWithin = 5 * time.Minute

// LeftEtcd is what a Lack is about whose etcd has left the others: it stays away until its machine
// starts again (Talos 1.13).
const LeftEtcd = "left"

// Classify shows where a node stands. The planner and `status` both ask it, so
// that they cannot disagree.
func Classify(n cluster.Node, o cluster.Observed) cluster.Phase {
	vm := o.VMs[n.Name]
	for _, r := range o.Running {
		if r.Node == n.Name && r.Kind == cluster.CreateVM {
			return cluster.PhaseCreating
		}
		if r.Node == n.Name && r.Kind == cluster.DeleteVM {
			return cluster.PhaseLeaving
		}
	}
	switch {
	case vm.Presence == cluster.PresenceUnknown:
		return cluster.PhaseUnknown
	case vm.Task != nil && vm.Task.Type == "qmcreate":
		return cluster.PhaseCreating
	case vm.Presence == cluster.Absent:
		return cluster.PhaseAbsent
	case vm.Owner == cluster.Foreign:
		return cluster.PhaseForeign
	case vm.Owner == cluster.OwnerUnknown:
		return cluster.PhaseUnknown
	case vm.Deleting:
		return cluster.PhaseLeaving
	case vm.Power == cluster.Paused:
		return cluster.PhasePaused
	case vm.Power == cluster.Stopped && vm.Lock != "":
		return cluster.PhaseLocked
	case vm.Power == cluster.Stopped:
		return cluster.PhaseStopped
	case vm.Power == cluster.PowerUnknown:
		return cluster.PhaseUnknown
	}
	m := o.Machines[n.Name]
	switch m.Reach {
	case cluster.Unexpected:
		return cluster.PhaseForeign
	case cluster.Maintenance:
		return cluster.PhaseMaintenance
	case cluster.Configured:
		switch w := Lacking(n, o); {
		case w.Reason == "":
			return cluster.PhaseReady
		case w.Unseen && m.Ready:
			// Talos itself reports that all is well with it, its Kubernetes node
			// included: it has joined, and only cannot be asked about.
			return cluster.PhaseUnknown
		}
		return cluster.PhaseJoining
	case cluster.Silent:
		// One that was ready since its VM was started has booted.
		if vm.Uptime > BootWithin || m.ReadyAt.After(o.Now.Add(-vm.Uptime)) {
			return cluster.PhaseUnreachable
		}
		return cluster.PhaseBooting
	default:
		return cluster.PhaseUnknown
	}
}

// IsTakenDown reports whether an action that runs has the machine of a node go down, or boot again.
func IsTakenDown(node string, running []cluster.Running) bool {
	kinds := []cluster.ActionKind{cluster.RebootNode, cluster.UpgradeTalos, cluster.RollBackTalos, cluster.ShutDownVM, cluster.StartVM, cluster.ResetVM}
	return slices.ContainsFunc(running, func(r cluster.Running) bool { return r.Node == node && slices.Contains(kinds, r.Kind) })
}

// Lack is what a configured machine still lacks to be a Ready node; the zero
// value is nothing.
type Lack struct {
	Reason  cluster.Reason
	About   string
	Message string
	Unseen  bool // it is unknown rather than missing
}

// Wait is the wait for it.
func (l Lack) Wait(n cluster.Node, within time.Duration) cluster.Wait {
	return cluster.Wait{Subject: n.Name, Reason: l.Reason, About: l.About, Message: l.Message, Within: within}
}

// Lacking returns the first thing that a configured machine lacks to be a Ready
// node.
func Lacking(n cluster.Node, o cluster.Observed) Lack {
	m := o.Machines[n.Name]
	if m.Stage != "running" {
		message := "Talos is " + cmp.Or(m.Stage, "starting")
		if LacksVIP(o) {
			// The last step of a boot is a call of the Kubernetes API.
			message += ", which does not end before the VIP answers"
		}
		if drift.FindsNoEtcd(o, n) {
			message += ", and does not find etcd: it looks for the others at its own address, which is its endpoint; a `vip`, or another `endpoint`, under network in cluster.yaml leads out"
		}
		return Lack{cluster.WaitingForTalos, m.Stage, message, false}
	}
	if n.Role == cluster.ControlPlane {
		if l := planeLacks(n, o); l.Reason != "" {
			return l
		}
	}
	if !o.Nodes.Known {
		return Lack{cluster.NodesUnknown, "", "cannot see the nodes in Kubernetes" + text.Colon(o.Nodes.Why), true}
	}
	kn, ok := o.Nodes.Value[n.Name]
	switch {
	case !ok:
		return Lack{cluster.WaitingToRegister, "", "it has not registered with Kubernetes yet", false}
	case !kn.Ready:
		return Lack{cluster.NodeNotReady, "", "Kubernetes reports NotReady" + text.Colon(kn.Why) + failingOn(n.Name, o), false}
	case kn.BootID != "" && m.BootID != "" && kn.BootID != m.BootID:
		// What Kubernetes has of it is from before it booted: for up to 40 s it calls a
		// node Ready whose kubelet is silent.
		return Lack{cluster.WaitingToRegister, "boot", "its kubelet has not reported since it booted", false}
	case !m.Ready:
		return Lack{cluster.TalosNotReady, "", "Talos reports that it is not ready" + text.Colon(strings.Join(m.Unmet, ", ")), false}
	}
	return staticPodsLack(n, o)
}

// planeLacks is what a control plane lacks besides: its member of etcd
// and its kube-apiserver.
func planeLacks(n cluster.Node, o cluster.Observed) Lack {
	if !o.Members.Known {
		return Lack{cluster.EtcdMembersUnknown, "", "the members of etcd are not known: " + o.Members.Why, true}
	}
	i := slices.IndexFunc(o.Members.Value, func(mem cluster.Member) bool { return mem.IsOf(n) })
	etcd := o.Machines[n.Name].Services["etcd"]
	switch {
	case i < 0 && etcd.State == "Finished":
		return Lack{cluster.WaitingForMembership, LeftEtcd, "its etcd has left the others, or was stopped, and only a restart of the node starts it again, which it gets after ten minutes unless heal is observe; at once: `talosctl -n " + n.IP.String() + " reboot`", false}
	case i < 0:
		return Lack{cluster.WaitingForMembership, "", "it has not joined etcd yet" + text.Colon(etcd.Message), false}
	case o.Members.Value[i].Learner:
		return Lack{cluster.WaitingForMembership, "learner", "it is still a learner of etcd", false}
	}
	if !etcd.Healthy {
		return Lack{cluster.EtcdUnhealthy, "", "its etcd is not healthy" + text.Colon(etcd.Message), false}
	}
	if api := o.APIs[n.Name]; !api.Known || !api.Value {
		return Lack{cluster.APIServerNotReady, "", "its kube-apiserver is not ready" + text.Colon(api.Why), !api.Known}
	}
	return Lack{}
}

// staticPodsLack is what the static pods of a control plane lack. Talos reports them as ready for
// up to 15 s while they are restarted for a change of its config, and the pod in Kubernetes may be
// the one from before for two minutes: what it is made of and its readiness count together, and
// only where Kubernetes has pods for those of the node at all. While the pods cannot be read it is
// unknown: the kube-apiserver that they are read from may be just the one that is restarted.
func staticPodsLack(n cluster.Node, o cluster.Observed) Lack {
	pods, wanted := o.SystemPods, o.Machines[n.Name].StaticPods
	switch {
	case len(wanted) == 0:
		return Lack{}
	case !pods.Known:
		return Lack{cluster.SystemPodsUnknown, "", "cannot see the pods of kube-system" + text.Colon(pods.Why), true}
	}
	if shows := slices.ContainsFunc(slices.Collect(maps.Values(pods.Value)), func(p cluster.SystemPod) bool {
		return p.Node == n.Name && p.Static != cluster.StaticPod{}
	}); !shows {
		return Lack{}
	}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		switch p, ok := pods.Value[name+"-"+n.Name]; {
		case !ok:
			return Lack{cluster.StaticPodOutdated, name, "Kubernetes does not have its " + name + " yet", false}
		case !p.Static.IsSame(wanted[name]):
			return Lack{cluster.StaticPodOutdated, name, "its " + name + " is not yet the one of its config, by what Kubernetes shows" + text.Colon(p.Failing), false}
		case !p.Ready:
			return Lack{cluster.StaticPodNotReady, name, "its " + name + " is not ready" + text.Colon(p.Failing), false}
		}
	}
	return Lack{}
}

// vipWithin is how long the VIP may move between control planes.
const vipWithin = time.Minute

// AwaitVIP is the wait for a VIP at which no kube-apiserver of the cluster answers, while one
// does on a control plane's own address, without a reason where there is none. Talos elects the holder through etcd and
// moves the address within a minute when a control plane is lost.
func AwaitVIP(d cluster.Desired, o cluster.Observed) cluster.Wait {
	if !LacksVIP(o) {
		return cluster.Wait{}
	}
	addr, v := d.Repository().Spec.Network.VIP, o.VIP.Value
	message := fmt.Sprintf("no kube-apiserver answers at the VIP %s, though one does on a control plane's own address", addr)
	hint := fmt.Sprintf("`talosctl get addresses` on the control planes shows whether one has %s; a patch that names another link, or that removes the VIP, keeps Talos from taking it", addr)
	switch by := d.Repository().Spec.Network.VIPBy; {
	case by == cluster.VIPByExternal:
		hint = fmt.Sprintf("see whether the load balancer that has %s runs, and forwards port 6443 to the control planes; without terminating TLS, for clients have certificates", addr)
		return cluster.Wait{Subject: d.Spec.Name, Reason: cluster.VIPNotServed, Message: message + text.Colon(v.Why), Within: vipWithin, Hint: hint}
	case by == cluster.VIPByKubeVIP:
		hint = fmt.Sprintf("`kubectl get pods -A -o wide | grep kube-vip` shows whether kube-vip runs on the control planes, and its logs whether it takes %s", addr)
	}
	if v.MAC != "" {
		i := slices.IndexFunc(d.Spec.Nodes, func(n cluster.Node) bool { return n.MAC == v.MAC })
		if i >= 0 {
			message += fmt.Sprintf("; %s has the address", d.Spec.Nodes[i].Name)
			hint = fmt.Sprintf("see why the kube-apiserver of %s does not answer there", d.Spec.Nodes[i].Name)
		} else {
			message += fmt.Sprintf("; a machine with MAC %s has the address, and it is no node of this cluster", v.MAC)
			hint = fmt.Sprintf("take %s from that machine, or give the cluster another vip", addr)
		}
	}
	return cluster.Wait{Subject: d.Spec.Name, Reason: cluster.VIPNotServed, About: v.MAC, Message: message + text.Colon(v.Why), Within: vipWithin, Hint: hint}
}

// LacksVIP reports whether the cluster is seen to have a VIP that does not lead to it.
func LacksVIP(o cluster.Observed) bool { return o.VIP.Known && !o.VIP.Value.Served }

// failingOn names the pods of kube-system that fail on a node: what keeps it from
// being Ready is mostly one of them, its network above all.
func failingOn(node string, o cluster.Observed) string {
	var found []string
	for _, name := range slices.Sorted(maps.Keys(o.SystemPods.Value)) {
		if p := o.SystemPods.Value[name]; p.Node == node && p.Failing != "" {
			found = append(found, p.Name+": "+p.Failing)
		}
	}
	if len(found) == 0 {
		return ""
	}
	return "; pods of kube-system that fail on it: " + text.JoinSome(found, 3, "; ")
}
