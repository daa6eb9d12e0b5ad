package inventory

import (
	"fmt"
	"reflect"
	"strings"
)

// schemas are the files that have a schema.
var schemas = []struct {
	name, file string
	typ        reflect.Type
}{
	{"cluster", ClusterFile, reflect.TypeFor[clusterFile]()},
	{"nodes", NodesFile, reflect.TypeFor[nodesFile]()},
	{"addon", "addons/*.yaml", reflect.TypeFor[addonFile]()},
}

// SchemaNames are the names that Schema takes.
func SchemaNames() []string {
	var out []string
	for _, s := range schemas {
		out = append(out, s.name)
	}
	return out
}

// Schema returns the JSON Schema (draft 2020-12) of one kind of file: cluster,
// nodes or addon. It agrees with the decoder about keys, types and forms, for
// editors and CI; what one value must be to another only Load knows.
func Schema(which string) ([]byte, error) {
	for _, s := range schemas {
		if s.name == which {
			return language.Schema(s.file, s.typ)
		}
	}
	return nil, fmt.Errorf("there is no schema %q: known are %s", which, strings.Join(SchemaNames(), ", "))
}
