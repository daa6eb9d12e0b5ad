// Package pattern is regular expressions that are compiled when they are first needed. A program
// has more of them than any one of its commands uses, and each takes tens of thousands of bytes.
package pattern

import (
	"regexp"
	"sync"
)

// Pattern is a regular expression. Its methods are those of regexp.Regexp.
type Pattern struct {
	text    string
	compile func() *regexp.Regexp
}

// All are the patterns that New has made: a test of the whole program compiles them.
var All []*Pattern

// New makes a pattern of an expression that is known to be one, for a variable of a package: where it is
// none, the pattern panics when it is needed.
func New(text string) *Pattern {
	p := &Pattern{text, sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(text) })}
	All = append(All, p)
	return p
}

// Compile makes a pattern of an expression that may be none.
func Compile(text string) (*Pattern, error) {
	r, err := regexp.Compile(text)
	return &Pattern{text, func() *regexp.Regexp { return r }}, err
}

// String is the expression.
func (p *Pattern) String() string { return p.text }

// Match reports whether a text has a match.
func (p *Pattern) Match(b []byte) bool { return p.compile().Match(b) }

// MatchString reports whether a text has a match.
func (p *Pattern) MatchString(s string) bool { return p.compile().MatchString(s) }

// FindString is the first match, "" where there is none.
func (p *Pattern) FindString(s string) string { return p.compile().FindString(s) }

// FindStringSubmatch is the first match and its groups, nil where there is none.
func (p *Pattern) FindStringSubmatch(s string) []string { return p.compile().FindStringSubmatch(s) }

// FindSubmatch is the first match and its groups, nil where there is none.
func (p *Pattern) FindSubmatch(b []byte) [][]byte { return p.compile().FindSubmatch(b) }

// FindAllStringSubmatch are the first n matches and their groups; all where n is negative.
func (p *Pattern) FindAllStringSubmatch(s string, n int) [][]string {
	return p.compile().FindAllStringSubmatch(s, n)
}

// ReplaceAllString replaces what matches; $1 is the first group.
func (p *Pattern) ReplaceAllString(s, by string) string { return p.compile().ReplaceAllString(s, by) }

// ReplaceAllStringFunc replaces each match by what it is made into.
func (p *Pattern) ReplaceAllStringFunc(s string, by func(string) string) string {
	return p.compile().ReplaceAllStringFunc(s, by)
}

// Split is a text in up to n parts, between what matches; in all of them where n is negative.
func (p *Pattern) Split(s string, n int) []string { return p.compile().Split(s, n) }
