package kube

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/talos-agent/talos-agent/internal/lab/kube/rules"
)

// selector is which objects a list or watch is about.
type selector struct {
	labels labels.Selector
	fields fields.Selector
}

// selectable are the fields clients may select by, beside metadata.name and
// metadata.namespace. The server knows no others, and refuses them.
var selectable = map[*resource][]string{
	resEvents: {
		"involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
		"involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath", "reason", "type",
	},
	findBuiltin("", "secrets"): {"type"},
	resNamespaces:              {"status.phase"},
	resNodes:                   {"spec.unschedulable"},
	resPods: {
		"spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "spec.hostNetwork",
		"status.phase", "status.podIP", "status.nominatedNodeName",
	},
	resServices:    {"spec.clusterIP", "spec.type"},
	resJobs:        {"status.successful"},
	resReplicaSets: {"status.replicas"},
	findBuiltin("certificates.k8s.io", "certificatesigningrequests"): {"spec.signerName"},
}

// selectorOf reads the selectors of a request.
func selectorOf(res *resource, q url.Values) (selector, error) {
	l, err := labels.Parse(q.Get("labelSelector"))
	if err != nil {
		return selector{}, apierrors.NewBadRequest(err.Error())
	}
	f, err := fields.ParseSelector(q.Get("fieldSelector"))
	if err != nil {
		return selector{}, apierrors.NewBadRequest(err.Error())
	}
	for _, r := range f.Requirements() {
		own := selectable[res]
		switch {
		case r.Field == "metadata.name", r.Field == "metadata.namespace", slices.Contains(own, r.Field):
		case own == nil && res.typ != nil:
			return selector{}, apierrors.NewBadRequest(fmt.Sprintf(`%q is not a known field selector: only "metadata.name", "metadata.namespace"`, r.Field))
		default:
			return selector{}, apierrors.NewBadRequest("field label not supported: " + r.Field)
		}
	}
	return selector{labels: l, fields: f}, nil
}

func (s selector) matchesObject(o *object) bool {
	if o == nil {
		return false
	}
	if !s.labels.Empty() && !s.labels.Matches(labels.Set(rules.StringsAt(o.body, "metadata", "labels"))) {
		return false
	}
	return s.fields.Empty() || s.fields.Matches(fieldsOf{o})
}

// fieldsOf lets a field selector read an object.
type fieldsOf struct{ o *object }

func (f fieldsOf) Has(string) bool { return true }

// Get implements fields.Fields. An absent flag is false, an absent text "".
func (f fieldsOf) Get(field string) string {
	switch v := rules.ValueAt(f.o.body, strings.Split(field, ".")...).(type) {
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
