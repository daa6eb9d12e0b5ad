package rules

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/klog/v2"
)

// Node is what decides which pods may be on a node.
type Node struct {
	Name   string
	Labels map[string]string
	Taints []corev1.Taint
	// Unschedulable is that it is cordoned; the taint of that comes a little later.
	Unschedulable bool
	Allocatable   Amounts // what it has for pods
}

// IsOutOfService reports whether somebody has declared the machine of a node to be off.
func (n *Node) IsOutOfService() bool {
	return slices.ContainsFunc(n.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
}

// PodSpec is the spec of a pod, or of a template of pods.
func PodSpec(spec map[string]any) (*corev1.PodSpec, error) {
	out := &corev1.PodSpec{}
	return out, runtime.DefaultUnstructuredConverter.FromUnstructured(spec, out)
}

// RefusePod returns in the scheduler's text why a pod cannot be on a node, or, if
// it is there already, why it cannot stay; "" if it can.
func (n *Node) RefusePod(spec *corev1.PodSpec, tolerations []corev1.Toleration, there bool) string {
	cordon := corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}
	if n.Unschedulable && !there && !toleratesTaint(tolerations, cordon) {
		return "node(s) were unschedulable"
	}
	for _, t := range n.Taints {
		if t.Effect == corev1.TaintEffectPreferNoSchedule || there && t.Effect == corev1.TaintEffectNoSchedule {
			continue
		}
		if !toleratesTaint(tolerations, t) {
			return "node(s) had untolerated taint(s)"
		}
	}
	if !n.isSelected(spec) {
		return "node(s) didn't match Pod's node affinity/selector"
	}
	return ""
}

func toleratesTaint(tolerations []corev1.Toleration, t corev1.Taint) bool {
	return slices.ContainsFunc(tolerations, func(tol corev1.Toleration) bool { return tol.ToleratesTaint(klog.Background(), &t, false) })
}

func (n *Node) isSelected(spec *corev1.PodSpec) bool {
	if !labels.SelectorFromSet(spec.NodeSelector).Matches(labels.Set(n.Labels)) {
		return false
	}
	if spec.Affinity == nil || spec.Affinity.NodeAffinity == nil {
		return true
	}
	required := spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	return required == nil || slices.ContainsFunc(required.NodeSelectorTerms, n.inTerm)
}

// inTerm reports whether a node fits all parts of a term; an empty term fits
// none.
func (n *Node) inTerm(term corev1.NodeSelectorTerm) bool {
	operators := map[corev1.NodeSelectorOperator]selection.Operator{
		corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn,
		corev1.NodeSelectorOpExists: selection.Exists, corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist,
		corev1.NodeSelectorOpGt: selection.GreaterThan, corev1.NodeSelectorOpLt: selection.LessThan,
	}
	for _, e := range term.MatchExpressions {
		r, err := labels.NewRequirement(e.Key, operators[e.Operator], e.Values)
		if err != nil || !r.Matches(labels.Set(n.Labels)) {
			return false
		}
	}
	for _, f := range term.MatchFields {
		if f.Key != "metadata.name" || slices.Contains(f.Values, n.Name) != (f.Operator == corev1.NodeSelectorOpIn) {
			return false
		}
	}
	return len(term.MatchExpressions)+len(term.MatchFields) > 0
}

// Places are values of node labels: where a pod must not be.
type Places map[string]map[string]bool

// HasNode reports whether a node is at one of them.
func (t Places) HasNode(n *Node) bool {
	for key, values := range t {
		if v, ok := n.Labels[key]; ok && values[v] {
			return true
		}
	}
	return false
}

// PinToNode gives the spec of a pod of a DaemonSet the affinity for the one node it is made for.
// Source: kubernetes v1.36, pkg/controller/daemon/util, ReplaceDaemonSetPodNodeNameNodeAffinity.
func PinToNode(spec map[string]any, node string) {
	required := EnsureMap(spec, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
	fields := []any{map[string]any{"key": "metadata.name", "operator": "In", "values": []any{node}}}
	terms := MapsAt(required, "nodeSelectorTerms")
	if len(terms) == 0 {
		required["nodeSelectorTerms"] = []any{map[string]any{"matchFields": fields}}
		return
	}
	for _, term := range terms {
		term["matchFields"] = fields
	}
}

// PinnedTo is the node that a pod of a DaemonSet was made for, "" for other pods.
func PinnedTo(spec map[string]any) string {
	for _, term := range MapsAt(spec, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms") {
		for _, field := range MapsAt(term, "matchFields") {
			if values := ListAt(field, "values"); TextAt(field, "key") == "metadata.name" && len(values) == 1 {
				node, _ := values[0].(string)
				return node
			}
		}
	}
	return ""
}

// IsCritical reports whether a pod is one for which others make room.
func IsCritical(spec map[string]any) bool {
	return strings.HasPrefix(TextAt(spec, "priorityClassName"), "system-")
}
