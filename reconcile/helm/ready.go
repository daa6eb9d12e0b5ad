package helm

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// workload is what is known of one object that runs pods.
type workload struct {
	uid        types.UID
	generation int64
	why        string // what it waits for; "": it is ready
	short      bool   // pods of it are missing, and an event may show why
}

// The rules below are those of `kubectl rollout status` (kubectl 0.37,
// pkg/polymorphichelpers/rollout_status.go), which knows no deadline either. A
// paused Deployment, and pods that are replaced only when somebody deletes
// them, are not waited for.

// deploymentWaits is what a Deployment waits for, "" when for nothing.
func deploymentWaits(d *appsv1.Deployment) string {
	s, want := d.Status, wantedReplicas(d.Spec.Replicas)
	switch {
	case d.Spec.Paused:
		return ""
	case s.ObservedGeneration < d.Generation:
		return notObserved
	case s.UpdatedReplicas < want && replicaFailure(d) != "":
		return describeRefusal(replicaFailure(d))
	case s.UpdatedReplicas < want:
		return fmt.Sprintf("%d of %d pods are of its newest version", s.UpdatedReplicas, want)
	case s.Replicas > s.UpdatedReplicas:
		return fmt.Sprintf("%d pods of an older version are still there", s.Replicas-s.UpdatedReplicas)
	case s.AvailableReplicas < s.UpdatedReplicas:
		return podsReady(s.AvailableReplicas, s.UpdatedReplicas)
	}
	return ""
}

// replicaFailure is why pods of a Deployment could not be made, "" if they could.
func replicaFailure(d *appsv1.Deployment) string {
	for _, c := range d.Status.Conditions {
		if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue {
			return c.Message
		}
	}
	return ""
}

// daemonSetWaits is what a DaemonSet waits for, "" when for nothing.
func daemonSetWaits(d *appsv1.DaemonSet) string {
	s, want := d.Status, d.Status.DesiredNumberScheduled
	switch {
	case s.ObservedGeneration < d.Generation:
		return notObserved
	case s.UpdatedNumberScheduled < want && d.Spec.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType:
		return fmt.Sprintf("%d of %d pods are of its newest version", s.UpdatedNumberScheduled, want)
	case s.NumberAvailable < want:
		return podsReady(s.NumberAvailable, want)
	}
	return ""
}

// statefulSetWaits is what a StatefulSet waits for, "" when for nothing.
func statefulSetWaits(d *appsv1.StatefulSet) string {
	s, want := d.Status, wantedReplicas(d.Spec.Replicas)
	rolling := d.Spec.UpdateStrategy.Type == appsv1.RollingUpdateStatefulSetStrategyType
	partition := int32(0)
	if r := d.Spec.UpdateStrategy.RollingUpdate; r != nil && r.Partition != nil {
		partition = *r.Partition
	}
	switch {
	case s.ObservedGeneration == 0 || s.ObservedGeneration < d.Generation:
		return notObserved
	case s.ReadyReplicas < want:
		return podsReady(s.ReadyReplicas, want)
	case rolling && s.UpdatedReplicas < want-partition:
		return fmt.Sprintf("%d of %d pods are of its newest version", s.UpdatedReplicas, want-partition)
	case rolling && partition == 0 && s.UpdateRevision != s.CurrentRevision:
		return "its pods are being replaced"
	}
	return ""
}

const notObserved = "its controller has not looked at it yet"

func podsReady(ready, want int32) string { return fmt.Sprintf("%d of %d pods ready", ready, want) }

// wantedReplicas returns how many pods are wanted; the API server fills in 1
// where nothing is set.
func wantedReplicas(n *int32) int32 {
	if n == nil {
		return 1
	}
	return *n
}
