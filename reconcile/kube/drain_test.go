package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// TestNodesOfATurn: what is kept of a Node, and that it is the same after it was
// trimmed.
func TestNodesOfATurn(t *testing.T) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: map[string]string{
		cluster.AnnotationTurn: "up\x1b[2Jgrade", cluster.AnnotationDrained: "boot-1", cluster.AnnotationAdopted: "true", "other": strings.Repeat("x", 1000)}}}
	n.Spec.Unschedulable, n.Status.NodeInfo.BootID = true, "boot-2"
	want := cluster.KubeNode{Name: "n", Why: "its kubelet has not reported yet", Cordoned: true, Turn: "up [2Jgrade", Drained: "boot-1", BootID: "boot-2", Adopted: true}
	for _, obj := range []any{n, plainReader.trimNode(n)} {
		if got, err := plainReader.nodeOf(obj); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, %v", got, err)
		}
	}
	n.Spec.Unschedulable, want.Cordoned, want.Adopted = false, false, false // whoever had it is done with it
	if got, err := plainReader.nodeOf(n); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("in service: %+v, %v", got, err)
	}
	if body, err := json.Marshal(plainReader.trimNode(n)); err != nil || len(body) > 1000 {
		t.Errorf("trimmed it has %d bytes, %v", len(body), err)
	}
}

func TestDrain(t *testing.T) {
	onDrains(t, 1, func(b *drains) {
		b.addDeployment("web", 4, func(s *corev1.PodSpec) {
			s.Volumes = []corev1.Volume{{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		})
		b.addPod("bare", nil)
		if n := len(b.podsOn("wk-1")); n != 3 {
			t.Fatalf("%d pods on wk-1", n)
		}
		b.look() // it is watched from now on
		if err := b.drain(cluster.Drain{}); err != nil {
			t.Fatal(err)
		}
		// The next look shows it: else it would be drained again.
		if n := b.look().Nodes.Value["wk-1"]; !n.Cordoned || n.Turn != turn || n.Drained != "boot-1" || n.BootID != "boot-1" {
			t.Errorf("seen is %+v", n)
		}
		b.mustBe(true, turn, "boot-1")
		if left := b.podsOn("wk-1"); left != nil {
			t.Errorf("left are %v", left)
		}
		pods, err := b.set.CoreV1().Pods("kube-system").List(context.Background(), metav1.ListOptions{FieldSelector: "spec.nodeName=wk-1"})
		if err != nil || len(pods.Items) == 0 || slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil }) {
			t.Errorf("DaemonSets of the node have %d pods, %v", len(pods.Items), err)
		}
		_, log := b.asked("")
		if strings.Count(log, "level=INFO msg=\"pod evicted\"") != 3 || strings.Count(log, "level=INFO msg=\"pod ended\" node=wk-1 detail=default/") != 3 || !strings.Contains(log, `detail="default/bare, which has no controller`) {
			t.Errorf("log:\n%s", log)
		}
		if p := b.progress[len(b.progress)-1]; p != (cluster.Progress{Done: 3, Total: 3, Unit: "pods"}) {
			t.Errorf("the last progress is %+v", p)
		}

		b.calls()
		if err := b.drain(cluster.Drain{}); err != nil {
			t.Error(err)
		}
		if calls := b.calls(); len(calls) != 1 || calls["GET /api/v1/nodes/{name}"] != 1 {
			t.Errorf("to drain it again asks %v", calls)
		}
		for range 2 {
			if err := b.cluster.Uncordon(context.Background(), b.desired, cluster.Node{Name: "wk-1"}); err != nil {
				t.Error(err)
			}
			b.mustBe(false, "", "")
		}
		if calls := b.calls(); calls["PATCH /api/v1/nodes/{name}"] != 1 {
			t.Errorf("to uncordon twice asks %v", calls)
		}
	})
}

