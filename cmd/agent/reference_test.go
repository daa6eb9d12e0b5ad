package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/talos-agent/talos-agent/internal/golden"
	"github.com/talos-agent/talos-agent/internal/logging"
)

const reference = "../../docs/reference"

// commandTree is the program's commands, as users meet them.
func commandTree() *cobra.Command {
	root := newRoot(&environment{stdin: strings.NewReader(""), stdout: io.Discard, stderr: io.Discard})
	root.InitDefaultHelpFlag()
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	return root
}

// TestCLIReferenceIsCurrent writes docs/reference/cli.md from the commands.
func TestCLIReferenceIsCurrent(t *testing.T) {
	root := commandTree()
	var b bytes.Buffer
	b.WriteString("# Commands\n\n<!-- Written by `make docs` from the program's own commands: change those. -->\n\n" +
		"One program is both the daemon and what you talk to it with. Exit codes are listed in [exit-codes.md](exit-codes.md).\n" +
		"Every command has `--help`; commands that only read have `--output json`, in the envelope of [the socket](api.md).\n\n")
	b.WriteString("| command | what it does |\n| --- | --- |\n")
	var visit func(c *cobra.Command, do func(*cobra.Command))
	visit = func(c *cobra.Command, do func(*cobra.Command)) {
		do(c)
		// The shells of completion differ in nothing but their names.
		if c.Name() == "completion" {
			return
		}
		for _, sub := range c.Commands() {
			if !sub.Hidden && sub.Name() != "help" {
				visit(sub, do)
			}
		}
	}
	anchor := func(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }
	visit(root, func(c *cobra.Command) {
		if c != root {
			fmt.Fprintf(&b, "| [`%s`](#%s) | %s |\n", c.CommandPath(), anchor(c), c.Short)
		}
	})
	visit(root, func(c *cobra.Command) { describeCommand(&b, c) })
	golden.Check(t, filepath.Join(reference, "cli.md"), b.Bytes())
}

func describeCommand(b *bytes.Buffer, c *cobra.Command) {
	fmt.Fprintf(b, "\n## %s\n\n", c.CommandPath())
	use := c.UseLine()
	if c.HasAvailableSubCommands() {
		use = c.CommandPath() + " COMMAND"
		if c.Name() == "completion" {
			use = c.CommandPath() + " bash|zsh|fish|powershell"
		}
	}
	text := c.Long
	if text == "" {
		text = c.Short + "."
	}
	fmt.Fprintf(b, "```text\n%s\n```\n\n%s\n", use, fencePreformatted(strings.TrimSpace(text)))
	if c.Example != "" {
		fmt.Fprintf(b, "\n```text\n%s\n```\n", c.Example)
	}
	c.InitDefaultHelpFlag()
	if flags := c.LocalNonPersistentFlags().FlagUsages(); c.HasParent() && flags != "" {
		fmt.Fprintf(b, "\n```text\n%s\n```\n", strings.TrimRight(flags, "\n"))
	}
	if flags := c.PersistentFlags().FlagUsages(); flags != "" {
		fmt.Fprintf(b, "\nFlags of every command:\n\n```text\n%s\n```\n", strings.TrimRight(flags, "\n"))
	}
}

// fencePreformatted puts paragraphs that begin with spaces or tabs, which are meant
// to be shown as they are, into fences.
func fencePreformatted(text string) string {
	var out []string
	for _, p := range strings.Split(text, "\n\n") {
		if strings.HasPrefix(p, " ") || strings.HasPrefix(p, "\t") {
			p = "```text\n" + p + "\n```"
		}
		out = append(out, strings.TrimRight(p, "\n"))
	}
	return strings.Join(out, "\n\n")
}

