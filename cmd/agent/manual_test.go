package main

import (
	"bytes"
	"compress/gzip"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cpuguy83/go-md2man/v2/md2man"
	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/talos-agent/talos-agent/internal/host/hosttest"
)

// manualDir is where `make deb` wants the manual pages and completions.
var manualDir = flag.String("manual", "", "write the manual pages and the shells' completions into this folder")

// TestManual makes the manual pages and completions of the package: a page of
// section 1 for each command, one of section 5 for each of the host's files, and
// a completion for each shell. They are made here, by a test, because what makes
// them would else be part of the program.
func TestManual(t *testing.T) {
	dir := *manualDir
	if dir == "" {
		dir = t.TempDir()
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	date := dateOfManual(t)
	root := commandTree()
	pages := map[string][]byte{}
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		pages[strings.ReplaceAll(c.CommandPath(), " ", "-")+".1"] = manualPage(t, c, date)
		if c.Name() == "completion" {
			return // its shells are told on its own page
		}
		for _, sub := range c.Commands() {
			if sub.IsAvailableCommand() && !sub.IsAdditionalHelpTopicCommand() {
				visit(sub)
			}
		}
	}
	visit(root)
	for _, file := range []string{"config", "policy"} {
		pages["talos-agent-"+file+".5"] = referencePage(t, file, date)
	}
	for name, page := range pages {
		checkPage(t, name, page)
		hosttest.Write(t, filepath.Join(dir, name+".gz"), packed(t, page), 0o644)
	}
	for _, file := range []string{"talos-agent.1", "talos-agent-status.1", "talos-agent-secrets-new.1", "talos-agent-config.5"} {
		if pages[file] == nil {
			t.Errorf("there is no page %s", file)
		}
	}
	for shell, generate := range map[string]func(*bytes.Buffer) error{
		"bash": func(b *bytes.Buffer) error { return root.GenBashCompletionV2(b, true) },
		"zsh":  func(b *bytes.Buffer) error { return root.GenZshCompletion(b) },
		"fish": func(b *bytes.Buffer) error { return root.GenFishCompletion(b, true) },
		"ps1":  func(b *bytes.Buffer) error { return root.GenPowerShellCompletionWithDesc(b) },
	} {
		var b bytes.Buffer
		if err := generate(&b); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(b.String(), "talos-agent") {
			t.Errorf("the completion for %s does not know the program", shell)
		}
		hosttest.Write(t, filepath.Join(dir, "talos-agent."+shell), b.String(), 0o644)
	}
}

// dateOfManual is the date that pages bear: the commit's, which whoever builds
// says.
func dateOfManual(t *testing.T) time.Time {
	t.Helper()
	epoch := os.Getenv("SOURCE_DATE_EPOCH")
	if epoch == "" {
		if *manualDir != "" {
			t.Fatal("say SOURCE_DATE_EPOCH: pages that are kept bear the commit's date")
		}
		return time.Unix(0, 0).UTC()
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		t.Fatalf("SOURCE_DATE_EPOCH: %v", err)
	}
	return time.Unix(seconds, 0).UTC()
}

func manualPage(t *testing.T, c *cobra.Command, date time.Time) []byte {
	t.Helper()
	c.DisableAutoGenTag = true
	header := &doc.GenManHeader{Section: "1", Date: &date, Source: "talos-agent", Manual: "talos-agent"}
	var b bytes.Buffer
	if err := doc.GenMan(c, header, &b); err != nil {
		t.Fatalf("%s: %v", c.CommandPath(), err)
	}
	return b.Bytes()
}

var (
	comment  = regexp.MustCompile(`(?s)<!--.*?-->\n*`)
	title    = regexp.MustCompile(`(?m)\A# .*\n+`)
	pageLink = regexp.MustCompile(`\[([^\]]*)\]\([^)\s]*\)`)
	heading  = regexp.MustCompile(`(?m)^##+ (.*)$`)
	table    = regexp.MustCompile(`(?m)(?:^\|.*\n)+`)
)

// listedTable makes a list of a table, whose columns would not fit on a terminal: the
// first column of each row, and below it the last one and what the others say.
func listedTable(table string) string {
	var heads []string
	var b strings.Builder
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch {
		case heads == nil:
			heads = cells
			continue
		case strings.HasPrefix(cells[0], "---"):
			continue
		}
		last := len(cells) - 1
		fmt.Fprintf(&b, "%s\n: %s", cells[0], cells[last])
		for i := 1; i < last; i++ {
			if cells[i] != "" {
				fmt.Fprintf(&b, " %s: %s.", heads[i], cells[i])
			}
		}
		b.WriteString("\n\n")
	}
	return b.String()
}

// referencePage makes a page of one of the reference.
func referencePage(t *testing.T, file string, date time.Time) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(reference, file+".md"))
	if err != nil {
		t.Fatal(err)
	}
	name := "talos-agent-" + file
	text := title.ReplaceAllString(comment.ReplaceAllString(string(b), ""), "")
	text = pageLink.ReplaceAllString(text, "$1")
	text = heading.ReplaceAllString(text, "# $1")
	text = table.ReplaceAllStringFunc(text, listedTable)
	head := fmt.Sprintf("%% %q \"5\" %q \"talos-agent\" \"talos-agent\"\n# NAME\n%s - /etc/talos-agent/%s.yaml\n\n# DESCRIPTION\n", strings.ToUpper(name), date.Format("Jan 2006"), name, file)
	return md2man.Render([]byte(head + text))
}

// checkPage holds a page to what man(1) and its index want.
func checkPage(t *testing.T, name string, page []byte) {
	t.Helper()
	base, section, _ := strings.Cut(name, ".")
	for _, want := range []string{
		fmt.Sprintf(".TH %q %q", strings.ToUpper(base), section),
		".SH NAME\n",
		".SH DESCRIPTION\n",
	} {
		if !bytes.Contains(page, []byte(want)) {
			t.Errorf("%s lacks %q:\n%s", name, want, page[:min(len(page), 400)])
		}
	}
	// What the index of all pages is made of: "name - what it is".
	if plain := strings.ReplaceAll(string(page), `\-`, "-"); !strings.Contains(plain, ".SH NAME\n"+base+" - ") {
		t.Errorf("%s does not begin with its name and what it is", name)
	}
	if bytes.Contains(page, []byte("\n.TS\n")) {
		t.Errorf("%s has a table, which terminals are too narrow for", name)
	}
}

// packed is a page as small as it gets, without a time.
func packed(t *testing.T, page []byte) string {
	t.Helper()
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(page); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}
