package talosagent

import (
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// avoided is a word of a dialect of our own, in all its forms, what is written
// for it, and how often it may still stand in code and documents. Numbers only go
// down. "make docs" writes strings of the code into documents, which count again.
type avoided struct {
	words string // with commas between
	write string
	most  int
}

// Words that have a plain sense of their own are not here: the rest of a list,
// records of DNS or of a log, what is wrong, to ensure.
var avoidedWords = []avoided{
	{"tell, tells, telling, told", "report, notify, set", 15},
	{"say, says, saying, said, spoken", "report, show, contain", 51},
	{"heard", "seen, received", 0},
	{"announce, announces, announced, announcing, announcement, announcements", "report, notify, send", 0},
	{"hush, hushes, hushed, hushing", "suppress", 0},
	{"cure, cures, cured, curing, curable", "hint, fix", 0},
	{"mend, mends, mended, mending", "fix, repair", 1},
	{"look after, looks after, looked after, looking after", "manage", 4},
	{"anew", "again, re-create", 8},
	{"let go of, lets go of, letting go of, let go", "release", 0},
	{"stray, strays, strayed", "orphan", 0},
	{"stranger, strangers", "unexpected machine, unknown client", 0},
	{"foreign machine, foreign machines", "unexpected machine", 0},
	{"resting, restless, rested", "idle, backoff", 0},
	{"root s word", "admin command", 2},
	{"sight", "visibility", 2},
	{"ground", "conflict, place", 0},
	{"doubt, doubts, doubted", "unverified", 10},
	{"trouble, troubles, troubled", "problem, fault", 23},
	{"tear down, tears down, tearing down, torn down", "destroy", 3},
	{"gone", "deleted, removed, closed", 6},
	{"taken away", "removed", 0},
	{"leaving", "deleting", 4},
	{"make believe", "simulated", 0},
	{"face, faces", "service", 0},
	{"law, laws, lawful", "rule", 1},
	{"cut off", "interrupted", 13},
	{"blind", "unknown", 3},
	{"an ensure", "idempotent", 0},
	{"nobody serves, nobody listens, nobody sees, nobody knows, nobody asks, nobody reads, nobody answers", "what failed: http server failed", 6},
	{"foretold, began or failed, not built yet", "planned, actions, not supported yet", 3},
}

// quoting are the rooms whose strings are what real systems answer, word for word.
var quoting = []string{"internal/lab/pve", "internal/lab/talos", "internal/lab/kube"}

var camelCase = regexp.MustCompile(`[A-Z]+[a-z0-9]*|[a-z0-9]+`)

// wordsOfName splits a name in camel case.
func wordsOfName(name string) []string {
	words := camelCase.FindAllString(name, -1)
	for i := range words {
		words[i] = strings.ToLower(words[i])
	}
	return words
}

// wordsOfText splits prose; a hyphen ends a word.
func wordsOfText(text string) []string {
	return strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9') })
}

// visitWords calls visit with the words of everything of a file that a person
// reads: comments, strings, and names, but those that other modules gave.
func visitWords(s source, visit func([]string)) {
	for _, group := range s.file.Comments {
		visit(wordsOfText(group.Text()))
	}
	imported := importedNames(s.file)
	ast.Inspect(s.file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.SelectorExpr:
			if of, ok := n.X.(*ast.Ident); ok && imported[of.Name] {
				return false
			}
		case *ast.Ident:
			visit(wordsOfName(n.Name))
		case *ast.BasicLit:
			if n.Kind == token.STRING && !slices.Contains(quoting, s.dir) {
				visit(wordsOfText(n.Value))
			}
		}
		return true
	})
}

// phrase is one form of an avoided word.
type phrase struct {
	words []string
	of    int // in avoidedWords
}

// countPhrases counts what of phrases, by their first words, is in words.
func countPhrases(words []string, phrases map[string][]phrase, found func(of int)) {
	for i, word := range words {
		for _, p := range phrases[word] {
			if i+len(p.words) <= len(words) && slices.Equal(words[i:i+len(p.words)], p.words) {
				found(p.of)
				break
			}
		}
	}
}

func TestWordsOfTheField(t *testing.T) {
	phrases := map[string][]phrase{} // by their first word
	for i, a := range avoidedWords {
		for form := range strings.SplitSeq(a.words, ", ") {
			words := strings.Fields(form)
			phrases[words[0]] = append(phrases[words[0]], phrase{words, i})
		}
	}
	counts := make([]map[string]int, len(avoidedWords)) // by folder
	for i := range counts {
		counts[i] = map[string]int{}
	}
	for _, s := range house(t) {
		if !s.test {
			visitWords(s, func(words []string) { countPhrases(words, phrases, func(of int) { counts[of][s.dir]++ }) })
		}
	}
	for _, file := range documents(t) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		countPhrases(wordsOfText(string(text)), phrases, func(of int) { counts[of][filepath.Dir(file)]++ })
	}
	for i, a := range avoidedWords {
		have := 0
		var places []string
		for _, folder := range slices.Sorted(maps.Keys(counts[i])) {
			have += counts[i][folder]
			places = append(places, fmt.Sprintf("%s %d", folder, counts[i][folder]))
		}
		checkRatchet(t, fmt.Sprintf("%q, for which to write %s (%s)", a.words, a.write, strings.Join(places, ", ")), have, a.most, 0)
	}
}

// documents are the pages that people read.
func documents(t *testing.T) []string {
	t.Helper()
	files := []string{"README.md", "CONTRIBUTING.md"}
	for _, pattern := range []string{"docs/*.md", "docs/*/*.md"} {
		more, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, more...)
	}
	return files
}
