package rules

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

// exemptNamespace is the one namespace whose pods the admission config of Talos
// does not look at.
const exemptNamespace = "kube-system"

// defaultPolicy is that of namespaces without labels, in the admission config that
// Talos generates.
func defaultPolicy() api.Policy {
	at := func(l api.Level) api.LevelVersion { return api.LevelVersion{Level: l, Version: api.LatestVersion()} }
	return api.Policy{Enforce: at(api.LevelBaseline), Audit: at(api.LevelRestricted), Warn: at(api.LevelRestricted)}
}

// PodSecurity is how secure pods must be, by the server's own rules.
type PodSecurity struct{ evaluator policy.Evaluator }

// NewPodSecurity makes one.
func NewPodSecurity() PodSecurity {
	e, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		panic(err) // the server's own checks are always valid
	}
	return PodSecurity{e}
}

// policyOf is what the labels of a namespace ask of its pods. Labels that cannot be
// read ask for the strictest level, as of a server.
func policyOf(labels map[string]string) api.Policy {
	p, _ := api.PolicyToEvaluate(labels, defaultPolicy())
	return p
}

// Refuse returns the error for a pod that a namespace with such labels does not
// allow.
func (s PodSecurity) Refuse(labels map[string]string, pod map[string]any) error {
	meta := metaOf(pod)
	enforced := policyOf(labels).Enforce
	detail, err := s.violation(enforced, meta, pod)
	if err != nil || detail == "" {
		return err
	}
	return apierrors.NewForbidden(corev1.Resource("pods"), meta.Name, fmt.Errorf("violates PodSecurity %q: %s", enforced, detail))
}

// Warn returns the warning for whoever writes a pod, or the template of pods, that
// a namespace with such labels may not like; "" when there is none.
func (s PodSecurity) Warn(labels map[string]string, namespace string, pod map[string]any) string {
	warned := policyOf(labels).Warn
	meta := metaOf(pod)
	meta.Namespace = namespace
	detail, err := s.violation(warned, meta, pod)
	if err != nil || detail == "" {
		return ""
	}
	return fmt.Sprintf("would violate PodSecurity %q: %s", warned, detail)
}

// violation lists what a pod does that a level does not allow, "" if nothing.
func (s PodSecurity) violation(level api.LevelVersion, meta *metav1.ObjectMeta, pod map[string]any) (string, error) {
	if meta.Namespace == exemptNamespace {
		return "", nil
	}
	spec, _ := pod["spec"].(map[string]any)
	typed := &corev1.PodSpec{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(spec, typed); err != nil {
		return "", apierrors.NewBadRequest(err.Error())
	}
	result := policy.AggregateCheckResults(s.evaluator.EvaluatePod(level, meta, typed))
	if result.Allowed {
		return "", nil
	}
	return result.ForbiddenDetail(), nil
}

// metaOf is as much of a pod's metadata as the rules ask for.
func metaOf(pod map[string]any) *metav1.ObjectMeta {
	meta, _ := pod["metadata"].(map[string]any)
	text := func(key string) string { s, _ := meta[key].(string); return s }
	return &metav1.ObjectMeta{Name: text("name"), Namespace: text("namespace"), Annotations: StringsAt(pod, "metadata", "annotations")}
}

// CheckLabels refuses labels of a namespace that mean nothing to Pod Security,
// unless they were there before.
func CheckLabels(body, was map[string]any) field.ErrorList {
	labels, before := StringsAt(body, "metadata", "labels"), StringsAt(was, "metadata", "labels")
	_, errs := api.PolicyToEvaluate(labels, defaultPolicy())
	for _, key := range []string{api.EnforceLevelLabel, api.EnforceVersionLabel, api.AuditLevelLabel, api.AuditVersionLabel, api.WarnLevelLabel, api.WarnVersionLabel} {
		if labels[key] != before[key] {
			return errs
		}
	}
	return nil
}
