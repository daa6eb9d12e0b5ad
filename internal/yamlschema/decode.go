package yamlschema

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// decoder fills Go values from YAML nodes. Whatever does not fit is recorded
// and left at its zero value, so that one run finds everything.
type decoder struct {
	Language
	Document
	root   reflect.Type // of the file, to report where a misplaced key belongs
	shapes map[reflect.Type][]field
}

// Decode fills the struct that out points to from a mapping. Fields are
// recorded under the prefix, "nodes" or "addons[0]"; "" is none. What is wrong
// goes into the report of d, and leaves its field at the zero value.
func (l Language) Decode(d Document, n *yaml.Node, prefix string, out any) {
	v := reflect.ValueOf(out).Elem()
	dec := decoder{Language: l, Document: d, root: v.Type(), shapes: map[reflect.Type][]field{}}
	dec.mapping(n, prefix, v)
}

func (d decoder) shape(t reflect.Type) []field {
	s, ok := d.shapes[t]
	if !ok {
		s = listFields(t)
		d.shapes[t] = s
	}
	return s
}

// bad records that a node is wrong.
func (d decoder) bad(n *yaml.Node, path, hint, format string, args ...any) {
	d.Problem(n.Line, n.Column, path, fmt.Sprintf(format, args...), hint)
}

// stands notes where a field is: a value at its own place, a block below its key
// at the key.
func (d decoder) stands(path string, key, value *yaml.Node) {
	at := value
	if key != nil && (value.Kind != yaml.ScalarNode && value.Style&yaml.FlowStyle == 0 || value.Value == "") {
		at = key
	}
	d.Where[path] = cluster.Position{File: d.File, Line: at.Line, Column: at.Column}
}

func (d decoder) mapping(n *yaml.Node, path string, v reflect.Value) {
	if n.Kind != yaml.MappingNode {
		delete(d.Where, path) // nothing of it was written
		hint := "write lines of the form key: value below it"
		if n.Kind == yaml.ScalarNode && noSpace.MatchString(n.Value) {
			hint = "put a space after the colon"
		}
		d.bad(n, path, hint, "needs keys of its own, not %s", KindOf(n))
		return
	}
	fields := d.shape(v.Type())
	seen := make([]*yaml.Node, len(fields))
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		at := slices.IndexFunc(fields, func(f field) bool { return f.key == key.Value })
		if at < 0 {
			d.unknown(key, path, v.Type(), fields)
			continue
		}
		seen[at] = key
		f := fields[at]
		below := Join(path, f.key)
		d.stands(below, key, value)
		d.value(value, below, f, f.typ, v.FieldByIndex(f.index))
	}
	for i, f := range fields {
		d.presence(n, path, f, seen[i], fields, seen)
	}
}

// presence checks that a key is there if it must be, and not beside the one that may be
// written in its place. key is nil where it is not written; seen are the keys of all fields.
func (d decoder) presence(n *yaml.Node, path string, f field, key *yaml.Node, fields []field, seen []*yaml.Node) {
	missing, write := key == nil && !d.Misspelt(Join(path, f.key)), "write "+f.key+": "+d.example(f)
	if i := slices.IndexFunc(fields, func(o field) bool { return o.key == f.or }); i >= 0 {
		if key != nil && seen[i] != nil {
			d.bad(seen[i], Join(path, f.or), "keep one of them", "%s and %s are both written", f.key, f.or)
		}
		missing = missing && seen[i] == nil && !d.Misspelt(Join(path, f.or))
		write += ", or " + f.or + ": " + d.example(fields[i])
	}
	if f.required && missing {
		d.bad(n, Join(path, f.key), write, "is missing")
	}
}

