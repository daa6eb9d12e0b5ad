package talosagent

import (
	"fmt"
	"html"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/golden"
)

// floors are the parts of the house that the picture of the rooms shows, each with the
// folders that belong to it. What no other part has is shared.
var floors = []struct {
	name    string
	folders []string
}{
	{"cmd/agent: one file for each command", []string{"cmd/agent"}},
	{"internal/repo: a repository, before it is pushed", []string{"internal/repo"}},
	{"internal/daemon: the running agent", []string{"internal/daemon"}},
	{"what people and programs see of it", []string{"internal/api", "internal/terminal", "internal/metrics"}},
	{"internal/host: the host it runs on", []string{"internal/host"}},
	{"sources: what should be", []string{"sources"}},
	{"reconcile: what is, what to do", []string{"reconcile"}},
	{"internal/lab: a simulated host", []string{"internal/lab"}},
	{"shared", []string{""}},
}

// floorOf is the index of the part that a room belongs to.
func floorOf(room string) int {
	return slices.IndexFunc(floors, func(f struct {
		name    string
		folders []string
	}) bool {
		return slices.ContainsFunc(f.folders, func(dir string) bool {
			return dir == "" || room == dir || strings.HasPrefix(room, dir+"/")
		})
	})
}

// TestPictureOfRooms draws the import rules: an arrow leads from a part to what its rooms
// may import, unless other arrows lead there too.
func TestPictureOfRooms(t *testing.T) {
	members := make([][]string, len(floors))
	edges := make([]map[int]bool, len(floors))
	for i := range edges {
		edges[i] = map[int]bool{}
	}
	for _, name := range slices.Sorted(maps.Keys(rooms)) {
		if name == "" || strings.HasSuffix(name, "test") || name == "internal/golden" {
			continue // the checks, and rooms for tests
		}
		from := floorOf(name)
		members[from] = append(members[from], name)
		for _, imported := range rooms[name].may {
			if to := floorOf(imported); to != from {
				edges[from][to] = true
			}
		}
	}
	levels := levelsOf(t, edges)
	golden.Check(t, "docs/explanation/rooms.svg", drawFloors(members, reduceEdges(edges), levels))
}

// levelsOf gives every part its row, counted from the bottom: above all that it imports.
func levelsOf(t *testing.T, edges []map[int]bool) []int {
	t.Helper()
	levels := make([]int, len(edges))
	for round := 0; ; round++ {
		if round > len(edges) {
			t.Fatal("the parts of the picture import each other in a circle")
		}
		moved := false
		for from, tos := range edges {
			for to := range tos {
				if levels[from] <= levels[to] {
					levels[from], moved = levels[to]+1, true
				}
			}
		}
		if !moved {
			return levels
		}
	}
}

// reduceEdges leaves out the arrows whose end is also reached another way.
func reduceEdges(edges []map[int]bool) [][2]int {
	var reaches func(from, to int) bool
	reaches = func(from, to int) bool {
		for next := range edges[from] {
			if next == to || reaches(next, to) {
				return true
			}
		}
		return false
	}
	var out [][2]int
	for from, tos := range edges {
		for _, to := range slices.Sorted(maps.Keys(tos)) {
			around := false
			for next := range tos {
				around = around || next != to && reaches(next, to)
			}
			if !around {
				out = append(out, [2]int{from, to})
			}
		}
	}
	return out
}

// Sizes of both pictures, in pixels.
const (
	pictureWidth = 960
	lineHeight   = 17
	floorGap     = 46
	floorPadding = 12
)

// drawFloors draws the parts in rows, the highest first.
func drawFloors(members [][]string, edges [][2]int, levels []int) []byte {
	type box struct{ x, y, w, h float64 }
	boxes := make([]box, len(members))
	var body strings.Builder
	y := 20.0
	for level := slices.Max(levels); level >= 0; level-- {
		var row []int
		for i := range members {
			if levels[i] == level {
				row = append(row, i)
			}
		}
		w := (pictureWidth - 40.0 - floorGap*float64(len(row)-1)) / float64(len(row))
		if len(row) == 1 {
			w = (pictureWidth - 40) * 0.62
		}
		highest := 0.0
		for n, i := range row {
			lines := wrapNames(members[i], int(w/7.2))
			b := box{x: 20 + float64(n)*(w+floorGap), y: y, w: w, h: float64(2*floorPadding + lineHeight*(len(lines)+1))}
			if len(row) == 1 {
				b.x = (pictureWidth - w) / 2
			}
			boxes[i], highest = b, max(highest, b.h)
			fmt.Fprintf(&body, "<rect x=\"%.0f\" y=\"%.0f\" width=\"%.0f\" height=\"%.0f\" rx=\"8\" class=\"box\"/>\n", b.x, b.y, b.w, b.h)
			writeText(&body, b.x+floorPadding, b.y+floorPadding+12, "title", floors[i].name)
			for j, line := range lines {
				writeText(&body, b.x+floorPadding, b.y+floorPadding+12+float64(lineHeight*(j+1)), "name", line)
			}
		}
		y += highest + floorGap
	}
	var arrows strings.Builder
	for _, e := range edges {
		from, to := boxes[e[0]], boxes[e[1]]
		// Arrows leave and arrive side by side.
		shift := float64(e[0]-e[1]+1) * 14
		fmt.Fprintf(&arrows, "<path d=\"M%.0f %.0f L%.0f %.0f\" class=\"arrow\" marker-end=\"url(#head)\"/>\n",
			from.x+from.w/2-shift/2, from.y+from.h, to.x+to.w/2+shift, to.y-3)
	}
	return drawPicture(y-floorGap+20, "The rooms of talos-agent and which may import which", arrows.String()+body.String())
}

