package config

import (
	"errors"
	"fmt"
	"reflect"
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

// CheckText returns what complains of a text that the host's files could not hold
// where they want that format, with an example of one that they could.
func CheckText(format, like string) func(string) error {
	f := language.Formats[format]
	return func(s string) error {
		switch {
		case s == "":
			return errors.New("it is needed")
		case len(s) > f.Max || !f.Pattern.MatchString(s):
			return fmt.Errorf("%q is not %s (write one like %s)", s, f.What, like)
		}
		return nil
	}
}
