package talosagent

import (
	"go/ast"
	"go/token"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// unsupported are the places in the code, besides the format of the inventory, where something is answered with "not
// supported yet", with what the roadmap calls it.
var unsupported = map[string]string{
	"reconcile/plan/running.go": "`config_contract`",
	"reconcile/fixed.go":        "`config_contract`",
}

// formats answer with it whatever their language has as foreseen.
var formats = []string{"internal/yamlschema/decode.go"}

// TestRoadmap: whatever is answered with "not supported yet" has a line in the roadmap, and the roadmap has no other.
func TestRoadmap(t *testing.T) {
	page, err := os.ReadFile("docs/explanation/roadmap.md")
	if err != nil {
		t.Fatal(err)
	}
	table, _, found := strings.Cut(string(page), "## Later")
	if !found {
		t.Fatal("the page has no section of what comes later")
	}
	listed := map[string]bool{}
	for _, line := range strings.Split(table, "\n") {
		if cells := strings.Split(line, "|"); len(cells) > 2 {
			for _, word := range regexp.MustCompile("`[^`]+`").FindAllString(cells[1], -1) {
				listed[word] = false
			}
		}
	}
	use := func(where, word string) {
		if _, ok := listed[word]; !ok {
			t.Errorf("%s: %s is not supported yet, and not in the roadmap", where, word)
		}
		listed[word] = true
	}
	for _, s := range house(t) {
		if s.test {
			continue
		}
		for _, word := range unsupportedIn(s.file) {
			use(s.path, word)
		}
		if !answersUnsupported(s.file) || slices.Contains(formats, s.path) {
			continue
		}
		if word, ok := unsupported[s.path]; ok {
			use(s.path, word)
		} else {
			t.Errorf("%s answers with \"not supported yet\", and is not listed here", s.path)
		}
	}
	for word, used := range listed {
		if !used {
			t.Errorf("the roadmap has %s, which nothing is answered for", word)
		}
	}
}

// unsupportedIn are the values and keys of a format that are foreseen: those of tags "later", and the keys of the map
// "foreseen".
func unsupportedIn(file *ast.File) (words []string) {
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Field:
			if n.Tag == nil {
				break
			}
			text, _ := strconv.Unquote(n.Tag.Value)
			tag := reflect.StructTag(text)
			for _, value := range strings.Split(tag.Get("later"), ",") {
				if value != "" {
					words = append(words, "`"+tag.Get("yaml")+": "+value+"`")
				}
			}
		case *ast.ValueSpec:
			if n.Names[0].Name != "foreseen" || len(n.Values) != 1 {
				break
			}
			for _, pair := range n.Values[0].(*ast.CompositeLit).Elts {
				key, _ := strconv.Unquote(pair.(*ast.KeyValueExpr).Key.(*ast.BasicLit).Value)
				words = append(words, "`"+key+"`")
			}
		}
		return true
	})
	return words
}

// answersUnsupported reports whether a text of the code is "not supported yet".
func answersUnsupported(file *ast.File) (found bool) {
	ast.Inspect(file, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING && strings.Contains(lit.Value, "not supported yet") {
			found = true
		}
		return true
	})
	return found
}
