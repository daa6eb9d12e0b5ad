package yamlschema

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Verify reports where a type and its language do not fit together: a key
// without a meaning or a rule, an example that does not decode, a rule that
// refuses what it shows. It is for the tests of whoever declares them.
func (l Language) Verify(t reflect.Type) []string {
	c, err := l.comments()
	if err != nil {
		return []string{err.Error()}
	}
	out := c.verify(t)
	for name, f := range l.Formats {
		if write := strings.Trim(f.Write, `"`); write != "" && !f.Pattern.MatchString(write) {
			out = append(out, fmt.Sprintf("format %s shows %q, which it refuses", name, write))
		}
	}
	return out
}

func (c commented) verify(t reflect.Type) []string {
	var out []string
	for _, f := range listFields(t) {
		report := func(format string, args ...any) {
			out = append(out, t.Name()+"."+f.goName+" "+fmt.Sprintf(format, args...))
		}
		if text := c.of(f.owner, f.goName); !strings.HasSuffix(text, ".") {
			report("says nothing whole about itself: %q", text)
		}
		if below, _ := f.shortField(); f.short != "" && !c.isScalar(below.typ) && len(below.enum) == 0 {
			report("has a short form for %q, which is no key below it that is written as one text", f.short)
		}
		if f.or != "" && !slices.ContainsFunc(listFields(t), func(o field) bool { return o.key == f.or }) {
			report("may be replaced by %q, which is no key beside it", f.or)
		}
		elem := f.typ
		if elem.Kind() == reflect.Slice {
			elem = elem.Elem()
		}
		_, ruled := c.Formats[f.is]
		if elem.Kind() == reflect.String && !c.isScalar(elem) && !ruled && len(f.enum) == 0 {
			report("is a text without a rule")
		}
		if elem.Kind() == reflect.Int && (f.unit == "" || f.max <= f.min) {
			report("is a number without unit or bounds")
		}
		if f.sample != "" {
			for _, wrong := range c.tryExample(t, f) {
				report("has an example that is wrong: %s", wrong)
			}
		}
		if below, ok := c.block(f.typ); ok {
			out = append(out, c.verify(below)...)
		}
	}
	return out
}

// tryExample decodes the example of a field.
func (l Language) tryExample(t reflect.Type, f field) []string {
	var n yaml.Node
	if err := yaml.Load([]byte(f.key+": "+f.sample), &n); err != nil {
		return []string{err.Error()}
	}
	d := Document{File: "example", Report: NewReport()}
	l.Decode(d, contentOf(&n), "", reflect.New(t).Interface())
	var out []string
	for _, p := range d.Problems {
		// Other keys are missing, of course.
		if p.Field == f.key || strings.HasPrefix(p.Field, f.key+".") || strings.HasPrefix(p.Field, f.key+"[") {
			out = append(out, p.String())
		}
	}
	return out
}
