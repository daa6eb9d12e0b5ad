package manifests

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/kubeapi"
)

// unrendered is an object of Talos that nothing renders any longer.
type unrendered struct {
	at  dynamic.ResourceInterface
	has *unstructured.Unstructured
	// kept is why it is not deleted, "" : it is.
	kept string
}

func (u unrendered) name() string { return nameOf(u.has) }

// withMore are the kinds with which more goes than the object: what is in a namespace, all objects of a kind, data.
var withMore = []string{"Namespace", "CustomResourceDefinition", "PersistentVolume", "PersistentVolumeClaim"}

// findUnrendered returns what the inventory lists and is not among the objects that are rendered, in the order in which it
// is deleted: what others need comes last. What is not Talos' any more is left out. Where nothing is
// rendered at all, Talos is not asked for what it deploys, and nothing is.
func (c *client) findUnrendered(ctx context.Context, rendered []*unstructured.Unstructured) (out []unrendered, err error) {
	if !c.inventoried || len(rendered) == 0 {
		return nil, nil
	}
	_, keys, err := c.readInventory(ctx)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", inventoryName, err)
	}
	for _, key := range keys {
		u, _, err := c.lookUp(ctx, key, rendered)
		if err != nil {
			return nil, fmt.Errorf("look up %s: %w", kubeapi.Sanitize(key), err)
		}
		if u.has != nil && isOfTalos(u.has) {
			out = append(out, u)
		}
	}
	slices.SortStableFunc(out, func(a, b unrendered) int { return rankOf(b.has.GetKind()) - rankOf(a.has.GetKind()) })
	return out, nil
}

// lookUp looks for an object of the inventory that is not rendered; neither one nor absent is one that is, or of which nothing is
// known: its key names none, or its kind is not served now. One that is rendered as of another group counts as rendered: the
// two may be one object.
func (c *client) lookUp(ctx context.Context, key string, rendered []*unstructured.Unstructured) (u unrendered, absent bool, err error) {
	e, ok := parseEntry(key)
	if !ok {
		return u, false, nil
	}
	m, err := c.kinds.RESTMapping(e.kind)
	switch {
	case meta.IsNoMatchError(err):
		return u, false, nil
	case err != nil:
		return u, false, err
	}
	at := dynamic.ResourceInterface(c.objects.Resource(m.Resource))
	if m.Scope.Name() == meta.RESTScopeNameNamespace {
		e.namespace = cmp.Or(e.namespace, metav1.NamespaceDefault)
		at = c.objects.Resource(m.Resource).Namespace(e.namespace)
	} else {
		e.namespace = "" // Talos 1.13 has noted the one that its manifest names. Source: Talos v1.14, ManifestApplyController
	}
	if slices.ContainsFunc(rendered, func(o *unstructured.Unstructured) bool {
		return o.GetKind() == e.kind.Kind && o.GetName() == e.name && o.GetNamespace() == e.namespace
	}) {
		return u, false, nil
	}
	has, err := at.Get(ctx, e.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return u, true, nil
	case err != nil:
		return u, false, err
	}
	u = unrendered{at: at, has: has}
	if why := keepsMore(has); why != "" {
		u.kept = fmt.Sprintf("%s: `kubectl delete` it when nothing needs it", why)
	}
	return u, false, nil
}

// keepsMore is why an object is left although nothing renders it, "" : it is not: with it more would go than itself.
func keepsMore(o *unstructured.Unstructured) string {
	kind := o.GroupVersionKind()
	retention, _, _ := unstructured.NestedString(o.Object, "spec", "persistentVolumeClaimRetentionPolicy", "whenDeleted")
	switch {
	case slices.Contains(withMore, kind.Kind):
		return fmt.Sprintf("no %s is deleted, because more goes with it", kind.Kind)
	case strings.Contains(kind.Group, ".") && !strings.HasSuffix(kind.Group, ".k8s.io"):
		return fmt.Sprintf("no %s is deleted, because only its own controller knows what goes with it", kind.Kind)
	case len(o.GetFinalizers()) > 0:
		return "it has finalizers, by which more may go with it"
	case kind.Kind == "StatefulSet" && retention == "Delete":
		return "its volumes would go with it"
	}
	return ""
}

