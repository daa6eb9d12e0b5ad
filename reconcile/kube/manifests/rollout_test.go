package manifests

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// TestDescribeRollout: a rollout goes on until all pods are of what is asked for and none from before is left; one that
// somebody does by hand, pods that do not run, and what was never changed, are none.
func TestDescribeRollout(t *testing.T) {
	for text, want := range map[string]string{
		"{apiVersion: apps/v1, kind: DaemonSet, metadata: {generation: 2}, status: {observedGeneration: 1, desiredNumberScheduled: 3, updatedNumberScheduled: 3}}":                                             "its controller has not seen the change yet",
		"{apiVersion: apps/v1, kind: DaemonSet, metadata: {generation: 2}, status: {observedGeneration: 2, desiredNumberScheduled: 3, updatedNumberScheduled: 1}}":                                             "1 of 3 pods are new",
		"{apiVersion: apps/v1, kind: DaemonSet, metadata: {generation: 2}, status: {observedGeneration: 2, desiredNumberScheduled: 3, updatedNumberScheduled: 3}}":                                             "",
		"{apiVersion: apps/v1, kind: DaemonSet, metadata: {generation: 2}, spec: {updateStrategy: {type: OnDelete}}, status: {observedGeneration: 2, desiredNumberScheduled: 3, updatedNumberScheduled: 1}}":   "",
		"{apiVersion: apps/v1, kind: Deployment, metadata: {generation: 2}, spec: {replicas: 2}, status: {observedGeneration: 1, replicas: 2, updatedReplicas: 2}}":                                            "its controller has not seen the change yet",
		"{apiVersion: apps/v1, kind: Deployment, metadata: {generation: 2}, spec: {replicas: 2}, status: {observedGeneration: 2, replicas: 3, updatedReplicas: 1}}":                                            "1 of 2 pods are new",
		"{apiVersion: apps/v1, kind: Deployment, metadata: {generation: 2}, spec: {replicas: 2}, status: {observedGeneration: 2, replicas: 3, updatedReplicas: 2}}":                                            "pods from before are left: 1",
		"{apiVersion: apps/v1, kind: Deployment, metadata: {generation: 2}, spec: {replicas: 2}, status: {observedGeneration: 2, replicas: 2, updatedReplicas: 2}}":                                            "",
		"{apiVersion: apps/v1, kind: Deployment, metadata: {generation: 2}, spec: {replicas: 0}, status: {observedGeneration: 2}}":                                                                             "",
		"{apiVersion: apps/v1, kind: Deployment, metadata: {generation: 2}, spec: {replicas: 2, paused: true}, status: {observedGeneration: 2, replicas: 2, updatedReplicas: 0}}":                              "",
		"{apiVersion: apps/v1, kind: DaemonSet, metadata: {namespace: kube-system, generation: 2}, status: {observedGeneration: 2, desiredNumberScheduled: 3, updatedNumberScheduled: 3}}":                     "none of 3 pods is available",
		"{apiVersion: apps/v1, kind: DaemonSet, metadata: {namespace: kube-system, generation: 2}, status: {observedGeneration: 2, desiredNumberScheduled: 3, updatedNumberScheduled: 3, numberAvailable: 1}}": "",
		"{apiVersion: apps/v1, kind: DaemonSet, metadata: {namespace: kube-system, generation: 1}, status: {desiredNumberScheduled: 3}}":                                                                       "",
		"{apiVersion: v1, kind: ConfigMap, metadata: {generation: 2}}":                                   "",
		"{apiVersion: example.org/v1, kind: Deployment, metadata: {generation: 2}, spec: {replicas: 2}}": "",
	} {
		var o unstructured.Unstructured
		if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
			t.Fatal(err)
		}
		if got := describeRollout(&o); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}
