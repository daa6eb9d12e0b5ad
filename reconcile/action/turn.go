package action

import (
	"fmt"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/drift"
)

// What is done to the machine and the Node object of a node in its turn, or when it leaves.

// Info implements Action.
func (a DropConfig) Info() Info {
	i := infoOfNode(cluster.DropConfig, a.Node, fmt.Sprintf("drop the machine config that waits for the next boot of %s (%s)", a.Node.Name, drift.DescribeStaged(a.Since)))
	i.Fields = []string{drift.FieldStaged}
	return i
}

// Info implements Action.
func (a DrainNode) Info() Info {
	i := infoOfNode(cluster.DrainNode, a.Node, fmt.Sprintf("drain %s to %s", a.Node.Name, a.For))
	i.Disrupts, i.Change, i.Fields = true, "for="+a.Target, a.Fields
	return i
}

// Info implements Action.
func (a ShutDownVM) Info() Info {
	into := ""
	if a.Into != "" {
		into = " with Talos " + a.Into
	}
	i := infoOfNode(cluster.ShutDownVM, a.Node, fmt.Sprintf("shut down vm %d (%s), to start it again changed", a.Node.VMID, a.Node.Name)+into+describeUndrained(a.Undrained))
	i.Disrupts, i.Reboots, i.Change, i.Fields = true, true, "for="+a.Restart.Target, a.Fields
	return i
}

// describeUndrained is what a step adds that takes a machine down whose node was not drained.
func describeUndrained(undrained bool) string {
	if !undrained {
		return ""
	}
	return ", without draining it: it does not work"
}

// Info implements Action.
func (a RebootNode) Info() Info {
	why := " with its new machine config"
	if a.Into != "" {
		why = " into Talos " + a.Into
	}
	if slices.Contains(a.Fields, drift.FieldEtcd) {
		why = ", which starts its etcd again"
	}
	if slices.Contains(a.Fields, drift.FieldRollback) {
		why = " into the Talos that it was asked to go back to"
	}
	i := infoOfNode(cluster.RebootNode, a.Node, "reboot "+a.Node.Name+why+describeUndrained(a.Undrained))
	i.Disrupts, i.Reboots, i.Change, i.Fields = true, true, "for="+a.Restart.Target, a.Fields
	return i
}

// Info implements Action.
func (a UncordonNode) Info() Info {
	words := fmt.Sprintf("put %s back into service", a.Node.Name)
	if a.Adopted {
		words = fmt.Sprintf("end the turn of %s, and leave it cordoned, as somebody had it before", a.Node.Name)
	}
	return infoOfNode(cluster.UncordonNode, a.Node, words)
}

// Info implements Action.
func (a RemoveMember) Info() Info {
	i := infoOfNode(cluster.RemoveMember, a.Node, fmt.Sprintf("remove member %s of %s from etcd", a.Member.HexID(), a.Node.Name))
	i.Claims = append(i.Claims, cluster.ClaimEtcd)
	i.Disrupts, i.Destructive, i.Change = true, true, "member="+a.Member.HexID()
	i.Member = a.Member.ID
	return i
}

// Info implements Action.
func (a DeleteNode) Info() Info {
	return infoOfNode(cluster.DeleteNode, a.Node, fmt.Sprintf("delete the Node object of %s, whose machine is removed", a.Node.Name))
}

// Info implements Action.
func (a LabelNode) Info() Info {
	if len(a.Edits) == 0 {
		return infoOfNode(cluster.LabelNode, a.Node, fmt.Sprintf("note what of the Node object of %s is the inventory's", a.Node.Name))
	}
	i := infoOfNode(cluster.LabelNode, a.Node, fmt.Sprintf("change the Node object of %s: %s", a.Node.Name, drift.DescribeEdits(a.Edits)))
	i.Fields = drift.Fields(drift.OfMeta(a.Edits))
	meta := a.Node.Meta().Noted()
	if i.Change = fmt.Sprintf("labels=%v taints=%v", meta.Labels, meta.Taints); len(meta.Annotations) > 0 {
		i.Change += fmt.Sprintf(" annotations=%v", meta.Annotations)
	}
	return i
}

// Info implements Action. It claims nothing: whatever is done to the cluster meanwhile fails the
// snapshot at most, which is taken again.
func (a TakeSnapshot) Info() Info {
	return Info{Kind: cluster.TakeSnapshot, Subject: a.Cluster, Text: fmt.Sprintf("take a snapshot of etcd of %s (%s)", a.Cluster, a.For)}
}

// Info implements Action.
func (a SyncManifests) Info() Info {
	var all []string
	for _, c := range a.Manifests.Changes {
		all = append(all, c.String())
	}
	return Info{Kind: cluster.SyncManifests, Subject: a.Cluster, Change: strings.Join(all, "; "),
		Text: fmt.Sprintf("apply the bootstrap manifests of Talos to %s: %s", a.Cluster, text.JoinSome(all, 5, "; "))}
}

// Info implements Action.
func (a StartJob) Info() Info {
	return Info{Kind: cluster.StartJob, Subject: a.Name.String(), Change: "gate=" + a.Gate.Name, Text: fmt.Sprintf("start the Job %s of the gate %s", a.Name, a.Gate.Name)}
}

// Info implements Action.
func (a DeleteJob) Info() Info {
	return Info{Kind: cluster.DeleteJob, Subject: a.Job.String(), Change: "gate=" + a.Job.Gate, Text: fmt.Sprintf("delete the Job %s of the gate %s, %s", a.Job.ObjectName, a.Job.Gate, a.Why)}
}

// MakesNode reports whether an action leads to a node that runs, whatever the inventory has changed.
func (i Info) MakesNode() bool {
	return i.Kind == cluster.CreateVM || i.Kind == cluster.StartVM || i.Kind == cluster.ResumeVM || i.Kind == cluster.ApplyConfig
}