// unknown records a key that is not ours, with the one that was likely meant.
func (d decoder) unknown(key *yaml.Node, path string, t reflect.Type, fields []field) {
	if d.errors >= MaxErrors {
		d.bad(key, path, "", "unknown key") // counted, not shown
		return
	}
	var keys []string
	for _, f := range fields {
		keys = append(keys, f.key)
	}
	hint := "known here: " + strings.Join(keys, ", ")
	if foreseen, ok := d.Foreseen[key.Value]; ok && !slices.Contains(keys, key.Value) {
		d.bad(key, Join(path, key.Value), foreseen, "is not supported yet")
		return
	}
	if write := cmp.Or(d.Foreign[Join(path, key.Value)], d.Foreign[Join(lastElement(path), key.Value)], d.Foreign[key.Value]); write != "" && !slices.Contains(keys, key.Value) {
		d.bad(key, path, write, "unknown key %s", Quote(key.Value))
		return
	}
	if meant, write := joinedKey(key.Value, keys); meant != "" {
		d.misspelt[Join(path, meant)] = true
		hint = write
	} else if best := d.Suggest(key.Value, keys); best != "" {
		d.misspelt[Join(path, best)] = true
		hint = "did you mean " + best + "?"
	} else if place := d.elsewhere(d.root, t, key.Value, ""); place != "" {
		hint = "it belongs to " + place
	}
	d.bad(key, path, hint, "unknown key %s", Quote(key.Value))
}

// lastElement is the last element of a path, without its index.
func lastElement(path string) string {
	path, _, _ = strings.Cut(path[strings.LastIndexByte(path, '.')+1:], "[")
	return path
}

// joinedKey recognizes a key that became one word with what stands beside it,
// and returns it with what to write.
func joinedKey(word string, keys []string) (key, write string) {
	before, after, colon := strings.Cut(word, ":")
	if colon && slices.Contains(keys, before) {
		return before, "put a space after the colon: " + before + ": " + after
	}
	if name, dash := strings.CutPrefix(word, "-"); dash && slices.Contains(keys, name) {
		return name, "put a space after the dash: - " + name
	}
	return "", ""
}

// elsewhere finds the place of a key that is known, but not where it was
// written.
func (d decoder) elsewhere(t, written reflect.Type, key, path string) string {
	for _, f := range d.shape(t) {
		below := Join(path, f.key)
		if f.key == key && t != written {
			return below
		}
		switch f.typ.Kind() {
		case reflect.Slice:
			below += "[]"
		case reflect.Map:
			below = Join(below, anyKey)
		}
		elem, ok := d.block(f.typ)
		if !ok {
			continue
		}
		if place := d.elsewhere(elem, written, key, below); place != "" {
			return place
		}
	}
	return ""
}

// value decodes one value of type t under the rules of field f; t differs from
// f.typ for the elements of a list.
func (d decoder) value(n *yaml.Node, path string, f field, t reflect.Type, v reflect.Value) {
	switch {
	case d.isScalar(t):
		d.special(n, path, t, v)
	case t == reflect.TypeFor[Tree]():
		v.Set(reflect.ValueOf(Tree{n}))
	case t.Kind() == reflect.Struct:
		below, short := f.shortField()
		switch {
		case IsNull(n):
		case short && n.Kind == yaml.ScalarNode:
			at := Join(path, below.key)
			d.stands(at, nil, n)
			d.value(n, at, below, below.typ, v.FieldByIndex(below.index))
		default:
			d.mapping(n, path, v)
		}
	case t.Kind() == reflect.Slice:
		d.sequence(n, path, f, t, v)
	case t.Kind() == reflect.Map && t.Elem().Kind() == reflect.Struct:
		d.blocks(n, path, t, v)
	case t.Kind() == reflect.Map:
		d.texts(n, path, v)
	case t.Kind() == reflect.Bool:
		d.bool(n, path, f, v)
	case t.Kind() == reflect.Int:
		d.int(n, path, f, v)
	case t.Kind() == reflect.String:
		d.text(n, path, f, v)
	default:
		panic("strict: no decoder for " + t.String())
	}
}