// TestUncordonLeavesOthers: what a person cordoned stays so, and a node that is not
// there is none to uncordon.
func TestUncordonLeavesOthers(t *testing.T) {
	onDrains(t, 1, func(b *drains) {
		b.patchNode("wk-1", `{"spec":{"unschedulable":true}}`)
		before := b.node("wk-1").ResourceVersion
		for _, name := range []string{"wk-1", "wk-9"} {
			if err := b.cluster.Uncordon(context.Background(), b.desired, cluster.Node{Name: name}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if n := b.node("wk-1"); !n.Spec.Unschedulable || n.ResourceVersion != before {
			t.Errorf("the node is %+v", n)
		}
	})
}

func TestDrainWaitsForBudgets(t *testing.T) {
	onDrains(t, 1, func(b *drains) {
		b.addPod("db", nil)
		b.addPod("other", nil)
		release := time.Now().Add(22 * time.Second)
		b.answer = func(pod string) (int, string) {
			if pod == "db" && time.Now().Before(release) {
				return http.StatusTooManyRequests, noBudget
			}
			return 0, ""
		}
		if err := b.drain(cluster.Drain{}); err != nil {
			t.Fatal(err)
		}
		b.mustBe(true, turn, "boot-1")
		var tries []time.Duration
		for _, e := range b.evictions {
			if e.pod == "db" {
				tries = append(tries, e.at)
			}
		}
		if len(tries) != 6 {
			t.Errorf("tried at %v", tries)
		}
		for i := 1; i < len(tries); i++ {
			if tries[i]-tries[i-1] < evictPause {
				t.Errorf("tried at %v", tries)
			}
		}
		const waits = "default/db (The disruption budget db needs 1 healthy pods and has 1 currently); deletes pods that no controller starts again: default/db"
		if !slices.Contains(b.progress, cluster.Progress{Done: 1, Total: 2, Unit: "pods", Waits: waits}) {
			t.Errorf("progress %+v", b.progress)
		}
		if _, log := b.asked(""); strings.Count(log, "pod may not be evicted yet") != 1 {
			t.Errorf("log:\n%s", log)
		}
	})
}

// TestDrainTimeout: the node returns to service, also when an agent that has ended cordoned
// it; a cordon of somebody else stays.
func TestDrainTimeout(t *testing.T) {
	for before, stays := range map[string]bool{
		"": false,
		`{"metadata":{"annotations":{"talos-agent.dev/turn":"reboot"}},"spec":{"unschedulable":true}}`:                                    false,
		`{"metadata":{"annotations":{"talos-agent.dev/turn":"upgrade"}},"spec":{"unschedulable":true}}`:                                   false,
		`{"metadata":{"annotations":{"talos-agent.dev/turn":"upgrade","talos-agent.dev/adopted":"true"}},"spec":{"unschedulable":true}}`:  true,
		`{"metadata":{"annotations":{"talos-agent.dev/turn":"upgrade","talos-agent.dev/adopted":"true"}},"spec":{"unschedulable":false}}`: false,
		`{"spec":{"unschedulable":true}}`: true,
	} {
		onDrains(t, 1, func(b *drains) {
			b.addPod("db", nil)
			b.refuseAll("db")
			if before != "" {
				b.patchNode("wk-1", before)
			}
			began := time.Now()
			err := b.drain(cluster.Drain{Adopt: true})
			if !errors.Is(err, cluster.ErrUndrained) || !strings.HasPrefix(err.Error(), "drain wk-1: pods are left on the node after 5m0s: default/db (The disruption budget db needs 1 ") {
				t.Errorf("%v", err)
			}
			if fault.HintOf(err) == "" {
				t.Error("there is no hint")
			}
			if took := time.Since(began); took < 5*time.Minute || took > 5*time.Minute+10*time.Second {
				t.Errorf("it took %v", took)
			}
			b.mustBe(stays, "", "")
			if n := b.node("wk-1"); n.Annotations[cluster.AnnotationAdopted] != "" {
				t.Errorf("annotations %v", n.Annotations)
			}
		})
	}
}

func TestDrainDeletesInTheEnd(t *testing.T) {
	onDrains(t, 1, func(b *drains) {
		b.addPod("db", nil)
		b.refuseAll("db")
		if err := b.drain(cluster.Drain{Timeout: time.Minute, Delete: true}); err != nil {
			t.Fatal(err)
		}
		b.mustBe(true, turn, "boot-1")
		if left := b.podsOn("wk-1"); left != nil {
			t.Errorf("left are %v", left)
		}
		if times, log := b.asked("db"); times < 10 || times > 12 || strings.Contains(log, "pod evicted") || !strings.Contains(log, `msg="pod deleted" node=wk-1 detail="default/db, which has no controller that starts it again: The disruption budget db needs 1`) {
			t.Errorf("%d evictions, log:\n%s", times, log)
		}
	})
}

// TestDrainOfPodsThatDoNotEnd gives up a minute after they were deleted, and leaves
// the node out of service.
func TestDrainOfPodsThatDoNotEnd(t *testing.T) {
	onDrains(t, 1, func(b *drains) {
		b.addPod("db", nil)
		b.keep("db")
		b.world.Inject(world.Fault{Op: "DELETE /api/v1/namespaces/{namespace}/pods/{name}", Kind: world.Answer, Status: 500, Text: "a webhook does not answer"})
		err := b.drain(cluster.Drain{Timeout: time.Minute, Delete: true})
		if !errors.Is(err, cluster.ErrUndrained) || !strings.Contains(err.Error(), "after 2m0s: default/db (a webhook does not answer)") || !strings.Contains(fault.HintOf(err), "kubectl describe pod") {
			t.Errorf("%v, hint %q", err, fault.HintOf(err))
		}
		b.mustBe(true, turn, "")
	})
}

// TestDrainWaitsForTheEnd of pods that were evicted, and not of others that have their
// names.
func TestDrainWaitsForTheEnd(t *testing.T) {
	onDrains(t, 1, func(b *drains) {
		b.addPod("db", nil)
		b.keep("db")
		done := make(chan error, 1)
		go func() { done <- b.drain(cluster.Drain{}) }()
		time.Sleep(30 * time.Second)
		select {
		case err := <-done:
			t.Fatalf("it did not wait: %v", err)
		default:
		}
		if times, log := b.asked("db"); times < 2 || strings.Count(log, "pod evicted") != 1 || strings.Contains(log, "pod ended") {
			t.Errorf("%d evictions, log:\n%s", times, log)
		}
		b.mustBe(true, turn, "")
		if err := b.set.CoreV1().Pods("default").Delete(context.Background(), "db", *metav1.NewDeleteOptions(0)); err != nil {
			t.Fatal(err)
		}
		b.addPod("db", func(p *corev1.Pod) { p.Spec.NodeName = "wk-2" })
		b.mu.Lock()
		b.answer = nil
		b.mu.Unlock()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if on := b.podsOn("wk-2"); len(on) != 1 {
			t.Errorf("on wk-2 are %v", on)
		}
	})
}

// TestDrainOfPodsThatComeBack: a pod that tolerates a cordon is evicted once.
func TestDrainOfPodsThatComeBack(t *testing.T) {
	onDrains(t, 1, func(b *drains) {
		b.addDeployment("operator", 1, func(s *corev1.PodSpec) {
			s.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
			s.NodeSelector = map[string]string{"kubernetes.io/hostname": "wk-1"}
		})
		first := b.podsOn("wk-1")
		if err := b.drain(cluster.Drain{}); err != nil {
			t.Fatal(err)
		}
		b.until("it is back", func() bool { return len(b.podsOn("wk-1")) == 1 })
		if now := b.podsOn("wk-1"); now[0] == first[0] {
			t.Errorf("%v was not evicted", now)
		}
		if len(b.evictions) != 1 {
			t.Errorf("evictions %v", b.evictions)
		}
	})
}

func TestDrainOfTwoBudgets(t *testing.T) {
	for _, budgets := range []int{1, 2} {
		onDrains(t, 1, func(b *drains) {
			b.addPod("db", nil)
			for i := range budgets {
				pdb := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("db-%d", i)},
					Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &intstr.IntOrString{}, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}}}
				if _, err := b.set.PolicyV1().PodDisruptionBudgets("default").Create(context.Background(), pdb, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			b.answer = func(string) (int, string) {
				if budgets == 2 || len(b.evictions) < 3 {
					return http.StatusInternalServerError, manyBudget
				}
				return 0, ""
			}
			err := b.drain(cluster.Drain{})
			if budgets == 1 {
				if err != nil {
					t.Errorf("another 500 than that of two budgets: %v", err)
				}
				return
			}
			if !errors.Is(err, cluster.ErrUndrained) || !strings.Contains(err.Error(), "default/db has the disruption budgets db-0, db-1") || fault.HintOf(err) == "" {
				t.Errorf("%v", err)
			}
			if len(b.evictions) != 1 {
				t.Errorf("evictions %v", b.evictions)
			}
			b.mustBe(false, "", "")
			b.log.Reset()
			if err := b.drain(cluster.Drain{Timeout: time.Minute, Delete: true}); err != nil {
				t.Errorf("with delete: %v", err)
			}
		})
	}
}

