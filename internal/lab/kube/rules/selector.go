package rules

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Selector is which objects a list or watch is about.
type Selector struct {
	labels labels.Selector
	fields fields.Selector
}

// selectable are the fields clients may select by, beside metadata.name and
// metadata.namespace. The server knows no others, and refuses them.
var selectable = map[string][]string{
	"events": {
		"involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
		"involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath", "reason", "reportingComponent", "source", "type",
	},
	"secrets":    {"type"},
	"namespaces": {"status.phase"},
	"nodes":      {"spec.unschedulable"},
	"pods": {
		"spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "spec.hostNetwork",
		"status.phase", "status.podIP", "status.nominatedNodeName",
	},
	"services":         {"spec.clusterIP", "spec.type"},
	"batch/jobs":       {"status.successful"},
	"apps/replicasets": {"status.replicas"},
	"certificates.k8s.io/certificatesigningrequests": {"spec.signerName"},
}

// SelectorOf reads the selectors of a request for a resource, which may be a custom
// one.
func SelectorOf(of schema.GroupResource, custom bool, q url.Values) (Selector, error) {
	l, err := labels.Parse(q.Get("labelSelector"))
	if err != nil {
		return Selector{}, apierrors.NewBadRequest(err.Error())
	}
	f, err := fields.ParseSelector(q.Get("fieldSelector"))
	if err != nil {
		return Selector{}, apierrors.NewBadRequest(err.Error())
	}
	for _, r := range f.Requirements() {
		own := selectable[resourceKey(of)]
		switch {
		case r.Field == "metadata.name", r.Field == "metadata.namespace", slices.Contains(own, r.Field):
		case own == nil && !custom:
			return Selector{}, apierrors.NewBadRequest(fmt.Sprintf(`%q is not a known field selector: only "metadata.name", "metadata.namespace"`, r.Field))
		default:
			return Selector{}, apierrors.NewBadRequest("field label not supported: " + r.Field)
		}
	}
	return Selector{labels: l, fields: f}, nil
}

// Matches reports whether an object is selected.
func (s Selector) Matches(o map[string]any) bool {
	if !s.labels.Empty() && !s.labels.Matches(labels.Set(StringsAt(o, "metadata", "labels"))) {
		return false
	}
	return s.fields.Empty() || s.fields.Matches(fieldsOf{o})
}

// fieldsOf lets a field selector read an object.
type fieldsOf struct{ o map[string]any }

func (f fieldsOf) Has(string) bool { return true }

// Get implements fields.Fields. An absent flag is false, an absent text "".
func (f fieldsOf) Get(field string) string {
	if field == "source" {
		return cmp.Or(TextAt(f.o, "source", "component"), TextAt(f.o, "reportingComponent"))
	}
	switch v := ValueAt(f.o, strings.Split(field, ".")...).(type) {
	case string:
		return v
	case bool:
		return strconv.FormatBool(v)
	case int64:
		return strconv.FormatInt(v, 10)
	}
	if field == "spec.unschedulable" || field == "spec.hostNetwork" {
		return "false"
	}
	return ""
}
