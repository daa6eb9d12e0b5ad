package kube

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

const failedPull = `failed to pull and unpack image "ghcr.io/siderolabs/flannel:v0.28.9": failed to resolve reference: Head "https://robot:hunter2@ghcr.io/v2/siderolabs/flannel?sig=hunter2&x=1": 403 Forbidden`

// TestReadPods: what is kept of a pod, and that it is the same after a list was
// trimmed.
func TestReadPods(t *testing.T) {
	controller := true
	waiting := func(name, reason, message string) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: name, Image: "ghcr.io/siderolabs/flannel:v0.28.9", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}
	}
	crashed := waiting("main", "CrashLoopBackOff", "back-off 5m0s restarting failed container with --token=hunter2")
	crashed.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled", Message: "hunter2"}
	for _, c := range []struct {
		what string
		pod  corev1.Pod
		want cluster.SystemPod
	}{
		{"ready", corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"k8s-app": "kube-dns", "pod-template-hash": "7b9"}, OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "coredns-7b9", Controller: &controller}}},
			Spec:       corev1.PodSpec{NodeName: "n1"},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
		}, cluster.SystemPod{Node: "n1", Workload: "coredns", DNS: true, Ready: true}},
		{"starting", corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{Kind: "DaemonSet", Name: "kube-flannel", Controller: &controller}}},
			Status:     corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{waiting("main", "ContainerCreating", "")}},
		}, cluster.SystemPod{Workload: "kube-flannel"}},
		{"an image of an init container", corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodPending,
			InitContainerStatuses: []corev1.ContainerStatus{waiting("install-config", "ErrImagePull", failedPull)},
			ContainerStatuses:     []corev1.ContainerStatus{waiting("main", "PodInitializing", "")},
		}}, cluster.SystemPod{Workload: "x", Failing: `ErrImagePull of ghcr.io/siderolabs/flannel:v0.28.9: failed to pull and unpack image "ghcr.io/siderolabs/flannel:v0.28.9": failed to resolve reference: Head "https://ghcr.io/v2/siderolabs/flannel": 403 Forbidden`}},
		{"crashes", corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{crashed}}},
			cluster.SystemPod{Workload: "x", Failing: "CrashLoopBackOff: container main ended with exit code 137 (OOMKilled)"}},
		{"cannot be made", corev1.Pod{Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{waiting("main", "RunContainerError", "exec --password=hunter2: no such file")}}},
			cluster.SystemPod{Workload: "x", Failing: "RunContainerError"}},
		{"lacks a secret", corev1.Pod{Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{waiting("main", "CreateContainerConfigError", `secret "x" not found`)}}},
			cluster.SystemPod{Workload: "x", Failing: `CreateContainerConfigError: secret "x" not found`}},
		{"unschedulable", corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/1 nodes are available: 1 Insufficient cpu."}}}},
			cluster.SystemPod{Workload: "x", Unschedulable: "0/1 nodes are available: 1 Insufficient cpu"}},
		{"static", corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{Kind: "Node", Name: "n1", Controller: &controller}}}},
			cluster.SystemPod{Workload: "x"}},
		{"static, as Talos makes it", corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "0123", "talos.dev/config-version": "2", "talos.dev/secrets-version": strings.Repeat("1", 40)}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "kube-scheduler", Image: "registry.k8s.io/kube-scheduler:v1.36.3"}}},
		}, cluster.SystemPod{Workload: "x", Static: cluster.StaticPod{Image: "registry.k8s.io/kube-scheduler:v1.36.3", Versions: "/2/" + strings.Repeat("1", 32)}}},
		{"that only has such annotations", corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"talos.dev/config-version": "2"}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "kube-scheduler", Image: "registry.k8s.io/kube-scheduler:v1.36.3"}}},
		}, cluster.SystemPod{Workload: "x"}},
		{"kube-proxy", corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{Kind: "DaemonSet", Name: "kube-proxy", Controller: &controller}}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "kube-proxy", Image: "registry.k8s.io/kube-proxy:v1.36.3"}}},
		}, cluster.SystemPod{Workload: "kube-proxy", Proxy: "registry.k8s.io/kube-proxy:v1.36.3"}},
		{"deleted", corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{Time: time.Now()}},
			Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}}, cluster.SystemPod{Workload: "x"}},
		{"evicted", corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{crashed}}}, cluster.SystemPod{Workload: "x"}},
	} {
		c.pod.Name, c.want.Name = "x", "x"
		got, err := podOf(&c.pod)
		if err != nil || got != c.want {
			t.Errorf("%s: %+v, %v, want %+v", c.what, got, err, c.want)
		}
		if again, err := podOf(trimPod(&c.pod)); err != nil || again != got {
			t.Errorf("%s: trimmed it reads as %+v, not %+v (%v)", c.what, again, got, err)
		}
	}
	if _, err := podOf("x"); err == nil {
		t.Error("a string is a pod")
	}
	long := corev1.Pod{Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{waiting("main", "ErrImagePull", strings.Repeat("a https://u:p@h?q\n", 1000))}}}
	if p, err := podOf(&long); err != nil || len(p.Failing) > 400 || strings.ContainsAny(p.Failing, "\n?") || strings.Contains(p.Failing, "u:p") {
		t.Errorf("%q, %v", p.Failing, err)
	}
}

