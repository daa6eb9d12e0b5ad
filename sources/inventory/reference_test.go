package inventory

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v4"
)

const reference = "../../docs/reference"

// current compares a generated file with what is written in docs, or rewrites it.
func current(t *testing.T, file string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(file)
	if bytes.Equal(got, want) {
		return
	}
	if !*update {
		t.Errorf("%s is not what the types say (%v): go test ./sources/inventory -update writes it", file, err)
		return
	}
	if err := os.WriteFile(file, want, 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestSchemasAreCurrent(t *testing.T) {
	for _, name := range SchemaNames() {
		b, err := Schema(name)
		if err != nil {
			t.Fatal(err)
		}
		current(t, filepath.Join(reference, "schema", name+".schema.json"), b)
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
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource(name+".json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile(name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// instance reads YAML the way an editor does.
func instance(t *testing.T, data []byte) any {
	t.Helper()
	var v any
	if err := yaml.Load(data, &v); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	out, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	return out
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
			if err := s.Validate(instance(t, f.Data)); err != nil {
				t.Errorf("%s: %s is valid, but its schema says %v", file, f.Name, err)
			}
		}
	}
	if accepted < 20 {
		t.Errorf("only %d files compared", accepted)
	}
	for which, wrong := range map[string][]string{
		"cluster": {"{}", smallCluster + "nope: 1\n", strings.Replace(smallCluster, "v1.13.9", "1.13.9", 1), smallCluster + "cni: weave\n",
			smallCluster + "talos: {boot: iso}\n", smallCluster + "ha_enabled: 1\n", smallCluster + "addons: x\n"},
		"nodes": {"controlplane: [{name: a}]", "controlplane: [{name: A, ip: 10.0.0.1}]", "workers: [{name: a, ip: 10.0.0.1, cpu: 0}]",
			"workers: [{name: a, ip: 10.0.0.1, disk: 40X}]", "counted: [{}]"},
		"addon": {"name: a", "{name: a, chart: {repository: http://x, name: a}}", "{name: a, chart: {}, prune: true}"},
	} {
		s := compile(t, which)
		for _, text := range wrong {
			if err := s.Validate(instance(t, []byte(text))); err == nil {
				t.Errorf("the schema of %s accepts %s", which, text)
			}
		}
	}
}

// TestModel: every key has a meaning and a rule, and every example decodes.
func TestModel(t *testing.T) {
	comments, err := modelComments()
	if err != nil {
		t.Fatal(err)
	}
	var walk func(t *testing.T, typ reflect.Type)
	walk = func(t *testing.T, typ reflect.Type) {
		for _, f := range shape(typ) {
			where := typ.Name() + "." + f.goName
			if text := comments.of(f.owner, f.goName); !strings.HasSuffix(text, ".") {
				t.Errorf("%s says nothing whole about itself: %q", where, text)
			}
			elem := f.typ
			if elem.Kind() == reflect.Slice {
				elem = elem.Elem()
			}
			_, ruled := formats[f.is]
			if elem.Kind() == reflect.String && !ruled && len(f.enum) == 0 {
				t.Errorf("%s is a text without a rule", where)
			}
			if elem.Kind() == reflect.Int && (f.unit == "" || f.max <= f.min) {
				t.Errorf("%s is a number without unit or bounds", where)
			}
			if f.sample != "" {
				var n yaml.Node
				if err := yaml.Load([]byte(f.key+": "+f.sample), &n); err != nil {
					t.Errorf("%s: %v", where, err)
					continue
				}
				v := reflect.New(typ)
				d := document{file: "example", report: newReport()}
				decode(d, content(&n), "", v.Interface())
				for _, p := range d.problems {
					if p.Field == f.key || strings.HasPrefix(p.Field, f.key+".") || strings.HasPrefix(p.Field, f.key+"[") {
						t.Errorf("the example of %s: %v", where, p)
					}
				}
			}
			if elem.Kind() == reflect.Struct && elem != reflect.TypeFor[tree]() && scalars[elem].parse == nil {
				walk(t, elem)
			}
		}
	}
	for _, s := range schemas {
		walk(t, s.typ)
	}
	for name, f := range formats {
		write := strings.Trim(f.write, `"`)
		if write != "" && !f.pattern.MatchString(write) {
			t.Errorf("format %s shows %q, which it refuses", name, write)
		}
	}
}

// TestReferenceIsCurrent writes the tables of the reference between their
// markers.
func TestReferenceIsCurrent(t *testing.T) {
	file := filepath.Join(reference, "inventory.md")
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	comments, err := modelComments()
	if err != nil {
		t.Fatal(err)
	}
	text := string(page)
	for _, s := range schemas {
		begin, end := fmt.Sprintf("<!-- keys of %s -->\n", s.name), fmt.Sprintf("<!-- end of %s -->", s.name)
		i, j := strings.Index(text, begin), strings.Index(text, end)
		if i < 0 || j < i {
			t.Fatalf("%s has no place for the keys of %s", file, s.name)
		}
		text = text[:i+len(begin)] + comments.table(s.typ) + text[j:]
	}
	current(t, file, []byte(text))
}

// table lists the keys of a type and of everything below it.
func (c comments) table(t reflect.Type) string {
	var b strings.Builder
	b.WriteString("\n| Key | Type | Default | Example | Meaning |\n| --- | --- | --- | --- | --- |\n")
	c.rows(&b, t, "")
	b.WriteByte('\n')
	return b.String()
}

func (c comments) rows(b *strings.Builder, t reflect.Type, path string) {
	for _, f := range shape(t) {
		key := join(path, f.key)
		fallback := code(f.fallback)
		if f.required {
			fallback = "**required**"
		}
		meaning := c.of(f.owner, f.goName)
		if len(f.later) > 0 {
			meaning += " Not yet: `" + strings.Join(f.later, "`, `") + "`."
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s | %s |\n", key, typeName(f), fallback, code(f.sample), strings.ReplaceAll(meaning, "|", "\\|"))
		elem := f.typ
		if elem.Kind() == reflect.Slice {
			elem, key = elem.Elem(), key+"[]"
		}
		if elem == reflect.TypeFor[hardware]() {
			continue // the keys of a profile are those of a node
		}
		if elem.Kind() == reflect.Struct && elem != reflect.TypeFor[tree]() && scalars[elem].parse == nil {
			c.rows(b, elem, key)
		}
	}
}

// code shows what can be written as code, and what is said about it as text.
func code(s string) string {
	if s == "" || strings.Contains(s, " ") && !strings.ContainsAny(s, "{[") {
		return s
	}
	return "`" + s + "`"
}

// typeName is how the reference calls the type of a field.
func typeName(f field) string {
	switch t := f.typ; {
	case t == reflect.TypeFor[time.Duration]():
		return "duration"
	case scalars[t].parse != nil:
		return strings.TrimPrefix(strings.TrimPrefix(scalars[t].what, "an "), "a ")
	case t == reflect.TypeFor[tree]():
		return "mapping"
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct && scalars[t.Elem()].parse == nil:
		return "list of mappings"
	case t.Kind() == reflect.Slice:
		return "list"
	case t.Kind() == reflect.Struct:
		return "mapping"
	case t.Kind() == reflect.Map:
		return "mapping of texts"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.Int:
		return "number"
	case len(f.enum) > 0:
		return "one of " + strings.Join(f.enum, ", ")
	}
	return "text"
}
