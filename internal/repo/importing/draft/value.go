package draft

import (
	"slices"
	"strconv"
)

// Origin is where a value comes from.
type Origin struct {
	File string // as it was named on the command line
	Line int    // counted from 1; 0: the whole file
	// Name is what the value is called there, such as network_config.cidr; "" where that
	// is no news beside the key of the inventory.
	Name string
}

type kind int

const (
	text kind = iota
	bare      // a number or a truth value
	list
	mapping
)

// Value is a value of a file: a text, a number or truth value, a list or a mapping.
type Value struct {
	kind   kind
	text   string
	items  []*Value
	fields []*field
}

// field is a key of a mapping. One without a value is a question to a person.
type field struct {
	key    string
	value  *Value
	origin Origin
	above  []string // comment lines over it
	ask    string   // what to fill in
}

// Text is a text, which is quoted where YAML would read something else.
func Text(s string) *Value { return &Value{kind: text, text: s} }

// Number is a whole number.
func Number(n int) *Value { return Literal(strconv.Itoa(n)) }

// Literal is a number or a truth value as YAML writes it.
func Literal(s string) *Value { return &Value{kind: bare, text: s} }

// List is a list of values.
func List(items ...*Value) *Value { return &Value{kind: list, items: items} }

// Texts is a list of texts.
func Texts(all ...string) *Value {
	out := List()
	for _, s := range all {
		out.items = append(out.items, Text(s))
	}
	return out
}

// Mapping is a mapping without a key.
func Mapping() *Value { return &Value{kind: mapping} }

// Append adds to a list.
func (v *Value) Append(item *Value) { v.items = append(v.items, item) }

// Len is how many items a list has, or how many keys a mapping.
func (v *Value) Len() int { return len(v.items) + len(v.fields) }

// String returns a text or a literal; "" for nil and for what is neither.
func (v *Value) String() string {
	if v == nil || v.kind > bare {
		return ""
	}
	return v.text
}

// find returns the field of a key, nil if there is none.
func (v *Value) find(key string) *field {
	if i := slices.IndexFunc(v.fields, func(f *field) bool { return f.key == key }); i >= 0 {
		return v.fields[i]
	}
	return nil
}

// Get returns what stands at a path of keys, nil if nothing does.
func (v *Value) Get(path ...string) *Value {
	for _, key := range path {
		if v == nil || v.kind != mapping {
			return nil
		}
		f := v.find(key)
		if f == nil {
			return nil
		}
		v = f.value
	}
	return v
}

// Set puts a value at a path of keys. What stands there stays; then it returns where that
// comes from, and false.
func (v *Value) Set(o Origin, value *Value, path ...string) (before Origin, ok bool) {
	f := v.make(path)
	if f.value != nil {
		return f.origin, false
	}
	f.value, f.origin, f.ask = value, o, ""
	return Origin{}, true
}

// Ask leaves a comment at a path of keys that asks a person to fill it in, unless
// something stands there.
func (v *Value) Ask(what string, path ...string) {
	if f := v.make(path); f.value == nil {
		f.ask = what
	}
}

// Comment puts lines of comment above the key at a path, if it is there.
func (v *Value) Comment(lines []string, path ...string) {
	last := len(path) - 1
	at := v.Get(path[:last]...)
	if at == nil || at.kind != mapping {
		return
	}
	if f := at.find(path[last]); f != nil {
		f.above = append(f.above, lines...)
	}
}

// make returns the field at a path of keys, with the mappings that lead to it.
func (v *Value) make(path []string) *field {
	for i, key := range path {
		f := v.find(key)
		if f == nil {
			f = &field{key: key}
			v.fields = append(v.fields, f)
		}
		if i == len(path)-1 {
			return f
		}
		if f.value == nil || f.value.kind != mapping {
			f.value, f.ask = Mapping(), ""
		}
		v = f.value
	}
	return &field{} // of an empty path
}
