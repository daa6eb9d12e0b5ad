package edits

import "testing"

// TestCompare: what would be another value, by where it is; of what the API keeps by itself, of defaults in another form and of the
// order of what has names, nothing.
func TestCompare(t *testing.T) {
	for name, c := range map[string]struct{ has, would, want string }{
		"same":         {"a: {b: 1}", "a: {b: 1}", ""},
		"number":       {"spec: {replicas: 2}", "spec: {replicas: 3}", "spec.replicas 3 -> 2"},
		"new":          {"spec: {}", "spec: {replicas: 3}", "spec.replicas 3 -> nothing"},
		"gone":         {"spec: {replicas: 2}", "spec: {}", "spec.replicas nothing -> 2"},
		"no value":     {"spec: {a: {}}", "spec: {}", ""},
		"text":         {"data: {a: b}", "data: {a: c}", "data.a"},
		"image":        {"spec: {containers: [{name: a, image: 'i:1'}, {name: b, image: x}]}", "spec: {containers: [{name: b, image: x}, {name: a, image: 'i:2'}]}", "spec.containers[a].image i:2 -> i:1"},
		"another item": {"spec: {containers: [{name: a, image: 'i:1'}]}", "spec: {containers: [{name: b, image: 'i:1'}]}", "spec.containers[a]; spec.containers[b]"},
		"a list":       {"args: [a, b]", "args: [a, c]", "args"},
		"its own":      {"metadata: {resourceVersion: '1', generation: 1, managedFields: [{}]}, status: {a: 1}", "metadata: {resourceVersion: '2', generation: 2}, status: {a: 2}", ""},
		"a secret":     {"kind: Secret, data: {a: 1}", "kind: Secret, data: {a: 2}", "data.a"},
		"quantity":     {"cpu: 1000m", "cpu: 1", ""},
	} {
		if got := format(Compare(parse(t, "{"+c.has+"}"), parse(t, "{"+c.would+"}"))); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
