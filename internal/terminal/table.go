package terminal

import (
	"slices"
	"strings"

	"charm.land/lipgloss/v2"
	"charm.land/lipgloss/v2/table"
	"github.com/charmbracelet/x/ansi"

	"github.com/talos-agent/talos-agent/internal/text"
)

// PrintTable prints rows in columns, indented and after an empty line. The first
// row is the head.
func (p Printer) PrintTable(rows [][]string) {
	p.Printf("\n")
	for _, r := range rows {
		r[0] = "  " + r[0]
	}
	p.PrintRows(rows)
}

// printNoted prints rows as PrintTable does, and below each row its notes, which
// may be long: in a column they would be cut, or break the lines of the table.
func (p Printer) printNoted(rows, notes [][]string) {
	p.Printf("\n")
	for _, r := range rows {
		r[0] = "  " + r[0]
	}
	for i, line := range p.formatRows(rows) {
		p.Printf("%s\n", line)
		for _, note := range notes[i] {
			if note != "" {
				p.printWrapped("      " + text.OneLine(note))
			}
		}
	}
}

// printWrapped prints a line, broken between words where the screen ends.
func (p Printer) printWrapped(line string) {
	lines := []string{line}
	if p.width > 0 {
		lines = wrapLine(line, p.width)
	}
	for _, l := range lines {
		p.Printf("%s\n", l)
	}
}

// PrintRows prints rows in columns.
func (p Printer) PrintRows(rows [][]string) {
	for _, line := range p.formatRows(rows) {
		p.Printf("%s\n", line)
	}
}

// formatRows puts rows in columns, a line each, closer together where the screen
// is narrow, and cut where it ends.
func (p Printer) formatRows(rows [][]string) []string {
	out := alignRows(rows, 2)
	if p.width == 0 {
		return out
	}
	if slices.ContainsFunc(out, func(line string) bool { return ansi.StringWidth(line) > p.width }) {
		out = alignRows(rows, 1)
	}
	for i := range out {
		out[i] = ansi.Truncate(out[i], p.width, "…")
	}
	return out
}

// alignRows puts rows in columns with so many blanks between them.
func alignRows(rows [][]string, blanks int) []string {
	cell := lipgloss.NewStyle().PaddingRight(blanks)
	t := table.New().Wrap(false).StyleFunc(func(int, int) lipgloss.Style { return cell }).
		BorderTop(false).BorderBottom(false).BorderLeft(false).BorderRight(false).BorderHeader(false).BorderColumn(false)
	for _, r := range rows {
		shown := make([]string, len(r))
		for i, text := range r {
			// Here, because what is replaced later has another width.
			shown[i] = string(cleanText([]byte(text)))
		}
		t.Row(shown...)
	}
	var out []string
	for line := range strings.Lines(t.Render()) {
		// An empty last cell is part of its column, and leaves no blanks.
		out = append(out, strings.TrimRight(line, " \n"))
	}
	return out
}
