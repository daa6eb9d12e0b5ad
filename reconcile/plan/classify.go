package plan

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

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
		switch w := lacking(n, o); {
		case w.reason == "":
			return cluster.PhaseReady
		case w.unseen && m.Ready:
			// Talos itself reports that all is well with it, its Kubernetes node
			// included: it has joined, and only cannot be asked about.
			return cluster.PhaseUnknown
		}
		return cluster.PhaseJoining
	case cluster.Silent:
		// One that was ready since its VM was started has booted.
		if vm.Uptime > bootWithin || !m.ReadyAt.IsZero() && m.ReadyAt.After(o.Now.Add(-vm.Uptime)) {
			return cluster.PhaseUnreachable
		}
		return cluster.PhaseBooting
	default:
		return cluster.PhaseUnknown
	}
}

// lack is what a configured machine still lacks to be a Ready node; the zero
// value is nothing.
type lack struct {
	reason  cluster.Reason
	about   string
	message string
	unseen  bool // it is unknown rather than missing
}

// wait is the wait for it.
func (l lack) wait(n cluster.Node, within time.Duration) cluster.Wait {
	return cluster.Wait{Subject: n.Name, Reason: l.reason, About: l.about, Message: l.message, Within: within}
}

// lacking returns the first thing that a configured machine lacks to be a Ready
// node.
func lacking(n cluster.Node, o cluster.Observed) lack {
	m := o.Machines[n.Name]
	if m.Stage != "running" {
		message := "Talos is " + cmp.Or(m.Stage, "starting")
		if lacksVIP(o) {
			// The last step of a boot is a call of the Kubernetes API.
			message += ", which does not end before the VIP answers"
		}
		return lack{cluster.WaitingForTalos, m.Stage, message, false}
	}
	if n.Role == cluster.ControlPlane {
		if l := lackingOfControlPlane(n, o); l.reason != "" {
			return l
		}
	}
	if !o.Nodes.Known {
		return lack{cluster.NodesUnknown, "", "cannot see the nodes in Kubernetes" + colon(o.Nodes.Why), true}
	}
	kn, ok := o.Nodes.Value[n.Name]
	switch {
	case !ok:
		return lack{cluster.WaitingToRegister, "", "it has not registered with Kubernetes yet", false}
	case !kn.Ready:
		return lack{cluster.NodeNotReady, "", "Kubernetes reports NotReady" + colon(kn.Why) + failingOn(n.Name, o), false}
	case kn.BootID != "" && m.BootID != "" && kn.BootID != m.BootID:
		// What Kubernetes has of it is from before it booted: for up to 40 s it calls a
		// node Ready whose kubelet is silent.
		return lack{cluster.WaitingToRegister, "boot", "its kubelet has not reported since it booted", false}
	case !m.Ready:
		return lack{cluster.TalosNotReady, "", "Talos reports that it is not ready" + colon(strings.Join(m.Unmet, ", ")), false}
	}
	return lack{}
}

// lackingOfControlPlane is what a control plane lacks besides: its member of etcd
// and its kube-apiserver.
func lackingOfControlPlane(n cluster.Node, o cluster.Observed) lack {
	if !o.Members.Known {
		return lack{cluster.EtcdMembersUnknown, "", "the members of etcd are not known: " + o.Members.Why, true}
	}
	i := slices.IndexFunc(o.Members.Value, func(mem cluster.Member) bool { return mem.IsOf(n) })
	switch {
	case i < 0:
		return lack{cluster.WaitingForMembership, "", "it has not joined etcd yet", false}
	case o.Members.Value[i].Learner:
		return lack{cluster.WaitingForMembership, "learner", "it is still a learner of etcd", false}
	}
	if etcd := o.Machines[n.Name].Services["etcd"]; !etcd.Healthy {
		return lack{cluster.EtcdUnhealthy, "", "its etcd is not healthy" + colon(etcd.Message), false}
	}
	if api := o.APIs[n.Name]; !api.Known || !api.Value {
		return lack{cluster.APIServerNotReady, "", "its kube-apiserver is not ready" + colon(api.Why), !api.Known}
	}
	return lack{}
}

func colon(s string) string {
	if s == "" {
		return ""
	}
	return ": " + s
}
