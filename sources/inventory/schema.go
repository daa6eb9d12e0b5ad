package inventory

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// modelSource is where the meaning of every key is written: the comments of
// the types it is decoded into.
//
//go:embed model.go
var modelSource string

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
// nodes or addon. It says the same as the decoder does about keys, types and
// forms, for editors and CI; what one value must be to another only Load
// knows.
func Schema(which string) ([]byte, error) {
	at := slices.IndexFunc(schemas, func(s struct {
		name, file string
		typ        reflect.Type
	}) bool {
		return s.name == which
	})
	if at < 0 {
		return nil, fmt.Errorf("there is no schema %q: known are %s", which, strings.Join(SchemaNames(), ", "))
	}
	comments, err := modelComments()
	if err != nil {
		return nil, err
	}
	root := comments.object(schemas[at].typ)
	root.Dialect = "https://json-schema.org/draft/2020-12/schema"
	root.Title = schemas[at].file
	root.Description = comments.of(schemas[at].typ, "")
	b, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode schema %s: %w", which, err)
	}
	return append(b, '\n'), nil
}

// jsonSchema is the part of JSON Schema that we use.
type jsonSchema struct {
	Dialect     string      `json:"$schema,omitempty"`
	Title       string      `json:"title,omitempty"`
	Description string      `json:"description,omitempty"`
	Type        any         `json:"type,omitempty"`
	Enum        []any       `json:"enum,omitempty"`
	Pattern     string      `json:"pattern,omitempty"`
	MaxLength   int         `json:"maxLength,omitempty"`
	Minimum     *int64      `json:"minimum,omitempty"`
	Maximum     int64       `json:"maximum,omitempty"`
	Items       *jsonSchema `json:"items,omitempty"`
	Properties  properties  `json:"properties,omitempty"`
	Required    []string    `json:"required,omitempty"`
	Additional  any         `json:"additionalProperties,omitempty"`
	Examples    []any       `json:"examples,omitempty"`
}

// properties keeps the order of the keys.
type properties []property

type property struct {
	key    string
	schema *jsonSchema
}

// MarshalJSON implements json.Marshaler.
func (p properties) MarshalJSON() ([]byte, error) {
	var b strings.Builder
	b.WriteByte('{')
	for i, e := range p {
		if i > 0 {
			b.WriteByte(',')
		}
		v, err := json.Marshal(e.schema)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "%q:%s", e.key, v)
	}
	b.WriteByte('}')
	return []byte(b.String()), nil
}

// comments are the comments of the model by type and Go field; the field ""
// is the type itself.
type comments map[string]map[string]string

func modelComments() (comments, error) {
	f, err := parser.ParseFile(token.NewFileSet(), "model.go", modelSource, parser.ParseComments)
	if err != nil {
		return nil, fmt.Errorf("parse the model: %w", err)
	}
	out := comments{}
	for _, decl := range f.Decls {
		gen, ok := decl.(*ast.GenDecl)
		if !ok || gen.Tok != token.TYPE {
			continue
		}
		for _, spec := range gen.Specs {
			ts := spec.(*ast.TypeSpec)
			fields := map[string]string{"": oneLine(gen.Doc)}
			out[ts.Name.Name] = fields
			st, ok := ts.Type.(*ast.StructType)
			if !ok {
				continue
			}
			for _, field := range st.Fields.List {
				for _, name := range field.Names {
					fields[name.Name] = oneLine(field.Doc)
				}
			}
		}
	}
	return out, nil
}

func oneLine(g *ast.CommentGroup) string { return strings.Join(strings.Fields(g.Text()), " ") }

// of returns the comment of a field, or of a type for the field "", as a
// sentence that does not begin with the Go name.
func (c comments) of(t reflect.Type, goName string) string {
	text := c[t.Name()][goName]
	return strings.TrimPrefix(text, t.Name()+" is ")
}

// meaning is what a field says about itself.
func (c comments) meaning(f field) string {
	text := c.of(f.owner, f.goName)
	if f.fallback != "" {
		text += " Default: " + f.fallback + "."
	}
	if len(f.later) > 0 {
		text += " Not yet: " + strings.Join(f.later, ", ") + "."
	}
	return text
}

func (c comments) object(t reflect.Type) *jsonSchema {
	s := &jsonSchema{Type: "object", Additional: false}
	for _, f := range shape(t) {
		p := c.typed(f, f.typ)
		p.Description = c.meaning(f)
		if f.sample != "" {
			var v any
			if err := yaml.Load([]byte(f.sample), &v); err != nil {
				panic("inventory: bad example of " + f.key + ": " + err.Error())
			}
			p.Examples = []any{v}
		}
		s.Properties = append(s.Properties, property{f.key, p})
		if f.required {
			s.Required = append(s.Required, f.key)
		}
	}
	return s
}

// typed is the schema of a value of type t under the rules of field f. Blocks
// may be left empty, as the decoder allows.
func (c comments) typed(f field, t reflect.Type) *jsonSchema {
	if special, ok := scalars[t]; ok {
		s := &jsonSchema{Type: "string", Pattern: special.pattern}
		if special.number {
			s.Type = []string{"string", "integer"}
		}
		return s
	}
	switch {
	case t == reflect.TypeFor[tree]():
		return &jsonSchema{Type: []string{"object", "null"}}
	case t.Kind() == reflect.Struct:
		s := c.object(t)
		if !f.required && f.typ.Kind() != reflect.Slice {
			s.Type = []string{"object", "null"}
		}
		return s
	case t.Kind() == reflect.Slice:
		return &jsonSchema{Type: []string{"array", "null"}, Items: c.typed(f, t.Elem())}
	case t.Kind() == reflect.Map:
		return &jsonSchema{Type: []string{"object", "null"}, Additional: &jsonSchema{Type: []string{"string", "number", "boolean"}}}
	case t.Kind() == reflect.Bool:
		if len(f.later) > 0 {
			return &jsonSchema{Type: "boolean", Enum: []any{f.later[0] != "true"}}
		}
		return &jsonSchema{Type: "boolean"}
	case t.Kind() == reflect.Int:
		return &jsonSchema{Type: "integer", Minimum: &f.min, Maximum: f.max}
	}
	s := &jsonSchema{Type: "string"}
	for _, e := range f.enum {
		s.Enum = append(s.Enum, e)
	}
	if rule, ok := formats[f.is]; ok {
		s.Pattern, s.MaxLength = rule.pattern.String(), rule.max
		if f.is == "sha256" || f.is == "digest" {
			s.Pattern = "^$|" + s.Pattern
		}
	}
	return s
}
