package edits

import "testing"

// TestRemoved: fields and items of lists that a manifest sets, that are not there, and that the API
// would keep.
func TestRemoved(t *testing.T) {
	for name, c := range map[string]struct{ wants, has, restored, want string }{
		"as it is":                {"spec: {a: {b: 1}}", "spec: {a: {b: 1}}", "spec: {a: {b: 1}}", ""},
		"a field":                 {"spec: {a: {b: 1, c: x}}", "spec: {a: {c: x}}", "spec: {a: {b: 1, c: x}}", "spec.a.b (removed)"},
		"a field with all it has": {"spec: {a: {b: 1}}", "spec: {}", "spec: {a: {b: 1}}", "spec.a (removed)"},
		"another value":           {"spec: {a: 1}", "spec: {a: 2}", "spec: {a: 1}", ""},
		"one that the API drops":  {"spec: {a: 1, b: 2}", "spec: {b: 2}", "spec: {b: 2}", ""},
		"one that is empty":       {"spec: {a: {}, b: [], c: '', d: null, e: false, f: 0}", "spec: {}", "spec: {a: {}}", ""},
		"an item with a name":     {"spec: {env: [{name: A, value: x}, {name: B, value: y}]}", "spec: {env: [{name: B, value: y}]}", "spec: {env: [{name: A, value: x}, {name: B, value: y}]}", "spec.env[A] (removed)"},
		"a field of such an item": {"spec: {env: [{name: A, value: x}]}", "spec: {env: [{name: A}]}", "spec: {env: [{name: A, value: x}]}", "spec.env[A].value (removed)"},
		"an item without a name":  {"spec: {ports: [{port: 1}, {port: 2}]}", "spec: {ports: [{port: 2, protocol: TCP}]}", "spec: {ports: [{port: 1, protocol: TCP}, {port: 2, protocol: TCP}]}", "spec.ports[0] (removed)"},
		"one of two of a name":    {"spec: {mounts: [{name: v, at: /a}, {name: v, at: /b}]}", "spec: {mounts: [{name: v, at: /a}]}", "spec: {mounts: [{name: v, at: /a}, {name: v, at: /b}]}", "spec.mounts[1] (removed)"},
		"an item that differs":    {"spec: {ports: [{port: 1}]}", "spec: {ports: [{port: 3}]}", "spec: {ports: [{port: 1}]}", ""},
		"a text of a list":        {"spec: {args: [a, b]}", "spec: {args: [b]}", "spec: {args: [a, b]}", "spec.args[0] (removed)"},
		"what somebody added":     {"spec: {args: [a]}", "spec: {args: [a, b], c: 1}", "spec: {args: [a], c: 1}", ""},
		"all labels":              {"metadata: {name: n, labels: {a.b/c: d}}", "metadata: {name: n}", "metadata: {name: n, labels: {a.b/c: d}}", "metadata.labels (removed)"},
		"a label":                 {"metadata: {labels: {a.b/c: d, e: f}}", "metadata: {labels: {e: f}}", "metadata: {labels: {a.b/c: d, e: f}}", "metadata.labels[a.b/c] (removed)"},
		"data is another's":       {"data: {a: b}", "data: {}", "data: {a: b}", ""},
		"status":                  {"status: {a: b}", "{}", "status: {a: b}", ""},
		"not known":               {"spec: {a: 1}", "{}", "{}", ""},
	} {
		if got := format(Removed(parse(t, c.wants), parse(t, c.has), parse(t, c.restored))); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
