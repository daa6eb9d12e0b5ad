package kube_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// listEvents returns the events that a field selector selects, oldest first, as "reason
// xcount: message".
func listEvents(t testing.TB, set kubernetes.Interface, selector string) []string {
	t.Helper()
	list, err := set.CoreV1().Events("").List(ctx, metav1.ListOptions{FieldSelector: selector})
	if err != nil {
		t.Fatal(err)
	}
	slices.SortStableFunc(list.Items, func(a, b corev1.Event) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	var out []string
	for _, e := range list.Items {
		count := max(1, e.Count)
		if e.Series != nil {
			count = e.Series.Count
		}
		out = append(out, fmt.Sprintf("%s x%d: %s", e.Reason, count, e.Message))
	}
	return out
}

// wantEvents compares events with what they begin with.
func wantEvents(t testing.TB, set kubernetes.Interface, selector string, want ...string) {
	t.Helper()
	got := listEvents(t, set, selector)
	same := len(got) == len(want)
	for i := range min(len(got), len(want)) {
		same = same && strings.HasPrefix(got[i], want[i])
	}
	if !same {
		t.Errorf("events of %s:\n%s\nwant\n%s", selector, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestEventsOfPods follows a pod from its Deployment to its end.
func TestEventsOfPods(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := bringWeb(t, l)
		pod := webPod(t, set)
		rs, _, _ := strings.Cut(strings.TrimPrefix(pod, "web-"), "-")
		rs = "web-" + rs
		of := "involvedObject.name=" + pod
		wantEvents(t, set, "involvedObject.name=web", "ScalingReplicaSet x1: Scaled up replica set "+rs+" from 0 to 1")
		wantEvents(t, set, "involvedObject.kind=ReplicaSet,involvedObject.name="+rs, "SuccessfulCreate x1: Created pod: "+pod)
		wantEvents(t, set, of+",source=kubelet",
			`Pulling x1: Pulling image "web:1"`, `Pulled x1: Successfully pulled image "web:1" in `, "Created x1: Container created", "Started x1: Container started")
		wantEvents(t, set, of+",reason=Scheduled", "Scheduled x1: Successfully assigned default/"+pod+" to wk-1")
		if err := set.CoreV1().Pods("default").Delete(ctx, pod, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute)
		wantEvents(t, set, of+",reason=Killing", "Killing x1: Stopping container main")
		next := webPod(t, set)
		wantEvents(t, set, "reason=Pulled,involvedObject.name="+next, `Pulled x1: Container image "web:1" already present on machine`)
		time.Sleep(time.Hour)
		if left := listEvents(t, set, "involvedObject.namespace=default"); len(left) > 0 {
			t.Errorf("after an hour there are %q", left)
		}
	})
}

// TestEventsOfScheduling: a pod that no node takes is tried again, which one event
// counts, and stays visible as long as that goes on.
func TestEventsOfScheduling(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := bringWeb(t, l)
		big := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "big"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "main", Image: "big:1", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("64")}},
		}}}}
		if _, err := set.CoreV1().Pods("default").Create(ctx, big, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Hour)
		const why = "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint(s). no new claims to deallocate, preemption: 0/2 nodes are available: "
		wantEvents(t, set, "involvedObject.name=big", "FailedScheduling x36: "+why)
		made, err := set.CoreV1().Events("default").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=big"})
		if err != nil {
			t.Fatal(err)
		}
		e := made.Items[0]
		if e.Type != corev1.EventTypeWarning || e.Action != "Scheduling" || e.ReportingController != "default-scheduler" || e.ReportingInstance != "default-scheduler-cp-1" || e.Source.Component != "" || !e.LastTimestamp.IsZero() {
			t.Errorf("the event is %+v", e)
		}
	})
}

