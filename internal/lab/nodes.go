package lab

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/talos-agent/talos-agent/internal/lab/kube"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

var (
	_ world.Containers = nodes{}
	_ world.Drainer    = nodes{}
	_ world.Storage    = nodes{}
)

// nodes is the simulated Kubernetes as the machines below its nodes see it. It
// implements world.Containers, world.Drainer and world.Storage.
type nodes struct{ *kube.Clusters }

// PodsOn returns the pods that run on a node.
func (n nodes) PodsOn(ca, node string) (pods []world.Pod) {
	for _, o := range n.Objects(ca, corev1.SchemeGroupVersion.WithResource("pods"), "") {
		var pod corev1.Pod
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &pod); err != nil || pod.Spec.NodeName != node || pod.Status.Phase != corev1.PodRunning {
			continue
		}
		found := world.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)}
		for _, c := range pod.Spec.Containers {
			found.Containers = append(found.Containers, world.Container{Name: c.Name, Image: c.Image})
		}
		pods = append(pods, found)
	}
	return pods
}
