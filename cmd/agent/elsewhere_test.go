package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestLinuxCommands: the page about other systems names every command once, those that
// are Linux only among these; and what they show elsewhere is what they show here.
func TestLinuxCommands(t *testing.T) {
	page, err := os.ReadFile("../../docs/how-to/use-the-command-on-a-laptop.md")
	if err != nil {
		t.Fatal(err)
	}
	command := regexp.MustCompile("`([a-z -]+)`")
	works, linux := map[string]bool{}, map[string]bool{}
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, "|")
		if len(cells) != 4 {
			continue
		}
		for _, found := range command.FindAllStringSubmatch(cells[1], -1) {
			if strings.HasPrefix(strings.TrimSpace(cells[2]), "Linux only") {
				linux[found[1]] = true
			} else {
				works[found[1]] = true
			}
		}
	}
	root := newRoot(osEnvironment())
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		only, is := linuxCommands[c.Name()]
		if is && only.short != c.Short {
			t.Errorf("%s: elsewhere it is described as %q, and here as %q", c.Name(), only.short, c.Short)
		}
		named := works[c.Name()] || slices.ContainsFunc(c.Commands(), func(below *cobra.Command) bool { return works[c.Name()+" "+below.Name()] })
		if linux[c.Name()] != is || !is && !named {
			t.Errorf("%s: Linux only: %v, and the page has it so: %v, and otherwise: %v", c.Name(), is, linux[c.Name()], named)
		}
		delete(linux, c.Name())
	}
	if len(linux) > 0 {
		t.Errorf("the page has commands that are not there: %v", linux)
	}
	for name, c := range linuxCommands {
		if found, _, err := root.Find([]string{name}); err != nil || found == root || c.hint == "" {
			t.Errorf("%s: there is no such command, or no hint: %v", name, err)
		}
	}
}
