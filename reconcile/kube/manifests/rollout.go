package manifests

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// describeRollout is how far the pods of a Deployment or DaemonSet are from being those that it asks for, "" : they are,
// or it has none, or whoever set it so replaces them by hand. Pods that are of the newest kind and do not run are no rollout: what
// they lack is shown of them. But of what is in kube-system, where Talos has its own, one has to run: the network of a node that cannot
// start keeps the node from coming back from the next hop. Source: kubectl, rollout status.
func describeRollout(o *unstructured.Unstructured) string {
	var generation, observed int64
	var wants, updated, old, available int32
	read := runtime.DefaultUnstructuredConverter.FromUnstructured
	switch kind := o.GroupVersionKind(); {
	case kind.Group == "apps" && kind.Kind == "Deployment":
		var d appsv1.Deployment
		if read(o.Object, &d) != nil || d.Spec.Paused || d.Spec.Replicas == nil {
			return ""
		}
		generation, observed = d.Generation, d.Status.ObservedGeneration
		wants, updated, old = *d.Spec.Replicas, d.Status.UpdatedReplicas, d.Status.Replicas-d.Status.UpdatedReplicas
		available = d.Status.AvailableReplicas
	case kind.Group == "apps" && kind.Kind == "DaemonSet":
		var d appsv1.DaemonSet
		if read(o.Object, &d) != nil || d.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType {
			return ""
		}
		generation, observed = d.Generation, d.Status.ObservedGeneration
		wants, updated, available = d.Status.DesiredNumberScheduled, d.Status.UpdatedNumberScheduled, d.Status.NumberAvailable
	}
	switch {
	case generation <= 1: // it is as it was made: the cluster is, too, and its nodes show what they lack
		return ""
	case observed < generation:
		return "its controller has not seen the change yet"
	case updated < wants:
		return fmt.Sprintf("%d of %d pods are new", updated, wants)
	case old > 0:
		return fmt.Sprintf("pods from before are left: %d", old)
	case available == 0 && wants > 0 && o.GetNamespace() == metav1.NamespaceSystem:
		return fmt.Sprintf("none of %d pods is available", wants)
	}
	return ""
}
