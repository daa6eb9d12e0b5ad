package kube_test

import (
	"fmt"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/talos-agent/talos-agent/internal/lab/world"
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

// TestStaticPodsAreShownLate: the pods that stand for static pods show another manifest when the
// kubelet has seen it; if no API takes them then, they show the one from before until it tries
// again.
func TestStaticPodsAreShownLate(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		const addr, other = "10.0.0.11", "10.0.0.12"
		scheduler := func(version string) []world.StaticPod {
			return []world.StaticPod{{Name: "kube-scheduler", Image: "registry.k8s.io/kube-scheduler:v1.36.1", Versions: map[string]string{"talos.dev/config-version": version}}}
		}
		l.kube.RunStaticPods(l.id, "etcd-1", "cp-1", scheduler("1"))
		l.running(addr)
		l.kube.RunKubelet(l.id, controlKubelet("cp-1", addr, 401), ignore)
		shown := func(at, want string) {
			t.Helper()
			p, err := l.typed(at).CoreV1().Pods("kube-system").Get(ctx, "kube-scheduler-cp-1", metav1.GetOptions{})
			if err != nil || p.Annotations["talos.dev/config-version"] != want || p.Spec.Containers[0].Image != "registry.k8s.io/kube-scheduler:v1.36.1" {
				t.Errorf("%v: %q, %v, want %q", time.Since(l.world.Start()), p.Annotations, err, want)
			}
		}
		time.Sleep(time.Minute)
		shown(addr, "1")
		l.kube.RunStaticPods(l.id, "etcd-1", "cp-1", scheduler("2"))
		time.Sleep(l.world.Latency.Manifest)
		shown(addr, "1")
		time.Sleep(2 * time.Second)
		shown(addr, "2")
		stop := l.kube.ServeAPI(l.id, "etcd-1", l.control("cp-2", other), ignore)
		time.Sleep(time.Minute)
		stop()
		l.kube.RunStaticPods(l.id, "etcd-1", "cp-1", scheduler("3"))
		l.kube.RunStaticPods(l.id, "etcd-1", "cp-1", scheduler("4")) // at once after it
		time.Sleep(l.world.Latency.Manifest + 2*time.Second)
		shown(addr, "4")
	})
	bubble(t, func(t *testing.T, l *lab) {
		const addr = "10.0.0.11"
		pods := func(version string) []world.StaticPod {
			return []world.StaticPod{{Name: "kube-apiserver", Image: "registry.k8s.io/kube-apiserver:v1.36.1", Versions: map[string]string{"talos.dev/config-version": version}}}
		}
		up := newReadiness()
		serve := func() func() {
			stop := l.kube.ServeAPI(l.id, "etcd-1", l.control("cp-1", addr), up.call)
			<-up.ch
			return stop
		}
		l.kube.RunStaticPods(l.id, "etcd-1", "cp-1", pods("1"))
		stop := serve()
		l.kube.RunKubelet(l.id, controlKubelet("cp-1", addr, 401), ignore)
		time.Sleep(time.Minute)
		start := time.Now()
		l.kube.RunStaticPods(l.id, "etcd-1", "cp-1", pods("2"))
		time.Sleep(l.world.Latency.Manifest)
		stop()
		time.Sleep(2 * time.Second)
		serve()
		eventually(t, "the pod as its manifest is", 3*time.Minute, func() error {
			p, err := l.typed(addr).CoreV1().Pods("kube-system").Get(ctx, "kube-apiserver-cp-1", metav1.GetOptions{})
			if err == nil && p.Annotations["talos.dev/config-version"] != "2" {
				err = fmt.Errorf("its version is %s", p.Annotations["talos.dev/config-version"])
			}
			return err
		})
		if took := time.Since(start); took < 90*time.Second || took > 2*time.Minute {
			t.Errorf("shown after %v", took)
		}
	})
}

// TestStaticPodsWithoutAnImage: the pod that stands for a static pod whose image its kubelet cannot
// pull waits, with the reason, and runs once it can.
func TestStaticPodsWithoutAnImage(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		const addr = "10.0.0.11"
		pods := func(version, pullError string) []world.StaticPod {
			return []world.StaticPod{{Name: "kube-scheduler", Image: "registry.k8s.io/kube-scheduler:" + version, Versions: map[string]string{"talos.dev/config-version": version}, PullError: pullError}}
		}
		l.kube.RunStaticPods(l.id, "etcd-1", "cp-1", pods("v1.36.1", ""))
		l.running(addr)
		l.kube.RunKubelet(l.id, controlKubelet("cp-1", addr, 401), ignore)
		shown := func(want string) {
			t.Helper()
			time.Sleep(l.world.Latency.Manifest + 2*time.Second)
			p, err := l.typed(addr).CoreV1().Pods("kube-system").Get(ctx, "kube-scheduler-cp-1", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			got := string(p.Status.Phase)
			if w := p.Status.ContainerStatuses[0].State.Waiting; w != nil {
				got += " " + w.Reason + ": " + w.Message
			}
			if got != want || podReady(p) != (want == "Running") {
				t.Errorf("%s, %v, want %s", got, p.Status.Conditions, want)
			}
		}
		time.Sleep(time.Minute)
		shown("Running")
		l.kube.RunStaticPods(l.id, "etcd-1", "cp-1", pods("v1.36.99", "it is not there: not found"))
		shown(`Pending ImagePullBackOff: Back-off pulling image "registry.k8s.io/kube-scheduler:v1.36.99": ErrImagePull: it is not there: not found`)
		l.kube.RunStaticPods(l.id, "etcd-1", "cp-1", pods("v1.36.2", ""))
		shown("Running")
	})
}

// TestKubeletSkew: a kubelet that is newer than a kube-apiserver joins, as in life, and the lab notes
// that somebody let it.
func TestKubeletSkew(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		l.running(apiAddr)
		for i, tc := range []struct {
			kubelet string
			broken  int
		}{{"v1.36.0", 0}, {kubelet("x", "10.0.0.9", 1).Kubernetes, 0}, {"v1.99.0", 1}} {
			k, ready := kubelet(fmt.Sprintf("wk-%d", i), fmt.Sprintf("10.0.0.2%d", i), 500+i), newReadiness()
			k.Kubernetes = tc.kubelet
			l.kube.RunKubelet(l.id, k, ready.call)
			<-ready.ch
			if v := l.world.Violations(); len(v) != tc.broken {
				t.Errorf("%s: %v", tc.kubelet, v)
			}
		}
	})
}

// TestKubeletSkewOfAnOlderServer: a kube-apiserver that starts with an older version than a kubelet runs is noted, too; one beside a
// kubelet that has ended is not.
func TestKubeletSkewOfAnOlderServer(t *testing.T) {
	for name, tc := range map[string]struct {
		ends   bool
		broken int
	}{"it runs": {false, 1}, "it has ended": {true, 0}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, l *lab) {
				l.running(apiAddr)
				ready, up := newReadiness(), newReadiness()
				stop := l.kube.RunKubelet(l.id, kubelet("wk-1", "10.0.0.21", 501), ready.call)
				<-ready.ch
				if tc.ends {
					stop()
				}
				older := l.control("cp-2", "10.0.0.12")
				older.Kubernetes = "v1.35.10"
				l.kube.ServeAPI(l.id, "etcd-1", older, up.call)
				if <-up.ch; len(l.world.Violations()) != tc.broken {
					t.Errorf("%v", l.world.Violations())
				}
			})
		})
	}
}
