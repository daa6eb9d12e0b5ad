package edits

import (
	"bytes"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// Writers are who has written which fields of an object.
type Writers []writer

// writer is one entry of managedFields, read.
type writer struct {
	manager string
	at      time.Time // zero: it is not noted
	fields  fieldpath.Set
}

// ReadWriters reads entries of managedFields. A server writes nothing else; what cannot be
// read has written nothing.
func ReadWriters(entries []metav1.ManagedFieldsEntry) Writers {
	var out Writers
	for _, e := range entries {
		w := writer{manager: e.Manager}
		if e.FieldsV1 == nil || w.fields.FromJSON(bytes.NewReader(e.FieldsV1.GetRawBytes())) != nil {
			continue
		}
		if e.Time != nil {
			w.at = e.Time.Time
		}
		out = append(out, w)
	}
	return out
}

// Of is who has written the field at a path of names last, as it calls itself, and when;
// "" : it is not noted, as of one that was removed. A list without keys, such as the taints
// of a Node, is one field.
func (w Writers) Of(names ...string) (manager string, at time.Time) {
	var path fieldpath.Path
	for _, name := range names {
		path = append(path, fieldpath.PathElement{FieldName: &name})
	}
	for _, one := range w {
		if one.fields.Has(path) && (manager == "" || at.Before(one.at)) {
			manager, at = one.manager, one.at
		}
	}
	return manager, at
}

// LastWriter is who has written an object last, "" where that is not noted.
func LastWriter(entries []metav1.ManagedFieldsEntry) string {
	writer, at := "", time.Time{}
	for _, e := range entries {
		if e.Time != nil && !e.Time.Time.Before(at) {
			writer, at = e.Manager, e.Time.Time
		}
	}
	return writer
}

// OfField is who has written a field that the API server names in an answer, such as
// .spec.template.spec.containers[name="web"].image; "" : none of these.
func (w Writers) OfField(field string) string {
	manager := ""
	for _, one := range w {
		one.fields.Iterate(func(path fieldpath.Path) { // All of this library cannot be left early
			if manager == "" && path.String() == field {
				manager = one.manager
			}
		})
	}
	return manager
}
