package rules

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestRefuses(t *testing.T) {
	n := &Node{
		Name: "a", Labels: map[string]string{"zone": "x", "size": "7"},
		Taints: []corev1.Taint{{Key: "soft", Effect: corev1.TaintEffectPreferNoSchedule}, {Key: "gpu", Value: "yes", Effect: corev1.TaintEffectNoSchedule}},
	}
	affinity := func(terms ...corev1.NodeSelectorTerm) *corev1.Affinity {
		return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms}}}
	}
	in := func(key string, op corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: op, Values: values}}}
	}
	gpu := []corev1.Toleration{{Key: "gpu", Operator: corev1.TolerationOpEqual, Value: "yes"}}
	const tainted, elsewhere = "node(s) had untolerated taint(s)", "node(s) didn't match Pod's node affinity/selector"
	for name, c := range map[string]struct {
		spec  corev1.PodSpec
		there bool
		want  string
	}{
		"no toleration":             {corev1.PodSpec{}, false, tainted},
		"no toleration, but there":  {corev1.PodSpec{}, true, ""},
		"another value":             {corev1.PodSpec{Tolerations: []corev1.Toleration{{Key: "gpu", Operator: corev1.TolerationOpEqual, Value: "no"}}}, false, tainted},
		"tolerated":                 {corev1.PodSpec{Tolerations: gpu}, false, ""},
		"everything tolerated":      {corev1.PodSpec{Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}}, false, ""},
		"selected":                  {corev1.PodSpec{Tolerations: gpu, NodeSelector: map[string]string{"zone": "x"}}, false, ""},
		"not selected":              {corev1.PodSpec{Tolerations: gpu, NodeSelector: map[string]string{"zone": "y"}}, false, elsewhere},
		"not selected, and there":   {corev1.PodSpec{Tolerations: gpu, NodeSelector: map[string]string{"zone": "y"}}, true, elsewhere},
		"in":                        {corev1.PodSpec{Tolerations: gpu, Affinity: affinity(in("zone", corev1.NodeSelectorOpIn, "x", "y"))}, false, ""},
		"not in":                    {corev1.PodSpec{Tolerations: gpu, Affinity: affinity(in("zone", corev1.NodeSelectorOpNotIn, "x"))}, false, elsewhere},
		"greater":                   {corev1.PodSpec{Tolerations: gpu, Affinity: affinity(in("size", corev1.NodeSelectorOpGt, "6"))}, false, ""},
		"absent":                    {corev1.PodSpec{Tolerations: gpu, Affinity: affinity(in("disk", corev1.NodeSelectorOpDoesNotExist))}, false, ""},
		"one of two terms":          {corev1.PodSpec{Tolerations: gpu, Affinity: affinity(in("disk", corev1.NodeSelectorOpExists), in("zone", corev1.NodeSelectorOpExists))}, false, ""},
		"an empty term fits nobody": {corev1.PodSpec{Tolerations: gpu, Affinity: affinity(corev1.NodeSelectorTerm{})}, false, elsewhere},
		"by name": {corev1.PodSpec{Tolerations: gpu, Affinity: affinity(corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{
			{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}},
		}})}, false, ""},
		"by another name": {corev1.PodSpec{Tolerations: gpu, Affinity: affinity(corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{
			{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"b"}},
		}})}, false, elsewhere},
	} {
		if got := n.RefusePod(&c.spec, c.spec.Tolerations, c.there); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
