package terminal

import (
	"bytes"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestPrintUpgrade: what is left of an upgrade, who ordered what, what runs, and what holds it, first what the cluster is Stalled for;
// nothing of what does not.
func TestPrintUpgrade(t *testing.T) {
	waits := []cluster.WaitStatus{{Wait: cluster.Wait{Subject: "wk-1", Reason: cluster.WaitingForHop, Message: "waits"}}, {Wait: cluster.Wait{Subject: "web", Reason: cluster.AddonNotReady, Message: "no"}}}
	blocks := []cluster.Block{{Subject: "wk-2", Reason: cluster.UpgradeFailed, Message: "failed", Hint: "see"}, {Subject: "wk-3", Reason: cluster.HardwareDrift, Message: "no"}, {Subject: "web", Reason: cluster.ActionFailed, Message: "no"}}
	node := func(name, talos, kubernetes string) cluster.NodeStatus {
		return cluster.NodeStatus{Name: name, Talos: talos, Kubernetes: kubernetes}
	}
	addons := []cluster.AddonStatus{{Name: "web"}}
	for name, c := range map[string]struct {
		s    cluster.Status
		want string
	}{
		"it waits": {cluster.Status{Upgrade: &cluster.UpgradeStatus{Hops: []string{"Talos v1.14.1"}, Nodes: 3, Order: cluster.UpgradeOrder{Now: true, By: "ann"}}, Addons: addons, Waiting: waits, Blocked: blocks,
			Running: []cluster.RunningStatus{{Action: cluster.DrainNode, Subject: "wk-4"}}},
			"dev:\n  upgrade to Talos v1.14.1: 0 of 3 nodes have the first; goes on outside of its window and without a soak, by order of ann\n" +
				"  runs    drain node wk-4 (for -)\n  blocked wk-2: failed\n    -> see\n  waits wk-1: waits\n"},
		"it is suspended": {cluster.Status{Suspended: true, Condition: cluster.Suspended, Upgrade: &cluster.UpgradeStatus{Hops: []string{"Talos v1.14.1"}, Nodes: 3, Order: cluster.UpgradeOrder{Now: true, By: "ann"}}},
			"dev:\n  upgrade to Talos v1.14.1: 0 of 3 nodes have the first; once resumed it goes on outside of its window and without a soak, by order of ann\n" +
				"  suspended: nothing goes on\n    -> `talos-agent resume dev` goes on\n"},
		"it is held": {cluster.Status{Upgrade: &cluster.UpgradeStatus{Hops: []string{"Talos v1.14.1"}, Nodes: 3, Held: "upgrade is off", Order: cluster.UpgradeOrder{Now: true, By: "ann"}}},
			"dev:\n  upgrade to Talos v1.14.1: 0 of 3 nodes have the first; held: upgrade is off; once that has ended it goes on outside of its window and without a soak, by order of ann\n"},
		"it is Stalled": {cluster.Status{Upgrade: &cluster.UpgradeStatus{Hops: []string{"Talos v1.14.1"}, Nodes: 3}, Condition: cluster.Stalled, Concerns: "wk-2", Reason: cluster.UpgradeFailed, Message: "wk-2: failed", Hint: "see", Addons: addons, Waiting: waits, Blocked: blocks},
			"dev:\n  upgrade to Talos v1.14.1: 0 of 3 nodes have the first\n  stalled wk-2: failed\n    -> see\n  waits wk-1: waits\n"},
		"the newest commit is invalid": {cluster.Status{Condition: cluster.Stalled, Concerns: "dev", Reason: cluster.InventoryInvalid, Message: "dev: the newest commit is invalid", Hint: "push", Nodes: []cluster.NodeStatus{node("a", "v1.13.9", "v1.36.1")},
			Blocked: []cluster.Block{{Subject: "dev", Reason: cluster.InventoryInvalid, Message: "the newest commit is invalid"}}},
			"dev: no other versions are asked for than its nodes run\n  stalled dev: the newest commit is invalid\n    -> push\n"},
		"an addon is Stalled": {cluster.Status{Condition: cluster.Stalled, Concerns: "web", Reason: cluster.ActionFailed, Message: "web: no", Addons: addons, Blocked: blocks[2:]}, "dev: no other versions are asked for than its nodes run\n"},
		"a node is not seen":  {cluster.Status{Condition: cluster.Reconciling, Nodes: []cluster.NodeStatus{node("a", "v1.13.9", "v1.36.1"), node("b", "", "v1.36.1"), node("c", "v1.13.9", "")}}, "dev: what runs is not known of b, c\n"},
		"nothing is seen":     {cluster.Status{Condition: cluster.Unknown, Message: "starting"}, "dev: what its nodes run is not known: starting\n"},
	} {
		c.s.Cluster = "dev"
		var out bytes.Buffer
		if (Printer{w: &out}).PrintUpgrade(UpgradeOf(c.s)); out.String() != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", name, &out, c.want)
		}
	}
}

