package kube_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// ended is when a pod that ends as it is asked to is removed at the latest.
const ended = 1100 * time.Millisecond

func getPod(t testing.TB, set kubernetes.Interface, name string) *corev1.Pod {
	t.Helper()
	p, err := set.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
	must(t, err)
	return p
}

func mustBeRemoved(t testing.TB, set kubernetes.Interface, name string) {
	t.Helper()
	if p, err := set.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("pod %s is still there: %s, deleted %v, %v", name, p.Status.Phase, p.DeletionTimestamp, err)
	}
}

func podReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// runPods makes pods without a controller and waits until they are ready.
func (l *lab) runPods(set kubernetes.Interface, pods ...*corev1.Pod) {
	l.t.Helper()
	for _, p := range pods {
		_, err := set.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{})
		must(l.t, err)
	}
	for _, p := range pods {
		eventually(l.t, p.Name, time.Minute, func() error {
			have, err := set.CoreV1().Pods("default").Get(ctx, p.Name, metav1.GetOptions{})
			if err == nil && !podReady(have) {
				err = fmt.Errorf("phase %s", have.Status.Phase)
			}
			return err
		})
	}
}

// TestPodsTakeTimeToEnd: Terminating as long as their processes take, within their
// grace.
func TestPodsTakeTimeToEnd(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.flat(1)
		grace := int64(20)
		sleepy, stubborn, forced, hurried := barePod("sleepy", "a"), barePod("stubborn", "a"), barePod("forced", "a"), barePod("hurried", "a")
		sleepy.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 10}}}
		for _, p := range []*corev1.Pod{stubborn, forced, hurried} {
			p.Spec.Containers[0].Image = "registry.stubborn.test/db:1"
			p.Spec.TerminationGracePeriodSeconds = &grace
		}
		l.runPods(set, barePod("quick", "a"), sleepy, stubborn, forced, hurried)

		start := time.Now()
		for _, name := range []string{"quick", "sleepy", "stubborn", "forced"} {
			must(t, evict(set, "default", name))
		}
		now := int64(0)
		must(t, set.CoreV1().Pods("default").Delete(ctx, "hurried", metav1.DeleteOptions{}))
		p := getPod(t, set, "stubborn")
		if p.DeletionTimestamp.Sub(start) < 19*time.Second || *p.DeletionGracePeriodSeconds != 20 || !podReady(p) || p.Status.Phase != corev1.PodRunning {
			t.Errorf("at first: deleted %v, grace %d, phase %s", p.DeletionTimestamp, *p.DeletionGracePeriodSeconds, p.Status.Phase)
		}
		must(t, evict(set, "default", "stubborn")) // once more changes nothing
		must(t, set.CoreV1().Pods("default").Delete(ctx, "forced", metav1.DeleteOptions{GracePeriodSeconds: &now}))
		mustBeRemoved(t, set, "forced")
		short := int64(5)
		must(t, set.CoreV1().Pods("default").Delete(ctx, "hurried", metav1.DeleteOptions{GracePeriodSeconds: &short}))
		at := func(d time.Duration) { time.Sleep(time.Until(start.Add(d))) }
		at(600 * time.Millisecond)
		if p := getPod(t, set, "quick"); p.Status.Phase != corev1.PodSucceeded || podReady(p) {
			t.Errorf("the quick one at its end: %s", p.Status.Phase)
		}
		at(ended)
		mustBeRemoved(t, set, "quick")
		getPod(t, set, "hurried")
		at(7 * time.Second)
		mustBeRemoved(t, set, "hurried")
		at(10400 * time.Millisecond)
		getPod(t, set, "sleepy")
		at(11500 * time.Millisecond)
		mustBeRemoved(t, set, "sleepy")
		at(19900 * time.Millisecond)
		getPod(t, set, "stubborn")
		at(20200 * time.Millisecond)
		if p := getPod(t, set, "stubborn"); p.Status.Phase != corev1.PodFailed || p.Status.ContainerStatuses[0].State.Terminated.ExitCode != 137 {
			t.Errorf("the stubborn one at its end: %+v", p.Status)
		}
		at(21 * time.Second)
		mustBeRemoved(t, set, "stubborn")
	})
}

