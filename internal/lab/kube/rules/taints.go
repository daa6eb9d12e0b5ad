package rules

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
)

// StayOf is how long a pod with these tolerations may stay on a node with taints
// that execute, and whether it may for ever.
// Source: kubernetes v1.36, pkg/controller/tainteviction.
func (n *Node) StayOf(tolerations []corev1.Toleration) (stay time.Duration, ever bool) {
	ever = true
	for _, t := range n.Taints {
		if t.Effect != corev1.TaintEffectNoExecute {
			continue
		}
		i := slices.IndexFunc(tolerations, func(tol corev1.Toleration) bool { return tol.ToleratesTaint(klog.Background(), &t, false) })
		if i < 0 {
			return 0, false
		}
		seconds := tolerations[i].TolerationSeconds
		if seconds == nil {
			continue
		}
		wait := time.Duration(max(0, *seconds)) * time.Second
		if ever || wait < stay {
			ever, stay = false, wait
		}
	}
	return stay, ever
}

// TolerationsOf are those of a pod.
func TolerationsOf(pod map[string]any) []corev1.Toleration {
	var out []corev1.Toleration
	for _, m := range MapsAt(pod, "spec", "tolerations") {
		t := corev1.Toleration{
			Key: TextAt(m, "key"), Operator: corev1.TolerationOperator(TextAt(m, "operator")), Value: TextAt(m, "value"), Effect: corev1.TaintEffect(TextAt(m, "effect")),
		}
		if seconds, ok := m["tolerationSeconds"].(int64); ok {
			t.TolerationSeconds = &seconds
		}
		out = append(out, t)
	}
	return out
}

// daemonsTolerate is what the DaemonSet controller lets its pods tolerate unasked. The
// maps are never changed, so that all pods share them.
// Source: kubernetes v1.36, pkg/controller/daemon/util, AddOrUpdateDaemonPodTolerations.
var daemonsTolerate = []map[string]any{
	{"key": corev1.TaintNodeNotReady, "operator": "Exists", "effect": "NoExecute"},
	{"key": corev1.TaintNodeUnreachable, "operator": "Exists", "effect": "NoExecute"},
	{"key": corev1.TaintNodeDiskPressure, "operator": "Exists", "effect": "NoSchedule"},
	{"key": corev1.TaintNodeMemoryPressure, "operator": "Exists", "effect": "NoSchedule"},
	{"key": corev1.TaintNodePIDPressure, "operator": "Exists", "effect": "NoSchedule"},
	{"key": corev1.TaintNodeUnschedulable, "operator": "Exists", "effect": "NoSchedule"},
	{"key": corev1.TaintNodeNetworkUnavailable, "operator": "Exists", "effect": "NoSchedule"}, // on the host's network only
}

// TolerateAsDaemon gives the spec of a pod what pods of DaemonSets tolerate.
func TolerateAsDaemon(spec map[string]any) {
	add := daemonsTolerate
	if !BoolAt(spec, "hostNetwork") {
		add = add[:len(add)-1]
	}
	own := ListAt(spec, "tolerations")
	list := make([]any, 0, len(own)+len(add))
	for _, e := range own {
		m, _ := e.(map[string]any)
		if !slices.ContainsFunc(add, func(a map[string]any) bool { return m["key"] == a["key"] && m["effect"] == a["effect"] }) {
			list = append(list, e)
		}
	}
	for _, a := range add {
		list = append(list, a)
	}
	spec["tolerations"] = list
}

// Executes reports whether a node has a taint that evicts pods.
func (n *Node) Executes() bool {
	return slices.ContainsFunc(n.Taints, func(t corev1.Taint) bool { return t.Effect == corev1.TaintEffectNoExecute })
}

// AddTaint gives the spec of a node a taint as a kubelet does, unless it has it.
func AddTaint(spec map[string]any, key, value string, effect corev1.TaintEffect) {
	t := map[string]any{"key": key, "effect": string(effect)}
	if value != "" {
		t["value"] = value
	}
	putTaint(spec, t)
}

// NoteTaint gives the spec of a node a taint as a controller does, with the time,
// unless it has it.
func NoteTaint(spec map[string]any, key string, effect corev1.TaintEffect) {
	putTaint(spec, map[string]any{"key": key, "effect": string(effect), "timeAdded": FormatNow()})
}

func putTaint(spec, t map[string]any) {
	for _, have := range MapsAt(spec, "taints") {
		if TextAt(have, "key") == TextAt(t, "key") && TextAt(have, "effect") == TextAt(t, "effect") {
			return
		}
	}
	spec["taints"] = append(ListAt(spec, "taints"), t)
}

// RemoveTaint takes the taints of a key from the spec of a node.
func RemoveTaint(spec map[string]any, key string) {
	left := slices.DeleteFunc(ListAt(spec, "taints"), func(t any) bool {
		m, _ := t.(map[string]any)
		return TextAt(m, "key") == key
	})
	spec["taints"] = left
	if len(left) == 0 {
		delete(spec, "taints")
	}
}
