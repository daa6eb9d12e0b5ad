package helm

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// explainError turns what Helm, the chart or the API reports about an addon into
// an error that may be shown: its values are taken out, but those that are public, and
// where the words are known, a hint is put in. Errors that are our own words pass.
func explainError(err error, a cluster.Addon, public []string) error {
	if ours := (*Error)(nil); errors.As(err, &ours) {
		return ours
	}
	words := scrubText(err.Error(), secretsIn(a.Values.Reveal()), func(s string) bool { return slices.Contains(public, s) })
	return &Error{message: words, hint: findHint(words)}
}

// hidden stands where something was taken out.
const hidden = "[redacted]"

// The bounds of what is shown.
const (
	maxWords = 600
	maxQuote = 80 // bytes within quotes
	maxGroup = 60 // bytes within brackets
)

// scrubText makes foreign words fit to be shown: on one line, of a moderate
// length, without the secrets and without anything that looks like a dump of data.
// What public calls so is no secret, although it is among them.
func scrubText(words string, secrets []string, public func(string) bool) string {
	words = strings.ToValidUTF8(words, "?")
	for _, s := range secrets {
		if !strings.Contains(words, s) || public(s) {
			continue
		}
		if len(s) >= wholeOnly {
			words = strings.ReplaceAll(words, s, hidden)
		} else {
			words = replaceWord(words, s, hidden)
		}
	}
	words = dropQuoted(dropGroups(words))
	words = strings.Join(strings.FieldsFunc(words, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }), " ")
	// How Helm begins the list of what went wrong with objects, mostly one.
	words = strings.ReplaceAll(words, "1 error occurred: * ", "")
	if len(words) > maxWords {
		// Where it happened comes first and what happened last; in between are
		// the templates that called each other.
		words = strings.ToValidUTF8(words[:maxWords/3], "") + " ... " + strings.ToValidUTF8(words[len(words)-maxWords*2/3:], "")
	}
	return words
}

// A secret shorter than wholeOnly counts where it stands as a word of its own,
// one shorter than tooShort never: too much else is like it.
const (
	wholeOnly = 6
	tooShort  = 3
)

// secretsIn lists the values of an addon, given as JSON, in the forms they may
// have in a message: as they are, line by line, word by word where a word looks
// like a password, quoted, and in base64. The longest come first.
func secretsIn(values []byte) []string {
	d := json.NewDecoder(bytes.NewReader(values))
	d.UseNumber()
	var all any
	if d.Decode(&all) != nil {
		return nil
	}
	found := map[string]bool{}
	add := func(s string) {
		if len(s) >= tooShort && s != "true" && s != "false" && s != "null" {
			found[s] = true
		}
	}
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for _, inner := range v {
				walk(inner)
			}
		case []any:
			for _, inner := range v {
				walk(inner)
			}
		case json.Number:
			add(v.String())
			if f, err := v.Float64(); err == nil {
				add(strconv.FormatFloat(f, 'g', -1, 64)) // as Go prints it
			}
		case string:
			add(v)
			for line := range strings.Lines(v) {
				add(strings.TrimSpace(line))
			}
			for _, word := range strings.FieldsFunc(v, func(r rune) bool { return unicode.IsSpace(r) || strings.ContainsRune(`:/@=,;"'&?<>()[]{}`, r) }) {
				if strings.ContainsAny(word, "0123456789") && strings.IndexFunc(word, unicode.IsLetter) >= 0 {
					add(word)
				}
			}
			quoted := strconv.Quote(v)
			add(quoted[1 : len(quoted)-1])
			if len(v) >= wholeOnly {
				add(base64.StdEncoding.EncodeToString([]byte(v)))
				add(base64.RawURLEncoding.EncodeToString([]byte(v)))
			}
		}
	}
	walk(all)
	list := sortedNames(found)
	slices.SortStableFunc(list, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	return list
}

// replaceWord replaces a text where neither a letter nor a digit is beside it.
func replaceWord(in, word, by string) string {
	var out strings.Builder
	for {
		i := strings.Index(in, word)
		if i < 0 {
			return out.String() + in
		}
		before, _ := utf8.DecodeLastRuneInString(in[:i])
		after, _ := utf8.DecodeRuneInString(in[i+len(word):])
		alone := !isWord(before) && !isWord(after)
		out.WriteString(in[:i])
		if alone {
			out.WriteString(by)
		} else {
			out.WriteString(word)
		}
		in = in[i+len(word):]
	}
}

func isWord(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }

// dropQuoted empties long quotations, and those with more than one line: names
// of objects are short.
func dropQuoted(s string) string {
	var out strings.Builder
	for {
		i := strings.IndexAny(s, "\"`")
		if i < 0 {
			return out.String() + s
		}
		end := strings.IndexByte(s[i+1:], s[i])
		if end < 0 {
			// It begins and does not end: what follows may be anything.
			if len(s)-i > maxQuote {
				return out.String() + s[:i+1] + "..."
			}
			return out.String() + s
		}
		inside := s[i+1 : i+1+end]
		out.WriteString(s[:i+1])
		if len(inside) > maxQuote || strings.ContainsAny(inside, "\n\r") {
			inside = "..."
		}
		out.WriteString(inside)
		out.WriteByte(s[i])
		s = s[i+1+end+1:]
	}
}

// dropGroups empties long groups in braces, and in square brackets behind a
// word: values printed by Go, like map[a:b], or as JSON. Brackets that stand for
// themselves hold what an API finds wrong with an object.
func dropGroups(s string) string {
	closing := map[byte]byte{'[': ']', '{': '}'}
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		shut, opens := closing[s[i]]
		if !opens || s[i] == '[' && (i == 0 || !isWord(rune(s[i-1]))) {
			out.WriteByte(s[i])
			continue
		}
		depth, end := 0, len(s)
		for j := i; j < len(s); j++ {
			if s[j] == s[i] {
				depth++
			} else if s[j] == shut {
				if depth--; depth == 0 {
					end = j
					break
				}
			}
		}
		group := s[i:min(end+1, len(s))]
		if len(group) <= maxGroup {
			out.WriteString(group)
		} else {
			out.WriteByte(s[i])
			out.WriteString("...")
			out.WriteByte(shut)
		}
		i += len(group) - 1
	}
	return out.String()
}