func (d decoder) sequence(n *yaml.Node, path string, f field, t reflect.Type, v reflect.Value) {
	if IsNull(n) {
		return
	}
	if n.Kind != yaml.SequenceNode {
		hint := "write [a, b], or one line with a - for each"
		if word := firstWord(n); word.Kind == yaml.ScalarNode && word.Style == 0 && strings.HasPrefix(word.Value, "-") {
			hint = "put a space after each dash"
		}
		d.bad(n, path, hint, "is a list, not %s", KindOf(n))
		return
	}
	out := reflect.MakeSlice(t, len(n.Content), len(n.Content))
	for i, c := range n.Content {
		at := Element(path, i)
		d.stands(at, nil, c)
		if IsNull(c) {
			d.bad(c, at, "write one, or remove the line", "has no value")
			continue
		}
		d.value(c, at, f, t.Elem(), out.Index(i))
	}
	v.Set(out)
}

// firstWord is the first key of a mapping, or else the node itself.
func firstWord(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.MappingNode && len(n.Content) > 0 {
		return n.Content[0]
	}
	return n
}

// anyKey stands for the free keys of a mapping.
const anyKey = "*"

// blocks decodes a mapping of mappings, whose own keys are free.
func (d decoder) blocks(n *yaml.Node, path string, t reflect.Type, v reflect.Value) {
	if IsNull(n) {
		return
	}
	if n.Kind != yaml.MappingNode {
		d.bad(n, path, "write lines of the form key: value below it", "needs keys of its own, not %s", KindOf(n))
		return
	}
	out := reflect.MakeMap(t)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		below := Join(path, key.Value)
		d.stands(below, key, value)
		elem := reflect.New(t.Elem()).Elem()
		if IsNull(value) {
			d.bad(value, below, "write its keys below it, or remove the line", "has no value")
			continue
		}
		d.mapping(value, below, elem)
		out.SetMapIndex(reflect.ValueOf(key.Value), elem)
	}
	v.Set(out)
}

// texts decodes a mapping of texts to texts, whose keys are free.
func (d decoder) texts(n *yaml.Node, path string, v reflect.Value) {
	if IsNull(n) {
		return
	}
	if n.Kind != yaml.MappingNode {
		d.bad(n, path, "write lines of the form key: value below it", "needs keys of its own, not %s", KindOf(n))
		return
	}
	out := map[string]string{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		below := Join(path, key.Value)
		d.stands(below, key, value)
		if value.Kind != yaml.ScalarNode {
			d.bad(value, below, "write one text", "is a text, not %s", KindOf(value))
			continue
		}
		text := value.Value
		if IsNull(value) && text != "" {
			d.bad(value, below, `write "" for an empty text, or quote it`, "has no value")
			continue
		}
		out[key.Value] = text
	}
	v.Set(reflect.ValueOf(out))
}

// plainText returns the text of a scalar that must have one.
func (d decoder) plainText(n *yaml.Node, path, what, write string) (string, bool) {
	switch {
	case n.Kind != yaml.ScalarNode:
		d.bad(n, path, hintWrite(write), "is %s, not %s", what, KindOf(n))
	case IsNull(n):
		d.bad(n, path, hintWriteOr(write), "has no value")
	default:
		return n.Value, true
	}
	return "", false
}

func hintWrite(example string) string {
	if example == "" {
		return ""
	}
	return "write one like " + example
}

func hintWriteOr(example string) string {
	if example == "" {
		return "write one, or remove the line"
	}
	return "write one like " + example + ", or remove the line"
}

// longestText is beyond every rule's maximum; longer texts are not looked at.
const longestText = 1000

func (d decoder) text(n *yaml.Node, path string, f field, v reflect.Value) {
	if len(f.enum) > 0 {
		d.choice(n, path, f, v)
		return
	}
	rule := d.Formats[f.is]
	write := rule.Write
	if f.sample != "" && f.typ.Kind() == reflect.String {
		write = f.sample
	}
	s, ok := d.plainText(n, path, rule.What, write)
	switch {
	case !ok:
	case s == "" && !f.required && rule.Empty:
	case len(s) > longestText || !rule.Pattern.MatchString(s):
		shown := Quote(s)
		switch {
		case rule.Private:
			shown = "this"
		case strings.Contains(s, "://") && strings.Contains(s, "@"):
			shown = "a URL with credentials" // which go into no message
		}
		d.bad(n, path, hintWrite(write), "%s is not %s", shown, rule.What)
	case len(s) > rule.Max:
		d.bad(n, path, "shorten it", "is longer than %d characters", rule.Max)
	default:
		v.SetString(s)
	}
}

