package main

import (
	"bytes"
	"flag"
	"os"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v4"
)

var update = flag.Bool("update", false, "rewrite what the tests expect; commit only the changes you understand")

const reference = "../../docs/reference"

// current compares a generated file with what is written in docs, or rewrites it.
func current(t *testing.T, file string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(file)
	if bytes.Equal(got, want) {
		return
	}
	if !*update {
		t.Errorf("%s is not what the types say (%v): make docs writes it", file, err)
		return
	}
	if err := os.WriteFile(file, want, 0o644); err != nil {
		t.Fatal(err)
	}
}

func compileSchema(t *testing.T, which string) *jsonschema.Schema {
	t.Helper()
	b, err := writeSchema(which)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource(which+".json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile(which + ".json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// instance reads YAML the way an editor does.
func instance(t *testing.T, text string) any {
	t.Helper()
	var v any
	if err := yaml.Load([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return v
}
