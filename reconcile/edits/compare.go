package edits

import (
	"cmp"
	"maps"
	"slices"

	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// Compare returns what is another value in an object as it would be than as it is, sorted by path: what
// a dry run would change. What the API keeps of an object by itself is left out: its status, and in its metadata who
// wrote it, and how often. Of a Secret no value is shown.
func Compare(has, would map[string]any) []Edit {
	c := comparison{secret: would["kind"] == "Secret"}
	c.compareMaps(nil, trimObject(has), trimObject(would))
	slices.SortFunc(c.found, func(a, b Edit) int { return cmp.Compare(a.Path, b.Path) })
	return c.found
}

// trimObject is an object without what the API keeps of it by itself.
func trimObject(o map[string]any) map[string]any {
	o = maps.Clone(o)
	delete(o, "status")
	if meta, ok := o["metadata"].(map[string]any); ok {
		meta = maps.Clone(meta)
		for _, k := range []string{"managedFields", "resourceVersion", "generation", "creationTimestamp", "uid"} {
			delete(meta, k)
		}
		o["metadata"] = meta
	}
	return o
}

// comparison is what was found so far.
type comparison struct {
	secret bool
	found  []Edit
}

// compareMaps compares all fields of two objects.
func (c *comparison) compareMaps(at fieldpath.Path, has, would map[string]any) {
	for name := range union(has, would) {
		c.compareValues(append(slices.Clone(at), fieldpath.PathElement{FieldName: &name}), has[name], would[name])
	}
}

// compareValues compares two values, and the parts of those that have some.
func (c *comparison) compareValues(at fieldpath.Path, has, would any) {
	a, isMap := has.(map[string]any)
	b, isMapToo := would.(map[string]any)
	if isMap && isMapToo {
		c.compareMaps(at, a, b)
		return
	}
	if x, y := itemsByName(has), itemsByName(would); x != nil && y != nil {
		for _, name := range slices.Sorted(maps.Keys(union(x, y))) {
			key := value.FieldList{{Name: "name", Value: value.NewValueInterface(name)}}
			c.compareValues(append(slices.Clone(at), fieldpath.PathElement{Key: &key}), x[name], y[name])
		}
		return
	}
	if isSameValue(has, would) {
		return
	}
	e := Edit{Path: formatPath(at)}
	if !c.secret {
		e.Has, e.Wants = showValues(at, has, would)
	}
	c.found = append(c.found, e)
}

// isSameValue reports whether two values are the same in the API: nothing, and an empty list or map, are.
func isSameValue(a, b any) bool {
	if isVoid(a) || isVoid(b) {
		return isVoid(a) && isVoid(b)
	}
	return equalValues(a, b) && equalValues(b, a)
}

// isVoid reports whether a value is none, or has nothing in it.
func isVoid(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case map[string]any:
		return len(v) == 0
	case []any:
		return len(v) == 0
	}
	return false
}

// itemsByName are the items of a list that all have a name of their own; nil: it is no such list.
func itemsByName(v any) map[string]any {
	list, ok := v.([]any)
	if !ok || len(list) == 0 {
		return nil
	}
	out := map[string]any{}
	for _, item := range list {
		m, _ := item.(map[string]any)
		name, named := m["name"].(string)
		if _, twice := out[name]; !named || twice {
			return nil
		}
		out[name] = item
	}
	return out
}

// union has the keys of both.
func union(a, b map[string]any) map[string]bool {
	out := map[string]bool{}
	for _, m := range []map[string]any{a, b} {
		for k := range m {
			out[k] = true
		}
	}
	return out
}
