package yamlschema

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// MaxErrors bounds what a hostile file can make us report: so many errors, and so many
// warnings and notes. Each stands in the log, in the status of its cluster and in the memory
// of whoever shows it, for every cluster of a push.
const MaxErrors = 50

// Report collects everything that is wrong, and where every field stands, so
// that a check made long after parsing still points at a line.
type Report struct {
	// Where maps the path of a field to its place; the empty path is the file
	// itself. Decode fills it for what is written.
	Where map[string]cluster.Position
	// Problems are those recorded so far, in the order they were found.
	Problems cluster.Problems

	reported map[cluster.Problem]bool
	misspelt map[string]bool // fields that an unknown key likely means
	errors   int             // also those that are not shown
	others   int             // warnings and notes, likewise
}

// NewReport makes an empty report.
func NewReport() *Report {
	return &Report{Where: map[string]cluster.Position{}, reported: map[cluster.Problem]bool{}, misspelt: map[string]bool{}}
}

// Add records a problem once: several fields may share the line that is wrong.
func (r *Report) Add(p cluster.Problem) {
	if r.reported[p] {
		return
	}
	if p.Severity == cluster.Error {
		if r.errors++; r.errors > MaxErrors {
			return
		}
	} else if r.others++; r.others > MaxErrors {
		return
	}
	r.reported[p] = true
	r.Problems = append(r.Problems, p)
}

// Wrong records an error: what is wrong with a field and what to write instead.
// Of a field that is misspelt it records nothing: that is the mistake, and
// whatever is missing because of it is its consequence.
func (r *Report) Wrong(field, hint, format string, args ...any) {
	if r.Misspelt(field) {
		return
	}
	r.at(cluster.Error, field, hint, format, args...)
}

// Warn records a warning about a field.
func (r *Report) Warn(field, hint, format string, args ...any) {
	r.at(cluster.Warning, field, hint, format, args...)
}

// Note records a note about a field.
func (r *Report) Note(field, hint, format string, args ...any) {
	r.at(cluster.Note, field, hint, format, args...)
}

func (r *Report) at(sev cluster.Severity, field, hint, format string, args ...any) {
	p := r.Place(field)
	r.Add(cluster.Problem{Severity: sev, File: p.File, Line: p.Line, Column: p.Column, Field: field,
		Message: fmt.Sprintf(format, args...), Hint: hint})
}

// Place is where a field stands, or the nearest thing around it that is
// written: a default stands nowhere.
func (r *Report) Place(field string) cluster.Position {
	for f := field; f != ""; f = parentField(f) {
		if p, ok := r.Where[f]; ok {
			return p
		}
	}
	return r.Where[""]
}

// parentField cuts the last element off a field path.
func parentField(field string) string {
	i := strings.LastIndexAny(field, ".[")
	if i < 0 {
		return ""
	}
	return field[:i]
}

// Misspelt reports whether a field, or one around it, is what an unknown key was
// likely meant to be.
func (r *Report) Misspelt(field string) bool {
	for f := field; f != ""; f = parentField(f) {
		if r.misspelt[f] {
			return true
		}
	}
	return false
}

// Has reports whether a field is written.
func (r *Report) Has(field string) bool {
	_, ok := r.Where[field]
	return ok
}

// Cite names the place of a field for a message about another one.
func (r *Report) Cite(field string) string {
	p := r.Place(field)
	if p.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d", p.File, p.Line)
}

// Finish returns all problems in the order of files and lines. It is called
// once, at the end. How many errors are not shown stands behind the last that
// is: the first error is what a status shows.
func (r *Report) Finish() cluster.Problems {
	r.Problems.Sort()
	r.addMore(r.errors-MaxErrors, cluster.Error, "errors")
	r.addMore(r.others-MaxErrors, cluster.Warning, "warnings and notes")
	return r.Problems
}

// addMore adds how many problems of a kind are not shown.
func (r *Report) addMore(more int, sev cluster.Severity, what string) {
	if more <= 0 {
		return
	}
	last := r.Problems[len(r.Problems)-1]
	r.Problems = append(r.Problems, cluster.Problem{Severity: sev, File: last.File, Line: last.Line, Column: last.Column + 1,
		Message: fmt.Sprintf("%d more %s are not shown", more, what), Hint: "correct these first"})
}

// Join appends a key to a field path.
func Join(field, key string) string {
	if field == "" {
		return key
	}
	return field + "." + key
}

// Element appends an index to a field path.
func Element(field string, i int) string { return field + "[" + strconv.Itoa(i) + "]" }

// Quote shows a text of a file in a message: what cannot be printed is
// escaped, what is long is cut.
func Quote(s string) string {
	const longest = 60
	r := []rune(s[:min(len(s), longest*utf8.UTFMax+1)])
	if len(r) > longest {
		return strconv.Quote(string(r[:longest])) + "..."
	}
	return strconv.Quote(s)
}
