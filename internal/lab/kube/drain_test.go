package kube_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// settled waits until so many pods of an app are ready.
func settled(t testing.TB, set kubernetes.Interface, app string, want int) {
	t.Helper()
	eventually(t, app+" running", 2*time.Minute, func() error {
		pods, err := set.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=" + app})
		if err != nil {
			return err
		}
		ready := slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return !podReady(&p) })
		if len(ready) != want {
			return fmt.Errorf("%d are ready", len(ready))
		}
		return nil
	})
}

// TestDrain: Talos' own drain cordons the node at once and moves away what a controller
// replaces, as budgets allow. Pods without one, of DaemonSets and static pods stay. The next boot
// takes back its own cordon alone.
func TestDrain(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.running(apiAddr)
		ready := newReadiness()
		stop := l.kube.RunKubelet(l.id, kubelet("wk-1", "10.0.0.21", 501), ready.call)
		<-ready.ch
		bootAgain := func() {
			stop()
			stop = l.kube.RunKubelet(l.id, kubelet("wk-1", "10.0.0.21", 501), ready.call)
			<-ready.ch
		}
		daemons := deployment("agent", 1)
		_, err := set.AppsV1().DaemonSets("default").Create(ctx, &appsv1.DaemonSet{
			ObjectMeta: daemons.ObjectMeta, Spec: appsv1.DaemonSetSpec{Selector: daemons.Spec.Selector, Template: daemons.Spec.Template},
		}, metav1.CreateOptions{})
		must(t, err)
		for _, d := range []string{"free", "kept"} {
			_, err := set.AppsV1().Deployments("default").Create(ctx, deployment(d, 1), metav1.CreateOptions{})
			must(t, err)
		}
		l.runPods(set, barePod("bare", "bare"))
		for _, app := range []string{"free", "kept", "agent"} {
			settled(t, set, app, 1)
		}
		l.budgets(set, budget("kept", "kept", minAvailable("1")), budget("bare", "bare", maxUnavailable("0")))
		time.Sleep(time.Second)
		node := func() (unschedulable bool, mark string) {
			n, err := set.CoreV1().Nodes().Get(ctx, "wk-1", metav1.GetOptions{})
			must(t, err)
			return n.Spec.Unschedulable, n.Annotations["talos.dev/cordoned"]
		}

		start, done := time.Now(), make(chan time.Duration, 1)
		l.kube.DrainNode(l.id, "wk-1", func() { done <- time.Since(start) })
		if unschedulable, mark := node(); !unschedulable || mark != "true" {
			t.Errorf("cordoned %v by %q", unschedulable, mark)
		}
		if took := <-done; took < 5*time.Minute || took > 5*time.Minute+6*time.Second {
			t.Errorf("a drain that a budget holds takes %v", took)
		}
		getPod(t, set, "bare")
		settled(t, set, "kept", 1)
		settled(t, set, "agent", 1)
		settled(t, set, "free", 0)

		must(t, set.PolicyV1().PodDisruptionBudgets("default").Delete(ctx, "kept", metav1.DeleteOptions{}))
		start = time.Now()
		l.kube.DrainNode(l.id, "wk-1", func() { done <- time.Since(start) })
		if took := <-done; took > time.Minute {
			t.Errorf("a drain that nothing holds takes %v", took)
		}
		settled(t, set, "kept", 0)
		getPod(t, set, "bare")

		bootAgain()
		if unschedulable, mark := node(); unschedulable || mark != "" {
			t.Errorf("after the boot cordoned %v by %q", unschedulable, mark)
		}
		settled(t, set, "kept", 1)

		// Somebody else's cordon is not Talos'.
		n, err := set.CoreV1().Nodes().Get(ctx, "wk-1", metav1.GetOptions{})
		must(t, err)
		n.Spec.Unschedulable = true
		_, err = set.CoreV1().Nodes().Update(ctx, n, metav1.UpdateOptions{})
		must(t, err)
		l.kube.DrainNode(l.id, "wk-1", func() { done <- 0 })
		<-done
		bootAgain()
		if unschedulable, mark := node(); !unschedulable || mark != "" {
			t.Errorf("somebody's cordon: %v by %q", unschedulable, mark)
		}
	})
}

// TestDrainThatIsStopped evicts nothing any more.
func TestDrainThatIsStopped(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.running(apiAddr)
		ready := newReadiness()
		l.kube.RunKubelet(l.id, kubelet("wk-1", "10.0.0.21", 501), ready.call)
		<-ready.ch
		_, err := set.AppsV1().Deployments("default").Create(ctx, deployment("kept", 1), metav1.CreateOptions{})
		must(t, err)
		settled(t, set, "kept", 1)
		l.budgets(set, budget("kept", "kept", minAvailable("1")))
		time.Sleep(time.Second)
		stop := l.kube.DrainNode(l.id, "wk-1", func() { t.Error("done") })
		time.Sleep(time.Minute)
		stop()
		must(t, set.PolicyV1().PodDisruptionBudgets("default").Delete(ctx, "kept", metav1.DeleteOptions{}))
		time.Sleep(10 * time.Minute)
		settled(t, set, "kept", 1)
	})
}

// TestDrainListsPodsOnce: what comes to a node while it is drained stays.
func TestDrainListsPodsOnce(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.running(apiAddr)
		ready := newReadiness()
		l.kube.RunKubelet(l.id, kubelet("wk-1", "10.0.0.21", 501), ready.call)
		<-ready.ch
		for _, d := range []string{"kept", "late"} {
			_, err := set.AppsV1().Deployments("default").Create(ctx, deployment(d, 1), metav1.CreateOptions{})
			must(t, err)
		}
		settled(t, set, "kept", 1)
		settled(t, set, "late", 1)
		l.budgets(set, budget("kept", "kept", minAvailable("1")))
		time.Sleep(time.Second)
		done := make(chan struct{})
		l.kube.DrainNode(l.id, "wk-1", func() { close(done) })
		time.Sleep(10 * time.Second)
		settled(t, set, "late", 0)
		// Somebody lets pods come again.
		n, err := set.CoreV1().Nodes().Get(ctx, "wk-1", metav1.GetOptions{})
		must(t, err)
		n.Spec.Unschedulable = false
		_, err = set.CoreV1().Nodes().Update(ctx, n, metav1.UpdateOptions{})
		must(t, err)
		settled(t, set, "late", 1)
		<-done
		settled(t, set, "late", 1)
		if n, err = set.CoreV1().Nodes().Get(ctx, "wk-1", metav1.GetOptions{}); err != nil || n.Spec.Unschedulable {
			t.Errorf("cordoned again: %v, %v", n.Spec.Unschedulable, err)
		}
	})
}

// TestDrainWithoutAnAPI waits for a minute.
func TestDrainWithoutAnAPI(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		start, done := time.Now(), make(chan time.Duration, 1)
		l.kube.DrainNode(l.id, "wk-1", func() { done <- time.Since(start) })
		if took := <-done; took < time.Minute || took > time.Minute+6*time.Second {
			t.Errorf("it takes %v", took)
		}
	})
}
