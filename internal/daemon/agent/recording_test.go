package agent

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestBoots: what a machine prints is told apart by the starts of kernels, in whatever pieces it comes, and only the end is
// kept.
func TestBoots(t *testing.T) {
	t.Parallel()
	const kernel = "[    0.000000] Linux version 6.18.9-talos\n"
	many := strings.Repeat("a line of a boot\nand another\n", 500)
	for _, c := range []struct{ name, printed, before, last string }{
		{"nothing", "", "", ""},
		{"no kernel", "one\ntwo\n", "", "one two"},
		{"a kernel that starts", "down\n" + kernel + "up\n", "down", "down [ 0.000000] Linux version 6.18.9-talos up"},
		{"two kernels", "down\n" + kernel + "fails\n" + kernel + "up\n", "[ 0.000000] Linux version 6.18.9-talos fails", "[ 0.000000] Linux version 6.18.9-talos fails [ 0.000000] Linux version 6.18.9-talos up"},
		{"three kernels", kernel + "a\n" + kernel + "b\n" + kernel + "c\n", "[ 0.000000] Linux version 6.18.9-talos b", "[ 0.000000] Linux version 6.18.9-talos b [ 0.000000] Linux version 6.18.9-talos c"},
		{"behind the firmware's last words", "BdsDxe: starting Boot0001 " + kernel + "up\n", "", "BdsDxe: starting Boot0001 [ 0.000000] Linux version 6.18.9-talos up"},
		{"a line that has not ended", kernel + "a\n" + kernel + "b", "[ 0.000000] Linux version 6.18.9-talos a", "[ 0.000000] Linux version 6.18.9-talos a [ 0.000000] Linux version 6.18.9-talos b"},
		{"somebody who says that a kernel starts", "x: [    1.000000] Linux version\n", "", "x: [ 1.000000] Linux version"},
	} {
		for _, size := range []int{1, 7, 1 << 20} {
			var b boots
			for piece := range slices.Chunk([]byte(c.printed), size) {
				b.add(string(piece))
			}
			before, last := words(b.previous()), words(b.last())
			if before != c.before || last != c.last {
				t.Errorf("%s, in pieces of %d: %q and %q, want %q and %q", c.name, size, before, last, c.before, c.last)
			}
		}
	}
	var b boots
	b.add(many)
	b.add(strings.Repeat("x", 1<<20))
	if len(b.before) > 0 || len(b.now) > mostRecorded || len(b.partial) > widestPartial {
		t.Errorf("%d and %d lines and %d bytes are kept", len(b.before), len(b.now), len(b.partial))
	}
	for i := range 1000 {
		b.add(fmt.Sprintf("line %d\n", i))
	}
	if last := b.last(); last[len(last)-1] != "line 999" {
		t.Errorf("the end is %q", last)
	}
}

func words(lines []string) string { return strings.Join(strings.Fields(strings.Join(lines, " ")), " ") }
