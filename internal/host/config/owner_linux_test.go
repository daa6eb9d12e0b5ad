package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/hosttest"
)

const nobody = 65534

// asNobody does something as a user who owns nothing but what it was given. Whoever runs
// the tests without being root is one already.
func asNobody(t *testing.T, do func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		do()
		return
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		// Only this thread is another user's, and it ends with this goroutine.
		runtime.LockOSThread()
		keep := ^uintptr(0)
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, keep, nobody, keep); errno != 0 {
			t.Error(errno)
			return
		}
		do()
	}()
	<-ended
}

// TestFilesOfOthers: what this user may not read is reported as that, with who may.
func TestFilesOfOthers(t *testing.T) {
	dir := t.TempDir()
	closed := filepath.Join(dir, "closed")
	must(os.Mkdir(closed, 0o700))
	hosttest.Write(t, filepath.Join(closed, "token"), "x", 0o600)
	must(os.Chmod(closed, 0))
	defer func() { must(os.Chmod(closed, 0o700)) }()
	asNobody(t, func() {
		if _, _, err := ReadFile(filepath.Join(closed, "token"), 0); !errors.Is(err, errUnread) || fault.HintOf(err) != "run this as root; if it is the agent's own user, let it read the file: chown root:talos-agent, chmod 0640" {
			t.Errorf("a file: %v (%s)", err, fault.HintOf(err))
		}
		store := FromStore(closed)
		if err := store.explainHidden("age.key"); err == nil || err.Error() != "cannot be looked for: this user may not look into "+closed || fault.HintOf(err) != "run it with sudo" {
			t.Errorf("a credential: %v", err)
		}
		if store.has("age.key") || !store.mayHave("age.key") {
			t.Error("a credential that cannot be looked at is known to be there, or not to be")
		}
	})
}

// TestFilesThatBreak: what cannot be read to its end is not read.
func TestFilesThatBreak(t *testing.T) {
	// The memory at 0 is nobody's.
	if data, _, err := ReadFile("/proc/self/mem", 0); err == nil || err.Error() != "cannot be read: input/output error" {
		t.Errorf("%q, %v", data, err)
	}
}

// TestWhoOwnsAPolicy: root and the agent's own user do; whoever else could change it, and
// whoever is not known, do not.
func TestWhoOwnsAPolicy(t *testing.T) {
	dir := t.TempDir()
	own := filepath.Join(dir, "own")
	hosttest.Write(t, own, "x", 0o600)
	if os.Geteuid() == 0 {
		must(os.Chown(own, nobody, nobody))
	}
	stat := func(path string) fs.FileInfo {
		info, err := os.Stat(path)
		must(err)
		return info
	}
	ofNobody, ofRoot := stat(own), stat("/")
	asNobody(t, func() {
		if err := errors.Join(checkOwner("own", ofNobody), checkOwner("root's", ofRoot)); err != nil {
			t.Error(err)
		}
	})
	if os.Geteuid() == 0 {
		if err := checkOwner("p", ofNobody); err == nil || !strings.HasPrefix(err.Error(), "belongs to user 65534") {
			t.Errorf("another user's: %v", err)
		}
	}
	unknown, err := fstest.MapFS{"p": {}}.Stat("p")
	must(err)
	if err := checkOwner("p", unknown); err == nil || err.Error() != "its owner is unknown" {
		t.Errorf("of an unknown owner: %v", err)
	}
}

// TestStampsWithoutInodes: a file system without inodes shows a change by size and time.
func TestStampsWithoutInodes(t *testing.T) {
	of := func(f fstest.MapFile) stamp {
		info, err := fstest.MapFS{"p": &f}.Stat("p")
		must(err)
		return stampOf(info)
	}
	one, again, longer := of(fstest.MapFile{Data: []byte("a")}), of(fstest.MapFile{Data: []byte("a")}), of(fstest.MapFile{Data: []byte("ab")})
	if one != again || one == longer {
		t.Errorf("%v, %v, %v", one, again, longer)
	}
}
