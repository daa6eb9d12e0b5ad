package values

import (
	"strings"
	"testing"
)

// TestOtherPathsOfMuch: values of any size are not parsed.
func TestOtherPathsOfMuch(t *testing.T) {
	much := `{"a":"` + strings.Repeat("x", mostValues) + `"}`
	if got := OtherPaths([]byte(much), []byte("{}")); got != "" {
		t.Errorf("%q of values that are too large", got)
	}
}

// TestOtherPaths: what differs of values is named by its paths, and never by a value.
func TestOtherPaths(t *testing.T) {
	for _, c := range []struct{ has, wants, want string }{
		{`{"a":1,"b":{"c":"x"}}`, `{"b":{"c":"x"},"a":1}`, ""},
		{`{"a":1,"b":{"c":"x","d":true}}`, `{"a":2,"b":{"c":"y"}}`, "a, b.c, b.d"},
		{`null`, `{}`, ""},
		{``, `{"password":"secret"}`, "password"},
		{`{"list":[1,2]}`, `{"list":[2,1]}`, "list"},
		{`{"a":{}}`, `{"a":null}`, "a"},
		{`{"a":null}`, `{}`, "a"},
		{`{"1":1,"2":1,"3":1,"4":1,"5":1,"6":1,"7":1,"8":1,"9":1}`, `{}`, "1, 2, 3, 4, 5, 6, 7, 8, and 1 more"},
		{`broken`, `{}`, ""},
		{`{}`, `broken`, ""},
	} {
		if got := OtherPaths([]byte(c.has), []byte(c.wants)); got != c.want {
			t.Errorf("%s, %s: %q, want %q", c.has, c.wants, got, c.want)
		}
	}
}
