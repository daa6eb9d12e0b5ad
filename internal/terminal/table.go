package terminal

import (
	"strings"

	"charm.land/lipgloss/v2"
	"charm.land/lipgloss/v2/table"
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

// PrintRows prints rows in columns.
func (p Printer) PrintRows(rows [][]string) {
	cell := lipgloss.NewStyle().PaddingRight(2)
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
	// An empty last cell is part of its column, and leaves no blanks.
	for line := range strings.Lines(t.Render()) {
		p.Printf("%s\n", strings.TrimRight(line, " \n"))
	}
}
