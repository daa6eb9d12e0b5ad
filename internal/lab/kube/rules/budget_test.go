package rules

import (
	"testing"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// TestSparesUnready: what may happen to a pod that runs and is not ready.
func TestSparesUnready(t *testing.T) {
	always := policyv1.AlwaysAllow
	for name, c := range map[string]struct {
		current, desired int32
		policy           *policyv1.UnhealthyPodEvictionPolicyType
		want             bool
	}{
		"enough without it":           {2, 2, nil, true},
		"too few":                     {1, 2, nil, false},
		"too few, and never mind":     {1, 2, &always, true},
		"a budget that wants nothing": {0, 0, nil, false},
	} {
		b := &policyv1.PodDisruptionBudget{
			Spec:   policyv1.PodDisruptionBudgetSpec{UnhealthyPodEvictionPolicy: c.policy},
			Status: policyv1.PodDisruptionBudgetStatus{CurrentHealthy: c.current, DesiredHealthy: c.desired},
		}
		if got := SparesUnready(b); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestGrantedPodsDoNotCount until they are deleted, or two minutes have passed.
func TestGrantedPodsDoNotCount(t *testing.T) {
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	least := intstr.FromInt32(1)
	b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "b", Generation: 1}, Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &least}}
	pods := []GuardedPod{{Name: "a", Ready: true}, {Name: "b", Ready: true}, {Name: "c", Ready: true, Deleting: true}}
	count := func(at time.Time) int32 {
		t.Helper()
		if err := CountBudget(b, pods, 0, at); err != nil {
			t.Fatal(err)
		}
		return b.Status.DisruptionsAllowed
	}
	if err := GrantEviction(b, "a", now); err == nil {
		t.Error("granted before the controller has seen the budget")
	}
	if n := count(now); n != 1 {
		t.Fatalf("%d allowed of two pods", n)
	}
	if err := GrantEviction(b, "a", now); err != nil {
		t.Fatal(err)
	}
	if n := count(now.Add(time.Minute)); n != 0 || len(b.Status.DisruptedPods) != 1 {
		t.Errorf("%d allowed while a pod is about to be deleted: %+v", n, b.Status)
	}
	if err := GrantEviction(b, "b", now.Add(time.Minute)); err == nil {
		t.Error("granted twice")
	}
	if n := count(now.Add(3 * time.Minute)); n != 1 || len(b.Status.DisruptedPods) != 0 {
		t.Errorf("%d allowed when it was not deleted after all: %+v", n, b.Status)
	}
}
