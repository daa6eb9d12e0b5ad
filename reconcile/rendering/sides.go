package rendering

import (
	"slices"
	"strings"

	"github.com/pmezard/go-difflib/difflib"

	"github.com/talos-agent/talos-agent/internal/pattern"
	"github.com/talos-agent/talos-agent/reconcile/machineconfig"
)

// sides are the two sides of a comparison. The mask knows the secrets that a cluster should
// have. What is there may be others, of a revision before or by hand, and is known to be a
// secret by its place only.
type sides struct {
	mask *Mask
	// shown are the values of the wanted side that are shown, by place and text, and with
	// the text "" the places.
	shown map[[2]string]bool
	// hidden are the places of values that are not, and around is what these are in.
	hidden, around map[string]bool
}

func newSides(m *Mask) *sides {
	return &sides{mask: m, shown: map[[2]string]bool{}, hidden: map[string]bool{}, around: map[string]bool{}}
}

// wanted hides the secrets of what should be, which is rewritten first.
func (s *sides) wanted(v machineconfig.Scalar) string {
	out, place := s.mask.cleanScalar(v), placeOf(v)
	switch {
	case out == v.Text:
		s.shown[[2]string{place, v.Text}], s.shown[[2]string{place}] = true, true
	case !v.Secret:
		s.hidden[place], s.around[parentOf(v)] = true, true
	}
	return out
}

// mayHoldSecret matches the places, and what is right below them, at which people write
// secrets: texts of files, environments, and whatever is called so.
var mayHoldSecret = pattern.New(`(?i)(pass|secret|token|credential|private|auth|key|content|env|variables|data)[^. ]*([.][^.]*)?$`)

// namesSecret matches the places that are called after a secret, whatever should stand
// there now: a text of the inventory may have taken the place of one of its secrets, which
// is nowhere else any longer.
var namesSecret = pattern.New(`(?i)(pass|secret|token|credential|(private|api|access)[_-]?key|dsn)[^. ]*$`)

// hasLogin matches addresses with a password in them.
var hasLogin = pattern.New(`://[^/@\s]*:[^/@\s]+@`)

// running hides the secrets of what is there: besides those that are known, whatever
// stands where a secret should, or, at a place that the wanted side does not have, beside
// one or where people write them. Every element of a list is such a place.
func (s *sides) running(v machineconfig.Scalar) string {
	out, place := s.mask.cleanScalar(v), placeOf(v)
	isNew := !s.shown[[2]string{place}] || strings.Contains(v.Path, "[]")
	switch {
	case out != v.Text, v.Text == "", s.shown[[2]string{place, v.Text}]:
		return out
	case s.hidden[place], namesSecret.MatchString(place), hasLogin.MatchString(v.Text), isNew && (s.around[parentOf(v)] || mayHoldSecret.MatchString(place)):
		return s.mask.Hide(v.Text)
	}
	return out
}

func placeOf(v machineconfig.Scalar) string { return v.Document + " " + v.Path }

// parentOf is what a value is in.
func parentOf(v machineconfig.Scalar) string {
	return v.Document + " " + v.Path[:max(0, strings.LastIndexAny(v.Path, ".["))]
}

// diffTexts is a unified diff, "" where there is no difference.
func diffTexts(has, wants string) (string, error) {
	return difflib.GetUnifiedDiffString(difflib.UnifiedDiff{A: splitLines(has), B: splitLines(wants), FromFile: "has", ToFile: "wants", Context: 3})
}

// splitLines splits a text into lines with their ends.
func splitLines(text string) []string {
	return slices.Collect(strings.Lines(strings.TrimSuffix(text, "\n") + "\n"))
}
