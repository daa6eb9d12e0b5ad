package doctor

import (
	"cmp"
	"errors"
	"slices"

	"github.com/talos-agent/talos-agent/internal/fault"
)

// Level is what a check came to.
type Level string

// The levels. Only Fail keeps the agent from its work; Warn is what will hurt
// later, or may be meant; Skipped could not be looked at.
const (
	Pass    Level = "pass"
	Warn    Level = "warn"
	Fail    Level = "fail"
	Skipped Level = "skipped"
)

// Check is one thing that was looked at.
type Check struct {
	Name    string `json:"name"`              // one of Catalogue
	Subject string `json:"subject,omitempty"` // which one of its kind: a path, a storage, a file
	Level   Level  `json:"level"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"` // what to do about it
}

// Examination is what the agent's half came to, and what the other half needs to
// know of the agent. It holds no secret.
type Examination struct {
	Wants  Wants   `json:"wants"`
	Checks []Check `json:"checks"`
}

// Report is everything that was checked, in the order of the catalogue.
type Report struct {
	Checks  []Check `json:"checks"`
	Summary Summary `json:"summary"`
}

// Summary counts the checks by level.
type Summary struct {
	Pass    int `json:"pass"`
	Warn    int `json:"warn"`
	Fail    int `json:"fail"`
	Skipped int `json:"skipped"`
}

// NewReport puts checks in order and counts them.
func NewReport(checks []Check) Report {
	r := Report{Checks: slices.Clone(checks)}
	if r.Checks == nil {
		r.Checks = []Check{}
	}
	place := func(c Check) int {
		return slices.IndexFunc(Catalogue, func(k Kind) bool { return k.Name == c.Name })
	}
	slices.SortStableFunc(r.Checks, func(a, b Check) int { return cmp.Compare(place(a), place(b)) })
	for _, c := range r.Checks {
		switch c.Level {
		case Pass:
			r.Summary.Pass++
		case Warn:
			r.Summary.Warn++
		case Fail:
			r.Summary.Fail++
		default:
			r.Summary.Skipped++
		}
	}
	return r
}

// Fact is something that was looked for: what was seen, or why it was not and
// what to do about that. The zero value was not looked for.
type Fact[T any] struct {
	Known bool
	Value T
	Why   string
	Hint  string
}

// Saw is a fact that is known.
func Saw[T any](v T) Fact[T] { return Fact[T]{Known: true, Value: v} }

// Unseen is a fact that could not be seen.
func Unseen[T any](err error) Fact[T] {
	f := Fact[T]{Why: err.Error(), Hint: fault.HintOf(err)}
	if late, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err); ok && late.Timeout() && f.Hint == "" {
		f.Hint = "whoever was asked is slow: run `talos-agent doctor` again"
	}
	return f
}

// Look makes a fact of an answer or its error.
func Look[T any](v T, err error) Fact[T] {
	if err != nil {
		return Unseen[T](err)
	}
	return Saw(v)
}

// skipCheck is the check that could not be made for want of a fact.
func skipCheck[T any](name, subject string, f Fact[T]) Check {
	why := f.Why
	if why == "" {
		why = "it was not looked at"
	}
	return Check{Name: name, Subject: subject, Level: Skipped, Message: why, Hint: f.Hint}
}