// isOfTalos reports whether an object is Talos' and nobody else's: it has written it, and no release of Helm, no other
// inventory and no object owns it, nobody else applies it, and nobody has it kept.
func isOfTalos(o *unstructured.Unstructured) bool {
	annotations := o.GetAnnotations()
	mark := cmp.Or(annotations[owningInventory], inventoryName)
	switch {
	case o.GetDeletionTimestamp() != nil, releaseOf(o) != "", mark != inventoryName, len(o.GetOwnerReferences()) > 0,
		annotations[corev1.LastAppliedConfigAnnotation] != "", annotations["client.lifecycle.config.k8s.io/deletion"] == "detach", annotations["cli-utils.sigs.k8s.io/on-remove"] == "keep",
		o.GetKind() == "ConfigMap" && o.GetName() == inventoryName:
		return false
	}
	written := false
	for _, e := range o.GetManagedFields() {
		own := slices.Contains(ours, e.Manager)
		if !own && e.Operation == metav1.ManagedFieldsOperationApply {
			return false
		}
		written = written || own
	}
	return written
}

// prune deletes what a comparison has shown to be rendered no longer, as far as that is so still, and takes out of the
// inventory what is not there any more.
func (k *Keeper) prune(ctx context.Context, d cluster.Desired, m cluster.Manifests, c *client, rendered []*unstructured.Unstructured) error {
	if !c.inventoried || len(rendered) == 0 {
		return nil
	}
	if slices.ContainsFunc(m.Changes, func(c cluster.ObjectChange) bool { return c.Deleted }) {
		now := k.c.Rendered(ctx, d) // a control plane may have begun to render it again
		switch {
		case !now.Known:
			return fmt.Errorf("delete what nothing renders any longer: %s", now.Why)
		case now.Value.Lacks != "" || !bytes.Equal(now.Value.Objects.Reveal(), m.Rendered.Objects.Reveal()):
			return errors.New("delete what nothing renders any longer: the control planes render something else by now")
		}
		found, err := c.findUnrendered(ctx, rendered)
		if err != nil {
			return err
		}
		for _, u := range found {
			shown := slices.ContainsFunc(m.Changes, func(c cluster.ObjectChange) bool { return c.Object == u.name() && c.Deleted })
			if !shown || u.kept != "" {
				continue
			}
			if err := u.delete(ctx); err != nil {
				return fmt.Errorf("delete %s: %s", u.name(), kubeapi.Reason(err))
			}
		}
	}
	return c.shrinkInventory(ctx, rendered)
}

// delete deletes the object that was looked up, unless it was changed since, and what it has made.
func (u unrendered) delete(ctx context.Context) error {
	uid, version, background := u.has.GetUID(), u.has.GetResourceVersion(), metav1.DeletePropagationBackground
	err := u.at.Delete(ctx, u.has.GetName(), metav1.DeleteOptions{PropagationPolicy: &background, Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// shrinkInventory takes out of the inventory what is neither rendered nor there.
func (c *client) shrinkInventory(ctx context.Context, rendered []*unstructured.Unstructured) error {
	_, keys, err := c.readInventory(ctx)
	if err != nil {
		return fmt.Errorf("read %s: %s", inventoryName, kubeapi.Reason(err))
	}
	var absent []string
	for _, key := range keys {
		_, isAbsent, err := c.lookUp(ctx, key, rendered)
		if err != nil {
			return fmt.Errorf("look up %s: %s", kubeapi.Sanitize(key), kubeapi.Reason(err))
		}
		if isAbsent {
			absent = append(absent, key)
		}
	}
	if len(absent) == 0 {
		return nil
	}
	err = c.changeInventory(ctx, func(keys []string) []string {
		return slices.DeleteFunc(keys, func(key string) bool { return slices.Contains(absent, key) })
	})
	if err != nil {
		return fmt.Errorf("take out of %s what is not there: %s", inventoryName, kubeapi.Reason(err))
	}
	return nil
}
