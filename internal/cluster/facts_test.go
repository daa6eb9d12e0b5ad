package cluster

import "testing"

// TestTokens: which tokens a node has had a machine for, and the last one.
func TestTokens(t *testing.T) {
	f := Facts{Replaced: map[string][]string{"wk-1": {"a", "b"}}}
	for _, c := range []struct {
		node, token string
		had         bool
		last        string
	}{{"wk-1", "a", true, "b"}, {"wk-1", "b", true, "b"}, {"wk-1", "c", false, "b"}, {"wk-2", "a", false, ""}} {
		if had, last := f.WasReplaced(c.node, c.token), f.LastToken(c.node); had != c.had || last != c.last {
			t.Errorf("%s %s: %v, %q", c.node, c.token, had, last)
		}
	}
}
