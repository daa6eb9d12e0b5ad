package config

import (
	"fmt"
	"reflect"

	"github.com/talos-agent/talos-agent/internal/yamlschema"
)

// hostSchemas are the files of the host that have a schema.
var hostSchemas = []struct {
	name, file string
	typ        reflect.Type
}{
	{"config", "config.yaml", reflect.TypeFor[configFile]()},
	{"policy", "policy.yaml", reflect.TypeFor[policyFile]()},
}

// SchemaNames are the kinds of files of the host, by the names of their schemas.
func SchemaNames() []string {
	var names []string
	for _, s := range hostSchemas {
		names = append(names, s.name)
	}
	return names
}

// Schema returns the JSON Schema of one kind of file.
func Schema(which string) ([]byte, error) {
	for _, s := range hostSchemas {
		if s.name == which {
			return language.Schema(s.file, s.typ)
		}
	}
	return nil, fmt.Errorf("there is no schema %q", which)
}

// Format is the rule that texts of one kind follow in the host's files.
func Format(name string) yamlschema.Format { return language.Formats[name] }
