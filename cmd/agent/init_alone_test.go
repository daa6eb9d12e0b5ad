package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/host/setup"
)

// TestInitOnlyOnce: while one init is at work, even one that waits for its
// person, another touches nothing and says which it is. Whoever only looks may.
func TestInitOnlyOnce(t *testing.T) {
	h := newFresh(t, "9.2")
	before := h.state()
	lock := h.dir + setup.LockFile
	must(os.MkdirAll(filepath.Dir(lock), 0o755))
	f, err := os.OpenFile(lock, os.O_RDWR|os.O_CREATE, 0o600)
	must(err)
	must(unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB))
	_, err = fmt.Fprintf(f, "%d\n", os.Getpid())
	must(err)
	for _, args := range [][]string{{"--yes"}, {"--yes", "--undo"}} {
		a := h.init(t.Context(), args...)
		if a.err == nil || a.err.Error() != fmt.Sprintf("another init (process %d) is at work on this host", os.Getpid()) || fault.HintOf(a.err) == "" {
			t.Errorf("%v: %v", args, a)
		}
	}
	if a := h.init(t.Context(), "--dry-run"); a.err != nil {
		t.Errorf("a look: %v", a)
	}
	if h.state() != before || len(h.pveshs) > 0 {
		t.Errorf("something was changed: %v", h.pveshs)
	}
	must(f.Close())
	h.done()
	h.done()
}

// TestInitLeavesRolesAlone: a role of our name that is somebody's is not changed;
// init's own is.
func TestInitLeavesRolesAlone(t *testing.T) {
	h := newFresh(t, "9.2")
	h.PVE.Role(setup.RoleHost, "Sys.Audit", "Sys.Modify")
	if a := h.init(t.Context(), "--yes"); a.err == nil || !strings.Contains(a.err.Error(), "there is a role TalosAgentHost with Sys.Modify, which the agent never asks for") || len(h.pveshs) > 0 {
		t.Errorf("%v; %v", a, h.pveshs)
	}
	h.PVE.Role(setup.RoleHost, "Sys.Audit")
	h.done()
	h.PVE.Role(setup.RoleVM, "VM.Audit", "VM.Backup")
	if a := h.done(); !strings.Contains(a.out, "give the role TalosAgentVM the privileges") {
		t.Errorf("its own role: %v", a)
	}
}

// TestInitBelievesRootOnly: a record that others could have written, or that is
// none, changes nothing.
func TestInitBelievesRootOnly(t *testing.T) {
	h := newFresh(t, "9.2")
	h.done()
	record := h.dir + setup.RecordFile
	good, err := os.ReadFile(record)
	must(err)
	h.pveshs = nil
	for want, spoil := range map[string]func(){
		"is not a regular file":                   func() { must(os.Rename(record, record+".mine")); must(os.Symlink(record+".mine", record)) },
		"is larger than":                          func() { must(os.WriteFile(record, bytes.Repeat([]byte(" "), config.MaxFile+1), 0o600)) },
		"can be changed by others than its owner": func() { must(os.WriteFile(record, good, 0o600)); must(os.Chmod(record, 0o666)) },
		"max depth":                               func() { must(os.WriteFile(record, bytes.Repeat([]byte("["), config.MaxFile), 0o600)) },
		"belongs to user 65534": func() {
			must(os.WriteFile(record, good, 0o600))
			if os.Getuid() == 0 {
				must(os.Chown(record, 65534, 65534))
			}
		},
	} {
		if os.Getuid() != 0 && strings.HasPrefix(want, "belongs") {
			continue
		}
		if err := os.Remove(record); err != nil {
			t.Fatal(err)
		}
		must(os.WriteFile(record, good, 0o600))
		spoil()
		for _, args := range [][]string{{"--yes"}, {"--yes", "--undo"}} {
			a := h.init(t.Context(), args...)
			if a.err == nil || !strings.Contains(a.err.Error(), setup.RecordFile) || !strings.Contains(a.err.Error(), want) || !strings.Contains(fault.HintOf(a.err), "move it away") {
				t.Errorf("%v: %v\nwant %s", args, a, want)
			}
		}
	}
	if len(h.pveshs) > 0 {
		t.Errorf("something was changed: %v", h.pveshs)
	}
}

// TestInitRemembersAgain: a record that was lost is written again, though nothing
// else is to do, so that the next run knows what is wanted.
func TestInitRemembersAgain(t *testing.T) {
	h := newFresh(t, "9.2")
	h.done()
	must(os.Remove(h.dir + setup.RecordFile))
	if a := h.done(); !strings.Contains(a.out, "nothing to do") {
		t.Errorf("without a record: %v", a)
	}
	if a := h.bare(t.Context(), "--yes"); a.err != nil || !strings.Contains(a.out, "nothing to do") {
		t.Errorf("with nothing said: %v", a)
	}
}
