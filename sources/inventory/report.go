package inventory

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// maxErrors bounds what a hostile file can make us say. Warnings and notes are
// bounded by the number of nodes.
const maxErrors = 500

// report collects everything that is wrong, and where every field stands, so
// that a check made long after parsing still points at a line.
type report struct {
	where    map[string]cluster.Position
	problems cluster.Problems
	said     map[cluster.Problem]bool
	errors   int // also those that are not shown
}

func newReport() *report {
	return &report{where: map[string]cluster.Position{}, said: map[cluster.Problem]bool{}}
}

// add records a problem once: several nodes may share the line that is wrong.
func (r *report) add(p cluster.Problem) {
	if r.said[p] {
		return
	}
	if p.Severity == cluster.Error {
		if r.errors++; r.errors > maxErrors {
			return
		}
	}
	r.said[p] = true
	r.problems = append(r.problems, p)
}

// wrong records what is wrong with a field and what to write instead.
func (r *report) wrong(field, hint, format string, args ...any) {
	r.at(cluster.Error, field, hint, format, args...)
}

func (r *report) warn(field, hint, format string, args ...any) {
	r.at(cluster.Warning, field, hint, format, args...)
}

func (r *report) note(field, hint, format string, args ...any) {
	r.at(cluster.Note, field, hint, format, args...)
}

func (r *report) at(sev cluster.Severity, field, hint, format string, args ...any) {
	p := r.place(field)
	r.add(cluster.Problem{Severity: sev, File: p.File, Line: p.Line, Column: p.Column, Field: field,
		Message: fmt.Sprintf(format, args...), Hint: hint})
}

// place is where a field stands, or the nearest thing around it that is
// written: a default stands nowhere.
func (r *report) place(field string) cluster.Position {
	for f := field; f != ""; f = parent(f) {
		if p, ok := r.where[f]; ok {
			return p
		}
	}
	return r.where[""]
}

// parent cuts the last element off a field path.
func parent(field string) string {
	i := strings.LastIndexAny(field, ".[")
	if i < 0 {
		return ""
	}
	return field[:i]
}

// has reports whether a field is written in the inventory.
func (r *report) has(field string) bool {
	_, ok := r.where[field]
	return ok
}

// cite names the place of a field for a message about another one.
func (r *report) cite(field string) string {
	p := r.place(field)
	if p.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d", p.File, p.Line)
}

// finish returns all problems in the order of files and lines. It is called
// once.
func (r *report) finish() cluster.Problems {
	if more := r.errors - maxErrors; more > 0 {
		r.problems = append(r.problems, cluster.Problem{Severity: cluster.Error, File: r.where[""].File,
			Message: fmt.Sprintf("%d more errors are not shown", more), Hint: "correct these first"})
	}
	r.problems.Sort()
	return r.problems
}

// join appends a key to a field path.
func join(field, key string) string {
	if field == "" {
		return key
	}
	return field + "." + key
}

// element appends an index to a field path.
func element(field string, i int) string { return field + "[" + strconv.Itoa(i) + "]" }

// quote shows a text of the inventory in a message: what cannot be printed is
// escaped, what is long is cut.
func quote(s string) string {
	const longest = 60
	r := []rune(s[:min(len(s), longest*utf8.UTFMax+1)])
	if len(r) > longest {
		return strconv.Quote(string(r[:longest])) + "..."
	}
	return strconv.Quote(s)
}
