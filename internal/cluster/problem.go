package cluster

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Severity states what a Problem means for the inventory that has it.
type Severity string

// The severities. Only an Error makes an inventory invalid.
const (
	Error   Severity = "error"
	Warning Severity = "warning"
	Note    Severity = "note"
)

// Problem is one thing that is wrong with what a person wrote: where it
// stands, which field it is, what is wrong and what to write instead.
// Line and Column count from 1; zero means that the place is the whole file.
type Problem struct {
	Severity Severity `json:"severity"`
	File     string   `json:"file"`
	Line     int      `json:"line,omitempty"`
	Column   int      `json:"column,omitempty"`
	Field    string   `json:"field,omitempty"`
	Message  string   `json:"message"`
	Hint     string   `json:"hint,omitempty"`
}

// String prints the problem on one line, the way compilers do, so that
// editors can jump to it: file:line:column: severity: field: message (hint).
func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d", p.Line)
		if p.Column > 0 {
			fmt.Fprintf(&b, ":%d", p.Column)
		}
	}
	if b.Len() > 0 {
		b.WriteString(": ")
	}
	if p.Severity != Error && p.Severity != "" {
		b.WriteString(string(p.Severity))
		b.WriteString(": ")
	}
	if p.Field != "" {
		b.WriteString(p.Field)
		b.WriteString(": ")
	}
	b.WriteString(p.Message)
	if p.Hint != "" {
		b.WriteString(" (")
		b.WriteString(p.Hint)
		b.WriteString(")")
	}
	return b.String()
}

// Problems are all problems found at once. They are an error when at least
// one of them is; use Err to get a plain nil otherwise.
type Problems []Problem

// Sort orders problems by file, line and column, then by field and message,
// so that the same input always prints the same bytes.
func (ps Problems) Sort() {
	slices.SortStableFunc(ps, func(a, b Problem) int {
		return cmp.Or(
			cmp.Compare(a.File, b.File),
			cmp.Compare(a.Line, b.Line),
			cmp.Compare(a.Column, b.Column),
			cmp.Compare(a.Field, b.Field),
			cmp.Compare(a.Message, b.Message),
		)
	})
}

// HasErrors reports whether at least one problem makes the input invalid.
func (ps Problems) HasErrors() bool {
	return slices.ContainsFunc(ps, func(p Problem) bool { return p.Severity == Error || p.Severity == "" })
}

// Err returns ps as an error if it has errors, else nil.
func (ps Problems) Err() error {
	if !ps.HasErrors() {
		return nil
	}
	return ps
}

// First returns the first error in words, for places that have one line.
func (ps Problems) First() string {
	if p, ok := ps.FirstError(); ok {
		return p.String()
	}
	return ""
}

// FirstError returns the first error; ok is false where there is none.
func (ps Problems) FirstError() (p Problem, ok bool) {
	for _, p := range ps {
		if p.Severity == Error || p.Severity == "" {
			return p, true
		}
	}
	return Problem{}, false
}

// Place returns where the first error stands, with its field: what distinguishes
// it from another whatever its words are.
func (ps Problems) Place() string {
	if p, ok := ps.FirstError(); ok {
		return strings.TrimSuffix(fmt.Sprintf("%s:%d:%d %s", p.File, p.Line, p.Column, p.Field), " ")
	}
	return ""
}

// Error implements error: every problem on a line of its own.
func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}