// wrapNames puts names on lines of at most so many characters.
func wrapNames(names []string, most int) []string {
	var lines []string
	for _, name := range names {
		if n := len(lines); n > 0 && len(lines[n-1])+3+len(name) <= most {
			lines[n-1] += " · " + name
		} else {
			lines = append(lines, name)
		}
	}
	return lines
}

// passSteps finds the steps of a pass in the page about it: "1. **Fetch.** ...".
var passSteps = regexp.MustCompile(`(?m)^\d+\. \*\*(.+?)\.\*\*`)

// TestPictureOfPass draws the steps of a pass that the page about it lists.
func TestPictureOfPass(t *testing.T) {
	page, err := os.ReadFile("docs/explanation/one-pass.md")
	if err != nil {
		t.Fatal(err)
	}
	steps := passSteps.FindAllStringSubmatch(string(page), -1)
	if len(steps) < 5 {
		t.Fatalf("the page lists %d steps", len(steps))
	}
	const w, h, top = 110.0, 64.0, 40.0
	gap := (pictureWidth - 40 - w*float64(len(steps))) / float64(len(steps)-1)
	var body strings.Builder
	for i, s := range steps {
		x := 20 + float64(i)*(w+gap)
		fmt.Fprintf(&body, "<rect x=\"%.0f\" y=\"%.0f\" width=\"%.0f\" height=\"%.0f\" rx=\"8\" class=\"box\"/>\n", x, top, w, h)
		words := wrapWords(s[1], 12)
		for j, line := range words {
			writeText(&body, x+w/2, top+h/2+5+float64(lineHeight)*(float64(j)-float64(len(words)-1)/2), "step", line)
		}
		if i > 0 {
			fmt.Fprintf(&body, "<path d=\"M%.0f %.0f H%.0f\" class=\"arrow\" marker-end=\"url(#head)\"/>\n", x-gap, top+h/2, x-3)
		}
	}
	last := 20 + float64(len(steps)-1)*(w+gap) + w/2
	fmt.Fprintf(&body, "<path d=\"M%.0f %.0f V%.0f H%.0f V%.0f\" class=\"arrow\" marker-end=\"url(#head)\"/>\n", last, top+h, top+h+44, 20+w/2, top+h+3)
	writeText(&body, pictureWidth/2, top+h+38, "step", "what was begun goes on beside the loop; the next pass looks at everything again")
	golden.Check(t, "docs/explanation/one-pass.svg", drawPicture(top+h+64, "One pass of the agent", body.String()))
}

// wrapWords breaks a text into lines of about so many characters.
func wrapWords(text string, most int) []string {
	var lines []string
	for word := range strings.FieldsSeq(text) {
		if n := len(lines); n > 0 && len(lines[n-1])+1+len(word) <= most {
			lines[n-1] += " " + word
		} else {
			lines = append(lines, word)
		}
	}
	return lines
}

func writeText(b *strings.Builder, x, y float64, class, text string) {
	fmt.Fprintf(b, "<text x=\"%.0f\" y=\"%.0f\" class=\"%s\">%s</text>\n", x, y, class, html.EscapeString(text))
}

// drawPicture puts a frame around what is drawn. Its colours suit light and dark pages.
func drawPicture(height float64, title, body string) []byte {
	return fmt.Appendf(nil, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %.0f" role="img" aria-label="%s">
<title>%s</title>
<style>
.box { fill: #f6f8fa; stroke: #57606a; }
.arrow { fill: none; stroke: #8c959f; stroke-width: 1.5; }
text { font-family: ui-sans-serif, system-ui, sans-serif; font-size: 12px; fill: #24292f; }
.title { font-weight: 600; font-size: 13px; }
.step { text-anchor: middle; font-size: 13px; }
</style>
<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="#8c959f"/></marker></defs>
<rect width="100%%" height="100%%" rx="8" fill="#ffffff"/>
%s</svg>
`, pictureWidth, height, title, title, body)
}