// goFiles parses the program's own files below the given folders of the module.
func goFiles(t *testing.T, folders ...string) []*ast.File {
	t.Helper()
	var out []*ast.File
	for _, folder := range folders {
		err := filepath.WalkDir(filepath.Join("../..", folder), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			out = append(out, f)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// firstColumn collects what stands in backquotes in the first column of the
// tables of a page.
func firstColumn(t *testing.T, page string) map[string]bool {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../../docs", page))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	for line := range strings.Lines(string(b)) {
		cells := strings.Split(line, "|")
		if len(cells) < 3 {
			continue
		}
		for _, m := range backquoted.FindAllStringSubmatch(cells[1], -1) {
			out[m[1]] = true
		}
	}
	return out
}

var backquoted = regexp.MustCompile("`([^`]+)`")

// sameSet compares what a page lists with what the program has.
func sameSet(t *testing.T, page string, listed, has map[string]bool) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(has)) {
		if !listed[name] {
			t.Errorf("docs/%s does not list %q", page, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(listed)) {
		if !has[name] {
			t.Errorf("docs/%s lists %q, which the program does not have", page, name)
		}
	}
}

// TestExitCodesReference: the page lists the codes that the program has.
func TestExitCodesReference(t *testing.T) {
	has := map[string]bool{}
	for _, f := range goFiles(t, "cmd/agent/exit.go") {
		ast.Inspect(f, func(n ast.Node) bool {
			if v, ok := n.(*ast.ValueSpec); ok && len(v.Values) == 1 && strings.HasPrefix(v.Names[0].Name, "exit") {
				has[v.Values[0].(*ast.BasicLit).Value] = true
			}
			return true
		})
	}
	sameSet(t, "reference/exit-codes.md", firstColumn(t, "reference/exit-codes.md"), has)
}

// TestStatusReference: the page lists the phases and conditions there are.
func TestStatusReference(t *testing.T) {
	has := map[string]bool{}
	for _, f := range goFiles(t, "internal/cluster/steps.go", "internal/cluster/status.go") {
		ast.Inspect(f, func(n ast.Node) bool {
			v, ok := n.(*ast.ValueSpec)
			if !ok || len(v.Values) != 1 {
				return true
			}
			if typ, ok := v.Type.(*ast.Ident); ok && (typ.Name == "Phase" || typ.Name == "Condition") {
				word, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
				if err != nil {
					t.Fatal(err)
				}
				has[word] = true
			}
			return true
		})
	}
	if len(has) < 12 {
		t.Fatalf("found only %d phases and conditions", len(has))
	}
	// What an addon's state can be are words of Helm and ours in one column.
	for _, state := range []string{"unknown", "absent", "installing", "deployed", "ready", "failed", "uninstalling",
		"pending-install", "pending-upgrade", "pending-rollback"} {
		has[state] = true
	}
	sameSet(t, "reference/status.md", firstColumn(t, "reference/status.md"), has)
}

// TestJournalReference: the page lists the fields that log records carry: what
// every record has, and a field for each key that internal/logging declares. That
// records have no other key is checked at the root of the module.
func TestJournalReference(t *testing.T) {
	has := map[string]bool{"MESSAGE": true, "PRIORITY": true, "SYSLOG_IDENTIFIER": true}
	for _, f := range goFiles(t, "internal/logging/keys.go") {
		ast.Inspect(f, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				key, err := strconv.Unquote(lit.Value)
				if err != nil {
					t.Fatal(err)
				}
				if key == logging.Err {
					key = "error"
				}
				has[logging.FieldName(key)] = true
			}
			return true
		})
	}
	sameSet(t, "reference/journal.md", firstColumn(t, "reference/journal.md"), has)
}

// TestNamedCommands: a command that prose, or a hint in the program's own
// messages, tells people to run is one that the program takes.
func TestNamedCommands(t *testing.T) {
	checked := 0
	check := func(where, text string) {
		for _, m := range inlineCommand.FindAllStringSubmatch(text, -1) {
			checked++
			words, err := shellWords(placeholders.ReplaceAllString(strings.NewReplacer("%d", "411", "VMID", "411").Replace(m[1]), "dev"))
			// A command by its bare name is not a line to be typed.
			if cmd, rest, findErr := commandTree().Find(words); err == nil && (findErr != nil || len(rest) > 0 || cmd == cmd.Root()) {
				err = parses(words)
			}
			if err != nil {
				t.Errorf("%s: talos-agent %s: %v", where, m[1], err)
			}
		}
	}
	for _, p := range readPages(t) {
		check(p.name, strings.ReplaceAll(withoutFences(p.text), "\n", " "))
	}
	for _, f := range goFiles(t, "cmd/agent", "internal/api", "internal/cluster", "internal/yamlschema", "reconcile", "sources") {
		ast.Inspect(f, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				text, err := strconv.Unquote(lit.Value)
				if err != nil {
					t.Fatal(err)
				}
				check("package "+f.Name.Name, text)
			}
			return true
		})
	}
	if checked < 30 {
		t.Errorf("only %d commands found", checked)
	}
}

var (
	inlineCommand = regexp.MustCompile("`(?:sudo )?talos-agent ([a-z][^`]*)`")
	placeholders  = regexp.MustCompile(`%[sq]|\[[A-Z]+\]`)
)

// TestDocsConstants: the table of deadlines names constants that exist, in the
// files that have them, with the values they have.
func TestDocsConstants(t *testing.T) {
	const name = "../../docs/explanation/one-pass.md"
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(b), "## Deadlines and intervals")
	var file string
	found := 0
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 {
			continue
		}
		if m := goFile.FindString(cells[3]); m != "" {
			file = m
		}
		for _, m := range backquoted.FindAllStringSubmatch(cells[3], -1) {
			ident := m[1][strings.LastIndexByte(m[1], '.')+1:]
			src, err := os.ReadFile("../../" + file)
			if err != nil {
				t.Fatal(err)
			}
			declared := regexp.MustCompile(`\b` + ident + `\b.*?(?:= ?|, ?)(?:(\d+) ?\* ?)?((?:24 \* )?time\.(?:Millisecond|Second|Minute|Hour))\b`).FindSubmatch(src)
			switch {
			case !bytes.Contains(src, []byte(ident)):
				t.Errorf("%s: %s has no %s", name, file, ident)
			case declared != nil:
				found++
				if want := amountOf(string(declared[1]), string(declared[2])); !strings.Contains(cells[2], want) {
					t.Errorf("%s: %s of %s is %s, and the table says %s", name, ident, file, want, strings.TrimSpace(cells[2]))
				}
			}
		}
	}
	if found < 30 {
		t.Errorf("only %d values compared", found)
	}
}

var goFile = regexp.MustCompile(`[a-z/_]+\.go`)

func amountOf(n, unit string) string {
	if n == "" {
		n = "1"
	}
	return n + " " + map[string]string{"time.Millisecond": "ms", "time.Second": "s", "time.Minute": "min", "time.Hour": "h", "24 * time.Hour": "days"}[unit]
}