// TestEventsOfPulls: a pod whose image cannot be pulled shows it as long as that is so.
func TestEventsOfPulls(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := bringWeb(t, l)
		bad := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "bad"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "x.invalid/a:1"}}}}
		if _, err := set.CoreV1().Pods("default").Create(ctx, bad, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(9 * time.Minute)
		wantEvents(t, set, "involvedObject.name=bad,source=kubelet",
			`Pulling x2: Pulling image "x.invalid/a:1"`,
			`Failed x2: Failed to pull image "x.invalid/a:1": failed to pull and unpack image "x.invalid/a:1": failed to resolve reference`,
			"Failed x2: Error: ErrImagePull", `BackOff x2: Back-off pulling image "x.invalid/a:1"`, "Failed x2: Error: ImagePullBackOff")
		time.Sleep(3 * time.Hour)
		if left := listEvents(t, set, "involvedObject.name=bad,type=Warning"); len(left) == 0 {
			t.Error("after three hours nothing shows why")
		}
	})
}

// TestEventsOfNodes: a node is lost, its pods with it, and comes back with another boot.
func TestEventsOfNodes(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.running(apiAddr)
		l.kube.RunKubelet(l.id, controlKubelet("cp-1", apiAddr, 401), ignore)
		node := kubelet("wk-1", "10.0.0.21", 501)
		node.BootID = "one"
		stop := l.kube.RunKubelet(l.id, node, ignore)
		makeWeb(t, set)
		time.Sleep(5 * time.Minute)
		pod := webPod(t, set)
		of := "involvedObject.kind=Node,involvedObject.name=wk-1"
		kubelets, controllers := of+",source=kubelet", of+",source=node-controller"
		wantEvents(t, set, kubelets, "Starting x1: Starting kubelet.", "NodeReady x1: Node wk-1 status is now: NodeReady")
		wantEvents(t, set, controllers, "RegisteredNode x1: Node wk-1 event: Registered Node wk-1 in Controller")
		stop()
		time.Sleep(10 * time.Minute)
		wantEvents(t, set, controllers, "RegisteredNode", "NodeNotReady x1: Node wk-1 status is now: NodeNotReady")
		wantEvents(t, set, "involvedObject.name="+pod+",source=node-controller", "NodeNotReady x1: Node is not ready")
		wantEvents(t, set, "involvedObject.uid=,involvedObject.name="+pod, "TaintManagerEviction x1: Marking for deletion Pod default/"+pod)
		node.BootID = "two"
		l.kube.RunKubelet(l.id, node, ignore)
		time.Sleep(5 * time.Minute)
		wantEvents(t, set, kubelets, "Starting x2: Starting kubelet.", "NodeReady x2: ", "Rebooted x1: Node wk-1 has been rebooted, boot id: two", "NodeNotReady x1: ")
		if _, err := set.CoreV1().Nodes().Patch(ctx, "wk-1", types.MergePatchType, []byte(`{"spec":{"unschedulable":true}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		wantEvents(t, set, kubelets+",reason=NodeNotSchedulable", "NodeNotSchedulable x1: Node wk-1 status is now: NodeNotSchedulable")
		if err := set.CoreV1().Nodes().Delete(ctx, "wk-1", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		wantEvents(t, set, controllers+",reason=RemovingNode", "RemovingNode x1: Node wk-1 event: Removing Node wk-1 from Controller")
	})
}

// TestEventsOfNamespaces: the events of a namespace go with it, and no event keeps it.
func TestEventsOfNamespaces(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := bringWeb(t, l)
		makeNamespace(t, set, "apps", nil)
		if _, err := set.AppsV1().Deployments("apps").Create(ctx, deployment("web", 2), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if err := set.CoreV1().Namespaces().Delete(ctx, "apps", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute)
		if left := listEvents(t, set, "involvedObject.namespace=apps"); len(left) > 0 {
			t.Errorf("there are %q", left)
		}
		if _, err := set.CoreV1().Namespaces().Get(ctx, "apps", metav1.GetOptions{}); err == nil {
			t.Error("the namespace is still there")
		}
	})
}
