package main

import (
	"fmt"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const source = `package p

func (r *T[int]) f(a, b bool, s []int, v any) int {
	if a && (b || len(s) == 0) {
		return 1
	}
	if err := g(); err != nil {
		return 2
	}
	if a {
		s = nil // it goes on
	}
	switch {
	case a, !b:
		return 3
	default:
		return 4
	}
	switch len(s) {
	case 1, 2:
		return 5
	}
	switch v.(type) {
	case string:
		return 6
	}
	for {
		if a {
			break
		}
		if a {
			panic("a")
		}
	}
	return 7
}
`

// TestMutate: every clause is taken out once, what is left is Go, and the names are those of
// no other mutant.
func TestMutate(t *testing.T) {
	found, err := mutate("p/p.go", []byte(source))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	keys := map[string]bool{}
	for _, m := range found {
		text := string(m.edit.apply([]byte(source)))
		if _, err := parser.ParseFile(token.NewFileSet(), "", text, 0); err != nil || text == source {
			t.Errorf("%s: %v\n%s", m.key(), err, text)
		}
		keys[m.key()] = true
		got = append(got, strings.TrimPrefix(m.key(), "p/p.go T.f: "))
	}
	want := []string{
		"drop guard 1: a && (b || len(s) == 0)", "drop operand 1: a", "drop operand 1: (b || len(s) == 0)", "drop operand 1: b", "drop operand 1: len(s) == 0",
		"drop guard 1: err != nil", "drop case 1: a", "drop case 1: !b", "drop case 1: 1, 2", "drop case 1: string", "drop guard 1: a", "drop guard 2: a",
	}
	if !slices.Equal(got, want) {
		t.Errorf("found\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if len(keys) != len(found) {
		t.Errorf("%d names for %d mutants", len(keys), len(found))
	}
}

// TestEdits: what is dropped is still evaluated, and decides nothing.
func TestEdits(t *testing.T) {
	text := "package p\n\nfunc f(a, b bool) bool {\n\tif a {\n\t\treturn a || b\n\t}\n\tif b {\n\t\tg(a || b || a)\n\t}\n\treturn a && b\n}\n"
	found, err := mutate("p.go", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range found {
		for line := range strings.Lines(string(m.edit.apply([]byte(text)))) {
			if !strings.Contains(text, line) {
				got = append(got, strings.TrimSpace(line))
			}
		}
	}
	want := []string{"if (a) && false {", "return (a && false) || b", "return a || (b && false)",
		"g(((a || b) && false) || a)", "g((a && false) || b || a)", "g(a || (b && false) || a)", "g(a || b || (a && false))", "return (a || true) && b", "return a && (b || true)"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestParseDiff(t *testing.T) {
	diff := "diff --git a/a.go b/a.go\n--- a/a.go\n+++ b/a.go\n@@ -1 +1,2 @@ func f() {\n-x\n+y\n+z\n@@ -9,2 +11,0 @@\n-x\n-x\n@@ -20,0 +20 @@\n+x\n"
	got := slices.Sorted(maps.Keys(parseDiff(diff)["a.go"]))
	if !slices.Equal(got, []int{1, 2, 20}) {
		t.Errorf("lines %v", got)
	}
}

// TestListMutants: mutants are those of the files that are named, never those of tests.
func TestListMutants(t *testing.T) {
	root := t.TempDir()
	const text = "package p\n\nfunc f(a, b bool) bool { return a && b }\n"
	for _, name := range []string{"a.go", "b.go", "a_test.go"} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for files, want := range map[string]string{"": "a.go a.go b.go b.go", "b.go": "b.go b.go", "b.go,a.go": "a.go a.go b.go b.go", "c.go": "", "a_test.go": ""} {
		found, err := options{root: root}.listMutants(".", splitList(files))
		var got []string
		for _, m := range found {
			got = append(got, m.file)
		}
		if strings.Join(got, " ") != want || (err != nil) != (want == "") {
			t.Errorf("%q: %q, want %q: %v", files, got, want, err)
		}
	}
}

// TestSwitchAll: with one mutant chosen of all that are in a file, it does what that mutant
// does by itself.
func TestSwitchAll(t *testing.T) {
	text := []byte("package p\n\nfunc f(a, b, c bool) int {\n\tif a && (b || c) {\n\t\treturn 1\n\t}\n\tswitch {\n\tcase a, b:\n\t\treturn 2\n\t}\n\treturn 3\n}\n")
	found, err := mutate("p.go", text)
	if err != nil {
		t.Fatal(err)
	}
	for i := range found {
		found[i].number = i + 1
	}
	all := string(switchAll(text, found))
	for _, m := range found {
		one := all
		for _, other := range found {
			yes, no := "true", "false"
			if other.number != m.number {
				yes, no = no, yes
			}
			one = strings.ReplaceAll(one, fmt.Sprintf("!mutantIs(%d)", other.number), no)
			one = strings.ReplaceAll(one, fmt.Sprintf("mutantIs(%d)", other.number), yes)
		}
		// What is not chosen changes nothing.
		for changed := true; changed; {
			before := one
			for _, idle := range [][2]string{{" || false)", ")"}, {" && true)", ")"}, {") && true", ")"}} {
				one = strings.Replace(one, idle[0], idle[1], 1)
			}
			changed = one != before
		}
		strip := strings.NewReplacer("(", "", ")", "").Replace
		if want := string(m.edit.apply(text)); strip(one) != strip(want) {
			t.Errorf("%s:\n%s\nwant\n%s", m.key(), one, want)
		}
		if _, err := parser.ParseFile(token.NewFileSet(), "", one, 0); err != nil {
			t.Errorf("%s: %v", m.key(), err)
		}
	}
}

// TestMemory: what came of mutants is remembered for the same program over the same files, and
// for nothing else.
func TestMemory(t *testing.T) {
	dir, memory := t.TempDir(), t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("a.txt", "1")
	binary := filepath.Join(t.TempDir(), "suite")
	if err := os.WriteFile(binary, []byte("tests"), 0o600); err != nil {
		t.Fatal(err)
	}
	o, suites, mutants := options{memory: memory}, []suite{{dir: dir, binary: binary}}, []mutant{{file: "a.go", line: 1}}
	named := func() string {
		t.Helper()
		at, err := o.memoryOf("p", mutants, suites)
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	first := named()
	if recall(first, 1) != nil {
		t.Error("something is remembered before anything was tried")
	}
	if err := remember(first, []outcome{survived}); err != nil {
		t.Fatal(err)
	}
	if got := recall(named(), 1); !slices.Equal(got, []outcome{survived}) {
		t.Errorf("remembered %v", got)
	}
	if err := remember(first+"x", []outcome{killed, stuck}); err != nil || recall(first+"x", 2) != nil {
		t.Errorf("what may have been a busy machine is remembered: %v", err)
	}
	if recall(first, 2) != nil {
		t.Error("what came of one is taken for what came of two")
	}
	for what, change := range map[string]func(){
		"a file":     func() { write("a.txt", "2") },
		"its name":   func() { _ = os.Rename(filepath.Join(dir, "a.txt"), filepath.Join(dir, "b.txt")) },
		"the tests":  func() { _ = os.WriteFile(binary, []byte("other tests"), 0o600) },
		"the mutant": func() { mutants[0].line = 2 },
	} {
		before := named()
		change()
		if named() == before {
			t.Errorf("%s changes, and what came of the mutants holds", what)
		}
	}
	if o.memory = ""; named() != "" {
		t.Error("it remembers, and has nowhere to")
	}
}
