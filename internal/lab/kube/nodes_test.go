package kube_test

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// beats returns the renewal of a node's lease and the last heartbeat of its
// condition Ready.
func beats(t testing.TB, set kubernetes.Interface, node string) (lease, status time.Time) {
	t.Helper()
	leases, err := set.CoordinationV1().Leases("kube-node-lease").List(ctx, metav1.ListOptions{})
	must(t, err)
	var own *coordinationv1.Lease
	for i := range leases.Items {
		if leases.Items[i].Name == node {
			own = &leases.Items[i]
		}
	}
	if own == nil || *own.Spec.HolderIdentity != node || *own.Spec.LeaseDurationSeconds != 40 || own.OwnerReferences[0].Kind != "Node" {
		t.Fatalf("lease %+v", own)
	}
	n, err := set.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	must(t, err)
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			status = c.LastHeartbeatTime.Time
		}
	}
	return own.Spec.RenewTime.Time, status
}

// TestHeartbeats: whenever somebody looks, a kubelet that runs has renewed its lease
// lately, and a dead one has not.
func TestHeartbeats(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.running(apiAddr)
		ready := newReadiness()
		stop := l.kube.RunKubelet(l.id, kubelet("wk-1", "10.0.0.21", 501), ready.call)
		<-ready.ch
		var before time.Time
		for range 12 {
			time.Sleep(7 * time.Minute)
			lease, status := beats(t, set, "wk-1")
			if age := time.Since(lease); age > 11*time.Second || age < 0 {
				t.Errorf("the lease was renewed %v ago", age)
			}
			if age := time.Since(status); age > 5*time.Minute+2*time.Second || age < 0 || !status.After(before) {
				t.Errorf("the status was reported %v ago, the time before at %v", age, before)
			}
			before = status
		}
		stopped := time.Now()
		stop()
		time.Sleep(time.Hour)
		lease, status := beats(t, set, "wk-1")
		if late := stopped.Sub(lease); late < 0 || late > 11*time.Second {
			t.Errorf("the lease of a dead kubelet was renewed %v before its end", late)
		}
		if status.After(stopped) {
			t.Error("a dead kubelet reports")
		}
		l.kube.RunKubelet(l.id, kubelet("wk-1", "10.0.0.21", 501), ready.call)
		<-ready.ch
		if lease, _ := beats(t, set, "wk-1"); time.Since(lease) > 11*time.Second {
			t.Errorf("the lease after its return is of %v", lease)
		}
		must(t, set.CoreV1().Nodes().Delete(ctx, "wk-1", metav1.DeleteOptions{}))
		time.Sleep(time.Second)
		if _, err := set.CoordinationV1().Leases("kube-node-lease").Get(ctx, "wk-1", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("the lease of a node without an object: %v", err)
		}
	})
}

// TestNodeSize: what the machine has, less what Talos and the kubelet keep back.
func TestNodeSize(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.running(apiAddr)
		ready := newReadiness()
		k := kubelet("wk-1", "10.0.0.21", 501)
		k.Cores, k.MemoryMiB = 2, 4096
		stop := l.kube.RunKubelet(l.id, k, ready.call)
		<-ready.ch
		size := func() [4]string {
			n, err := set.CoreV1().Nodes().Get(ctx, "wk-1", metav1.GetOptions{})
			must(t, err)
			c, a := n.Status.Capacity, n.Status.Allocatable
			return [4]string{c.Cpu().String(), c.Memory().String(), a.Cpu().String(), a.Memory().String()}
		}
		if got, want := size(), [4]string{"2", "4012Mi", "1950m", "3528Mi"}; got != want {
			t.Errorf("size %v, want %v", got, want)
		}
		stop()
		k.Cores, k.MemoryMiB = 4, 8192
		l.kube.RunKubelet(l.id, k, ready.call)
		<-ready.ch
		if got, want := size(), [4]string{"4", "8044Mi", "3950m", "7560Mi"}; got != want {
			t.Errorf("size after it grew: %v, want %v", got, want)
		}
	})
}
