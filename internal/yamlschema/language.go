package yamlschema

import (
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/talos-agent/talos-agent/internal/pattern"
)

// Language is what the files of one purpose have in common. The types of the
// files belong to it by their tags:
//
//	yaml      the key
//	is        the rule of a text, a key of Formats
//	required  the key must be there
//	or        the key that may be written in the place of this one, and never beside
//	          it; with required, one of the two must be there
//	enum      the values that are allowed, comma-separated
//	later     values that are foreseen but not supported yet
//	unit      what a number counts, for messages
//	min, max  bounds of a number
//	default   what holds without the key, for people
//	example   a value to show, as YAML
//	short     the key below this one that a single value in the place of the
//	          mapping is for
//	keys      "elsewhere": the reference lists the keys below this one at
//	          another place
//
// A field is a struct, a text, an int, a bool, one of the scalars, a Tree, a
// list of one of these, or a map of texts to texts. Embedded structs add their
// keys to the struct around them. The comments of types and fields are read
// from Sources.
type Language struct {
	// Formats are the rules of texts by name.
	Formats map[string]Format
	// Scalars are types that are written as one text, beside netip.Addr and
	// netip.Prefix, which are of IPv4, those of package dualstack, time.Duration, Size and cluster.Range.
	Scalars map[reflect.Type]Scalar
	// Synonyms are words that other tools use for a key.
	Synonyms map[string][]string
	// Foreseen are keys of features that are planned, with what to write until
	// they are there.
	Foreseen map[string]string
	// Foreign are keys of other tools that are no key of ours, with what to write instead: by their
	// path, by its last two elements without an index, or by their last element wherever that is written.
	Foreign map[string]string
	// Sources are the Go files that declare the types.
	Sources []string
}

// Format is the rule of one kind of text.
type Format struct {
	What    string // what the text is: "a VMID"
	Write   string // a value to show
	Pattern *pattern.Pattern
	Max     int // characters
	// Empty allows the empty text in an optional key. It means that the key is
	// not written.
	Empty bool
	// Private texts are shown in no message: where the name of a file belongs,
	// people paste the secret that should be in it.
	Private bool
}

// Text makes the rule of a kind of text, which the expression must match as a whole.
func Text(what, write, expression string, most int) Format {
	return Format{What: what, Write: write, Pattern: pattern.New(expression), Max: most}
}

// OrEmpty is the same rule with the empty text allowed in an optional key.
func (f Format) OrEmpty() Format {
	f.Empty = true
	return f
}

// AsPrivate is the same rule with its texts kept out of messages.
func (f Format) AsPrivate() Format {
	f.Private = true
	return f
}

// Scalar is how a Go type other than a text, a number or a truth value is
// written.
type Scalar struct {
	What    string
	Write   string // a value to show
	Pattern string // for the JSON Schema
	Number  bool   // may be written as a plain number
	// Parse turns the text into a value of the type. The text of its error is
	// what to write instead.
	Parse func(text string) (any, error)
}

// Tree is YAML whose shape somebody else defines.
type Tree struct{ *yaml.Node }

func (l Language) scalar(t reflect.Type) Scalar {
	if s, ok := l.Scalars[t]; ok {
		return s
	}
	return scalars[t]
}

func (l Language) isScalar(t reflect.Type) bool { return l.scalar(t).Parse != nil }

// block returns the struct with the keys below a field: its type, or that of
// the elements of a list. ok is false when there is none of ours.
func (l Language) block(t reflect.Type) (reflect.Type, bool) {
	if t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		t = t.Elem()
	}
	return t, t.Kind() == reflect.Struct && t != reflect.TypeFor[Tree]() && !l.isScalar(t)
}

// field is one key of a struct, with the rules of its tags.
type field struct {
	key       string
	goName    string
	owner     reflect.Type // the struct that declares it
	index     []int
	typ       reflect.Type
	is        string
	required  bool
	or        string
	enum      []string
	later     []string
	unit      string
	min, max  int64
	fallback  string
	sample    string
	short     string
	elsewhere bool
}

// listFields lists the keys of a struct in the order they are declared, embedded
// structs in their place.
func listFields(t reflect.Type) []field {
	var out []field
	for i := range t.NumField() {
		sf := t.Field(i)
		if sf.Anonymous {
			for _, f := range listFields(sf.Type) {
				f.index = append([]int{i}, f.index...)
				out = append(out, f)
			}
			continue
		}
		f := field{key: sf.Tag.Get("yaml"), goName: sf.Name, owner: t, index: []int{i}, typ: sf.Type, is: sf.Tag.Get("is"),
			required: sf.Tag.Get("required") != "", or: sf.Tag.Get("or"), enum: splitList(sf.Tag.Get("enum")), later: splitList(sf.Tag.Get("later")),
			unit: sf.Tag.Get("unit"), fallback: sf.Tag.Get("default"), sample: sf.Tag.Get("example"), short: sf.Tag.Get("short"), elsewhere: sf.Tag.Get("keys") == "elsewhere"}
		if lo := sf.Tag.Get("min"); lo != "" {
			f.min, f.max = parseBound(lo), parseBound(sf.Tag.Get("max"))
		}
		out = append(out, f)
	}
	return out
}

// shortField is the key below a mapping that a single value in its place is for. ok is false
// where there is none.
func (f field) shortField() (below field, ok bool) {
	if f.short == "" {
		return field{}, false
	}
	all := listFields(f.typ)
	i := slices.IndexFunc(all, func(below field) bool { return below.key == f.short })
	if i < 0 {
		return field{}, false
	}
	return all[i], true
}

func splitList(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}

// parseBound reads a bound of a tag; a wrong one is a programming error that the
// tests find.
func parseBound(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		panic("strict: bad tag: " + s)
	}
	return n
}

// example is what a message shows for a field that is missing.
func (l Language) example(f field) string {
	if f.sample != "" {
		return f.sample
	}
	if r, ok := l.Formats[f.is]; ok {
		return r.Write
	}
	return l.scalar(f.typ).Write
}