// TestDrainLeavesOthers: a node that a person cordoned is not touched.
func TestDrainLeavesOthers(t *testing.T) {
	onDrains(t, 1, func(b *drains) {
		b.addPod("db", nil)
		b.patchNode("wk-1", `{"spec":{"unschedulable":true}}`)
		before := b.node("wk-1").ResourceVersion
		err := b.drain(cluster.Drain{})
		if !errors.Is(err, cluster.ErrCordonedByOthers) || !strings.Contains(fault.HintOf(err), "kubectl uncordon wk-1") {
			t.Errorf("%v, hint %q", err, fault.HintOf(err))
		}
		if now := b.node("wk-1").ResourceVersion; now != before || len(b.evictions) != 0 {
			t.Errorf("version %s, and %s before; evictions %v", now, before, b.evictions)
		}
	})
}

// TestDrainNamesWhatEnds: pods that were evicted and take their grace are named until they have ended.
func TestDrainNamesWhatEnds(t *testing.T) {
	onDrains(t, 1, func(b *drains) {
		b.addDeployment("web", 2, nil)
		b.addPod("slow", func(p *corev1.Pod) {
			p.Spec.TerminationGracePeriodSeconds = new(int64(150))
			p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 120}}}
		})
		if err := b.drain(cluster.Drain{}); err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(b.progress, func(p cluster.Progress) bool {
			return p.Done == 1 && p.Total == 2 && strings.HasPrefix(p.Waits, "pods to end: default/slow; ")
		}) {
			t.Errorf("progress %+v", b.progress)
		}
	})
}
