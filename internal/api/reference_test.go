package api

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite docs/reference/api.md; commit only the changes you understand")

// TestAPIReferenceIsCurrent writes the table of routes of docs/reference/api.md
// between its markers.
func TestAPIReferenceIsCurrent(t *testing.T) {
	const file, begin, end = "../../docs/reference/api.md", "<!-- routes -->\n", "<!-- end of routes -->"
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(page), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table between %q and %q", file, begin, end)
	}
	var b bytes.Buffer
	b.WriteString(before + begin + "\n| method and path | who | kind of the answer | what it is |\n| --- | --- | --- | --- |\n")
	for _, r := range routes {
		fmt.Fprintf(&b, "| `%s` | %s | `%s` | %s |\n", r.pattern, r.access, r.kind, r.does)
	}
	b.WriteString("\n" + end + after)
	if bytes.Equal(page, b.Bytes()) {
		return
	}
	if !*update {
		t.Fatalf("%s does not list the routes as they are: make docs writes it", file)
	}
	if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// String is what the page calls those who may use a route.
func (a access) String() string {
	if a == forRoot {
		return "root"
	}
	return "group"
}
