package main

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/spf13/cobra"
)

// The documentation is held to the program here: every link resolves, and every
// block of commands says in a comment before it how it is checked.
//
//	<!-- checked: run -->                      run by TestDocsRun, must succeed
//	<!-- checked: run, exit 10 -->             the same, with this exit code
//	<!-- checked: run with a daemon -->        run beside an agent that works on a lab
//	<!-- checked: by TestX -->                 run by another test of this name
//	<!-- checked: by .ci/run -->               a line of this file
//	<!-- checked: parsed -->                   needs a real host: every command line of ours must parse
//
// Blocks of a page are run in their order, in one folder that begins as a clone
// of a repository with the cluster dev of the examples, or otherwise after
//
//	<!-- session: empty -->                    an empty folder
//	<!-- session: snapshot -->                 an etcd snapshot, and an age key
//	<!-- session: values NAME -->              the same repository, with a value of this name in its secrets
//
// and a block of any language after
//
//	<!-- file: inventory/dev/nodes.yaml -->    is written to that file first
//	<!-- append: inventory/dev/nodes.yaml -->  is added to that file first
//
// In a block of language console lines that begin
// with "$ " are commands, and the others are what they print: the words must be
// the same, where ages, hashes and columns' widths may differ, and a line "..."
// stands for any lines.

// block is one fenced block of a page.
type block struct {
	page     string // from the top of the module
	line     int
	language string
	text     string
	checked  string // what the comment before it says, "" without one
	file     string
	append   bool // to the file
}

func (b block) at() string { return fmt.Sprintf("%s:%d", b.page, b.line) }

// page is one page of the documentation.
type page struct {
	name   string
	text   string
	begins string // how the session does
	blocks []block
}

var directive = regexp.MustCompile(`^<!-- (checked|session|file|append): (.+) -->$`)

// readPages reads every page there is.
func readPages(t *testing.T) []page {
	t.Helper()
	root := "../.."
	var names []string
	for _, pattern := range []string{"*.md", "examples/*/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, found...)
	}
	err := filepath.WalkDir(filepath.Join(root, "docs"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".md") {
			names = append(names, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var pages []page
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, parsePage(t, rel, string(b)))
	}
	return pages
}

func parsePage(t *testing.T, name, text string) page {
	t.Helper()
	p := page{name: name, text: text}
	var open *block
	var next block
	var lines []string
	for i, line := range strings.Split(text, "\n") {
		fence, isFence := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case open != nil && isFence:
			open.text = strings.Join(lines, "\n") + "\n"
			p.blocks = append(p.blocks, *open)
			open, lines = nil, nil
		case open != nil:
			lines = append(lines, line)
		case isFence:
			next.page, next.line, next.language = name, i+1, fence
			open = &block{}
			*open, next = next, block{}
		case directive.MatchString(line):
			m := directive.FindStringSubmatch(line)
			switch m[1] {
			case "checked":
				next.checked = m[2]
			case "file", "append":
				next.file, next.append = m[2], m[1] == "append"
			case "session":
				p.begins = m[2]
			}
		case strings.TrimSpace(line) != "" && (next.checked != "" || next.file != ""):
			t.Errorf("%s:%d: a comment says how a block is checked, and no block follows it", name, i+1)
			next = block{}
		}
	}
	return p
}

func (b block) isCommands() bool { return b.language == "sh" || b.language == "console" }

// commands are the command lines of a block, with continued lines joined.
func (b block) commands() []string {
	var out []string
	for _, c := range b.exchanges() {
		joined := strings.ReplaceAll(c.command, "\\\n", " ")
		for line := range strings.Lines(joined) {
			out = append(out, strings.TrimSpace(line))
		}
	}
	return out
}

// exchange is a command, or a whole script, and what it must print; nil when
// that is not shown.
type exchange struct {
	command string
	prints  []string
}

func (b block) exchanges() []exchange {
	if b.language == "sh" {
		return []exchange{{command: b.text}}
	}
	var out []exchange
	for line := range strings.Lines(b.text) {
		line = strings.TrimRight(line, "\n")
		command, ok := strings.CutPrefix(line, "$ ")
		switch {
		case ok:
			out = append(out, exchange{command: command + "\n"})
		case len(out) > 0:
			out[len(out)-1].prints = append(out[len(out)-1].prints, line)
		}
	}
	return out
}

