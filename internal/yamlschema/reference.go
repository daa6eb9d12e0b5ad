package yamlschema

import (
	"fmt"
	"reflect"
	"strings"
	"time"
)

// Table returns the table of the reference for a kind of file, in Markdown: its
// keys and those of everything below it.
func (l Language) Table(t reflect.Type) (string, error) {
	c, err := l.comments()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString("\n| Key | Type | Default | Example | Meaning |\n| --- | --- | --- | --- | --- |\n")
	c.rows(&b, t, "")
	b.WriteByte('\n')
	return b.String(), nil
}

// FillTable puts a table into a page, between the two comments that mark the
// place of that name:
//
//	<!-- keys of NAME -->
//	<!-- end of NAME -->
func FillTable(page, name, table string) (string, error) {
	begin, end := fmt.Sprintf("<!-- keys of %s -->\n", name), fmt.Sprintf("<!-- end of %s -->", name)
	i, j := strings.Index(page, begin), strings.Index(page, end)
	if i < 0 || j < i {
		return "", fmt.Errorf("the page has no place for the keys of %s", name)
	}
	return page[:i+len(begin)] + table + page[j:], nil
}

func (c commented) rows(b *strings.Builder, t reflect.Type, path string) {
	for _, f := range listFields(t) {
		key := Join(path, f.key)
		fallback := formatCode(f.fallback)
		if f.required {
			fallback = "**required**"
			if f.or != "" {
				fallback += ", or `" + f.or + "`"
			}
		}
		meaning := c.of(f.owner, f.goName)
		if len(f.later) > 0 {
			meaning += " Not yet: `" + strings.Join(f.later, "`, `") + "`."
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s | %s |\n", key, c.typeName(f), fallback, formatCode(f.sample), strings.ReplaceAll(meaning, "|", "\\|"))
		if f.elsewhere {
			continue
		}
		switch f.typ.Kind() {
		case reflect.Slice:
			key += "[]"
		case reflect.Map:
			key = Join(key, anyKey)
		}
		if elem, ok := c.block(f.typ); ok {
			c.rows(b, elem, key)
		}
	}
}

// formatCode shows what can be written as code, and what is written about it as
// text.
func formatCode(s string) string {
	if s == "" || strings.Contains(s, " ") && !strings.ContainsAny(s, "{[") {
		return s
	}
	return "`" + s + "`"
}

// typeName is how the reference calls the type of a field.
func (l Language) typeName(f field) string {
	_, block := l.block(f.typ)
	switch t := f.typ; {
	case t == reflect.TypeFor[time.Duration]():
		return "duration"
	case l.isScalar(t):
		return strings.TrimPrefix(strings.TrimPrefix(l.scalar(t).What, "an "), "a ")
	case t == reflect.TypeFor[Tree]():
		return "mapping"
	case t.Kind() == reflect.Slice && block:
		return "list of mappings"
	case t.Kind() == reflect.Slice:
		return "list"
	case t.Kind() == reflect.Struct:
		if below, ok := f.shortField(); ok {
			return "mapping, or " + l.typeName(below)
		}
		return "mapping"
	case t.Kind() == reflect.Map && block:
		return "mapping of mappings"
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
