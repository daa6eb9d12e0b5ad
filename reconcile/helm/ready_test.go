package helm

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func of[T any](v T) *T { return &v }

func TestDeploymentWaits(t *testing.T) {
	meta := metav1.ObjectMeta{Generation: 2}
	status := func(observed int64, replicas, updated, available int32) appsv1.DeploymentStatus {
		return appsv1.DeploymentStatus{ObservedGeneration: observed, Replicas: replicas, UpdatedReplicas: updated, AvailableReplicas: available}
	}
	for _, c := range []struct {
		spec   appsv1.DeploymentSpec
		status appsv1.DeploymentStatus
		want   string
	}{
		{appsv1.DeploymentSpec{Replicas: of(int32(3))}, status(1, 3, 3, 3), notObserved},
		{appsv1.DeploymentSpec{Replicas: of(int32(3))}, status(2, 3, 1, 3), "1 of 3 pods are of its newest version"},
		{appsv1.DeploymentSpec{Replicas: of(int32(3))}, status(2, 4, 3, 3), "1 pods of an older version are still there"},
		{appsv1.DeploymentSpec{Replicas: of(int32(3))}, status(2, 3, 3, 2), "2 of 3 pods ready"},
		{appsv1.DeploymentSpec{Replicas: of(int32(3))}, status(2, 3, 3, 3), ""},
		{appsv1.DeploymentSpec{}, status(2, 0, 0, 0), "0 of 1 pods are of its newest version"},
		{appsv1.DeploymentSpec{Replicas: of(int32(0))}, status(2, 0, 0, 0), ""},
		{appsv1.DeploymentSpec{Replicas: of(int32(3)), Paused: true}, status(1, 0, 0, 0), ""},
	} {
		if got := deploymentWaits(&appsv1.Deployment{ObjectMeta: meta, Spec: c.spec, Status: c.status}); got != c.want {
			t.Errorf("%+v: %q, want %q", c.status, got, c.want)
		}
	}
}

func TestDaemonSetWaits(t *testing.T) {
	rolling := appsv1.DaemonSetUpdateStrategy{Type: appsv1.RollingUpdateDaemonSetStrategyType}
	status := func(observed int64, want, updated, available int32) appsv1.DaemonSetStatus {
		return appsv1.DaemonSetStatus{ObservedGeneration: observed, DesiredNumberScheduled: want, UpdatedNumberScheduled: updated, NumberAvailable: available}
	}
	for _, c := range []struct {
		strategy appsv1.DaemonSetUpdateStrategy
		status   appsv1.DaemonSetStatus
		want     string
	}{
		{rolling, status(1, 3, 3, 3), notObserved},
		{rolling, status(2, 3, 2, 3), "2 of 3 pods are of its newest version"},
		{rolling, status(2, 3, 3, 1), "1 of 3 pods ready"},
		{rolling, status(2, 3, 3, 3), ""},
		{rolling, status(2, 0, 0, 0), ""},
		{appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}, status(2, 3, 0, 3), ""},
	} {
		got := daemonSetWaits(&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Generation: 2}, Spec: appsv1.DaemonSetSpec{UpdateStrategy: c.strategy}, Status: c.status})
		if got != c.want {
			t.Errorf("%+v: %q, want %q", c.status, got, c.want)
		}
	}
}

func TestStatefulSetWaits(t *testing.T) {
	rolling := appsv1.StatefulSetUpdateStrategy{Type: appsv1.RollingUpdateStatefulSetStrategyType}
	parted := appsv1.StatefulSetUpdateStrategy{Type: rolling.Type, RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: of(int32(2))}}
	status := func(observed int64, ready, updated int32, current, update string) appsv1.StatefulSetStatus {
		return appsv1.StatefulSetStatus{ObservedGeneration: observed, ReadyReplicas: ready, UpdatedReplicas: updated, CurrentRevision: current, UpdateRevision: update}
	}
	for _, c := range []struct {
		strategy appsv1.StatefulSetUpdateStrategy
		status   appsv1.StatefulSetStatus
		want     string
	}{
		{rolling, status(0, 3, 3, "a", "a"), notObserved},
		{rolling, status(1, 3, 3, "a", "a"), notObserved},
		{rolling, status(2, 1, 3, "a", "a"), "1 of 3 pods ready"},
		{rolling, status(2, 3, 2, "a", "b"), "2 of 3 pods are of its newest version"},
		{rolling, status(2, 3, 3, "a", "b"), "its pods are being replaced"},
		{rolling, status(2, 3, 3, "a", "a"), ""},
		{parted, status(2, 3, 0, "a", "b"), "0 of 1 pods are of its newest version"},
		{parted, status(2, 3, 1, "a", "b"), ""},
		{appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType}, status(2, 3, 0, "a", "b"), ""},
	} {
		got := statefulSetWaits(&appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Generation: 2}, Spec: appsv1.StatefulSetSpec{Replicas: of(int32(3)), UpdateStrategy: c.strategy}, Status: c.status})
		if got != c.want {
			t.Errorf("%+v: %q, want %q", c.status, got, c.want)
		}
	}
}
