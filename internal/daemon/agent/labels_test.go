package agent_test

import (
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
)

// metaOf are the labels, taints and annotations of a Node that Kubernetes and Talos do not set.
func (s *sim) metaOf(name string) string {
	var out []string
	for _, n := range s.Lab.Kube.Objects("", schema.GroupVersionResource{Version: "v1", Resource: "nodes"}, "") {
		if n.GetName() != name {
			continue
		}
		for _, key := range slices.Sorted(maps.Keys(n.GetLabels())) {
			if !strings.Contains(key, "kubernetes.io/") {
				out = append(out, key+"="+n.GetLabels()[key])
			}
		}
		for _, key := range slices.Sorted(maps.Keys(n.GetAnnotations())) {
			if strings.HasPrefix(key, "example.org/") {
				out = append(out, key+"="+n.GetAnnotations()[key])
			}
		}
		for _, m := range taintsOf(&n) {
			if key := fmt.Sprint(m["key"]); !strings.Contains(key, "kubernetes.io/") {
				out = append(out, fmt.Sprintf("%s=%v:%v", key, m["value"], m["effect"]))
			}
		}
	}
	return strings.Join(out, " ")
}

// taintsOf are the taints of a Node.
func taintsOf(n *unstructured.Unstructured) (out []map[string]any) {
	taints, _, err := unstructured.NestedSlice(n.Object, "spec", "taints")
	must(err)
	for _, t := range taints {
		m, _ := t.(map[string]any)
		out = append(out, m)
	}
	return out
}

// TestLabelsAndTaints: what the inventory has of them is on the Node objects, whoever
// edits them by hand and also where Talos does not bring it; nothing goes down for it, and
// what others have set stays.
func TestLabelsAndTaints(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 3}
		files := sz.Files()
		changed(t, files, "inventory/dev/nodes.yaml", "ip: 10.10.0.42,", `ip: 10.10.0.42, taints: {made: "with:NoSchedule"},`)
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Push(files, "a worker with a taint")
		s.Boot()
		s.UntilReady(20 * time.Minute)
		w := s.watchTurns(sz)
		until := func(what, node, want string) {
			t.Helper()
			s.Until(time.Hour, what+": "+want, func(st cluster.Status) bool {
				return s.metaOf(node) == want && st.Condition == cluster.Ready && st.Applied.Commit() == s.Head()
			})
			s.Quiet(10 * time.Minute)
			if got := s.metaOf(node); got != want {
				t.Errorf("%s, later: %s, want %s", what, got, want)
			}
		}
		edit := func(node, patch string) {
			s.kubectl(netip.MustParseAddr("10.10.0.11"), http.MethodPatch, "/api/v1/nodes/"+node, patch)
		}
		push := func(what, from, to string) {
			t.Helper()
			changed(t, files, "inventory/dev/nodes.yaml", from, to)
			s.Push(files, what)
		}
		until("registered", "dev-wk-2", "made=with:NoSchedule")
		edit("dev-wk-1", `{"metadata":{"labels":{"mine":"1"}},"spec":{"taints":[{"key":"mine","value":"1","effect":"PreferNoSchedule"}]}}`)
		push("labels and taints", "ip: 10.10.0.41,", `ip: 10.10.0.41, labels: {zone: a}, taints: {dedicated: "gpu:NoSchedule"}, annotations: {example.org/a: "7", example.org/b: "1"},`)
		until("given", "dev-wk-1", "mine=1 zone=a example.org/a=7 example.org/b=1 mine=1:PreferNoSchedule dedicated=gpu:NoSchedule")
		edit("dev-wk-1", `{"metadata":{"labels":{"zone":"hand"},"annotations":{"example.org/a":"8","example.org/b":null,"example.org/mine":"1"}},"spec":{"taints":[{"key":"mine","value":"2","effect":"NoSchedule"}]}}`)
		until("undone", "dev-wk-1", "mine=1 zone=a example.org/a=7 example.org/b=1 example.org/mine=1 mine=2:NoSchedule dedicated=gpu:NoSchedule")
		push("others", `labels: {zone: a}, taints: {dedicated: "gpu:NoSchedule"}, annotations: {example.org/a: "7", example.org/b: "1"},`,
			`labels: {zone: b}, taints: {dedicated: "ml:NoExecute"}, annotations: {example.org/a: "9"},`)
		until("changed", "dev-wk-1", "mine=1 zone=b example.org/a=9 example.org/mine=1 mine=2:NoSchedule dedicated=ml:NoExecute")
		push("none", ` labels: {zone: b}, taints: {dedicated: "ml:NoExecute"}, annotations: {example.org/a: "9"},`, "")
		until("removed", "dev-wk-1", "mine=1 example.org/mine=1 mine=2:NoSchedule")
		push("without its first taint", ` taints: {made: "with:NoSchedule"},`, "")
		until("removed", "dev-wk-2", "")
		w.wantDown("")
		s.CheckRules(sz)
		s.Halt()
	})
}
