package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/talos-agent/talos-agent/internal/host/hosttest"
	"github.com/talos-agent/talos-agent/internal/host/setup"
	"github.com/talos-agent/talos-agent/internal/lab"
)

// TestDocsInit: the commands of init that pages show do what they say, one after
// the other on one host for each page. A block of language console is held at a
// terminal, where the answers it shows are typed.
func TestDocsInit(t *testing.T) {
	ran, talked := 0, 0
	for _, p := range readPages(t) {
		var h *fresh
		for _, b := range p.blocks {
			if b.checked != "by TestDocsInit" {
				continue
			}
			if h == nil {
				h = newFresh(t, "9.2")
				h.isThePages()
			}
			for _, x := range b.exchanges() {
				for line := range strings.Lines(strings.ReplaceAll(x.command, "\\\n", " ")) {
					words, err := shellWords(line)
					if len(words) == 0 {
						continue
					}
					if ran++; err != nil || len(words) < 2 || words[1] != "init" {
						t.Fatalf("%s: %s: %v", b.at(), line, err)
					}
					if x.prints != nil {
						talked++
						h.talk(b, words[2:], x.prints)
						continue
					}
					for i, w := range words {
						if w == "known_hosts" {
							words[i] = filepath.Join(h.dir, "known")
						}
					}
					if a := h.bare(t.Context(), words[2:]...); a.err != nil || strings.Contains(a.out, "nothing to do") {
						t.Errorf("%s: %s: %v", b.at(), line, a)
					}
				}
			}
		}
	}
	if ran < 6 || talked < 1 {
		t.Errorf("only %d commands and %d conversations were found", ran, talked)
	}
}

// isThePages gives the host what pages take for granted: the unit, and a file
// with the host keys of their Git server.
func (h *fresh) isThePages() {
	h.t.Helper()
	units := filepath.Join(h.dir, "etc/systemd/system")
	must(os.MkdirAll(units, 0o755))
	hosttest.Write(h.t, filepath.Join(units, setup.UnitName), "", 0o644)
	addr, key, _ := strings.Cut(string(h.SSH.KnownHosts()), " ")
	hosttest.Write(h.t, filepath.Join(h.dir, "known"), strings.Replace(addr, addr, "git.example.org", 1)+" "+key, 0o600)
}

// prompt matches a line of a conversation with what was typed.
var prompt = regexp.MustCompile(`^(.*(?:\]|infra\.git)): ?(\S*)$`)

// talk holds a conversation with init that a page shows.
func (h *fresh) talk(b block, args, page []string) {
	h.t.Helper()
	var typed string
	var want []string
	for _, line := range page {
		if m := prompt.FindStringSubmatch(line); m != nil {
			line, typed = m[1]+":", typed+m[2]+"\n"
		}
		want = append(want, line)
	}
	// The page's Git server is the lab's.
	ours := h.SSH.URL(lab.Repository)
	server, _, _ := strings.Cut(strings.TrimPrefix(ours, "ssh://git@"), "/")
	in, terminal := newTerminal(h.t)
	_, err := io.WriteString(in, strings.ReplaceAll(typed, pageRemote, ours))
	must(err)
	var out bytes.Buffer
	cmd := newInitWith(&environment{stdin: terminal, stdout: &out, stderr: &out}, h.run)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(append([]string{"--root", h.dir}, args...))
	if err := cmd.ExecuteContext(h.t.Context()); err != nil {
		h.t.Fatalf("%s: %v\n%s", b.at(), err, out.String())
	}
	// Enter, which is not among what is printed, ends the line of a question.
	got := regexp.MustCompile(`(\]|infra\.git): `).ReplaceAllString(out.String(), "$1:\n")
	got = strings.NewReplacer(ours, pageRemote, server, "git.example.org:22").Replace(got)
	if missing := printed(got, want); missing != "" {
		h.t.Errorf("%s: the page shows a line that is not printed: %s\nprinted:\n%s", b.at(), missing, got)
	}
}

// newTerminal opens a terminal: what is written to keyboard is typed at it.
func newTerminal(t *testing.T) (keyboard, terminal *os.File) {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("there are no terminals here: %v", err)
	}
	t.Cleanup(func() { _ = keyboard.Close() })
	must(unix.IoctlSetPointerInt(int(keyboard.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(keyboard.Fd()), unix.TIOCGPTN)
	must(err)
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	must(err)
	t.Cleanup(func() { _ = terminal.Close() })
	return keyboard, terminal
}
