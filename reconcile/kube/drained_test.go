package kube

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

func (b *drains) checkDrained(stay bool) error {
	return b.cluster.CheckDrained(context.Background(), b.desired, cluster.Node{Name: "wk-1"}, stay)
}

// TestCheckDrained: a node is drained as long as it is as the drain has left it. What came to
// it while somebody had it in service voids the drain, whoever has cordoned it since.
func TestCheckDrained(t *testing.T) {
	onDrains(t, 1, func(b *drains) {
		refused := func(what, want string, stay bool) {
			t.Helper()
			if err := b.checkDrained(stay); err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "wk-1 is not taken down: ") || fault.HintOf(err) != drainedAgain {
				t.Errorf("%s: %v", what, err)
			}
		}
		refused("in service", "somebody has uncordoned it", false)
		b.addDeployment("operator", 1, func(s *corev1.PodSpec) {
			s.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
			s.NodeSelector = map[string]string{"kubernetes.io/hostname": "wk-1"}
		})
		if err := b.drain(cluster.Drain{}); err != nil {
			t.Fatal(err)
		}
		b.until("it is back", func() bool { return len(b.podsOn("wk-1")) == 1 })
		b.addPod("elsewhere", func(p *corev1.Pod) { p.Spec.NodeName = "wk-2" })
		before := b.node("wk-1").ResourceVersion
		if err := b.checkDrained(false); err != nil {
			t.Errorf("as it was left: %v", err)
		}
		b.patchNode("wk-1", `{"spec":{"unschedulable":null}}`)
		refused("uncordoned", "somebody has uncordoned it since it was drained", false)
		refused("uncordoned, with its pods", "somebody has uncordoned it since it was drained", true)
		b.addPod("db", nil)
		b.patchNode("wk-1", `{"spec":{"unschedulable":true}}`)
		if err := b.checkDrained(true); err != nil {
			t.Errorf("its pods stay: %v", err)
		}
		b.mustBe(true, turn, "boot-1")
		refused("cordoned again", "pods came to it since it was drained: default/db", false)
		b.mustBe(true, turn, "")
		if now := b.node("wk-1"); now.ResourceVersion == before {
			t.Error("nothing was noted")
		}
		if n := b.look().Nodes.Value["wk-1"]; n.Drained != "" || n.Turn != turn {
			t.Errorf("seen is %+v", n)
		}
		refused("void", "was not drained since it has booted", false)
		if err := b.drain(cluster.Drain{}); err != nil {
			t.Fatal(err)
		}
		if err := b.checkDrained(false); err != nil {
			t.Errorf("drained again: %v", err)
		}
		if times, _ := b.asked("db"); times != 1 {
			t.Errorf("db is evicted %d times", times)
		}
		b.patchNode("wk-1", `{"metadata":{"annotations":{"talos-agent.dev/turn":null}}}`)
		refused("somebody's own", "somebody has uncordoned it", false)
		b.patchNode("wk-1", `{"metadata":{"annotations":{"talos-agent.dev/turn":"reboot"}}}`)
		b.boot("wk-1", "boot-2")
		refused("booted again", "boot id boot-2, and boot-1 when it was", true)
		b.boot("wk-1", "")
		b.patchNode("wk-1", `{"metadata":{"annotations":{"talos-agent.dev/drained":null}}}`)
		refused("without a boot id", "was not drained since it has booted", true)
		if err := b.cluster.CheckDrained(context.Background(), b.desired, cluster.Node{Name: "wk-9"}, false); !errors.Is(err, errNoNode) {
			t.Errorf("no node: %v", err)
		}
	})
}

// TestCheckDrainedUnseen: pods that cannot be listed are not taken for none, and a drain is
// not taken for valid because that it is void could not be noted.
func TestCheckDrainedUnseen(t *testing.T) {
	onDrains(t, 1, func(b *drains) {
		if err := b.drain(cluster.Drain{}); err != nil {
			t.Fatal(err)
		}
		b.world.Inject(world.Fault{Op: "GET /api/v1/pods", Kind: world.Answer, Status: 403, Text: "no", Nth: 1})
		if err := b.checkDrained(false); err == nil || !strings.Contains(err.Error(), "choose the pods to evict: ") {
			t.Errorf("%v", err)
		}
		b.mustBe(true, turn, "boot-1")
		b.addPod("db", nil)
		b.world.Inject(world.Fault{Op: "PATCH /api/v1/nodes/{name}", Kind: world.Answer, Status: 403, Text: "no", Nth: 1})
		if err := b.checkDrained(false); err == nil || !strings.Contains(err.Error(), "change its Node object: ") {
			t.Errorf("%v", err)
		}
		b.mustBe(true, turn, "boot-1")
		if err := b.checkDrained(false); err == nil || !strings.Contains(err.Error(), "default/db") {
			t.Errorf("%v", err)
		}
		b.mustBe(true, turn, "")
	})
}

// TestCheckDrainedOfAnUnreachableNode: what was evicted there, and whose end no kubelet
// reports, voids nothing; what came there does.
func TestCheckDrainedOfAnUnreachableNode(t *testing.T) {
	onDrains(t, 1, func(b *drains) {
		b.loseNode("wk-3", nil, "db")
		n := cluster.Node{Name: "wk-3"}
		if err := b.cluster.Drain(context.Background(), b.desired, n, turn, cluster.Drain{}, nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * lostAfter)
		if p, err := b.set.CoreV1().Pods("default").Get(context.Background(), "db", metav1.GetOptions{}); err != nil || p.DeletionTimestamp == nil {
			t.Fatalf("the pod: %v, %v", p.DeletionTimestamp, err)
		}
		if err := b.cluster.CheckDrained(context.Background(), b.desired, n, false); err != nil {
			t.Error(err)
		}
		late := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "late"}, Spec: podTemplate("late").Spec}
		late.Spec.NodeName = "wk-3"
		if _, err := b.set.CoreV1().Pods("default").Create(context.Background(), late, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := b.cluster.CheckDrained(context.Background(), b.desired, n, false); err == nil || !strings.Contains(err.Error(), "default/late") {
			t.Errorf("%v", err)
		}
	})
}
