package api

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/golden"
)

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
	golden.Check(t, file, b.Bytes())
}

// String is what the page calls those who may use a route.
func (a access) String() string {
	if a == forRoot {
		return "root"
	}
	return "group"
}
