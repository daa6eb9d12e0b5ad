package pattern

import (
	"regexp"
	"slices"
	"testing"
)

// TestPattern: a pattern says what the expression does that it is made of.
func TestPattern(t *testing.T) {
	p, want := New(`([a-z]+)=([0-9]*)`), regexp.MustCompile(`([a-z]+)=([0-9]*)`)
	for _, s := range []string{"", "a=1", "x a=1 b=", "A=1"} {
		if p.MatchString(s) != want.MatchString(s) || p.Match([]byte(s)) != want.Match([]byte(s)) || p.FindString(s) != want.FindString(s) ||
			!slices.Equal(p.FindStringSubmatch(s), want.FindStringSubmatch(s)) || len(p.FindSubmatch([]byte(s))) != len(want.FindSubmatch([]byte(s))) ||
			len(p.FindAllStringSubmatch(s, -1)) != len(want.FindAllStringSubmatch(s, -1)) ||
			p.ReplaceAllString(s, "$2=$1") != want.ReplaceAllString(s, "$2=$1") ||
			p.ReplaceAllStringFunc(s, func(m string) string { return m + m }) != want.ReplaceAllStringFunc(s, func(m string) string { return m + m }) {
			t.Errorf("%q is otherwise", s)
		}
	}
	if p.String() != want.String() {
		t.Errorf("it is %s", p)
	}
}

// TestCompile: what is no expression is an error, and no pattern.
func TestCompile(t *testing.T) {
	if _, err := Compile("("); err == nil {
		t.Error("a wrong expression is compiled")
	}
	if p, err := Compile("^a$"); err != nil || !p.MatchString("a") || p.MatchString("b") {
		t.Errorf("%v: %v", p, err)
	}
}

// TestAll: what New makes can be found, so that a test compiles it.
func TestAll(t *testing.T) {
	if p := New("^x$"); len(All) == 0 || All[len(All)-1] != p || p.String() != "^x$" {
		t.Errorf("%v is not among %v", p, All)
	}
}
