package kube

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// TestDrainEndsWhenUncordoned: a person's word counts more.
func TestDrainEndsWhenUncordoned(t *testing.T) {
	onDrains(t, 1, func(b *drains) {
		b.addPod("db", nil)
		b.refuseAll("db")
		done := make(chan error, 1)
		go func() { done <- b.drain(cluster.Drain{}) }()
		time.Sleep(12 * time.Second)
		b.patchNode("wk-1", `{"spec":{"unschedulable":null}}`)
		tries, _ := b.asked("db")
		if err := <-done; !errors.Is(err, cluster.ErrUncordoned) || fault.HintOf(err) == "" {
			t.Errorf("%v", err)
		}
		if again, _ := b.asked("db"); again != tries {
			t.Errorf("%d evictions, and %d until then", again, tries)
		}
		b.mustBe(false, turn, "")
		// Another turn begins at the beginning.
		b.mu.Lock()
		b.answer = nil
		b.mu.Unlock()
		if err := b.drain(cluster.Drain{}); err != nil {
			t.Error(err)
		}
		b.mustBe(true, turn, "boot-1")
	})
}

// TestDrainOfAnUnreachableNode does not wait for a kubelet that cannot report.
func TestDrainOfAnUnreachableNode(t *testing.T) {
	onDrains(t, 1, func(b *drains) {
		b.loseNode("wk-3", nil, "db")
		began := time.Now()
		if err := b.cluster.Drain(context.Background(), b.desired, cluster.Node{Name: "wk-3"}, turn, cluster.Drain{}, nil); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 2*time.Minute {
			t.Errorf("it took %v", took)
		}
		if p, err := b.set.CoreV1().Pods("default").Get(context.Background(), "db", metav1.GetOptions{}); err != nil || p.DeletionTimestamp == nil {
			t.Errorf("the pod: %v, %v", p.DeletionTimestamp, err)
		}
		if n := b.node("wk-3"); n.Annotations[cluster.AnnotationDrained] != "boot-3" {
			t.Errorf("annotations %v", n.Annotations)
		}
	})
}