// TestPrintOrder: who orders something of an upgrade is told that it goes on only where it does, and what holds it still else.
func TestPrintOrder(t *testing.T) {
	wait := func(subject string, reason cluster.Reason, about string) cluster.WaitStatus {
		return cluster.WaitStatus{Wait: cluster.Wait{Subject: subject, Reason: reason, About: about, Message: "waits for " + string(reason)}}
	}
	now, despite := cluster.UpgradeOrder{Now: true, By: "ann"}, cluster.UpgradeOrder{Despite: []string{"wk-2"}, By: "ann"}
	window, soak, gate := wait("cp-1", cluster.WaitingForWindow, ""), wait("cp-1", cluster.WaitingForSoak, "cp-2"), wait("cp-1", cluster.WaitingForGate, "volumes")
	late := wait("cp-1", cluster.RunningConfigUnknown, "")
	late.Overdue = true
	const outside, although = "outside of its window and without a soak, by order of ann", "although wk-2 may not be Ready, by order of ann"
	for name, c := range map[string]struct {
		s     cluster.Status
		order cluster.UpgradeOrder
		want  string
	}{
		"the window is closed":        {cluster.Status{Waiting: []cluster.WaitStatus{window}}, now, "dev: the upgrade goes on " + outside},
		"a node soaks":                {cluster.Status{Waiting: []cluster.WaitStatus{soak}}, now, "dev: the upgrade goes on " + outside},
		"a gate holds":                {cluster.Status{Waiting: []cluster.WaitStatus{window, gate}}, now, "dev: noted: " + outside + "; still held: cp-1: waits for WaitingForGate"},
		"it was rolled back":          {cluster.Status{Blocked: []cluster.Block{{Subject: "web", Reason: cluster.ActionFailed, Message: "no"}, {Subject: "cp-1", Reason: cluster.RolledBack, Message: "back"}}, Addons: []cluster.AddonStatus{{Name: "web"}}, Waiting: []cluster.WaitStatus{window}}, now, "dev: noted: " + outside + "; still held: cp-1: back"},
		"something takes too long":    {cluster.Status{Waiting: []cluster.WaitStatus{late}}, now, "dev: noted: " + outside + "; still held: cp-1: waits for RunningConfigUnknown"},
		"nothing holds it":            {cluster.Status{Waiting: []cluster.WaitStatus{wait("wk-1", cluster.WaitingForTurn, "cp-1")}}, now, "dev: noted: " + outside + "; it waits for nothing of that now"},
		"what failed is tried again":  {cluster.Status{Blocked: []cluster.Block{{Subject: "wk-1", Reason: cluster.UpgradeFailed, Message: "failed"}}}, now, "dev: the upgrade goes on " + outside},
		"despite is no second try":    {cluster.Status{Blocked: []cluster.Block{{Subject: "wk-1", Reason: cluster.UpgradeFailed, Message: "failed"}}}, despite, "dev: noted: " + although + "; still held: wk-1: failed"},
		"a node is waited for":        {cluster.Status{Waiting: []cluster.WaitStatus{wait("cp-1", cluster.WaitingForHop, "wk-2")}}, despite, "dev: the upgrade goes on " + although},
		"it is Ready":                 {cluster.Status{Nodes: []cluster.NodeStatus{{Name: "wk-2", Phase: cluster.PhaseReady}}}, despite, "dev: noted: " + although + "; it waits for nothing of that now"},
		"it is not":                   {cluster.Status{Nodes: []cluster.NodeStatus{{Name: "wk-2", Phase: cluster.PhaseStopped}}}, despite, "dev: the upgrade goes on " + although},
		"the window is closed for it": {cluster.Status{Waiting: []cluster.WaitStatus{window}}, despite, "dev: noted: " + although + "; still held: cp-1: waits for WaitingForWindow"},
	} {
		c.s.Cluster = "dev"
		var out bytes.Buffer
		if (Printer{w: &out}).PrintOrder(c.s, c.order); strings.TrimSpace(out.String()) != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", name, &out, c.want)
		}
	}
}
