package formats

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

// The bounds of what is read. Descriptions of a thousand nodes stay far below them.
const (
	// MaxFileBytes is the size of the largest file.
	MaxFileBytes = 256 << 10

	maxDepth  = 32
	maxValues = 50_000 // with those that aliases repeat
	maxKeys   = 2_000  // of one mapping
)

type kind int

const (
	null kind = iota
	text
	number
	truth
	list
	mapping
	unread // an expression, which is reported where it stands
)

// kindNames are what a person calls a value of a kind.
var kindNames = map[kind]string{null: "empty", text: "a text", number: "a number", truth: "true or false", list: "a list", mapping: "a mapping"}

// value is a value of any of the languages that are read.
type value struct {
	kind  kind
	text  string // of a text, a number or a truth value
	items []*value
	keys  []entry
	line  int // counted from 1
	above string
}

// entry is a key of a mapping.
type entry struct {
	key   string
	line  int
	value *value
}

// get returns the value of a key, nil where there is none, or none that was read.
func (v *value) get(key string) *value {
	if v == nil {
		return nil
	}
	for _, e := range v.keys {
		if e.key == key && e.value.kind != null && e.value.kind != unread {
			return e.value
		}
	}
	return nil
}

// has reports whether a mapping has a key, whatever its value is.
func (v *value) has(keys ...string) bool {
	for _, e := range v.keys {
		for _, key := range keys {
			if e.key == key {
				return true
			}
		}
	}
	return false
}

// names reports whether a text stands anywhere in a value.
func (v *value) names(s string) bool {
	return v.kind == text && v.text == s ||
		slices.ContainsFunc(v.items, func(item *value) bool { return item.names(s) }) ||
		slices.ContainsFunc(v.keys, func(e entry) bool { return e.value.names(s) })
}

// syntaxError is a file that is not in its language.
type syntaxError struct {
	line    int
	message string
}

func (e *syntaxError) Error() string { return e.message }

func failAt(line int, format string, args ...any) error {
	return &syntaxError{line, fmt.Sprintf(format, args...)}
}

// checkText refuses what is no text before a parser sees it.
func checkText(data []byte) error {
	if len(data) > MaxFileBytes {
		return failAt(0, "larger than %d KiB: it is not such a file, or is to be split", MaxFileBytes>>10)
	}
	for at, line := 0, 1; at < len(data); {
		r, n := utf8.DecodeRune(data[at:])
		switch {
		case r == utf8.RuneError && n == 1:
			return failAt(line, "a byte that is not UTF-8: save the file as UTF-8")
		case r == '\n':
			line++
		case r < ' ' && r != '\t' && r != '\r', r == 0x7f:
			return failAt(line, "control character %U: remove it", r)
		}
		at += n
	}
	return nil
}

// limits stop the YAML parser at deep nesting. Aliases are followed here, within bounds.
type limits struct{}

func (limits) CheckDepth(depth int, _ *yaml.DepthContext) error {
	if depth > maxDepth {
		return fmt.Errorf("nested deeper than %d levels", maxDepth)
	}
	return nil
}

func (limits) CheckAlias(int, int) error { return nil }

