package kube

import (
	"context"
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// TestDeleteNode: the Node object of a machine of ours is deleted, once, also when the
// answer is lost; that of another machine is not.
func TestDeleteNode(t *testing.T) {
	onDrains(t, 1, func(b *drains) {
		n := cluster.Node{Name: "wk-1", UUID: strings.ToUpper(b.node("wk-1").Status.NodeInfo.SystemUUID)}
		other := n
		other.UUID = "00000000-0000-4000-8000-000000000001"
		if err := b.cluster.DeleteNode(context.Background(), b.desired, other); err == nil || !strings.Contains(err.Error(), "from a machine with SMBIOS UUID") {
			t.Errorf("of another machine: %v", err)
		}
		b.world.Inject(world.Fault{Op: "DELETE /api/v1/nodes/{name}", Kind: world.LoseReply, Nth: 1})
		for range 2 {
			if err := b.cluster.DeleteNode(context.Background(), b.desired, n); err != nil {
				t.Error(err)
			}
		}
		if _, err := b.set.CoreV1().Nodes().Get(context.Background(), "wk-1", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("the node: %v", err)
		}
		b.world.Inject(world.Fault{Op: "DELETE /api/v1/nodes/{name}", Kind: world.Answer, Status: 403, Text: "no"})
		n = cluster.Node{Name: "wk-2", UUID: b.node("wk-2").Status.NodeInfo.SystemUUID}
		if err := b.cluster.DeleteNode(context.Background(), b.desired, n); err == nil || !strings.HasPrefix(err.Error(), "delete node object wk-2: ") {
			t.Errorf("refused: %v", err)
		}
		if err := b.drain(cluster.Drain{}); !errors.Is(err, errNoNode) {
			t.Errorf("drain of no node: %v", err)
		}
	})
}

// TestDrainAdoptsACordon: a node that is to be removed is drained although somebody
// cordoned it before, and stays cordoned when it is not removed after all. A cordon that is
// the agent's own goes with its turn, also where that one came after theirs.
func TestDrainAdoptsACordon(t *testing.T) {
	onDrains(t, 1, func(b *drains) {
		b.patchNode("wk-1", `{"spec":{"unschedulable":true}}`)
		if err := b.drain(cluster.Drain{}); !errors.Is(err, cluster.ErrCordonedByOthers) {
			t.Errorf("for a turn: %v", err)
		}
		if err := b.drain(cluster.Drain{Adopt: true}); err != nil {
			t.Error(err)
		}
		b.mustBe(true, turn, "boot-1")
		if n := b.look().Nodes.Value["wk-1"]; !n.Adopted {
			t.Errorf("seen is %+v", n)
		}
		uncordon := func() {
			if err := b.cluster.Uncordon(context.Background(), b.desired, cluster.Node{Name: "wk-1"}); err != nil {
				t.Error(err)
			}
		}
		uncordon()
		b.mustBe(true, "", "")
		if n := b.look().Nodes.Value["wk-1"]; n.Adopted || !n.Cordoned {
			t.Errorf("seen is %+v", n)
		}
		if err := b.drain(cluster.Drain{Adopt: true}); err != nil {
			t.Error(err)
		}
		b.patchNode("wk-1", `{"spec":{"unschedulable":false}}`)
		if err := b.drain(cluster.Drain{Adopt: true}); err != nil {
			t.Error(err)
		}
		b.mustBe(true, turn, "boot-1")
		uncordon()
		b.mustBe(false, "", "")
	})
}
