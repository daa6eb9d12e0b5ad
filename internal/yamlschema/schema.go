package yamlschema

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/talos-agent/talos-agent/internal/text"
)

// Schema returns the JSON Schema (draft 2020-12) of a kind of file. It agrees
// with the decoder about keys, types and forms, for editors and CI; what one
// value must be to another it does not know.
func (l Language) Schema(title string, t reflect.Type) ([]byte, error) {
	c, err := l.comments()
	if err != nil {
		return nil, err
	}
	root := c.object(t)
	root.Dialect = "https://json-schema.org/draft/2020-12/schema"
	root.Title = title
	root.Description = c.of(t, "")
	b, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode the schema of %s: %w", title, err)
	}
	return append(b, '\n'), nil
}

// jsonSchema is the part of JSON Schema that we use.
type jsonSchema struct {
	Dialect     string        `json:"$schema,omitempty"`
	Title       string        `json:"title,omitempty"`
	Description string        `json:"description,omitempty"`
	Type        any           `json:"type,omitempty"`
	Enum        []any         `json:"enum,omitempty"`
	Pattern     string        `json:"pattern,omitempty"`
	MaxLength   int           `json:"maxLength,omitempty"`
	Minimum     *int64        `json:"minimum,omitempty"`
	Maximum     int64         `json:"maximum,omitempty"`
	Items       *jsonSchema   `json:"items,omitempty"`
	Properties  properties    `json:"properties,omitempty"`
	Required    []string      `json:"required,omitempty"`
	AllOf       []*jsonSchema `json:"allOf,omitempty"`
	OneOf       []*jsonSchema `json:"oneOf,omitempty"`
	Not         *jsonSchema   `json:"not,omitempty"`
	Additional  any           `json:"additionalProperties,omitempty"`
	Examples    []any         `json:"examples,omitempty"`
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

// commented is a language with the comments of its types by type and Go field;
// the field "" is the type itself.
type commented struct {
	Language
	texts map[string]map[string]string
}

// comments reads the comments of the language's types.
func (l Language) comments() (commented, error) {
	out := commented{l, map[string]map[string]string{}}
	for _, source := range l.Sources {
		f, err := parser.ParseFile(token.NewFileSet(), "", source, parser.ParseComments)
		if err != nil {
			return commented{}, fmt.Errorf("parse the types: %w", err)
		}
		for _, decl := range f.Decls {
			if gen, ok := decl.(*ast.GenDecl); ok && gen.Tok == token.TYPE {
				out.read(gen)
			}
		}
	}
	return out, nil
}

func (c commented) read(gen *ast.GenDecl) {
	for _, spec := range gen.Specs {
		ts := spec.(*ast.TypeSpec)
		fields := map[string]string{"": text.OneLine(gen.Doc.Text())}
		c.texts[ts.Name.Name] = fields
		st, ok := ts.Type.(*ast.StructType)
		if !ok {
			continue
		}
		for _, field := range st.Fields.List {
			for _, name := range field.Names {
				fields[name.Name] = text.OneLine(field.Doc.Text())
			}
		}
	}
}

// of returns the comment of a field, or of a type for the field "", as a
// sentence that does not begin with the Go name.
func (c commented) of(t reflect.Type, goName string) string {
	text := c.texts[t.Name()][goName]
	return strings.TrimPrefix(text, t.Name()+" is ")
}

// meaning is the text of a field about itself.
func (c commented) meaning(f field) string {
	text := c.of(f.owner, f.goName)
	if f.fallback != "" {
		text += " Default: " + f.fallback + "."
	}
	if len(f.later) > 0 {
		text += " Not yet: " + strings.Join(f.later, ", ") + "."
	}
	return text
}

func (c commented) object(t reflect.Type) *jsonSchema {
	s := &jsonSchema{Type: "object", Additional: false}
	for _, f := range listFields(t) {
		p := c.typed(f, f.typ)
		p.Description = c.meaning(f)
		if f.sample != "" {
			var v any
			if err := yaml.Load([]byte(f.sample), &v); err != nil {
				panic("strict: bad example of " + f.key + ": " + err.Error())
			}
			p.Examples = []any{v}
		}
		s.Properties = append(s.Properties, property{f.key, p})
		switch {
		case f.required && f.or != "":
			s.AllOf = append(s.AllOf, &jsonSchema{OneOf: []*jsonSchema{{Required: []string{f.key}}, {Required: []string{f.or}}}})
		case f.required:
			s.Required = append(s.Required, f.key)
		case f.or != "":
			s.AllOf = append(s.AllOf, &jsonSchema{Not: &jsonSchema{Required: []string{f.key, f.or}}})
		}
	}
	return s
}

// typed is the schema of a value of type t under the rules of field f. Blocks
// may be left empty, as the decoder allows.
func (c commented) typed(f field, t reflect.Type) *jsonSchema {
	if special := c.scalar(t); special.Parse != nil {
		s := &jsonSchema{Type: "string", Pattern: special.Pattern}
		if special.Number {
			s.Type = []string{"string", "integer"}
		}
		return s
	}
	switch {
	case t == reflect.TypeFor[Tree]():
		return &jsonSchema{Type: []string{"object", "null"}}
	case t.Kind() == reflect.Struct:
		s := c.object(t)
		types := []string{"object"}
		if below, ok := f.shortField(); ok {
			single := c.typed(below, below.typ) // a pattern is for texts alone
			types, s.Pattern = append(types, "string"), single.Pattern
		}
		if !f.required && f.typ.Kind() != reflect.Slice {
			types = append(types, "null")
		}
		if len(types) > 1 {
			s.Type = types
		}
		return s
	case t.Kind() == reflect.Slice:
		return &jsonSchema{Type: []string{"array", "null"}, Items: c.typed(f, t.Elem())}
	case t.Kind() == reflect.Map && t.Elem().Kind() == reflect.Struct:
		return &jsonSchema{Type: []string{"object", "null"}, Additional: c.object(t.Elem())}
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
	if rule, ok := c.Formats[f.is]; ok {
		s.Pattern, s.MaxLength = rule.Pattern.String(), rule.Max
		if rule.Empty {
			s.Pattern = "^$|" + s.Pattern
		}
	}
	return s
}
