package manifests

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// describeRollout is how far the pods of a Deployment or DaemonSet are from being those that it asks for, "" : they are,
// or it has none. Pods that are of the newest kind and do not run hold no rollout, unless none runs: what a node lacks
// is shown of the node. Source: kubectl, rollout status.
func describeRollout(o *unstructured.Unstructured) string {
	var generation, observed, wants, updated, old, available int64
	switch kind := o.GroupVersionKind(); {
	case kind.Group != "apps":
		return ""
	case kind.Kind == "Deployment":
		var d appsv1.Deployment
		if runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &d) != nil {
			return ""
		}
		wants = 1
		if d.Spec.Replicas != nil {
			wants = int64(*d.Spec.Replicas)
		}
		generation, observed = d.Generation, d.Status.ObservedGeneration
		updated, old, available = int64(d.Status.UpdatedReplicas), int64(d.Status.Replicas-d.Status.UpdatedReplicas), int64(d.Status.AvailableReplicas)
	case kind.Kind == "DaemonSet":
		var d appsv1.DaemonSet
		if runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &d) != nil || d.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType {
			return ""
		}
		generation, observed = d.Generation, d.Status.ObservedGeneration
		wants, updated, available = int64(d.Status.DesiredNumberScheduled), int64(d.Status.UpdatedNumberScheduled), int64(d.Status.NumberAvailable)
	default:
		return ""
	}
	switch {
	case observed < generation:
		return "its controller has not seen the change yet"
	case updated < wants:
		return fmt.Sprintf("%d of %d pods are new", updated, wants)
	case old > 0:
		return fmt.Sprintf("%d pods from before are left", old)
	case available == 0 && wants > 0:
		return fmt.Sprintf("none of %d pods is available", wants)
	}
	return ""
}
