package openapi

import (
	"cmp"
	"reflect"
	"slices"
	"strings"
)

// scalars are the types of structures that are written as something simpler.
// Source: the OpenAPISchemaType and OpenAPISchemaFormat of each.
var scalars = map[string]map[string]any{
	"io.k8s.apimachinery.pkg.apis.meta.v1.Time":                                             {"type": "string", "format": "date-time"},
	"io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime":                                        {"type": "string", "format": "date-time"},
	"io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1":                                         {"type": "object"},
	"io.k8s.apimachinery.pkg.api.resource.Quantity":                                         {"oneOf": []any{map[string]any{"type": "string"}, map[string]any{"type": "number"}}},
	"io.k8s.apimachinery.pkg.util.intstr.IntOrString":                                       {"format": "int-or-string", "oneOf": []any{map[string]any{"type": "integer"}, map[string]any{"type": "string"}}},
	"io.k8s.apimachinery.pkg.runtime.RawExtension":                                          {"type": "object"},
	"io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON":                         {},
	"io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrArray":       {},
	"io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrBool":        {},
	"io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrStringArray": {},
}

// nameOf is the name of a type's schema: "io.k8s.api.core.v1.Pod" for that of
// k8s.io/api/core/v1.
func nameOf(t reflect.Type) string {
	host, rest, _ := strings.Cut(t.PkgPath(), "/")
	labels := strings.Split(host, ".")
	slices.Reverse(labels)
	return strings.Join(append(labels, strings.Split(rest, "/")...), ".") + "." + t.Name()
}

// collectSchemas adds the schema of a structure and of all that it leads to, and returns
// the first.
func collectSchemas(into map[string]any, t reflect.Type) map[string]any {
	name := nameOf(t)
	if have, ok := into[name].(map[string]any); ok {
		return have
	}
	out := map[string]any{}
	into[name] = out
	docs := docsOf(t)
	if text := docs[""]; text != "" {
		out["description"] = text
	}
	if simple, ok := scalars[name]; ok {
		for k, v := range simple {
			out[k] = v
		}
		return out
	}
	properties := map[string]any{}
	required := addFields(into, properties, t, docs)
	out["type"], out["properties"] = "object", properties
	if len(required) > 0 {
		slices.Sort(required)
		out["required"] = required
	}
	return out
}

// addFields adds the fields of a structure to properties, and returns which must be there.
func addFields(into, properties map[string]any, t reflect.Type, docs map[string]string) (required []string) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" || !f.IsExported() {
			continue
		}
		if f.Anonymous && name == "" {
			required = append(required, addFields(into, properties, f.Type, docsOf(f.Type))...)
			continue
		}
		name = cmp.Or(name, f.Name)
		s := schemaOf(into, f.Type)
		if text := docs[name]; text != "" {
			if s["$ref"] != nil {
				s = map[string]any{"allOf": []any{s}}
			}
			s["description"] = text
		}
		properties[name] = s
		if !strings.Contains(options, "omitempty") && !strings.Contains(options, "omitzero") {
			required = append(required, name)
		}
	}
	return required
}

// schemaOf is the schema of a field.
func schemaOf(into map[string]any, t reflect.Type) map[string]any {
	switch t.Kind() {
	case reflect.Pointer:
		return schemaOf(into, t.Elem())
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Int32:
		return map[string]any{"type": "integer", "format": "int32"}
	case reflect.Int, reflect.Int64:
		return map[string]any{"type": "integer", "format": "int64"}
	case reflect.Float64:
		return map[string]any{"type": "number", "format": "double"}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return map[string]any{"type": "string", "format": "byte"}
		}
		return map[string]any{"type": "array", "items": schemaOf(into, t.Elem())}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": schemaOf(into, t.Elem())}
	case reflect.Struct:
		collectSchemas(into, t)
		return map[string]any{"$ref": "#/components/schemas/" + nameOf(t)}
	}
	return map[string]any{"type": "string"}
}

// docsOf are the descriptions of a structure, under "", and of its fields, which the
// types of the API bring with them.
func docsOf(t reflect.Type) map[string]string {
	if d, ok := reflect.Zero(t).Interface().(interface{ SwaggerDoc() map[string]string }); ok {
		return d.SwaggerDoc()
	}
	return nil
}