// TestPodsOfADeadNode run for ever, as far as the API knows, until their node or
// somebody's patience ends.
func TestPodsOfADeadNode(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.running(apiAddr)
		ready := newReadiness()
		start := func() func() {
			stop := l.kube.RunKubelet(l.id, kubelet("wk-1", "10.0.0.21", 501), ready.call)
			<-ready.ch
			return stop
		}
		stop := start()
		db, replicas := deployment("db", 1), int32(1)
		_, err := set.AppsV1().StatefulSets("default").Create(ctx, &appsv1.StatefulSet{ObjectMeta: db.ObjectMeta, Spec: appsv1.StatefulSetSpec{
			Replicas: &replicas, Selector: db.Spec.Selector, Template: db.Spec.Template, ServiceName: "db",
		}}, metav1.CreateOptions{})
		must(t, err)
		l.runPods(set, barePod("a", "a"), barePod("b", "a"))
		eventually(t, "db", time.Minute, func() error {
			p, err := set.CoreV1().Pods("default").Get(ctx, "db-0", metav1.GetOptions{})
			if err == nil && !podReady(p) {
				err = fmt.Errorf("phase %s", p.Status.Phase)
			}
			return err
		})
		uid := getPod(t, set, "db-0").UID
		l.kube.RunKubelet(l.id, kubelet("wk-2", "10.0.0.22", 502), ready.call)
		<-ready.ch

		stop()
		must(t, evict(set, "default", "a"))
		time.Sleep(45 * time.Second)
		p := getPod(t, set, "db-0")
		if podReady(p) || p.Status.Phase != corev1.PodRunning || p.Status.ContainerStatuses[0].State.Running == nil || p.DeletionTimestamp != nil {
			t.Errorf("on a lost node: %+v", p.Status)
		}
		time.Sleep(5*time.Minute + time.Second)
		if p := getPod(t, set, "db-0"); p.DeletionTimestamp == nil {
			t.Error("the pod is not deleted after its toleration")
		}
		time.Sleep(12 * time.Hour)
		for _, name := range []string{"a", "b", "db-0"} {
			if p := getPod(t, set, name); p.DeletionTimestamp == nil || p.Status.Phase != corev1.PodRunning || name == "db-0" && p.UID != uid {
				t.Errorf("pod %s hours later: %+v", name, p.Status)
			}
		}
		// Who is patient no longer forces it; a StatefulSet then has another.
		now := int64(0)
		must(t, set.CoreV1().Pods("default").Delete(ctx, "db-0", metav1.DeleteOptions{GracePeriodSeconds: &now}))
		eventually(t, "another db-0", time.Minute, func() error {
			p, err := set.CoreV1().Pods("default").Get(ctx, "db-0", metav1.GetOptions{})
			if err == nil && (p.UID == uid || p.Spec.NodeName != "wk-2") {
				err = fmt.Errorf("on %s", p.Spec.NodeName)
			}
			return err
		})
		// With the Node object its pods go, if not at once.
		must(t, set.CoreV1().Nodes().Delete(ctx, "wk-1", metav1.DeleteOptions{}))
		time.Sleep(39 * time.Second)
		getPod(t, set, "a")
		time.Sleep(22 * time.Second)
		mustBeRemoved(t, set, "a")
		mustBeRemoved(t, set, "b")
		// A kubelet that comes back ends what was deleted meanwhile.
		stop = start()
		l.runPods(set, pinned("c", "wk-1"))
		stop()
		must(t, evict(set, "default", "c"))
		time.Sleep(time.Hour)
		getPod(t, set, "c")
		start()
		time.Sleep(ended)
		mustBeRemoved(t, set, "c")
	})
}

// TestNodeComesBackAfterItsObject: a node whose object was deleted is a new one once
// its machine has booted, however soon that is.
func TestNodeComesBackAfterItsObject(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.running(apiAddr)
		ready := newReadiness()
		boot := func(id string) func() {
			k := kubelet("wk-1", "10.0.0.21", 501)
			k.BootID = id
			return l.kube.RunKubelet(l.id, k, ready.call)
		}
		stop := boot("boot-1")
		<-ready.ch
		patchNode(t, set, "wk-1", `{"metadata":{"labels":{"by":"hand"}},"spec":{"unschedulable":true}}`)
		l.runPods(set, pinned("a", "wk-1"))
		must(t, set.CoreV1().Nodes().Delete(ctx, "wk-1", metav1.DeleteOptions{}))
		stop()
		time.Sleep(20 * time.Second)
		getPod(t, set, "a")
		boot("boot-2")
		<-ready.ch
		must(t, nodeReady(set, "wk-1"))
		n, err := set.CoreV1().Nodes().Get(ctx, "wk-1", metav1.GetOptions{})
		if err != nil || n.Labels["by"] != "" || n.Spec.Unschedulable || len(n.Spec.Taints) != 0 {
			t.Errorf("node %+v %+v, %v", n.Labels, n.Spec, err)
		}
		eventually(t, "running again", time.Minute, func() error {
			p := getPod(t, set, "a")
			if c := p.Status.ContainerStatuses[0]; !podReady(p) || c.RestartCount != 1 {
				return fmt.Errorf("%+v", c)
			}
			return nil
		})
		time.Sleep(time.Hour)
		getPod(t, set, "a")
		stop = boot("boot-2") // without an object in between, another kubelet changes nothing
		<-ready.ch
		if c := getPod(t, set, "a").Status.ContainerStatuses[0]; c.RestartCount != 1 {
			t.Errorf("after another kubelet: %+v", c)
		}
		stop()
	})
}

