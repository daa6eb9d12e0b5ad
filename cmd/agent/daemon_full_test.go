package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/daemontest"
	"github.com/talos-agent/talos-agent/internal/daemon/eventlog"
	"github.com/talos-agent/talos-agent/internal/history"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// confined lets the next daemon of a rig begin in a mount namespace of its own, in
// which each of the directories is a file system of 1 MiB.
func (r *rig) confined(dirs ...string) {
	r.t.Helper()
	if os.Getuid() != 0 {
		r.t.Skip("needs root, to make file systems that are full")
	}
	if out, err := exec.Command("unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", r.dir).CombinedOutput(); err != nil {
		r.t.Skipf("nothing can be mounted here: %v: %s", err, out)
	}
	for _, dir := range dirs {
		must(os.Mkdir(filepath.Join(r.dir, dir), 0o700))
		r.before += fmt.Sprintf("mount -t tmpfs -o size=1m,mode=0700 tmpfs '%s' && ", filepath.Join(r.dir, dir))
	}
}

// inside is a path as the daemon sees it.
func (r *rig) inside(path ...string) string {
	return filepath.Join(fmt.Sprintf("/proc/%d/root", r.proc.cmd.Process.Pid), r.dir, filepath.Join(path...))
}

// fill leaves no room in a directory of the daemon, and empty makes it again.
func (r *rig) fill(dir string) {
	r.t.Helper()
	f, err := os.OpenFile(r.inside(dir, "filler"), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	must(err)
	for block := make([]byte, 4096); err == nil; {
		_, err = f.Write(block)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		r.t.Fatal(err)
	}
	must(f.Close())
}

func (r *rig) empty(dir string) { must(os.Remove(r.inside(dir, "filler"))) }

// remount changes the options of a directory's file system.
func (r *rig) remount(options, dir string) {
	r.t.Helper()
	if err := r.tryRemount(options, dir); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) tryRemount(options, dir string) error {
	out, err := exec.Command("nsenter", "--mount", "--target", fmt.Sprint(r.proc.cmd.Process.Pid),
		"mount", "-o", "remount,"+options, filepath.Join(r.dir, dir)).CombinedOutput()
	if err != nil {
		return fmt.Errorf("remount %s: %w: %s", dir, err, out)
	}
	return nil
}

// crowd leaves no room for another file in a directory of the daemon, which may
// be making one, or replacing one, just now.
func (r *rig) crowd(dir string) {
	r.t.Helper()
	inodes := func() (used, free uint64) {
		var st unix.Statfs_t
		must(unix.Statfs(r.inside(dir), &st))
		return st.Files - st.Ffree, st.Ffree
	}
	r.until("there is no room for another file", func() bool {
		used, _ := inodes()
		if r.tryRemount(fmt.Sprint("nr_inodes=", used), dir) != nil {
			return false // one more was made meanwhile
		}
		_, free := inodes()
		return free == 0 && len(r.halves(dir)) == 0
	})
}

// halves are the files of a directory of the daemon that are to replace others.
func (r *rig) halves(dir string) []string {
	found, err := filepath.Glob(filepath.Join(r.inside(dir), "*.new"))
	must(err)
	return found
}

// changes are the calls that change something of the host or of a cluster.
func (r *rig) changes() map[string]int {
	return r.calls(func(c world.CallRecord) bool { return c.Mutating && c.System != "forge" && c.System != "git" })
}

// TestNoRoomForRecords: what cannot be written down is not done. It is told, with
// the cure, and goes on by itself.
func TestNoRoomForRecords(t *testing.T) {
	daemontest.LeaveToExhaust(t)
	r := newRig(t, lab.Config{})
	r.confined("state")
	r.repository(map[string]any{"interval": "5s"})
	r.push(map[string][]byte{"README.md": []byte("nothing yet\n")})
	r.start()
	cure := "-> make room on the file system of state_dir"

	r.fill("state")
	commit := r.push(r.inventory(0))
	r.run(exitOK, do("reconcile"))
	r.untilStalled("the agent cannot write its state")
	r.run(exitStalled, do("status"), "no space left on device", cure)
	r.run(exitFailed, do("suspend"), "no space left on device", cure)
	if r.status().Suspended {
		t.Error("suspended, and after a restart it would not be")
	}
	// What people are told goes on in memory, and leaves no half lines.
	for n := 0; !r.log.has("it is kept in memory file=" + eventlog.EventsFile); n++ {
		commit = r.push(map[string][]byte{"README.md": fmt.Appendf(nil, "change %d\n", n)})
		r.run(exitOK, do("reconcile"))
		r.until("it is seen", func() bool { return r.status().Revision.Commit() == commit })
	}
	if n := strings.Count(r.log.String(), "cannot write the journal"); n != 1 {
		t.Errorf("the log has it %d times", n)
	}
	if n := r.changes(); len(n) != 0 {
		t.Errorf("changed without a record: %v", n)
	}
	r.empty("state")
	r.untilReady(commit)

	// A cluster that is there. A file system has no room for files, either.
	for _, way := range []struct{ take, give func() }{
		{func() { r.crowd("state") }, func() { r.remount("nr_inodes=100", "state") }},
		{func() { r.fill("state") }, func() { r.empty("state") }},
	} {
		before := r.changes()
		way.take()
		commit = r.push(r.inventory(len(r.vms())))
		r.run(exitOK, do("reconcile"))
		s := r.untilStalled("the agent cannot write its state")
		r.run(exitFailed, do("destroy", "dev", "--confirm", "dev"), cure)
		if s.Nodes[0].Phase != cluster.PhaseReady {
			t.Errorf("the node is %s", s.Nodes[0].Phase)
		}
		if n := r.changes(); !maps.Equal(n, before) {
			t.Errorf("changed without a record: %v, and before %v", n, before)
		}
		way.give()
		r.untilReady(commit)
	}
	if n := len(r.vms()); n != 3 {
		t.Errorf("%d VMs", n)
	}
	for _, name := range []string{eventlog.EventsFile, "history-dev.jsonl"} {
		text, err := os.ReadFile(r.inside("state", name))
		must(err)
		if all, bad := history.Lines[map[string]any](text); bad != 0 || len(all) == 0 {
			t.Errorf("%s: %d lines, and %d that cannot be read:\n%s", name, len(all), bad, text)
		}
	}
}

// TestNoRoomInTheCache: the repository's copy, the image and the numbers for
// Prometheus each say what is full, and go on when there is room.
func TestNoRoomInTheCache(t *testing.T) {
	daemontest.LeaveToExhaust(t)
	r := newRig(t, lab.Config{})
	r.confined("cache", "numbers")
	r.config["metrics"] = map[string]any{"textfile": filepath.Join(r.dir, "numbers", "agent.prom")}
	r.repository(map[string]any{"interval": "5s"})
	r.push(map[string][]byte{"README.md": []byte("nothing yet\n")})
	r.start()
	r.untilStalled("there is no such folder")

	r.fill("cache")
	r.fill("numbers")
	commit := r.push(r.inventory(0))
	r.run(exitOK, do("reconcile"))
	r.until("the copy of the repository has no room", func() bool {
		a := r.try("status")
		return a.has("no space left on device") && a.has("(make room on the file system of "+filepath.Join(r.dir, "cache", "repository"))
	})
	r.until("the numbers have none", func() bool { return r.try("status").has("problem metrics.textfile: ") })
	r.empty("numbers")
	r.until("the numbers have some", func() bool { return !r.try("status").has("problem") })

	// Enough for the repository, and not for the image.
	r.empty("cache")
	r.until("the image has no room", func() bool {
		a := r.try("status")
		return a.has("should stay free") && a.has("-> make room on that disk, or set cache_dir")
	})
	r.remount("size=1g", "cache")
	r.untilReady(commit)

	r.remount("ro", "cache")
	commit = r.push(r.inventory(1))
	r.run(exitOK, do("reconcile"))
	r.until("it cannot be written", func() bool {
		a := r.try("status")
		return a.has("read-only file system") && a.has("-> make room on the file system of ")
	})
	r.remount("rw", "cache")
	r.untilReady(commit)
	if r.log.has("is re-created") {
		t.Error("a copy without room was thrown away")
	}
}

// TestNoRoomToBegin: a daemon that cannot have its directories says which, and
// what to do; systemd starts it again.
func TestNoRoomToBegin(t *testing.T) {
	for dir, cure := range map[string]string{
		"state": "-> make room on the file system of state_dir", "cache": "-> make room on the file system of ",
	} {
		t.Run(dir, func(t *testing.T) {
			r := newRig(t, lab.Config{})
			r.confined(dir)
			r.before += fmt.Sprintf("mount -o remount,ro '%s' && ", filepath.Join(r.dir, dir))
			r.launch()
			if code := r.proc.end(t); code != exitFailed || !r.log.has("read-only file system") || !r.log.has(filepath.Join(r.dir, dir)) || !r.log.has(cure) {
				t.Errorf("it ended with code %d", code)
			}
		})
	}
}
