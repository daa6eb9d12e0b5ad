package values

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// OtherPaths are the paths at which the values of a release are not those that are wanted, both as
// JSON, with commas between: "replicas, image.tag". No value is in them. "" where there are none, or one
// of the two cannot be read, or is too large.
func OtherPaths(has, wants []byte) string {
	var a, b any
	if len(has) > mostValues { // whoever writes it may have packed any amount
		return ""
	}
	if json.Unmarshal(has, &a) != nil && len(has) > 0 || json.Unmarshal(wants, &b) != nil && len(wants) > 0 {
		return ""
	}
	paths := otherPaths("", a, b)
	if n := len(paths); n > shownPaths {
		paths = append(paths[:shownPaths:shownPaths], fmt.Sprintf("and %d more", n-shownPaths))
	}
	return strings.Join(paths, ", ")
}

// mostValues is how large the values of a release may be, in bytes, to be compared: parsed they
// take about fifty times as much.
const mostValues = 1 << 20

// shownPaths is how many paths are shown, for values that are written again have hundreds.
const shownPaths = 8

// otherPaths are the paths below a place at which two values differ. Helm writes no values
// as null, so that an empty map is like none at the top.
func otherPaths(at string, a, b any) (out []string) {
	x, isMap := a.(map[string]any)
	y, also := b.(map[string]any)
	if at == "" && (isMap || a == nil) && (also || b == nil) || isMap && also {
		keys := maps.Clone(x)
		if keys == nil {
			keys = map[string]any{}
		}
		maps.Copy(keys, y)
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			_, had := x[key]
			_, has := y[key]
			if path := strings.TrimPrefix(at+"."+key, "."); had != has {
				out = append(out, path)
			} else {
				out = append(out, otherPaths(path, x[key], y[key])...)
			}
		}
		return out
	}
	if !reflect.DeepEqual(a, b) {
		out = append(out, at)
	}
	return out
}
