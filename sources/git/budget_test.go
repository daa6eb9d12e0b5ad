package git

import "testing"

// TestBytesOfACommit: what would go beyond the limit is refused, each time, and what was read
// before can be read again: a worker reads the same files first.
func TestBytesOfACommit(t *testing.T) {
	b := budget{limits: Limits{Blob: 100, Total: 10}}
	for _, c := range []struct {
		path  string
		bytes int64
		fits  bool
	}{{"a", 6, true}, {"b", 6, false}, {"a", 6, true}, {"b", 6, false}, {"c", 4, true}, {"d", 1, false}, {"c", 4, true}, {"e", 101, false}} {
		if err := b.spendBytes(c.path, c.bytes); (err == nil) != c.fits {
			t.Errorf("%s: %v", c.path, err)
		}
	}
}
