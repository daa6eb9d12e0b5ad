package rules

import (
	"maps"
	"slices"
	"strconv"
	"time"
)

// Objects are kept as the maps their JSON decodes into: integers are int64,
// lists are []any. These find things in them.

// MapAt returns the map at path, nil if there is none.
func MapAt(obj map[string]any, path ...string) map[string]any {
	for _, p := range path {
		obj, _ = obj[p].(map[string]any)
	}
	return obj
}

// EnsureMap returns the map at path, which it makes where it is missing.
func EnsureMap(obj map[string]any, path ...string) map[string]any {
	for _, p := range path {
		next, ok := obj[p].(map[string]any)
		if !ok {
			next = map[string]any{}
			obj[p] = next
		}
		obj = next
	}
	return obj
}

// ValueAt returns the value at path, nil if there is none.
func ValueAt(obj map[string]any, path ...string) any {
	last := len(path) - 1
	return MapAt(obj, path[:last]...)[path[last]]
}

func TextAt(obj map[string]any, path ...string) string {
	s, _ := ValueAt(obj, path...).(string)
	return s
}

func NumberAt(obj map[string]any, path ...string) int64 {
	n, _ := ValueAt(obj, path...).(int64)
	return n
}

func BoolAt(obj map[string]any, path ...string) bool {
	b, _ := ValueAt(obj, path...).(bool)
	return b
}

func ListAt(obj map[string]any, path ...string) []any {
	l, _ := ValueAt(obj, path...).([]any)
	return l
}

// TextsAt returns what of a list is text.
func TextsAt(obj map[string]any, path ...string) (out []string) {
	for _, v := range ListAt(obj, path...) {
		if s, ok := v.(string); ok {
			out = append(out, s)
		}
	}
	return out
}

// MapsAt returns the list at path as the maps it holds.
func MapsAt(obj map[string]any, path ...string) []map[string]any {
	list := ListAt(obj, path...)
	out := make([]map[string]any, 0, len(list))
	for _, e := range list {
		if m, ok := e.(map[string]any); ok {
			out = append(out, m)
		}
	}
	return out
}

// StringsAt returns the map at path as one of strings.
func StringsAt(obj map[string]any, path ...string) map[string]string {
	m := MapAt(obj, path...)
	out := make(map[string]string, len(m))
	for k, v := range m {
		if s, ok := v.(string); ok {
			out[k] = s
		}
	}
	return out
}

// FillMissing sets a key that has no value yet.
func FillMissing(m map[string]any, key string, value any) {
	if v, ok := m[key]; !ok || v == nil {
		m[key] = value
	}
}

// MakeSuffix makes the five characters of a generated name, from the letters
// Kubernetes uses: no vowels, so no words.
func MakeSuffix(unique string) string {
	const letters = "bcdfghjklmnpqrstvwxz2456789"
	b := make([]byte, 5)
	for i := range b {
		n, err := strconv.ParseUint(unique[2*i+32:2*i+36], 16, 16)
		if err != nil {
			panic(err) // unique returns hex digits
		}
		b[i] = letters[n%uint64(len(letters))]
	}
	return string(b)
}

// FormatNow is the time as Kubernetes writes it.
func FormatNow() string { return time.Now().UTC().Format(time.RFC3339) }

// SetCondition sets one condition of a list and keeps its time while its status
// stays.
func SetCondition(list []any, kind, status, reason, message string) []any {
	next := map[string]any{"type": kind, "status": status, "lastTransitionTime": FormatNow(), "reason": reason, "message": message}
	maps.DeleteFunc(next, func(_ string, v any) bool { return v == "" })
	list = slices.Clone(list)
	i := slices.IndexFunc(list, func(e any) bool { c, _ := e.(map[string]any); return TextAt(c, "type") == kind })
	if i < 0 {
		return append(list, next)
	}
	c, _ := list[i].(map[string]any)
	if TextAt(c, "status") == status {
		next["lastTransitionTime"] = c["lastTransitionTime"]
	}
	if beat, ok := c["lastHeartbeatTime"]; ok {
		next["lastHeartbeatTime"] = beat
	}
	list[i] = next
	return list
}

// SetNonZero sets a number, unless it is 0, which the API leaves out.
func SetNonZero(m map[string]any, key string, n int64) {
	if n != 0 {
		m[key] = n
	}
}
