package kube_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestPodsThatDoNotFitTheirNode: a pod of a DaemonSet for which its node has no room waits there, and
// runs once it has; the kubelet fails one that names its node.
func TestPodsThatDoNotFitTheirNode(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.running(apiAddr)
		ready := newReadiness()
		for i, node := range []string{"wk-1", "wk-2"} {
			k := kubelet(node, fmt.Sprintf("10.0.0.2%d", i+1), 501+i)
			k.Cores = 2 + 2*i
			l.kube.RunKubelet(l.id, k, ready.call)
			eventually(t, node, 5*time.Minute, func() error { return nodeReady(set, node) })
		}
		asking := func(cpu string) corev1.PodSpec {
			return corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "registry.example.org/main:1", Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)},
			}}}}
		}
		states := func(prefix string) (out []string) {
			t.Helper()
			pods, err := set.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
			must(t, err)
			for _, p := range pods.Items {
				if !strings.HasPrefix(p.Name, prefix) {
					continue
				}
				state := strings.TrimSpace(p.Spec.NodeName + " " + string(p.Status.Phase) + " " + p.Status.Reason + " " + p.Status.Message)
				for _, c := range p.Status.Conditions {
					if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
						state += ": " + c.Message
					}
				}
				out = append(out, state)
			}
			slices.Sort(out)
			return out
		}
		want := func(prefix string, want ...string) {
			t.Helper()
			time.Sleep(6 * time.Minute) // the scheduler tries again after five
			if got := states(prefix); fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
				t.Errorf("%q\nwant %q", got, want)
			}
		}
		daemons := func(name, cpu, class string) *appsv1.DaemonSet {
			labels := map[string]string{"app": name}
			spec := asking(cpu)
			spec.PriorityClassName = class
			return &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Spec: appsv1.DaemonSetSpec{
				Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec},
			}}
		}
		create := func(ds *appsv1.DaemonSet) {
			t.Helper()
			_, err := set.AppsV1().DaemonSets("default").Create(ctx, ds, metav1.CreateOptions{})
			must(t, err)
		}

		create(daemons("huge", "64", ""))
		refused := "Pending: 0/2 nodes are available: 1 Insufficient cpu, 1 node(s) didn't match Pod's node affinity/selector."
		time.Sleep(time.Minute)
		if got := states("huge"); len(got) != 2 || !strings.HasPrefix(got[0], refused) || got[0] != got[1] {
			t.Errorf("%q, want two of %q", got, refused)
		}
		ds, err := set.AppsV1().DaemonSets("default").Get(ctx, "huge", metav1.GetOptions{})
		must(t, err)
		if s := ds.Status; s.DesiredNumberScheduled != 2 || s.NumberReady != 0 || s.NumberUnavailable != 2 {
			t.Errorf("status of the DaemonSet: %+v", s)
		}
		must(t, set.AppsV1().DaemonSets("default").Delete(ctx, "huge", metav1.DeleteOptions{}))

		// Where there is room it runs, and elsewhere once there is.
		create(daemons("large", "1500m", ""))
		want("large", "wk-1 Running", "wk-2 Running")
		create(daemons("second", "1500m", ""))
		time.Sleep(time.Minute)
		if got := states("second"); len(got) != 2 || !strings.HasPrefix(got[0], "Pending: ") || got[1] != "wk-2 Running" {
			t.Errorf("%q", got)
		}
		must(t, set.AppsV1().DaemonSets("default").Delete(ctx, "large", metav1.DeleteOptions{}))
		want("second", "wk-1 Running", "wk-2 Running")

		// For a critical one others make room.
		create(daemons("critical", "500m", "system-node-critical"))
		want("critical", "wk-1 Running", "wk-2 Running")

		for _, p := range []struct{ name, cpu string }{{"named-large", "64"}, {"named-small", "10m"}} {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: p.name, Namespace: "default"}, Spec: asking(p.cpu)}
			pod.Spec.NodeName = "wk-2"
			_, err := set.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{})
			must(t, err)
			time.Sleep(time.Minute)
		}
		want("named", "wk-2 Failed OutOfcpu Pod was rejected: Node didn't have enough resource: cpu, requested: 64000, used: 2100, capacity: 3950", "wk-2 Running")
		var reported []string
		events, err := set.CoreV1().Events("default").List(ctx, metav1.ListOptions{})
		must(t, err)
		for _, e := range events.Items {
			if e.InvolvedObject.Name == "named-large" {
				reported = append(reported, e.Type+" "+e.Reason)
			}
		}
		if !slices.Equal(reported, []string{"Warning OutOfcpu"}) {
			t.Errorf("events %q", reported)
		}
	})
}
