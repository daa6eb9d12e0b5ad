package talos

import (
	"fmt"
	"maps"
	"slices"

	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// staticPods are those that Talos makes of the config of a control plane. Others may be in the
// config, too (machine.pods): how they do is not the agent's matter.
var staticPods = []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler"}

// readStaticPod takes in one of them. What a machine was published with is not changed.
func readStaticPod(e state.Event, m *cluster.Machine) {
	r, ok := e.Resource.(*k8s.StaticPod)
	if !ok || !slices.Contains(staticPods, r.Metadata().ID()) {
		return
	}
	m.StaticPods = maps.Clone(m.StaticPods)
	if e.Type == state.Destroyed {
		delete(m.StaticPods, r.Metadata().ID())
		return
	}
	if m.StaticPods == nil {
		m.StaticPods = map[string]cluster.StaticPod{}
	}
	m.StaticPods[r.Metadata().ID()] = staticPodOf(r.TypedSpec().Pod)
}

// staticPodOf reads what a pod is made of.
func staticPodOf(pod map[string]any) cluster.StaticPod {
	at := func(of any, key string) any {
		m, _ := of.(map[string]any)
		return m[key]
	}
	annotations := map[string]string{}
	if of, ok := at(at(pod, "metadata"), "annotations").(map[string]any); ok {
		for k, v := range of {
			annotations[k] = fmt.Sprint(v)
		}
	}
	image := ""
	if containers, ok := at(at(pod, "spec"), "containers").([]any); ok && len(containers) > 0 {
		image = fmt.Sprint(at(containers[0], "image"))
	}
	return cluster.NewStaticPod(image, annotations)
}