// pinned is a pod that is bound to a node.
func pinned(name, node string) *corev1.Pod {
	p := barePod(name, name)
	p.Spec.NodeName = node
	return p
}

// TestBoots: a new boot of the machine starts containers again, a new kubelet does
// not.
func TestBoots(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.running(apiAddr)
		ready := newReadiness()
		boot := func(id string) func() {
			k := kubelet("wk-1", "10.0.0.21", 501)
			k.BootID, k.UUID = id, "6c1d5f4e-0000-4000-8000-000000000501"
			stop := l.kube.RunKubelet(l.id, k, ready.call)
			<-ready.ch
			return stop
		}
		info := func() corev1.NodeSystemInfo {
			n, err := set.CoreV1().Nodes().Get(ctx, "wk-1", metav1.GetOptions{})
			must(t, err)
			must(t, nodeReady(set, "wk-1"))
			return n.Status.NodeInfo
		}
		stop := boot("boot-1")
		l.runPods(set, barePod("a", "a"))
		stop()
		time.Sleep(10 * time.Minute)
		if p := getPod(t, set, "a"); podReady(p) || p.DeletionTimestamp == nil {
			t.Errorf("while its kubelet is away: %+v", p.Status)
		}
		stop = boot("boot-1")
		if i := info(); i.BootID != "boot-1" || i.SystemUUID != "6c1d5f4e-0000-4000-8000-000000000501" {
			t.Errorf("node info %+v", i)
		}
		time.Sleep(ended)
		mustBeRemoved(t, set, "a")
		l.runPods(set, barePod("b", "b"))
		begun := getPod(t, set, "b").Status.ContainerStatuses[0].State.Running.StartedAt
		stop()
		time.Sleep(time.Minute)
		if podReady(getPod(t, set, "b")) {
			t.Error("ready on a lost node")
		}
		stop = boot("boot-1")
		p := getPod(t, set, "b")
		if c := p.Status.ContainerStatuses[0]; !podReady(p) || c.RestartCount != 0 || !c.State.Running.StartedAt.Equal(&begun) {
			t.Errorf("after another kubelet: %+v", p.Status)
		}
		stop()
		boot("boot-2")
		if i := info(); i.BootID != "boot-2" {
			t.Errorf("node info %+v", i)
		}
		eventually(t, "running again", time.Minute, func() error {
			p := getPod(t, set, "b")
			if c := p.Status.ContainerStatuses[0]; !podReady(p) || c.RestartCount != 1 || !begun.Before(&c.State.Running.StartedAt) {
				return fmt.Errorf("%+v", c)
			}
			return nil
		})
	})
}

// TestBackWithItsAPI: the node of the only control plane was away with its API, is lost
// when that comes back, and is back at once; its pods are ready again.
func TestBackWithItsAPI(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		up, ready := newReadiness(), newReadiness()
		cp := l.control("cp-1", apiAddr)
		stopAPI := l.kube.ServeAPI(l.id, "etcd-1", cp, up.call)
		<-up.ch
		k := kubelet("wk-1", "10.0.0.21", 501)
		k.BootID = "boot-1"
		stop := l.kube.RunKubelet(l.id, k, ready.call)
		<-ready.ch
		l.runPods(l.typed(apiAddr), barePod("a", "a"))
		stop()
		stopAPI()
		time.Sleep(2 * time.Minute)
		l.kube.RunKubelet(l.id, k, ready.call)
		l.kube.ServeAPI(l.id, "etcd-1", cp, up.call)
		<-up.ch
		eventually(t, "ready again", time.Minute, func() error {
			p := getPod(t, l.typed(apiAddr), "a")
			if !podReady(p) {
				return fmt.Errorf("%+v", p.Status)
			}
			return nil
		})
	})
}

// TestKubeletRestartsBeforeReady: a kubelet that is started again while its network comes
// up reports Ready as soon as it registers, without the taint.
func TestKubeletRestartsBeforeReady(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.running(apiAddr)
		k := kubelet("wk-1", "10.0.0.21", 501)
		k.BootID = "boot-1"
		stop := l.kube.RunKubelet(l.id, k, ignore)
		time.Sleep(l.world.Latency.ImagePull + l.world.Latency.CNIPull + l.world.Latency.Ready/2)
		if nodeReady(set, "wk-1") == nil {
			t.Fatal("it is Ready already")
		}
		stop()
		l.kube.RunKubelet(l.id, k, ignore)
		eventually(t, "Ready", time.Minute, func() error { return nodeReady(set, "wk-1") })
		n, err := set.CoreV1().Nodes().Get(ctx, "wk-1", metav1.GetOptions{})
		must(t, err)
		if len(n.Spec.Taints) > 0 {
			t.Errorf("taints %v", n.Spec.Taints)
		}
		if !slices.ContainsFunc(l.world.Events(), func(e world.Event) bool { return e.Subject == "wk-1" && e.Text == "is Ready" }) {
			t.Error("it is not in the events")
		}
	})
}
