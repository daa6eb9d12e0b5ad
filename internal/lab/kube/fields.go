package kube

// Objects are kept as the maps their JSON decodes into: integers are int64,
// lists are []any. These find things in them.

// mapAt returns the map at path, nil if there is none.
func mapAt(obj map[string]any, path ...string) map[string]any {
	for _, p := range path {
		obj, _ = obj[p].(map[string]any)
	}
	return obj
}

// ensureMap returns the map at path, which it makes where it is missing.
func ensureMap(obj map[string]any, path ...string) map[string]any {
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

// valueAt returns the value at path, nil if there is none.
func valueAt(obj map[string]any, path ...string) any {
	last := len(path) - 1
	return mapAt(obj, path[:last]...)[path[last]]
}

func textAt(obj map[string]any, path ...string) string {
	s, _ := valueAt(obj, path...).(string)
	return s
}

func numberAt(obj map[string]any, path ...string) int64 {
	n, _ := valueAt(obj, path...).(int64)
	return n
}

func boolAt(obj map[string]any, path ...string) bool {
	b, _ := valueAt(obj, path...).(bool)
	return b
}

func listAt(obj map[string]any, path ...string) []any {
	l, _ := valueAt(obj, path...).([]any)
	return l
}

// mapsAt returns the list at path as the maps it holds.
func mapsAt(obj map[string]any, path ...string) []map[string]any {
	list := listAt(obj, path...)
	out := make([]map[string]any, 0, len(list))
	for _, e := range list {
		if m, ok := e.(map[string]any); ok {
			out = append(out, m)
		}
	}
	return out
}

// stringsAt returns the map at path as one of strings.
func stringsAt(obj map[string]any, path ...string) map[string]string {
	m := mapAt(obj, path...)
	out := make(map[string]string, len(m))
	for k, v := range m {
		if s, ok := v.(string); ok {
			out[k] = s
		}
	}
	return out
}

// fillMissing sets a key that has no value yet.
func fillMissing(m map[string]any, key string, value any) {
	if v, ok := m[key]; !ok || v == nil {
		m[key] = value
	}
}
