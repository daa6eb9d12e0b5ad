package inventory

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/talos-agent/talos-agent/internal/golden"
	"github.com/talos-agent/talos-agent/internal/yamlschema"
	"github.com/talos-agent/talos-agent/internal/yamlschema/schematest"
)

const reference = "../../docs/reference"

func TestSchemasAreCurrent(t *testing.T) {
	for _, name := range SchemaNames() {
		b, err := Schema(name)
		if err != nil {
			t.Fatal(err)
		}
		golden.Check(t, filepath.Join(reference, "schema", name+".schema.json"), b)
	}
	if _, err := Schema("nope"); err == nil || !strings.Contains(err.Error(), "cluster, nodes, addon") {
		t.Errorf("unknown schema: %v", err)
	}
}

func compile(t *testing.T, name string) *jsonschema.Schema {
	t.Helper()
	b, err := Schema(name)
	if err != nil {
		t.Fatal(err)
	}
	return schematest.Compile(t, name, b)
}

// TestSchemasAgreeWithTheDecoder: what Load accepts is valid under the schema,
// and the kinds of mistakes the schema can know are found by it too.
func TestSchemasAgreeWithTheDecoder(t *testing.T) {
	byFile := map[string]*jsonschema.Schema{ClusterFile: compile(t, "cluster"), NodesFile: compile(t, "nodes"), "addons": compile(t, "addon")}
	files, err := filepath.Glob("testdata/load/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	accepted := 0
	for _, file := range files {
		a, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		want, _ := section(a, "want")
		valid := bytes.HasPrefix(want, []byte("cluster ")) || bytes.Contains(want, []byte("\ncluster "))
		for _, f := range a.Files {
			s := byFile[filepath.Base(f.Name)]
			if filepath.Base(filepath.Dir(f.Name)) == "addons" && !strings.HasSuffix(f.Name, "-values.yaml") {
				s = byFile["addons"]
			}
			if s == nil || !valid {
				continue
			}
			accepted++
			if err := s.Validate(schematest.Instance(t, f.Data)); err != nil {
				t.Errorf("%s: %s is valid, but its schema reports %v", file, f.Name, err)
			}
		}
	}
	if accepted < 20 {
		t.Errorf("only %d files compared", accepted)
	}
	for which, wrong := range map[string][]string{
		"cluster": {"{}", smallCluster + "nope: 1\n", strings.Replace(smallCluster, "v1.13.9", "1.13.9", 1), smallCluster + "cni: weave\n",
			smallCluster + "talos: {boot: template}\n", smallCluster + "ha_enabled: 1\n", smallCluster + "addons: x\n"},
		"nodes": {"controlplane: [{name: a}]", "controlplane: [{name: A, ip: 10.0.0.1}]", "workers: [{name: a, ip: 10.0.0.1, cpu: 0}]",
			"workers: [{name: a, ip: 10.0.0.1, disk: 40X}]", "counted: [{}]"},
		"addon": {"name: a", "{name: a, chart: {repository: http://x, name: a}}", "{name: a, chart: {}, prune: true}"},
	} {
		s := compile(t, which)
		for _, text := range wrong {
			if err := s.Validate(schematest.Instance(t, []byte(text))); err == nil {
				t.Errorf("the schema of %s accepts %s", which, text)
			}
		}
	}
}

// TestModel: every key has a meaning and a rule, and every example decodes.
func TestModel(t *testing.T) {
	for _, s := range schemas {
		for _, wrong := range language.Verify(s.typ) {
			t.Error(wrong)
		}
	}
}

// TestReferenceIsCurrent writes the tables of the reference between their
// markers.
func TestReferenceIsCurrent(t *testing.T) {
	file := filepath.Join(reference, "inventory.md")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	page := string(b)
	for _, s := range schemas {
		table, err := language.Table(s.typ)
		if err != nil {
			t.Fatal(err)
		}
		if page, err = yamlschema.FillTable(page, s.name, table); err != nil {
			t.Fatal(err)
		}
	}
	golden.Check(t, file, []byte(page))
}
