package rules

import (
	"strings"
	"testing"
)

func TestDocumentLine(t *testing.T) {
	const text = "# comment\nversion: v1alpha1\n---\n# another\n\napiVersion: v1alpha1\nkind: LinkConfig\nname: a\n---\nkind: LinkConfig\nname: b\n"
	for _, tc := range []struct {
		kind, name string
		want       int
	}{{"LinkConfig", "a", 6}, {"LinkConfig", "b", 10}, {"LinkConfig", "", 6}, {"NoSuchKind", "", 1}} {
		if got := documentLine([]byte(text), tc.kind, tc.name); got != tc.want {
			t.Errorf("%s/%s begins on line %d, want %d", tc.kind, tc.name, got, tc.want)
		}
	}
}

func FuzzDocumentLine(f *testing.F) {
	f.Add("---\nkind: A\nname: b\n", "A", "b")
	f.Fuzz(func(t *testing.T, text, kind, name string) {
		got := documentLine([]byte(text), kind, name)
		if got < 1 || got > strings.Count(text, "\n")+2 {
			t.Errorf("line %d of %q", got, text)
		}
	})
}