// TestPressure: conditions that a node reports although it is Ready, in one order.
func TestPressure(t *testing.T) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	for _, c := range []struct {
		kind    corev1.NodeConditionType
		status  corev1.ConditionStatus
		message string
	}{
		{corev1.NodeNetworkUnavailable, corev1.ConditionTrue, "no route"}, {corev1.NodeMemoryPressure, corev1.ConditionFalse, "fine"}, {"KernelDeadlock", corev1.ConditionTrue, "somebody's own"},
		{corev1.NodeReady, corev1.ConditionTrue, ""}, {corev1.NodePIDPressure, corev1.ConditionUnknown, "silent"}, {corev1.NodeDiskPressure, corev1.ConditionTrue, "kubelet has\ndisk pressure"},
	} {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: c.kind, Status: c.status, Message: c.message})
	}
	for _, obj := range []any{n, plainReader.trimNode(n)} {
		if got, err := plainReader.nodeOf(obj); err != nil || !got.Ready || got.Pressure != "DiskPressure: kubelet has disk pressure; NetworkUnavailable: no route" {
			t.Errorf("%+v, %v", got, err)
		}
	}
}

// TestFailingPods: what keeps a node from being Ready is seen in the pods of
// kube-system, and what is short on one that is Ready.
func TestFailingPods(t *testing.T) {
	bubble(t, 1, func(b *bench) {
		b.serve(1)
		b.kube.CloseRegistry("ghcr.io")
		ready, _ := b.join("wk-1", "10.0.0.21", 521)
		flannel := func(o cluster.Observed) (p cluster.SystemPod) {
			for _, p := range o.SystemPods.Value {
				if p.Workload == "kube-flannel" && p.Node == "wk-1" {
					return p
				}
			}
			return p
		}
		b.soon("the network's pod fails", func(o cluster.Observed) bool {
			return !o.Nodes.Value["wk-1"].Ready && strings.HasPrefix(flannel(o).Failing, "ImagePullBackOff of ghcr.io/siderolabs/flannel:")
		})
		b.kube.OpenRegistry("ghcr.io")
		<-ready
		b.soon("it runs", func(o cluster.Observed) bool {
			return o.Nodes.Value["wk-1"].Ready && flannel(o).Ready && flannel(o).Failing == ""
		})
		if !b.kube.SetPressure("wk-1", "DiskPressure", true) {
			t.Fatal("no such node")
		}
		b.soon("it is under pressure", func(o cluster.Observed) bool {
			n := o.Nodes.Value["wk-1"]
			return n.Ready && n.Pressure == "DiskPressure: kubelet has disk pressure"
		})
		b.kube.SetPressure("wk-1", "DiskPressure", false)
		b.soon("it is not", func(o cluster.Observed) bool { return o.Nodes.Value["wk-1"].Pressure == "" })
	})
}

// TestPodsAlone: while only the pods cannot be read, the nodes are known.
func TestPodsAlone(t *testing.T) {
	bubble(t, 1, func(b *bench) {
		b.serve(1)
		ready, _ := b.join("wk-1", "10.0.0.21", 521)
		<-ready
		for _, op := range []string{"GET ", "WATCH "} {
			b.world.Inject(world.Fault{System: "kube", Op: op + "/api/v1/namespaces/{namespace}/pods", Kind: world.Answer, Status: 403, Text: "no"})
		}
		if o := b.look(); o.SystemPods.Known || !strings.HasPrefix(o.SystemPods.Why, "the API at 10.0.0.11: ") || !o.Nodes.Known {
			t.Errorf("%+v, %+v", o.SystemPods, o.Nodes)
		}
		b.world.Heal()
		o := b.look()
		if !o.SystemPods.Known || !o.Nodes.Known {
			t.Errorf("%+v, %+v", o.SystemPods, o.Nodes)
		}
		var proxies []string
		for _, p := range o.SystemPods.Value {
			if p.Proxy != "" {
				proxies = append(proxies, p.Proxy)
			}
		}
		if want := []string{"registry.k8s.io/kube-proxy:" + o.Nodes.Value["wk-1"].Kubelet}; !slices.Equal(proxies, want) {
			t.Errorf("kube-proxy is seen as %v", proxies)
		}
		b.calls()
		for range 5 {
			b.look()
		}
		for op, n := range b.calls() {
			if strings.Contains(op, "pods") || strings.Contains(op, "nodes") {
				t.Errorf("looking again asked %d times: %s", n, op)
			}
		}
	})
}