// TestDrainOfAnUnreachableNodeCutsGraceShort: no kubelet will end a pod that has a week to end, nor
// one that is ending for as long already.
func TestDrainOfAnUnreachableNodeCutsGraceShort(t *testing.T) {
	onDrains(t, 1, func(b *drains) {
		b.loseNode("wk-3", new(int64(7*24*3600)), "db", "ending")
		if err := b.set.CoreV1().Pods("default").Delete(context.Background(), "ending", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := b.cluster.Drain(context.Background(), b.desired, cluster.Node{Name: "wk-3"}, turn, cluster.Drain{}, nil); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 2*time.Minute {
			t.Errorf("it took %v", took)
		}
		for _, name := range []string{"db", "ending"} {
			if p, err := b.set.CoreV1().Pods("default").Get(context.Background(), name, metav1.GetOptions{}); err != nil || p.DeletionTimestamp == nil || time.Until(p.DeletionTimestamp.Time) > 0 {
				t.Errorf("pod %s: %v, %v", name, p.DeletionTimestamp, err)
			}
			if tries, _ := b.asked(name); tries != 1 {
				t.Errorf("%s was evicted %d times", name, tries)
			}
		}
	})
}

func TestDrainWaitsForVolumes(t *testing.T) {
	onDrains(t, 1, func(b *drains) {
		b.attach("wk-1")
		b.attach("wk-2")
		done := make(chan error, 1)
		began := time.Now()
		go func() { done <- b.drain(cluster.Drain{}) }()
		time.Sleep(30 * time.Second)
		b.mustBe(true, turn, "")
		if err := b.set.StorageV1().VolumeAttachments().Delete(context.Background(), "csi-wk-1", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > 30*time.Second+2*detachPause {
			t.Errorf("it took %v", took)
		}
		if p := b.progress[len(b.progress)-1]; p.Waits != "volumes to be detached: pv-1" {
			t.Errorf("the last progress is %+v", p)
		}
		b.mustBe(true, turn, "boot-1")
	})
}

// TestDrainGoesOnWithoutVolumes that are never detached, but not without looking.
func TestDrainGoesOnWithoutVolumes(t *testing.T) {
	onDrains(t, 1, func(b *drains) {
		b.attach("wk-1")
		const list = "GET /apis/storage.k8s.io/v1/volumeattachments"
		b.world.Inject(world.Fault{Op: list, Kind: world.Answer, Status: 404, Text: "the server could not find the requested resource", Nth: 1})
		if err := b.drain(cluster.Drain{}); err == nil || !strings.Contains(err.Error(), "list the volumes that are attached: it answers: ") {
			t.Errorf("%v", err)
		}
		b.mustBe(true, turn, "")
		began := time.Now()
		if err := b.drain(cluster.Drain{}); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < detachWithin || took > detachWithin+10*time.Second {
			t.Errorf("it took %v", took)
		}
		if _, log := b.asked(""); !strings.Contains(log, `level=WARN msg="volumes stay attached to a drained node" node=wk-1 detail=pv-1`) {
			t.Errorf("log:\n%s", log)
		}
		b.mustBe(true, turn, "boot-1")
	})
}

// TestDrainOfAMachineThatRestarts: its pods run again, so that it is not drained.
func TestDrainOfAMachineThatRestarts(t *testing.T) {
	onDrains(t, 1, func(b *drains) {
		b.attach("wk-1")
		done := make(chan error, 1)
		go func() { done <- b.drain(cluster.Drain{}) }()
		time.Sleep(30 * time.Second)
		b.boot("wk-1", "boot-2")
		if err := <-done; err == nil || !strings.Contains(err.Error(), "its machine has restarted meanwhile") {
			t.Errorf("%v", err)
		}
		b.mustBe(true, turn, "")
		b.boot("wk-1", "")
		if err := b.drain(cluster.Drain{}); err == nil || !strings.Contains(err.Error(), "boot id") {
			t.Errorf("without a boot id: %v", err)
		}
	})
}

// TestDrainInterrupted: whoever comes next goes on.
func TestDrainInterrupted(t *testing.T) {
	onDrains(t, 1, func(b *drains) {
		b.interruptDrain()
		done := make(chan error, 1)
		go func() { done <- b.drain(cluster.Drain{}) }()
		time.Sleep(12 * time.Second)
		b.cluster.Close()
		if err := <-done; !errors.Is(err, errClosed) {
			t.Errorf("%v", err)
		}
		b.mustBe(true, turn, "")
		if err := b.drain(cluster.Drain{}); !errors.Is(err, errClosed) {
			t.Errorf("after Close: %v", err)
		}
		b.mu.Lock()
		b.answer = nil
		b.mu.Unlock()
		next := New(Config{Dial: b.world.Net.DialContext})
		defer next.Close()
		var o cluster.Observed
		next.Observe(context.Background(), b.desired, &o)
		if err := next.Drain(context.Background(), b.desired, cluster.Node{Name: "wk-1"}, turn, cluster.Drain{}, nil); err != nil {
			t.Error(err)
		}
		b.mustBe(true, turn, "boot-1")
	})
}

// TestDrainGivenUpAfterARestart: a drain that another agent began is given up as one's own,
// as often as it is tried: each time the node returns to service.
func TestDrainGivenUpAfterARestart(t *testing.T) {
	onDrains(t, 1, func(b *drains) {
		b.interruptDrain()
		for range 2 {
			if err := b.drain(cluster.Drain{}); !errors.Is(err, cluster.ErrUndrained) {
				t.Errorf("%v", err)
			}
			b.mustBe(false, "", "")
		}
	})
}

// TestDrainFaults: whatever happens to one request, the node is drained, and no pod is
// evicted on another node.
func TestDrainFaults(t *testing.T) {
	ops := []string{"GET /api/v1/nodes/{name}", "PATCH /api/v1/nodes/{name}", "GET /api/v1/pods", "GET /apis/apps/v1/namespaces/{namespace}/daemonsets/{name}",
		"POST /api/v1/namespaces/{namespace}/pods/{name}/eviction", "GET /apis/storage.k8s.io/v1/volumeattachments"}
	for _, f := range []world.Fault{
		{Kind: world.LoseRequest}, {Kind: world.LoseReply}, {Kind: world.Slow, Delay: 20 * time.Second},
		{Kind: world.Answer, Status: 500, Text: "etcdserver: leader changed"}, {Kind: world.Answer, Status: 429, Text: "too many"},
	} {
		for _, op := range ops {
			for nth := range 2 {
				f.Op, f.Nth = op, nth+1
				t.Run(string(f.Kind)+" "+strings.ReplaceAll(op, "/", "_"), func(t *testing.T) {
					onDrains(t, 1, func(b *drains) {
						b.addDeployment("web", 4, nil)
						b.world.Inject(f)
						began := time.Now()
						if err := b.drain(cluster.Drain{}); err != nil {
							t.Fatal(err)
						}
						if took := time.Since(began); took > time.Minute {
							t.Errorf("it took %v", took)
						}
						b.mustBe(true, turn, "boot-1")
						if left := b.podsOn("wk-1"); left != nil {
							t.Errorf("left are %v", left)
						}
						if err := b.cluster.Uncordon(context.Background(), b.desired, cluster.Node{Name: "wk-1"}); err != nil {
							t.Error(err)
						}
						b.mustBe(false, "", "")
					})
				})
			}
		}
	}
}

// TestDrainAmongOthers: a Node that somebody else changes at the same time is read
// again, but not for ever.
func TestDrainAmongOthers(t *testing.T) {
	onDrains(t, 1, func(b *drains) {
		conflict := world.Fault{Op: "PATCH /api/v1/nodes/{name}", Kind: world.Answer, Status: 409, Text: "the object has been modified", Times: 3}
		b.world.Inject(conflict)
		if err := b.drain(cluster.Drain{}); err != nil {
			t.Error(err)
		}
		b.mustBe(true, turn, "boot-1")
		b.world.Inject(conflict)
		if err := b.cluster.Uncordon(context.Background(), b.desired, cluster.Node{Name: "wk-1"}); err != nil {
			t.Error(err)
		}
		b.mustBe(false, "", "")
		conflict.Times = 0
		b.world.Inject(conflict)
		b.calls()
		if err := b.drain(cluster.Drain{}); err == nil || !strings.Contains(err.Error(), "change its Node object: it answers: the object has been modified") {
			t.Error(err)
		}
		if calls := b.calls(); calls["PATCH /api/v1/nodes/{name}"] != patchTries {
			t.Errorf("calls %v", calls)
		}
	})
}

// TestDrainThroughAnotherAPI: when the API that was asked dies, another is.
func TestDrainThroughAnotherAPI(t *testing.T) {
	onDrains(t, 2, func(b *drains) {
		b.addPod("db", nil)
		b.refuseAll("db")
		server, _ := b.cluster.API()
		if server != serverOf(b.desired.Spec.Nodes[0].IP) {
			t.Fatalf("the API is %s", server)
		}
		done := make(chan error, 1)
		go func() { done <- b.drain(cluster.Drain{}) }()
		time.Sleep(12 * time.Second)
		memory := b.world.Net.(*world.Memory)
		memory.Darken("10.0.0.11", true)
		time.Sleep(35 * time.Second)
		b.look()
		b.mu.Lock()
		b.answer = nil
		b.mu.Unlock()
		if err := <-done; err != nil {
			t.Error(err)
		}
		b.mustBe(true, turn, "boot-1")
	})
}

// TestDrainWithoutAPI gives up after a minute, and leaves all as it is.
func TestDrainWithoutAPI(t *testing.T) {
	onDrains(t, 1, func(b *drains) {
		b.addPod("db", nil)
		b.refuseAll("db")
		done := make(chan error, 1)
		go func() { done <- b.drain(cluster.Drain{}) }()
		time.Sleep(12 * time.Second)
		memory := b.world.Net.(*world.Memory)
		memory.Darken("10.0.0.11", true)
		began := time.Now()
		if err := <-done; err == nil || !strings.Contains(err.Error(), "for 1m0s: ") {
			t.Errorf("%v", err)
		}
		if took := time.Since(began); took < silentFor || took > 2*silentFor {
			t.Errorf("it took %v", took)
		}
		b.look()
		if err := b.drain(cluster.Drain{}); err == nil || !strings.Contains(err.Error(), "no kube-apiserver is ready") {
			t.Errorf("without an API: %v", err)
		}
		memory.Darken("10.0.0.11", false)
		b.mustBe(true, turn, "")
	})
}
