package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
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
		if err := b.cluster.DeleteNode(context.Background(), b.desired, other, nil); err == nil || !strings.Contains(err.Error(), "from a machine with SMBIOS UUID") {
			t.Errorf("of another machine: %v", err)
		}
		b.world.Inject(world.Fault{Op: "DELETE /api/v1/nodes/{name}", Kind: world.LoseReply, Nth: 1})
		for range 2 {
			if err := b.cluster.DeleteNode(context.Background(), b.desired, n, nil); err != nil {
				t.Error(err)
			}
		}
		if _, err := b.set.CoreV1().Nodes().Get(context.Background(), "wk-1", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("the node: %v", err)
		}
		b.world.Inject(world.Fault{Op: "DELETE /api/v1/nodes/{name}", Kind: world.Answer, Status: 403, Text: "no"})
		n = cluster.Node{Name: "wk-2", UUID: b.node("wk-2").Status.NodeInfo.SystemUUID}
		if err := b.cluster.DeleteNode(context.Background(), b.desired, n, nil); err == nil || !strings.HasPrefix(err.Error(), "delete node object wk-2: ") {
			t.Errorf("refused: %v", err)
		}
		if err := b.drain(cluster.Drain{}); !errors.Is(err, errNoNode) {
			t.Errorf("drain of no node: %v", err)
		}
	})
}

// TestDeleteNodeEndsWhatIsLeft: the pods and the volumes of a machine that was destroyed are elsewhere
// to start before its Node object is deleted, at which Kubernetes would keep volumes for six minutes.
func TestDeleteNodeEndsWhatIsLeft(t *testing.T) {
	onDrains(t, 1, func(b *drains) {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}}}
		if _, err := b.set.CoreV1().PersistentVolumeClaims("default").Create(context.Background(), claim, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		ready, stop := b.join("wk-3", "10.0.0.23", 503)
		<-ready
		b.addPod("db", func(p *corev1.Pod) {
			p.Spec.NodeName = "wk-3"
			p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
		})
		b.addPod("tolerant", func(p *corev1.Pod) {
			p.Spec.NodeName, p.Spec.Tolerations = "wk-3", []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		})
		stop()
		b.until("it is lost", func() bool { return isUnreachable(b.node("wk-3")) })
		began := time.Now()
		if err := b.cluster.DeleteNode(context.Background(), b.desired, cluster.Node{Name: "wk-3", UUID: b.node("wk-3").Status.NodeInfo.SystemUUID}, b.note); err != nil {
			t.Error(err)
		}
		pods, err := b.set.CoreV1().Pods("default").List(context.Background(), metav1.ListOptions{})
		if err != nil || len(pods.Items) > 0 {
			t.Errorf("%d pods are left, %v", len(pods.Items), err)
		}
		volumes, err := b.set.StorageV1().VolumeAttachments().List(context.Background(), metav1.ListOptions{})
		if err != nil || len(volumes.Items) > 0 || time.Since(began) >= detachWithin {
			t.Errorf("after %v %d volumes are attached, %v", time.Since(began), len(volumes.Items), err)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if p := b.progress[0]; !strings.HasPrefix(p.Waits, "Kubernetes to end what its machine has left: pod default/db, pod default/tolerant, volume pv") {
			t.Errorf("progress %+v", p)
		}
	})
}

// TestDeleteNodeGoesOn: a volume that is never detached does not keep a Node object; one whose
// deletion did not come to its end is put back into service with its turn, as it was before.
func TestDeleteNodeGoesOn(t *testing.T) {
	onDrains(t, 1, func(b *drains) {
		n := cluster.Node{Name: "wk-1", UUID: b.node("wk-1").Status.NodeInfo.SystemUUID}
		b.attach("wk-1")
		for _, cordoned := range []bool{false, true} {
			b.patchNode("wk-1", fmt.Sprintf(`{"spec":{"unschedulable":%v,"taints":[{"key":"dedicated","effect":"NoSchedule"}]}}`, cordoned))
			ctx, cancel := context.WithTimeout(context.Background(), 12*time.Second)
			if err := b.cluster.DeleteNode(ctx, b.desired, n, nil); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("interrupted: %v", err)
			}
			cancel()
			b.mustBe(true, cluster.TurnRemoval, "")
			if !slices.ContainsFunc(b.node("wk-1").Spec.Taints, isOwnTaint) {
				t.Errorf("taints %v", b.node("wk-1").Spec.Taints)
			}
			if err := b.cluster.Uncordon(context.Background(), b.desired, n); err != nil {
				t.Error(err)
			}
			b.mustBe(cordoned, "", "")
			if taints := b.node("wk-1").Spec.Taints; slices.ContainsFunc(taints, isOwnTaint) || !slices.ContainsFunc(taints, func(t corev1.Taint) bool { return t.Key == "dedicated" }) {
				t.Errorf("taints %v", taints)
			}
		}
		began := time.Now()
		if err := b.cluster.DeleteNode(context.Background(), b.desired, n, nil); err != nil || time.Since(began) < detachWithin || time.Since(began) > 2*detachWithin {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		if _, err := b.set.CoreV1().Nodes().Get(context.Background(), "wk-1", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("the node: %v", err)
		}
		if _, log := b.asked(""); !strings.Contains(log, `level=WARN msg="pods or volumes stay with a node whose machine is no longer there" node=wk-1 detail="volume pv-1"`) {
			t.Errorf("log %s", log)
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
