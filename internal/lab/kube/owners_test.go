package kube_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// ownersOf lists who owns which fields of an object.
func ownersOf(t *testing.T, o metav1.Object) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, e := range o.GetManagedFields() {
		var set fieldpath.Set
		if err := set.FromJSON(strings.NewReader(e.FieldsV1.GetRawString())); err != nil {
			t.Fatal(err)
		}
		if e.Time == nil || e.FieldsType != "FieldsV1" {
			t.Errorf("entry %+v", e)
		}
		var paths []string
		for path := range set.Leaves().All() {
			paths = append(paths, path.String())
		}
		slices.Sort(paths)
		out[strings.TrimSuffix(e.Manager+"/"+e.Subresource, "/")] = strings.Join(paths, " ")
	}
	return out
}

// TestOwnersOfNodes: the kubelet, the controllers and Talos own what they write of a Node,
// and whoever changes that owns it then; the list of taints is one field.
func TestOwnersOfNodes(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.running(apiAddr)
		ready := newReadiness()
		k := kubelet("wk-1", "10.0.0.21", 501)
		k.BootID, k.Taints, k.Labels = "1", []string{"dedicated=gpu:NoSchedule"}, map[string]string{"zone": "a"}
		l.kube.RunKubelet(l.id, k, ready.call)
		<-ready.ch
		owners := func() map[string]string {
			t.Helper()
			n, err := set.CoreV1().Nodes().Get(ctx, "wk-1", metav1.GetOptions{})
			must(t, err)
			return ownersOf(t, n)
		}
		has := func(what, manager, field string) {
			t.Helper()
			for name, fields := range owners() {
				if own := slices.Contains(strings.Fields(fields), field); own != (name == manager) {
					t.Errorf("%s: %s has %s: %v", what, name, field, own)
				}
			}
		}
		has("registered", "init", ".metadata.labels.zone")
		has("registered", "kubelet", ".metadata.labels.kubernetes.io/os")
		has("registered", "kube-controller-manager", ".spec.podCIDR")
		patchNode := func(manager, body string) {
			t.Helper()
			_, err := set.CoreV1().Nodes().Patch(ctx, "wk-1", types.MergePatchType, []byte(body), metav1.PatchOptions{FieldManager: manager})
			must(t, err)
		}
		patchNode("kubectl-label", `{"metadata":{"labels":{"zone":"b"}}}`)
		has("labelled", "kubectl-label", ".metadata.labels.zone")
		patchNode("kubectl-taint", `{"spec":{"taints":[{"key":"mine","effect":"NoSchedule"}]}}`)
		has("tainted", "kubectl-taint", ".spec.taints")
		patchNode("kubectl-cordon", `{"spec":{"unschedulable":true}}`)
		time.Sleep(time.Second)
		has("cordoned", "kube-controller-manager", ".spec.taints")
		patchNode("kubectl-label", `{"metadata":{"labels":{"zone":null}}}`)
		has("removed", "", ".metadata.labels.zone")
	})
}

// TestOwnersOfFields: whoever changes a field owns it, lists go by their keys, and what is
// written through a subresource is apart. Who changes nothing owns nothing.
func TestOwnersOfFields(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.running(apiAddr)
		deployments := set.AppsV1().Deployments("default")
		made := deployment("web", 1)
		made.Spec.Template.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "A", Value: "1"}, {Name: "B", Value: "2"}}
		if _, err := deployments.Create(ctx, made, metav1.CreateOptions{FieldManager: "helm"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute) // the controllers write its status
		patch := func(manager, body string) map[string]string {
			t.Helper()
			d, err := deployments.Patch(ctx, "web", types.StrategicMergePatchType, []byte(body), metav1.PatchOptions{FieldManager: manager})
			if err != nil {
				t.Fatal(err)
			}
			return ownersOf(t, d)
		}
		const env = `.spec.template.spec.containers[name="main"].env[name="B"].value`
		if got := patch("edit", `{"spec":{"replicas":1}}`); len(got) != 1 || !strings.Contains(got["helm"], env) || strings.Contains(got["helm"], "status") {
			t.Errorf("after nothing changed: %v", got)
		}
		got := patch("edit", `{"spec":{"template":{"spec":{"containers":[{"name":"main","env":[{"name":"B","value":"3"}]}]}}}}`)
		if got["edit"] != env || strings.Contains(got["helm"], env) {
			t.Errorf("after an edit: %v", got)
		}
		if got = patch("helm", `{"spec":{"template":{"spec":{"containers":[{"name":"main","env":[{"name":"B","value":"2"}]}]}}}}`); len(got) != 1 {
			t.Errorf("after it was taken back: %v", got)
		}
		scale := &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"}, Spec: autoscalingv1.ScaleSpec{Replicas: 3}}
		if _, err := deployments.UpdateScale(ctx, "web", scale, metav1.UpdateOptions{FieldManager: "autoscaler"}); err != nil {
			t.Fatal(err)
		}
		d, err := deployments.Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		d.Status.Replicas = 7
		if d, err = deployments.UpdateStatus(ctx, d, metav1.UpdateOptions{FieldManager: "controller"}); err != nil {
			t.Fatal(err)
		}
		got = ownersOf(t, d)
		if got["autoscaler/scale"] != ".spec.replicas" || !strings.HasSuffix(got["controller/status"], ".status.replicas") || strings.Contains(got["helm"], ".spec.replicas ") {
			t.Errorf("after subresources: %v", got)
		}
		if keys := slices.Sorted(maps.Keys(got)); fmt.Sprint(keys) != "[autoscaler/scale controller/status helm]" {
			t.Errorf("owners %v", keys)
		}
	})
}
