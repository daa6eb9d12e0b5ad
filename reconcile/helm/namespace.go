package helm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// LabelNamespace gives a namespace these labels and annotations, and takes back those
// it gave before. It makes the namespace if it is missing.
func (r *Releaser) LabelNamespace(ctx context.Context, d cluster.Desired, namespace string, meta cluster.NamespaceMeta) error {
	what := "label namespace " + namespace
	ctx, end, err := r.begin(ctx)
	if err != nil {
		return wrapError(what, err)
	}
	defer end()
	conn, err := r.ownConnection(d)
	if err != nil {
		return wrapError(what, err)
	}
	defer conn.Close()
	config := conn.config(&leash{ctx, conn})
	config.Timeout = callWithin
	set, err := kubernetes.NewForConfig(config)
	if err != nil {
		return wrapError(what, fmt.Errorf("make client for %s: %w", conn.server, err))
	}
	switch err := applyNamespace(ctx, set, namespace, meta); {
	case err != nil && ctx.Err() != nil:
		return wrapError(what, context.Cause(ctx))
	case err != nil:
		return wrapError(what, newError(findHint(err.Error()), "%s", sanitize(err.Error())))
	}
	r.settleView(ctx, "namespace "+namespace, func(v *view) bool { return v.namespaces.items[namespace].meta().Equal(meta) })
	return nil
}

// ownConnection is a connection of an action's own: what is looked at may move to
// another server meanwhile.
func (r *Releaser) ownConnection(d cluster.Desired) (*connection, error) {
	server, ok := r.api()
	if !ok {
		return nil, errors.New("no kube-apiserver is ready")
	}
	if d.Access.Kube.Cert.IsZero() {
		return nil, errors.New("the cluster has no secrets yet")
	}
	return connectServer(server, d.Access.Kube, r.dial, r.wrap)
}

// applyNamespace is a server-side apply: it makes the namespace if it is missing,
// leaves what others set, and removes what we set before and do not any more.
func applyNamespace(ctx context.Context, set kubernetes.Interface, namespace string, meta cluster.NamespaceMeta) error {
	want := applycorev1.Namespace(namespace).WithLabels(meta.Labels).WithAnnotations(meta.Annotations)
	_, err := set.CoreV1().Namespaces().Apply(ctx, want, metav1.ApplyOptions{FieldManager: namespaceManager, Force: true})
	return err
}

// namespaceMark is what is known of a namespace: the labels and annotations we set,
// as JSON.
type namespaceMark string

// meta returns them.
func (m namespaceMark) meta() cluster.NamespaceMeta {
	var out cluster.NamespaceMeta
	if m != "" {
		// It is what markOf made.
		if err := json.Unmarshal([]byte(m), &out); err != nil {
			panic(err)
		}
	}
	return out
}

// markOf reads which labels and annotations of a namespace we own. What somebody
// else has changed since is not ours any more.
func markOf(o *metav1.PartialObjectMetadata) (string, namespaceMark, bool) {
	var owned cluster.NamespaceMeta
	for _, e := range o.ManagedFields {
		if e.Manager != namespaceManager || e.Operation != metav1.ManagedFieldsOperationApply || e.FieldsV1 == nil {
			continue
		}
		var fields struct {
			Meta struct {
				Labels      map[string]any `json:"f:labels"`
				Annotations map[string]any `json:"f:annotations"`
			} `json:"f:metadata"`
		}
		// A server writes nothing else; what cannot be read is not ours.
		if json.Unmarshal(e.FieldsV1.GetRawBytes(), &fields) != nil {
			continue
		}
		owned.Labels, owned.Annotations = pickOwned(fields.Meta.Labels, o.Labels), pickOwned(fields.Meta.Annotations, o.Annotations)
	}
	mark, err := json.Marshal(owned)
	if err != nil {
		panic(err) // maps of texts
	}
	return o.Name, namespaceMark(mark), true
}

// pickOwned returns the values of the fields that are named like f:key.
func pickOwned(fields map[string]any, values map[string]string) map[string]string {
	out := maps.Clone(values)
	maps.DeleteFunc(out, func(key, _ string) bool {
		_, ours := fields["f:"+key]
		return !ours
	})
	return out
}

// refusalMark is an event about an object whose pods cannot be made.
type refusalMark struct {
	about  object
	made   int64 // when the event was, the first time
	reason string
}

// refusedPods is what follows in the message about a pod that was refused.
const refusedPods = "is forbidden: "

// describeRefusal shortens the message of a controller whose pod was refused. The
// name of the pod is another one at every try.
func describeRefusal(message string) string {
	if _, why, found := strings.Cut(message, refusedPods); found {
		message = why
	}
	return "its pods are refused: " + sanitize(message)
}

// isSecurity reports whether Pod Security is why pods are refused.
func isSecurity(why string) bool { return strings.Contains(why, violatesSecurity) }