func (d decoder) choice(n *yaml.Node, path string, f field, v reflect.Value) {
	choices := strings.Join(f.enum, " or ")
	s, ok := d.plainText(n, path, "one word", choices)
	switch {
	case !ok:
	case slices.Contains(f.enum, s):
		v.SetString(s)
	case slices.Contains(f.later, s):
		d.bad(n, path, "write "+choices, "%s is not supported yet", s)
	default:
		hint := "write " + choices
		if best := d.Suggest(s, f.enum); best != "" {
			hint = "did you mean " + best + "?"
		}
		d.bad(n, path, hint, "%s is not known", Quote(s))
	}
}

func (d decoder) bool(n *yaml.Node, path string, f field, v reflect.Value) {
	s, ok := d.plainText(n, path, "true or false", "true")
	switch {
	case !ok:
	case n.Style != 0 || s != "true" && s != "false":
		d.bad(n, path, "write true or false, without quotes", "%s is not true or false", Quote(s))
	case slices.Contains(f.later, s):
		d.bad(n, path, "write false, or remove the line", "%s: %s is not supported yet", f.key, s)
	default:
		v.SetBool(s == "true")
	}
}

func (d decoder) int(n *yaml.Node, path string, f field, v reflect.Value) {
	what := "a " + f.unit
	s, ok := d.plainText(n, path, what, "4")
	if !ok {
		return
	}
	i, err := parseDigits(strings.TrimPrefix(s, "-"))
	switch {
	case err == nil && n.Style != 0:
		d.bad(n, path, "write "+s+" without the quotes", "%s is a text, not %s", Quote(s), what)
	case err != nil:
		d.bad(n, path, intHint(s, f), "%s is not %s", Quote(s), what)
	case strings.HasPrefix(s, "-") || i < f.min:
		d.bad(n, path, fmt.Sprintf("write %d or more", f.min), "%s is too small for a %s", s, f.unit)
	case i > f.max:
		d.bad(n, path, fmt.Sprintf("write %d or less", f.max), "%s is too large for a %s", s, f.unit)
	default:
		v.SetInt(i)
	}
}

// unitMiB is the unit of a number for which people like to write a size.
const unitMiB = "number of MiB"

// intHint returns what to write where a number should stand.
func intHint(s string, f field) string {
	if f.unit == unitMiB {
		if b, err := ParseSize(s); err == nil {
			return fmt.Sprintf("write %d", int64(b/MiB))
		}
	}
	if trimmed := strings.TrimLeft(s, "0"); trimmed != s {
		if _, err := parseDigits(trimmed); err == nil {
			return "write " + trimmed
		}
	}
	example := f.sample
	if example == "" {
		example = "4"
	}
	return "write a whole number like " + example
}

// special decodes a value of one of the types in scalars.
func (d decoder) special(n *yaml.Node, path string, t reflect.Type, v reflect.Value) {
	rule := d.scalar(t)
	s, ok := d.plainText(n, path, rule.What, rule.Write)
	if !ok {
		return
	}
	got, err := rule.Parse(s)
	var bounds outOfBounds
	if errors.As(err, &bounds) {
		d.bad(n, path, bounds.write, "%s %s", Quote(s), bounds.is)
		return
	}
	if err != nil {
		d.bad(n, path, err.Error(), "%s is not %s", Quote(s), rule.What)
		return
	}
	v.Set(reflect.ValueOf(got))
}

// KindOf names what a node is.
func KindOf(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	default:
		if IsNull(n) {
			return "nothing"
		}
		return "the single value " + Quote(n.Value)
	}
}
