package kube

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/talos-agent/talos-agent/internal/lab/kube/rules"
)

// view is how one request wants to see objects of a resource.
type view struct {
	res     *resource
	version string
	as      rules.Rendering
	include metav1.IncludeObjectPolicy // in the rows of a table
}

// renderOne renders one object.
func (v view) renderOne(o *object) ([]byte, error) {
	switch v.as {
	case rules.AsTable:
		return v.encodeTable([]*object{o}, rules.TextAt(o.body, "metadata", "resourceVersion"), true)
	case rules.AsMetadata:
		return json.Marshal(rules.PartialMetadata(o.body))
	}
	// Conversion of custom resources is strategy None: only the name of the
	// version changes.
	return o.encodeTyped(v.res.kind, v.res.versionText(v.version))
}

// inList renders one object of a list. Built-in ones do not repeat there what
// they are.
func (v view) inList(o *object) ([]byte, error) {
	if v.as == rules.AsIs && v.res.typ != nil {
		return o.content()
	}
	return v.renderOne(o)
}

// renderList renders a list.
func (v view) renderList(objects []*object, rv uint64) ([]byte, error) {
	version := strconv.FormatUint(rv, 10)
	apiVersion, kind := v.res.versionText(v.version), v.res.listKind
	switch v.as {
	case rules.AsTable:
		return v.encodeTable(objects, version, true)
	case rules.AsMetadata:
		apiVersion, kind = "meta.k8s.io/v1", "PartialObjectMetadataList"
	}
	meta := fmt.Sprintf(`{"resourceVersion":%q}`, version)
	if v.res.typ == nil && v.as == rules.AsIs {
		meta = fmt.Sprintf(`{"continue":"","resourceVersion":%q}`, version)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"kind":%q,"apiVersion":%q,"metadata":%s,"items":[`, kind, apiVersion, meta)
	for i, o := range objects {
		if i > 0 {
			b.WriteByte(',')
		}
		one, err := v.inList(o)
		if err != nil {
			return nil, err
		}
		b.Write(one)
	}
	b.WriteString("]}\n")
	return b.Bytes(), nil
}

// makeTable renders objects as rows; with head it also names the columns.
func (v view) makeTable(objects []*object, version string, head bool) (*metav1.Table, error) {
	columns := rules.ColumnsOf(v.res.gr(), v.res.typ == nil)
	t := &metav1.Table{
		TypeMeta: metav1.TypeMeta{Kind: "Table", APIVersion: "meta.k8s.io/v1"},
		ListMeta: metav1.ListMeta{ResourceVersion: version},
		Rows:     []metav1.TableRow{},
	}
	if head {
		t.ColumnDefinitions = rules.DefineColumns(columns)
	}
	for _, o := range objects {
		raw, err := v.inRow(o)
		if err != nil {
			return nil, err
		}
		row := metav1.TableRow{Object: runtime.RawExtension{Raw: raw}}
		for _, c := range columns {
			row.Cells = append(row.Cells, c.Cell(o.body))
		}
		t.Rows = append(t.Rows, row)
	}
	return t, nil
}

// encodeTable is a table as JSON.
func (v view) encodeTable(objects []*object, version string, head bool) ([]byte, error) {
	t, err := v.makeTable(objects, version, head)
	if err != nil {
		return nil, err
	}
	return json.Marshal(t)
}

// inRow is the object that goes with a row: its metadata unless the client
// asked for all or nothing of it.
func (v view) inRow(o *object) ([]byte, error) {
	switch v.include {
	case metav1.IncludeNone:
		return nil, nil
	case metav1.IncludeObject:
		return o.encodeTyped(v.res.kind, v.res.versionText(v.version))
	}
	return json.Marshal(rules.PartialMetadata(o.body))
}
