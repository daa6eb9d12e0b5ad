package text

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestLastLines(t *testing.T) {
	var text strings.Builder
	for i := range 50 {
		fmt.Fprintf(&text, "line %d\n\nline %d\n", i, i)
	}
	text.WriteString(strings.Repeat("x", 500))
	lines := LastLines(text.String())
	if len(lines) != 20 || lines[0] != "line 31" || lines[18] != "line 49" || utf8.RuneCountInString(lines[19]) != 200 {
		t.Errorf("%q", lines)
	}
	if got := LastLines("\n\n"); got == nil || len(got) != 0 {
		t.Errorf("of nothing: %q", got)
	}
}
