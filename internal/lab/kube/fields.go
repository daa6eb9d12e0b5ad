package kube

// Objects are kept as the maps their JSON decodes into: integers are int64,
// lists are []any. These find things in them.

// child returns the map at path, nil if there is none.
func child(obj map[string]any, path ...string) map[string]any {
	for _, p := range path {
		obj, _ = obj[p].(map[string]any)
	}
	return obj
}

// ensure returns the map at path, which it makes where it is missing.
func ensure(obj map[string]any, path ...string) map[string]any {
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

// at returns the value at path, nil if there is none.
func at(obj map[string]any, path ...string) any {
	last := len(path) - 1
	return child(obj, path[:last]...)[path[last]]
}

func text(obj map[string]any, path ...string) string {
	s, _ := at(obj, path...).(string)
	return s
}

func number(obj map[string]any, path ...string) int64 {
	n, _ := at(obj, path...).(int64)
	return n
}

func flag(obj map[string]any, path ...string) bool {
	b, _ := at(obj, path...).(bool)
	return b
}

func items(obj map[string]any, path ...string) []any {
	l, _ := at(obj, path...).([]any)
	return l
}

// children returns the list at path as the maps it holds.
func children(obj map[string]any, path ...string) []map[string]any {
	list := items(obj, path...)
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
	m := child(obj, path...)
	out := make(map[string]string, len(m))
	for k, v := range m {
		if s, ok := v.(string); ok {
			out[k] = s
		}
	}
	return out
}

// fill sets a key that has no value yet.
func fill(m map[string]any, key string, value any) {
	if v, ok := m[key]; !ok || v == nil {
		m[key] = value
	}
}
