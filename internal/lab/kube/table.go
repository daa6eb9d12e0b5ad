package kube

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/talos-agent/talos-agent/internal/lab/kube/rules"
)

// makeTable renders objects as rows; with head it also names the columns.
func (v view) makeTable(objects []*object, version string, head bool) (*metav1.Table, error) {
	columns := rules.ColumnsOf(v.res.gr(), v.res.typ == nil)
	t := &metav1.Table{
		TypeMeta: metav1.TypeMeta{Kind: "Table", APIVersion: "meta.k8s.io/v1"},
		ListMeta: metav1.ListMeta{ResourceVersion: version},
		Rows:     []metav1.TableRow{},
	}
	for _, c := range columns {
		if !head {
			break
		}
		def := metav1.TableColumnDefinition{Name: c.Name, Type: c.Kind}
		if c.Name == "Name" {
			def.Format = "name"
		}
		if c.Wide {
			def.Priority = 1
		}
		t.ColumnDefinitions = append(t.ColumnDefinitions, def)
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
	return json.Marshal(partialMetadata(o))
}