// TestDocsLinks: links between pages and to files of the repository resolve,
// anchors included.
func TestDocsLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	pages := readPages(t)
	anchors := map[string]map[string]bool{}
	for _, p := range pages {
		anchors[p.name] = anchorsOf(p)
	}
	linked := map[string]bool{}
	for _, p := range pages {
		for _, m := range link.FindAllStringSubmatch(withoutFences(p.text), -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			name := p.name
			if target != "" {
				name = filepath.Join(filepath.Dir(p.name), target)
			}
			linked[name] = true
			if _, err := os.Stat(filepath.Join("../..", name)); err != nil {
				t.Errorf("%s: link to %s: there is no such file", p.name, m[1])
			}
			if anchor != "" && !anchors[name][anchor] {
				t.Errorf("%s: link to %s: there is no such heading; there are %v", p.name, m[1], slices.Sorted(maps.Keys(anchors[name])))
			}
		}
	}
	for _, p := range pages {
		if strings.HasPrefix(p.name, "docs/") && p.name != "docs/README.md" && !linked[p.name] {
			t.Errorf("no page links to %s", p.name)
		}
	}
}

var fenced = regexp.MustCompile("(?ms)^```.*?^```")

func withoutFences(text string) string { return fenced.ReplaceAllString(text, "") }

// anchorsOf makes the anchors that forges make of headings.
func anchorsOf(p page) map[string]bool {
	out := map[string]bool{}
	for line := range strings.Lines(withoutFences(p.text)) {
		if !strings.HasPrefix(line, "#") {
			continue
		}
		heading := strings.ToLower(strings.TrimSpace(strings.TrimLeft(line, "#")))
		out[strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
				return r
			}
			return -1
		}, heading)] = true
	}
	return out
}

var exitWanted = regexp.MustCompile(`^run(?: with a daemon)?(?:, exit (\d+))?$`)

// TestDocsCommands: every block of commands says how it is checked, and every
// command line of this program, of make and of Proxmox VE's access control that
// is shown anywhere is one that they would take.
func TestDocsCommands(t *testing.T) {
	c := commandChecker{t: t, targets: makeTargets(t), tests: testNames(t)}
	blocks := 0
	for _, p := range readPages(t) {
		for _, b := range p.blocks {
			if b.language == "" {
				t.Errorf("%s: the block has no language; write text for what is none", b.at())
			}
			if !b.isCommands() {
				if b.checked != "" {
					t.Errorf("%s: only blocks of sh and console are checked", b.at())
				}
				continue
			}
			blocks++
			c.how(b)
			for _, line := range b.commands() {
				c.line(b, line)
			}
		}
	}
	if blocks < 10 {
		t.Errorf("only %d blocks of commands found", blocks)
	}
}

type commandChecker struct {
	t       *testing.T
	targets map[string]bool
	tests   map[string]bool
}

// how checks the comment before a block.
func (c commandChecker) how(b block) {
	by, other := strings.CutPrefix(b.checked, "by ")
	switch {
	case b.checked == "":
		c.t.Errorf("%s: no comment says how this block is checked", b.at())
	case b.checked == "parsed", exitWanted.MatchString(b.checked):
	case other && strings.HasPrefix(by, ".ci/"):
		script, err := os.ReadFile(filepath.Join("../..", by))
		if err != nil {
			c.t.Errorf("%s: %v", b.at(), err)
		}
		last := b.commands()[len(b.commands())-1]
		if !strings.Contains(string(script), last) {
			c.t.Errorf("%s: %s does not run %q", b.at(), by, last)
		}
	case other && c.tests[by]:
	default:
		c.t.Errorf("%s: %q says nothing this test knows", b.at(), b.checked)
	}
}

// line checks one line of a shell, as far as its programs are known here.
func (c commandChecker) line(b block, line string) {
	words, err := shellWords(line)
	if err != nil {
		c.t.Errorf("%s: %s: %v", b.at(), line, err)
		return
	}
	for len(words) > 0 {
		end := slices.IndexFunc(words, func(w string) bool { return slices.Contains([]string{"&&", "||", "|", ";", "do", "then"}, w) })
		command := words
		if words = nil; end >= 0 {
			command, words = command[:end], command[end+1:]
		}
		c.command(b, line, command)
	}
}

