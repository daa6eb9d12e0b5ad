package main

import (
	"bytes"
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/talos-agent/talos-agent/internal/setup"
)

// atTerminal runs init with somebody at a terminal who types these lines.
func (h *fresh) atTerminal(typed string, args ...string) initAnswer {
	h.t.Helper()
	keyboard, terminal := newTerminal(h.t)
	_, err := io.WriteString(keyboard, typed)
	must(err)
	var out, errOut bytes.Buffer
	cmd := newInitWith(&environment{stdin: terminal, stdout: &out, stderr: &errOut}, h.run)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(append([]string{"--root", h.dir}, args...))
	err = cmd.ExecuteContext(h.t.Context())
	return initAnswer{out.String(), errOut.String(), err}
}

// TestInitAsksNobodyForAProgram: what a program reads holds no questions, whoever
// sits at the terminal.
func TestInitAsksNobodyForAProgram(t *testing.T) {
	h := newFresh(t, "9.2")
	a := h.atTerminal(strings.Repeat("\n", 20), append(h.initFlags(), "--dry-run", "-o", "json")...)
	if a.err != nil || !json.Valid([]byte(a.out)) {
		t.Errorf("no JSON: %v", a)
	}
}

// TestInitNotesOnce: what is left as it is, is told once before it is agreed to.
func TestInitNotesOnce(t *testing.T) {
	h := newFresh(t, "9.2")
	a := h.atTerminal(strings.Repeat("\n", 20), append(h.initFlags(), "--no-import")...)
	before, _, asked := strings.Cut(a.out, "Do this?")
	if a.err != nil || !asked || strings.Count(a.out, "note: storage local does not take") != 1 || !strings.Contains(before, "note: ") {
		t.Errorf("%v", a)
	}
}

// TestInitUmask: the daemon, which is not root, reads the folder of its config
// whatever umask root has.
func TestInitUmask(t *testing.T) {
	for _, umask := range []int{0, 0o077} {
		h := newFresh(t, "9.2")
		before := unix.Umask(umask)
		a := h.init(t.Context(), "--yes")
		unix.Umask(before)
		for path, want := range map[string]fs.FileMode{setup.ConfigDir: 0o755, setup.CredentialDir: 0o700} {
			if info, err := os.Stat(h.dir + path); a.err != nil || err != nil || info.Mode().Perm() != want {
				t.Errorf("umask %04o: %s: %v, %v, want %04o; %v", umask, path, info.Mode(), err, want, a.err)
			}
		}
	}
}

// TestInitKnownHostsOfBoth: a line that is given beside a file is a line of its
// own, even if the file's last has no end.
func TestInitKnownHostsOfBoth(t *testing.T) {
	h := newFresh(t, "9.2")
	line := strings.TrimSpace(string(h.SSH.KnownHosts()))
	_, key, _ := strings.Cut(line, " ")
	file := filepath.Join(t.TempDir(), "known_hosts")
	write(t, file, "other.example.org "+key, 0o644)
	a := h.done("--known-hosts-file", file, "--known-host", line)
	if want := "other.example.org " + key + "\n" + line + "\n"; h.file(setup.KnownHostsFile) != want {
		t.Errorf("%q, want %q; %v", h.file(setup.KnownHostsFile), want, a)
	}
}

// TestInitDirectory: a directory that is not there is told before anything is
// changed.
func TestInitDirectory(t *testing.T) {
	h := newFresh(t, "9.2")
	dir := filepath.Join(t.TempDir(), "infra")
	args := []string{"--yes", "--directory", dir, "--proxmox-url", h.PVE.URL()}
	if a := h.bare(t.Context(), args...); a.err == nil || !strings.Contains(a.err.Error(), "--directory: there is no directory "+dir) || len(h.pveshs) > 0 {
		t.Errorf("%v; %v", a, h.pveshs)
	}
	must(os.Mkdir(dir, 0o755))
	if a := h.bare(t.Context(), args...); a.err != nil || !strings.Contains(h.file(setup.ConfigFile), "\n  directory: "+dir+"\n") {
		t.Errorf("%v", a)
	}
}
