package kube_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// patchNode changes a node.
func patchNode(t testing.TB, set kubernetes.Interface, name, patch string) {
	t.Helper()
	_, err := set.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
	must(t, err)
}

// taintsOf are a node's taints as text, with "@" where they have a time: those of
// controllers.
func taintsOf(t testing.TB, set kubernetes.Interface, name string) string {
	t.Helper()
	n, err := set.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	must(t, err)
	var out []string
	for _, taint := range n.Spec.Taints {
		text := taint.ToString()
		if taint.TimeAdded != nil {
			text += "@"
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}

// TestCordonTaints: the taint of a cordon comes and goes with it.
func TestCordonTaints(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.flat(1)
		l.runPods(set, barePod("before", "a"))
		patchNode(t, set, "wk-1", `{"spec":{"unschedulable":true}}`)
		eventually(t, "taint", time.Second, func() error {
			if got := taintsOf(t, set, "wk-1"); got != "node.kubernetes.io/unschedulable:NoSchedule@" {
				return fmt.Errorf("taints %q", got)
			}
			return nil
		})
		_, err := set.CoreV1().Pods("default").Create(ctx, barePod("after", "a"), metav1.CreateOptions{})
		must(t, err)
		time.Sleep(time.Minute)
		if p := getPod(t, set, "before"); !podReady(p) || p.DeletionTimestamp != nil {
			t.Errorf("what ran before the cordon: %+v", p.Status)
		}
		if c := getPod(t, set, "after").Status.Conditions[0]; c.Reason != "Unschedulable" || !strings.HasPrefix(c.Message, "0/1 nodes are available: 1 node(s) were unschedulable.") {
			t.Errorf("condition %+v", c)
		}
		patchNode(t, set, "wk-1", `{"spec":{"unschedulable":null}}`)
		eventually(t, "no taint", time.Second, func() error {
			if got := taintsOf(t, set, "wk-1"); got != "" {
				return fmt.Errorf("taints %q", got)
			}
			return nil
		})
		eventually(t, "placed", time.Minute, func() error {
			if p := getPod(t, set, "after"); !podReady(p) {
				return fmt.Errorf("phase %s", p.Status.Phase)
			}
			return nil
		})
	})
}

// TestTaintsThatExecute evict who does not tolerate them, when its time is over, and
// spare who does.
func TestTaintsThatExecute(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.flat(1)
		tolerant := func(name string, seconds *int64) *corev1.Pod {
			p := barePod(name, name)
			p.Spec.Tolerations = []corev1.Toleration{{Key: "upkeep", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: seconds}}
			return p
		}
		minute, hour := int64(60), int64(3600)
		l.runPods(set, barePod("none", "none"), tolerant("minute", &minute), tolerant("hour", &hour), tolerant("ever", nil))
		d := deployment("agent", 1)
		_, err := set.AppsV1().DaemonSets("default").Create(ctx, &appsv1.DaemonSet{
			ObjectMeta: d.ObjectMeta, Spec: appsv1.DaemonSetSpec{Selector: d.Spec.Selector, Template: d.Spec.Template},
		}, metav1.CreateOptions{})
		must(t, err)
		patchNode(t, set, "wk-1", `{"spec":{"taints":[{"key":"upkeep","effect":"NoExecute"}]}}`)
		time.Sleep(time.Millisecond)
		p := getPod(t, set, "none")
		if c := p.Status.Conditions[len(p.Status.Conditions)-1]; p.DeletionTimestamp == nil || c.Type != corev1.DisruptionTarget || c.Reason != "DeletionByTaintManager" {
			t.Errorf("without a toleration: deleted %v, %+v", p.DeletionTimestamp, c)
		}
		time.Sleep(59 * time.Second)
		mustBeRemoved(t, set, "none")
		if p := getPod(t, set, "minute"); p.DeletionTimestamp != nil {
			t.Error("deleted before its minute was over")
		}
		time.Sleep(time.Second + ended)
		mustBeRemoved(t, set, "minute")
		// The clock of the one with an hour stops with the taint.
		patchNode(t, set, "wk-1", `{"spec":{"taints":null}}`)
		time.Sleep(time.Minute)
		patchNode(t, set, "wk-1", `{"spec":{"taints":[{"key":"upkeep","effect":"NoExecute"}]}}`)
		time.Sleep(59 * time.Minute)
		getPod(t, set, "hour")
		time.Sleep(2 * time.Minute)
		mustBeRemoved(t, set, "hour")
		getPod(t, set, "ever")
		pods, err := set.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=agent"})
		if err != nil || len(pods.Items) != 0 {
			t.Errorf("%d pods of the DaemonSet, which does not tolerate the taint, %v", len(pods.Items), err)
		}
	})
}

// TestDaemonsStayOnADeadNode, as what they tolerate lets them, and one that is
// deleted there is not replaced before it has ended.
func TestDaemonsStayOnADeadNode(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.running(apiAddr)
		ready := newReadiness()
		stop := l.kube.RunKubelet(l.id, kubelet("wk-1", "10.0.0.21", 501), ready.call)
		<-ready.ch
		l.runPods(set, barePod("a", "a"))
		stop()
		time.Sleep(10 * time.Minute)
		if got := taintsOf(t, set, "wk-1"); got != "node.kubernetes.io/unreachable:NoSchedule@ node.kubernetes.io/unreachable:NoExecute@" {
			t.Errorf("taints %q", got)
		}
		if p := getPod(t, set, "a"); p.DeletionTimestamp == nil {
			t.Error("a pod stays on a dead node for ever")
		}
		daemons := func() []corev1.Pod {
			pods, err := set.CoreV1().Pods("kube-system").List(ctx, metav1.ListOptions{LabelSelector: "k8s-app=kube-proxy"})
			must(t, err)
			return pods.Items
		}
		if d := daemons(); len(d) != 1 || d[0].DeletionTimestamp != nil {
			t.Fatalf("pods of kube-proxy: %+v", d)
		}
		name := daemons()[0].Name
		must(t, evict(set, "kube-system", name))
		time.Sleep(time.Hour)
		if d := daemons(); len(d) != 1 || d[0].Name != name || d[0].DeletionTimestamp == nil {
			t.Fatalf("pods of kube-proxy: %+v", d)
		}
		l.kube.RunKubelet(l.id, kubelet("wk-1", "10.0.0.21", 501), ready.call)
		<-ready.ch
		eventually(t, "another kube-proxy", time.Minute, func() error {
			if d := daemons(); len(d) != 1 || d[0].Name == name || !podReady(&d[0]) {
				return fmt.Errorf("%d pods", len(d))
			}
			return nil
		})
		if _, err := set.CoreV1().Pods("default").Get(ctx, "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("the deleted pod: %v", err)
		}
	})
}