// readYAML reads the documents of a YAML file. Other tools allow anchors, aliases and merge
// keys, so they are followed.
func readYAML(data []byte) ([]*value, error) {
	if err := checkText(data); err != nil {
		return nil, err
	}
	loader, err := yaml.NewLoader(bytes.NewReader(data), yaml.WithPlugin(limits{}))
	if err != nil {
		return nil, failAt(1, "cannot be read as YAML")
	}
	var out []*value
	c := yamlConverter{left: maxValues}
	for {
		var n yaml.Node
		err := loader.Load(&n)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if e, ok := errors.AsType[*yaml.LoadError](err); ok {
			return nil, failAt(e.Mark.Line, "not valid YAML: %s", e.Message)
		}
		if err != nil {
			return nil, failAt(0, "not valid YAML")
		}
		v, err := c.convert(&n, 0)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
}

// yamlConverter turns nodes of YAML into values, so many of them.
type yamlConverter struct{ left int }

func (c *yamlConverter) convert(n *yaml.Node, depth int) (*value, error) {
	if c.left--; c.left < 0 || depth > 2*maxDepth {
		return nil, failAt(n.Line, "too many values, with those that aliases repeat")
	}
	out := &value{line: n.Line, above: n.HeadComment}
	switch n.Kind {
	case yaml.DocumentNode:
		if len(n.Content) == 1 {
			return c.convert(n.Content[0], depth+1)
		}
		return out, nil
	case yaml.AliasNode:
		if n.Alias == nil {
			return nil, failAt(n.Line, "an alias without its anchor")
		}
		return c.convert(n.Alias, depth+1)
	case yaml.SequenceNode:
		out.kind = list
		for _, item := range n.Content {
			v, err := c.convert(item, depth+1)
			if err != nil {
				return nil, err
			}
			out.items = append(out.items, v)
		}
		return out, nil
	case yaml.MappingNode:
		return out, c.convertMapping(n, out, depth)
	}
	out.kind, out.text = kindOfTag(n.ShortTag()), n.Value
	return out, nil
}

// convertMapping fills a mapping; what merge keys bring counts where nothing is written.
func (c *yamlConverter) convertMapping(n *yaml.Node, out *value, depth int) error {
	out.kind = mapping
	var merged []*value
	for i := 0; i+1 < len(n.Content); i += 2 {
		k := n.Content[i]
		v, err := c.convert(n.Content[i+1], depth+1)
		switch {
		case err != nil:
			return err
		case k.Kind != yaml.ScalarNode:
			return failAt(k.Line, "a key that is no text")
		case k.ShortTag() == "!!merge":
			merged = append(merged, v)
		case out.has(k.Value):
			return failAt(k.Line, "a key that stands here twice: keep one")
		case len(out.keys) == maxKeys:
			return failAt(k.Line, "more than %d keys in one mapping", maxKeys)
		default:
			if v.above == "" {
				v.above = k.HeadComment
			}
			out.keys = append(out.keys, entry{k.Value, k.Line, v})
		}
	}
	for _, m := range merged {
		for _, from := range append(m.items, m) {
			for _, e := range from.keys {
				if len(out.keys) < maxKeys && !out.has(e.key) {
					out.keys = append(out.keys, e)
				}
			}
		}
	}
	return nil
}

func kindOfTag(tag string) kind {
	switch tag {
	case "!!null":
		return null
	case "!!bool":
		return truth
	case "!!int", "!!float":
		return number
	}
	return text
}

// readJSON reads a file that is one JSON value.
func readJSON(data []byte) (*value, error) {
	if err := checkText(data); err != nil {
		return nil, err
	}
	j := jsonReader{data: data, d: json.NewDecoder(bytes.NewReader(data)), left: maxValues, line: 1}
	j.d.UseNumber()
	v, err := j.value(0)
	if err == nil {
		if _, more := j.d.Token(); !errors.Is(more, io.EOF) {
			err = failAt(j.at(), "text behind the end of the value")
		}
	}
	if _, ok := errors.AsType[*syntaxError](err); err != nil && !ok {
		err = failAt(j.at(), "not valid JSON")
	}
	return v, err
}

type jsonReader struct {
	data []byte
	d    *json.Decoder
	left int
	line int // of what was read up to seen
	seen int64
}

// at is the line that was read up to.
func (j *jsonReader) at() int {
	to := min(j.d.InputOffset(), int64(len(j.data)))
	j.line += bytes.Count(j.data[j.seen:to], []byte("\n"))
	j.seen = to
	return j.line
}

func (j *jsonReader) value(depth int) (*value, error) {
	t, err := j.d.Token()
	if err != nil {
		return nil, err
	}
	out := &value{line: j.at()}
	if j.left--; j.left < 0 || depth > maxDepth {
		return nil, failAt(out.line, "too many values, or nested too deep")
	}
	switch t := t.(type) {
	case json.Delim:
		if t == '[' {
			out.kind = list
			for j.d.More() {
				v, err := j.value(depth + 1)
				if err != nil {
					return nil, err
				}
				out.items = append(out.items, v)
			}
		} else if err := j.object(out, depth); err != nil {
			return nil, err
		}
		_, err = j.d.Token() // the closing bracket
		return out, err
	case string:
		out.kind, out.text = text, t
	case json.Number:
		out.kind, out.text = number, t.String()
	case bool:
		out.kind, out.text = truth, strconv.FormatBool(t)
	}
	return out, nil
}

func (j *jsonReader) object(out *value, depth int) error {
	out.kind = mapping
	for j.d.More() {
		k, err := j.d.Token()
		if err != nil {
			return err
		}
		key, line := fmt.Sprint(k), j.at()
		v, err := j.value(depth + 1)
		if err != nil {
			return err
		}
		switch {
		case out.has(key):
			return failAt(line, "a key that stands here twice: keep one")
		case len(out.keys) == maxKeys:
			return failAt(line, "more than %d keys in one mapping", maxKeys)
		}
		out.keys = append(out.keys, entry{key, line, v})
	}
	return nil
}
