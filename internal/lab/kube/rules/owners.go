package rules

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// ownedParts are the parts of an object whose owners are kept, for namespaces only: who
// set which label and annotation.
var ownedParts = []string{"labels", "annotations"}

// owner is who set fields: an entry of managedFields.
type owner struct {
	manager, operation, since string
	fields                    map[ownedField]bool
}

type ownedField struct{ part, key string }

// String is the field as a conflict names it.
func (f ownedField) String() string { return ".metadata." + f.part + "." + f.key }

// Write is what the rules of ownership ask of a request.
type Write struct {
	Manager      string // "": nobody's
	Apply, Force bool
	Body         []byte // of an apply
}

// KeepOwners notes in a namespace who owns its labels and annotations after a
// request. An apply takes away what its manager applied before and does not any
// more, unless somebody else owns it too; it is refused if it changes what somebody
// else owns, unless it is forced.
func KeepOwners(w Write, was, next map[string]any) error {
	before, after := ownedFields(was), ownedFields(next)
	owners := readOwners(was)
	manager, operation := w.Manager, string(metav1.ManagedFieldsOperationUpdate)
	if manager == "" {
		return nil
	}
	fields := map[ownedField]bool{}
	i := func() int {
		return slices.IndexFunc(owners, func(o owner) bool { return o.manager == manager && o.operation == operation })
	}
	if w.Apply {
		operation = string(metav1.ManagedFieldsOperationApply)
		var err error
		if fields, err = appliedFields(w.Body); err != nil {
			return err
		}
		if err := checkConflicts(w, fields, owners, before, after); err != nil {
			return err
		}
		if at := i(); at >= 0 {
			for f := range owners[at].fields {
				shared := slices.ContainsFunc(owners, func(o owner) bool { return (o.manager != manager || o.operation != operation) && o.fields[f] })
				if !fields[f] && !shared {
					unstructured.RemoveNestedField(next, "metadata", f.part, f.key)
					delete(after, f)
				}
			}
		}
	} else {
		if at := i(); at >= 0 {
			fields = owners[at].fields
		}
		for f, v := range after {
			if have, ok := before[f]; !ok || have != v {
				fields[f] = true
			}
		}
	}
	if at := i(); at < 0 {
		owners = append(owners, owner{manager: manager, operation: operation, since: time.Now().UTC().Format(time.RFC3339), fields: fields})
	} else {
		owners[at].fields = fields
	}
	for at, o := range owners {
		mine := o.manager == manager && o.operation == operation
		for f := range o.fields {
			v, ok := after[f]
			if !ok || !mine && v != before[f] {
				delete(owners[at].fields, f)
			}
		}
	}
	writeOwners(next, owners)
	return nil
}

// checkConflicts refuses an apply that changes what somebody else owns.
func checkConflicts(w Write, fields map[ownedField]bool, owners []owner, before, after map[ownedField]string) error {
	if w.Force {
		return nil
	}
	var causes []metav1.StatusCause
	for _, o := range owners {
		for f := range fields {
			if o.manager == w.Manager || !o.fields[f] || before[f] == after[f] {
				continue
			}
			causes = append(causes, metav1.StatusCause{Type: metav1.CauseTypeFieldManagerConflict,
				Message: fmt.Sprintf("conflict with %q using v1", o.manager), Field: f.String()})
		}
	}
	if len(causes) == 0 {
		return nil
	}
	slices.SortFunc(causes, func(a, b metav1.StatusCause) int { return cmp.Compare(a.Field, b.Field) })
	return apierrors.NewApplyConflict(causes, fmt.Sprintf("Apply failed with %d conflict: %s: %s", len(causes), causes[0].Message, causes[0].Field))
}

// ownedFields are the values of an object's labels and annotations.
func ownedFields(body map[string]any) map[ownedField]string {
	out := map[ownedField]string{}
	for _, part := range ownedParts {
		for k, v := range StringsAt(body, "metadata", part) {
			out[ownedField{part, k}] = v
		}
	}
	return out
}

// appliedFields are the labels and annotations an apply names.
func appliedFields(applied []byte) (map[ownedField]bool, error) {
	data, err := yaml.YAMLToJSON(applied)
	if err != nil {
		return nil, apierrors.NewBadRequest("error decoding YAML: " + err.Error())
	}
	var body map[string]any
	if err := json.Unmarshal(data, &body); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	out := map[ownedField]bool{}
	for f := range ownedFields(body) {
		out[f] = true
	}
	return out, nil
}

func readOwners(body map[string]any) []owner {
	var out []owner
	list, _, _ := unstructured.NestedSlice(body, "metadata", "managedFields")
	for _, e := range list {
		e, _ := e.(map[string]any)
		text := func(key string) string { s, _ := e[key].(string); return s }
		o := owner{manager: text("manager"), operation: text("operation"), since: text("time"), fields: map[ownedField]bool{}}
		for _, part := range ownedParts {
			of, _, _ := unstructured.NestedMap(e, "fieldsV1", "f:metadata", "f:"+part)
			for k := range of {
				if key, ok := strings.CutPrefix(k, "f:"); ok {
					o.fields[ownedField{part, key}] = true
				}
			}
		}
		out = append(out, o)
	}
	return out
}

// writeOwners stores who owns what; who owns nothing is left out.
func writeOwners(body map[string]any, owners []owner) {
	var list []any
	for _, o := range owners {
		if len(o.fields) == 0 {
			continue
		}
		meta := map[string]any{}
		for f := range o.fields {
			part, _ := meta["f:"+f.part].(map[string]any)
			if part == nil {
				part = map[string]any{}
				meta["f:"+f.part] = part
			}
			if o.operation == string(metav1.ManagedFieldsOperationUpdate) {
				part["."] = map[string]any{}
			}
			part["f:"+f.key] = map[string]any{}
		}
		list = append(list, map[string]any{
			"manager": o.manager, "operation": o.operation, "apiVersion": "v1", "time": o.since,
			"fieldsType": "FieldsV1", "fieldsV1": map[string]any{"f:metadata": meta},
		})
	}
	meta, _ := body["metadata"].(map[string]any)
	if delete(meta, "managedFields"); len(list) > 0 {
		meta["managedFields"] = list
	}
}
