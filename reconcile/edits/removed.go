package edits

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Removed lists the fields and the items of lists that a manifest sets, and an object does not have
// though the API would keep them: restored is the object as it would be with the manifest written over
// it. Who removed a field is not noted in an object. What a field holds is not shown.
//
// The data of a ConfigMap or a Secret is left to Find, and what the manifest leaves empty to whoever
// fills it in.
func Removed(wants, has, restored map[string]any) []Edit {
	r := &removals{}
	for _, key := range slices.Sorted(maps.Keys(wants)) {
		switch key {
		case "apiVersion", "kind", "status", "data", "binaryData", "stringData":
		case "metadata":
			for _, part := range []string{"annotations", "labels"} {
				r.compare("metadata."+part, mapAt(wants, key)[part], mapAt(has, key)[part], mapAt(restored, key)[part])
			}
		default:
			r.compare(key, wants[key], has[key], restored[key])
		}
	}
	return r.found
}

type removals struct{ found []Edit }

// compare compares a value of the manifest with what is there, and with what would be.
func (r *removals) compare(path string, want, has, restored any) {
	switch {
	case isEmpty(want) || restored == nil:
	case has == nil:
		r.found = append(r.found, Edit{Path: clean(path) + " (removed)"})
	default:
		switch want := want.(type) {
		case map[string]any:
			for _, key := range slices.Sorted(maps.Keys(want)) {
				r.compare(joinPath(path, key), want[key], fieldOf(has, key), fieldOf(restored, key))
			}
		case []any:
			r.compareItems(path, want, has, restored)
		}
	}
}

// compareItems compares lists. An item with a name that no other one has is compared with the one of
// that name (a volume may be mounted several times); of others only those are found of which there are fewer than there would be, for one that differs is
// no removal.
func (r *removals) compareItems(path string, want []any, has, restored any) {
	have, _ := has.([]any)
	after, _ := restored.([]any)
	for i, item := range want {
		name, _ := fieldOf(item, "name").(string)
		at := fmt.Sprintf("%s[%d]", path, i)
		if name == "" || countNamed(want, name) > 1 {
			covers := func(other any) bool { return equalValues(item, other) }
			if len(have) < len(after) && !slices.ContainsFunc(have, covers) && slices.ContainsFunc(after, covers) {
				r.found = append(r.found, Edit{Path: clean(at) + " (removed)"})
			}
			continue
		}
		r.compare(fmt.Sprintf("%s[%s]", path, name), item, named(have, name), named(after, name))
	}
}

func countNamed(list []any, name string) (n int) {
	for _, item := range list {
		if fieldOf(item, "name") == name {
			n++
		}
	}
	return n
}

// named is the item of a list with a name; nil: there is none.
func named(list []any, name string) any {
	i := slices.IndexFunc(list, func(item any) bool { return fieldOf(item, "name") == name })
	if i < 0 {
		return nil
	}
	return list[i]
}

// fieldOf is a field of a value that may be a map; nil: there is none.
func fieldOf(in any, key string) any {
	m, _ := in.(map[string]any)
	return m[key]
}

func mapAt(in map[string]any, key string) map[string]any {
	m, _ := in[key].(map[string]any)
	return m
}

// joinPath is the path of a field of what another path leads to.
func joinPath(path, field string) string {
	if strings.ContainsAny(field, "./[]") {
		return path + "[" + field + "]"
	}
	return path + "." + field
}
