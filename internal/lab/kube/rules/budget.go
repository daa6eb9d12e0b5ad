package rules

import (
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// How disruption budgets are counted and evictions are judged.
// Source: kubernetes v1.36, pkg/controller/disruption/disruption.go and
// pkg/registry/core/pod/storage/eviction.go; the answers are recorded of v1.36.3.
const (
	// grantedFor is how long the controller waits for the deletion of a pod whose
	// eviction was granted.
	grantedFor = 2 * time.Minute
	// processing is after how many seconds a client shall try again whose budget the
	// controller has not looked at yet.
	processing = 10
)

// GuardedPod is what a budget counts of a pod.
type GuardedPod struct {
	Name            string
	Ready, Deleting bool
}

// CountBudget brings the status of a budget up to date. The controllers of the pods
// it guards ask together for scale pods.
func CountBudget(b *policyv1.PodDisruptionBudget, pods []GuardedPod, scale int32, now time.Time) error {
	expected, desired, err := expectPods(&b.Spec, int32(len(pods)), scale)
	if err != nil {
		return err
	}
	var granted map[string]metav1.Time
	healthy := int32(0)
	for _, p := range pods {
		at, ok := b.Status.DisruptedPods[p.Name]
		switch {
		case p.Deleting:
		case ok && now.Before(at.Add(grantedFor)):
			if granted == nil {
				granted = map[string]metav1.Time{}
			}
			granted[p.Name] = at
		case p.Ready:
			healthy++
		}
	}
	allowed := max(0, healthy-desired)
	if expected <= 0 {
		allowed = 0
	}
	b.Status.ObservedGeneration, b.Status.DisruptedPods = b.Generation, granted
	b.Status.ExpectedPods, b.Status.DesiredHealthy, b.Status.CurrentHealthy, b.Status.DisruptionsAllowed = expected, desired, healthy, allowed
	setDisruptionAllowed(b, now)
	return nil
}

// expectPods returns how many pods a budget expects and how many of them must stay
// healthy. Shares are of what controllers ask for, rounded up.
func expectPods(spec *policyv1.PodDisruptionBudgetSpec, pods, scale int32) (expected, desired int32, err error) {
	switch {
	case spec.MaxUnavailable != nil:
		most, err := intstr.GetScaledValueFromIntOrPercent(spec.MaxUnavailable, int(scale), true)
		return scale, max(0, scale-int32(most)), err
	case spec.MinAvailable == nil:
		return 0, 0, nil
	case spec.MinAvailable.Type == intstr.Int:
		return pods, spec.MinAvailable.IntVal, nil
	}
	least, err := intstr.GetScaledValueFromIntOrPercent(spec.MinAvailable, int(scale), true)
	return scale, int32(least), err
}

// NeedsScale reports whether a budget is reckoned from what controllers ask for: one
// in whole pods that must be available is not.
func NeedsScale(spec *policyv1.PodDisruptionBudgetSpec) bool {
	return spec.MaxUnavailable != nil || spec.MinAvailable != nil && spec.MinAvailable.Type == intstr.String
}

// FailBudget notes that the controller cannot reckon a budget: it then allows
// nothing.
func FailBudget(b *policyv1.PodDisruptionBudget, why error, now time.Time) {
	b.Status.DisruptionsAllowed = 0
	setBudgetCondition(b, metav1.ConditionFalse, policyv1.SyncFailedReason, why.Error(), now)
}

func setDisruptionAllowed(b *policyv1.PodDisruptionBudget, now time.Time) {
	if b.Status.DisruptionsAllowed > 0 {
		setBudgetCondition(b, metav1.ConditionTrue, policyv1.SufficientPodsReason, "", now)
		return
	}
	setBudgetCondition(b, metav1.ConditionFalse, policyv1.InsufficientPodsReason, "", now)
}

func setBudgetCondition(b *policyv1.PodDisruptionBudget, status metav1.ConditionStatus, reason, message string, now time.Time) {
	meta.SetStatusCondition(&b.Status.Conditions, metav1.Condition{
		Type: policyv1.DisruptionAllowedCondition, Status: status, Reason: reason, Message: message,
		ObservedGeneration: b.Status.ObservedGeneration, LastTransitionTime: metav1.NewTime(now.UTC().Truncate(time.Second)),
	})
}

// NeedsBudget reports whether budgets are asked before a pod is evicted: a pod that
// has not begun, has ended or is being deleted already is no loss.
func NeedsBudget(pod map[string]any) bool {
	phase := corev1.PodPhase(TextAt(pod, "status", "phase"))
	return phase == corev1.PodRunning && ValueAt(pod, "metadata", "deletionTimestamp") == nil
}

// SparesUnready reports whether a pod that is not ready may be evicted without using
// a budget up.
func SparesUnready(b *policyv1.PodDisruptionBudget) bool {
	if p := b.Spec.UnhealthyPodEvictionPolicy; p != nil && *p == policyv1.AlwaysAllow {
		return true
	}
	return b.Status.DesiredHealthy > 0 && b.Status.CurrentHealthy >= b.Status.DesiredHealthy
}

// GrantEviction takes the eviction of a pod off its budget, or refuses it.
func GrantEviction(b *policyv1.PodDisruptionBudget, pod string, now time.Time) error {
	if b.Status.ObservedGeneration < b.Generation {
		return refuseEviction(fmt.Sprintf("The disruption budget %s is still being processed by the server.", b.Name), processing)
	}
	if b.Status.DisruptionsAllowed <= 0 {
		text := fmt.Sprintf("The disruption budget %s does not allow evicting pods currently", b.Name)
		failed := meta.FindStatusCondition(b.Status.Conditions, policyv1.DisruptionAllowedCondition)
		switch {
		case failed != nil && failed.Reason == policyv1.SyncFailedReason:
			text += " because it failed sync: " + failed.Message
		case b.Status.CurrentHealthy <= b.Status.DesiredHealthy:
			text = fmt.Sprintf("The disruption budget %s needs %d healthy pods and has %d currently", b.Name, b.Status.DesiredHealthy, b.Status.CurrentHealthy)
		}
		return refuseEviction(text, 0)
	}
	b.Status.DisruptionsAllowed--
	if b.Status.DisruptionsAllowed == 0 {
		setDisruptionAllowed(b, now)
	}
	if b.Status.DisruptedPods == nil {
		b.Status.DisruptedPods = map[string]metav1.Time{}
	}
	b.Status.DisruptedPods[pod] = metav1.NewTime(now.UTC().Truncate(time.Second))
	return nil
}

func refuseEviction(why string, seconds int) error {
	err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", seconds)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: policyv1.DisruptionBudgetCause, Message: why}}
	return err
}

// ReadEviction reads the body of an eviction of a pod.
func ReadEviction(pod string, body []byte, dry bool) (metav1.DeleteOptions, error) {
	var e policyv1.Eviction
	var opts metav1.DeleteOptions
	if err := json.Unmarshal(body, &e); err != nil {
		return opts, apierrors.NewBadRequest("read Eviction: " + err.Error())
	}
	if e.Name != pod {
		return opts, apierrors.NewBadRequest("name in URL does not match name in Eviction object")
	}
	if e.DeleteOptions != nil {
		opts = *e.DeleteOptions
	}
	if dry {
		opts.DryRun = []string{metav1.DryRunAll}
	}
	return opts, nil
}

// IsReady reports whether a pod has the condition Ready.
func IsReady(pod map[string]any) bool {
	for _, e := range ListAt(pod, "status", "conditions") {
		c, _ := e.(map[string]any)
		if TextAt(c, "type") == string(corev1.PodReady) {
			return TextAt(c, "status") == string(corev1.ConditionTrue)
		}
	}
	return false
}

// checkBudget refuses what no budget can ask for.
func checkBudget(body, _ map[string]any) field.ErrorList {
	spec := field.NewPath("spec")
	var errs field.ErrorList
	both := true
	for _, key := range []string{"minAvailable", "maxUnavailable"} {
		switch v := ValueAt(body, "spec", key).(type) {
		case nil:
			both = false
		case int64:
			if v < 0 {
				errs = append(errs, field.Invalid(spec.Child(key), v, "must be greater than or equal to 0"))
			}
		case string:
			share := intstr.FromString(v)
			if n, err := intstr.GetScaledValueFromIntOrPercent(&share, 100, true); err != nil || n < 0 || n > 100 {
				errs = append(errs, field.Invalid(spec.Child(key), v, "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%', regex used for validation is '[0-9]+%')"))
			}
		}
	}
	if both {
		errs = append(errs, field.Invalid(spec, ValueAt(body, "spec"), "minAvailable and maxUnavailable cannot be both set"))
	}
	switch p := TextAt(body, "spec", "unhealthyPodEvictionPolicy"); policyv1.UnhealthyPodEvictionPolicyType(p) {
	case "", policyv1.IfHealthyBudget, policyv1.AlwaysAllow:
	default:
		errs = append(errs, field.NotSupported(spec.Child("unhealthyPodEvictionPolicy"), p, []policyv1.UnhealthyPodEvictionPolicyType{policyv1.AlwaysAllow, policyv1.IfHealthyBudget}))
	}
	return errs
}

// ReadBudget reads a budget and which pods it guards.
func ReadBudget(body map[string]any) (*policyv1.PodDisruptionBudget, labels.Selector, error) {
	b := &policyv1.PodDisruptionBudget{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(body, b); err != nil {
		return nil, nil, err
	}
	sel, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	return b, sel, err
}

// WriteBudget gives the body of a budget another status.
func WriteBudget(body map[string]any, b *policyv1.PodDisruptionBudget) (map[string]any, error) {
	status, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&b.Status)
	if err != nil {
		return nil, err
	}
	body["status"] = status
	return body, nil
}