// command checks one command.
func (c commandChecker) command(b block, line string, words []string) {
	wrong := func(format string, args ...any) {
		c.t.Errorf("%s: %s: %s", b.at(), line, fmt.Sprintf(format, args...))
	}
	words = slices.DeleteFunc(slices.Clone(words), func(w string) bool { return w == "sudo" })
	if i := slices.IndexFunc(words, func(w string) bool { return strings.HasPrefix(w, ">") || strings.HasPrefix(w, "<") }); i >= 0 {
		words = words[:i]
	}
	if len(words) == 0 {
		return
	}
	switch filepath.Base(words[0]) {
	case "talos-agent":
		if err := parses(words[1:]); err != nil {
			wrong("%v", err)
		}
	case "make":
		for i, target := range words[1:] {
			if target == "-C" || words[i] == "-C" {
				continue
			}
			if !strings.Contains(target, "=") && !c.targets[target] {
				wrong("the Makefile has no target %s", target)
			}
		}
	}
}

// parses reports what is wrong with a command line of this program.
func parses(args []string) error {
	root := commandTree()
	cmd, rest, err := root.Find(args)
	if err != nil {
		return err
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	if cmd == root && len(rest) == 0 || !cmd.Runnable() {
		return fmt.Errorf("%s is no whole command", cmd.CommandPath())
	}
	if help, err := cmd.Flags().GetBool("help"); err == nil && help {
		return nil
	}
	// What stands for something of the user's is no argument yet.
	return validateArgs(cmd, cmd.Flags().Args())
}

func validateArgs(cmd *cobra.Command, args []string) error {
	if err := cmd.ValidateRequiredFlags(); err != nil {
		return err
	}
	return cmd.ValidateArgs(args)
}

// shellWords splits a line of a shell into words. It knows quotes, comments and
// operators, and nothing else.
func shellWords(line string) ([]string, error) {
	var words []string
	var word strings.Builder
	in, quote := false, rune(0)
	end := func() {
		if in {
			words = append(words, word.String())
		}
		word.Reset()
		in = false
	}
	for _, r := range line {
		switch {
		case quote != 0:
			if r == quote {
				quote = 0
			} else {
				word.WriteRune(r)
			}
		case r == '\'' || r == '"':
			quote, in = r, true
		case r == '#' && !in:
			end()
			return words, nil
		case r == ';':
			end()
			words = append(words, ";")
		case unicode.IsSpace(r):
			end()
		default:
			in = true
			word.WriteRune(r)
		}
	}
	if quote != 0 {
		return nil, fmt.Errorf("a quote is not closed")
	}
	end()
	return words, nil
}

// makeTargets are the targets of the Makefile.
func makeTargets(t *testing.T) map[string]bool {
	t.Helper()
	b, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^([a-z0-9-]+):`).FindAllStringSubmatch(string(b), -1) {
		out[m[1]] = true
	}
	return out
}

// testNames are the tests of the whole module.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	name := regexp.MustCompile(`(?m)^func (Test\w+|Fuzz\w+|Benchmark\w+)\(`)
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() == ".cache" {
			return fs.SkipDir // whole systems lie there
		}
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		b, err := os.ReadFile(path)
		for _, m := range name.FindAllSubmatch(b, -1) {
			out[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestDocsNameTests: where a page names a test as the proof of what it says,
// that test exists.
func TestDocsNameTests(t *testing.T) {
	tests := testNames(t)
	named := regexp.MustCompile("`((?:Test|Fuzz)[A-Z]\\w*)`")
	for _, p := range readPages(t) {
		for _, m := range named.FindAllStringSubmatch(p.text, -1) {
			if !tests[m[1]] {
				t.Errorf("%s names %s, which is no test", p.name, m[1])
			}
		}
	}
}

// exitOf is the exit code a block must end with.
func (b block) exitOf() int {
	m := exitWanted.FindStringSubmatch(b.checked)
	if m == nil || m[1] == "" {
		return 0
	}
	n, err := strconv.Atoi(m[1])
	must(err)
	return n
}
