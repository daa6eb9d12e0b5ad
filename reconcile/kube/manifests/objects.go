package manifests

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/talos-agent/talos-agent/internal/kubeapi"
	"github.com/talos-agent/talos-agent/reconcile/edits"
)

// fieldManager is who Talos calls itself, and what talosctl applies the manifests as. Source: Talos v1.14,
// constants.KubernetesFieldManagerName.
const fieldManager = "talos"

// ours are the managers that write what Talos has rendered: before 1.13 talosctl was one of its own name.
var ours = []string{fieldManager, "talosctl"}

// readObjects reads what control planes render, in the order in which it is applied: what others
// need comes first.
func readObjects(rendered []byte) ([]*unstructured.Unstructured, error) {
	var list []map[string]any
	if err := json.Unmarshal(rendered, &list); err != nil {
		return nil, errors.New("the manifests are no list of objects")
	}
	var out []*unstructured.Unstructured
	for _, body := range list {
		o := &unstructured.Unstructured{Object: body}
		if o.GetKind() == "" || o.GetAPIVersion() == "" || o.GetName() == "" {
			return nil, errors.New("there is an object without a kind, or without a name, among the manifests")
		}
		out = append(out, o)
	}
	slices.SortStableFunc(out, func(a, b *unstructured.Unstructured) int {
		return cmp.Compare(rankOf(a.GetKind()), rankOf(b.GetKind()))
	})
	return out, nil
}

// first are the kinds that others need, in their order. Source: Talos v1.14, ManifestApplyController; ConfigMaps
// and Secrets come before what mounts them, as talosctl has it.
var first = []string{"Namespace", "CustomResourceDefinition", "ServiceAccount", "ConfigMap", "Secret"}

// rankOf is the turn of a kind.
func rankOf(kind string) int {
	if i := slices.Index(first, kind); i >= 0 {
		return i
	}
	return len(first)
}

// nameOf is an object for people: DaemonSet kube-system/kube-proxy.
func nameOf(o *unstructured.Unstructured) string {
	name := o.GetName()
	if ns := o.GetNamespace(); ns != "" {
		name = ns + "/" + name
	}
	return kubeapi.Sanitize(o.GetKind() + " " + name)
}

// releaseOf is the release of Helm that an object belongs to, "" : none. Source: Helm v3 and v4, the labels and
// annotations without which it adopts nothing.
func releaseOf(o *unstructured.Unstructured) string {
	name, namespace := o.GetAnnotations()["meta.helm.sh/release-name"], o.GetAnnotations()["meta.helm.sh/release-namespace"]
	switch {
	case name != "":
		return kubeapi.Sanitize(strings.TrimPrefix(namespace+"/"+name, "/"))
	case o.GetLabels()["app.kubernetes.io/managed-by"] == "Helm":
		return "one that it does not name"
	}
	return ""
}

// conflictOf reads the answer to an apply that is not forced, to an object that is there; ok is false where it is
// no conflict about fields. foreign is who else has set one of them, as it calls itself, "" where
// Talos' own earlier writes have all: one without a noted manager counts as set by another.
func conflictOf(has *unstructured.Unstructured, err error) (foreign string, ok bool) {
	status := apierrors.APIStatus(nil)
	if has == nil || !apierrors.IsConflict(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return "", false
	}
	var own, others []metav1.ManagedFieldsEntry
	for _, e := range has.GetManagedFields() {
		if slices.Contains(ours, e.Manager) {
			own = append(own, e)
		} else {
			others = append(others, e)
		}
	}
	writers, unknown := edits.ReadWriters(own), edits.ReadWriters(others)
	for _, cause := range status.Status().Details.Causes {
		if cause.Type != metav1.CauseTypeFieldManagerConflict {
			continue
		}
		ok = true
		by := unknown.OfField(cause.Field)
		if foreign == "" && (by != "" || writers.OfField(cause.Field) == "") {
			foreign = kubeapi.Sanitize(fmt.Sprintf("%s has set %s", cmp.Or(by, "somebody"), strings.TrimPrefix(cause.Field, ".")))
		}
	}
	return foreign, ok
}
