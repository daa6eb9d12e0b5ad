package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/talos-agent/talos-agent/internal/api"
	"github.com/talos-agent/talos-agent/internal/daemon/support"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/hosttest"
)

// TestWhyADaemonIsAway: where no daemon listens, what keeps one from starting is
// told, as far as whoever asks may read it.
func TestWhyADaemonIsAway(t *testing.T) {
	files := hosttest.Files(t)
	const config = "repository: {url: \"https://example.org/infra.git\", token_file: git.token}\nage_key_file: age.key\nproxmox: {token_file: proxmox.token}\n"
	dir := hosttest.New(t, files, map[string]string{"config.yaml": config})
	path := filepath.Join(dir, "config.yaml")
	_, away := api.NewClient(filepath.Join(dir, "none.sock")).About(t.Context())
	put := func(name, text string, mode os.FileMode) {
		hosttest.Write(t, filepath.Join(dir, name), text, mode)
		must(os.Chmod(filepath.Join(dir, name), mode))
	}
	put("policy.yaml", files["policy.yaml"], 0o644)
	if got := support.ExplainAbsence(away, path); got != away {
		t.Errorf("nothing is wrong: %v", got)
	}
	put("policy.yaml", "pool: talos\nvmids: []\n", 0o644)
	got := support.ExplainAbsence(away, path)
	if !errors.Is(got, api.ErrNoDaemon) || exitCode(got) != exitNoDaemon || !strings.Contains(got.Error(), "there is no socket; as far as can be seen from here, it does not start with these files:\n"+dir+"/policy.yaml:2:") ||
		!strings.Contains(fault.HintOf(got), "`systemctl status talos-agent` and `journalctl -u talos-agent`") {
		t.Errorf("a policy that is no use: %v\n%s", got, fault.HintOf(got))
	}
	for _, other := range []error{nil, errors.New("other"), fmt.Errorf("status: %w", &api.Error{Message: "no"})} {
		if got := support.ExplainAbsence(other, path); got != other {
			t.Errorf("%v became %v", other, got)
		}
	}
	// Who may read less is told less, and nothing that is not so.
	letIn(dir)
	put("config.yaml", config, 0o644)
	for name, mode := range map[string]os.FileMode{"age.key": 0o600, "proxmox.token": 0o600, "git.token": 0o600} {
		put(name, files[name], mode)
	}
	asNobody(t, dir, func() {
		if got := support.ExplainAbsence(away, path).Error(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "policy.yaml:2:") {
			t.Errorf("to whom the keys are closed: %v", got)
		}
	})
	put("policy.yaml", "pool: talos\nvmids: []\n", 0o600)
	asNobody(t, dir, func() {
		if got := support.ExplainAbsence(away, path); got != away {
			t.Errorf("to whom the policy is closed: %v", got)
		}
	})
	put("config.yaml", "owner: 7\n", 0o600)
	asNobody(t, dir, func() {
		if got := support.ExplainAbsence(away, path); got != away {
			t.Errorf("to whom the config is closed: %v", got)
		}
	})
	if got := support.ExplainAbsence(away, path); got == away {
		t.Error("a config that is no use is told to nobody")
	}
}

// letIn lets everybody into a folder that the testing package made: that is two
// deep in the folder for temporary files, which is not ours and stays as it is.
func letIn(dir string) {
	for _, at := range []string{dir, filepath.Dir(dir)} {
		must(os.Chmod(at, 0o755))
	}
}

// TestLetIn: whatever the folder for temporary files is called, its mode is not the
// tests' to change.
func TestLetIn(t *testing.T) {
	temp := t.TempDir()
	own := filepath.Join(temp, "TestSomething1", "001")
	must(errors.Join(os.MkdirAll(own, 0o700), os.Chmod(temp, 0o700)))
	t.Setenv("TMPDIR", temp+"/")
	letIn(own)
	for at, want := range map[string]os.FileMode{temp: 0o700, filepath.Dir(own): 0o755, own: 0o755} {
		if info, err := os.Stat(at); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v, want %04o", at, info.Mode(), err, want)
		}
	}
}

// asNobody does something as somebody who owns nothing here, if we are root and
// such a one comes as far as the path, and reports whether that is so.
func asNobody(t testing.TB, path string, do func()) (done bool) {
	t.Helper()
	if os.Geteuid() != 0 {
		return false
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		// The thread is somebody else's from now on, and ends with this goroutine.
		runtime.LockOSThread()
		const nobody = 65534
		if _, err := unix.SetfsuidRetUid(nobody); err != nil {
			t.Error(err)
			return
		}
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETFSGID, nobody, 0, 0); errno != 0 {
			t.Error(errno)
			return
		}
		f, err := os.Open(path)
		if err != nil {
			t.Logf("not tried as somebody else, to whom the folder for temporary files is closed: %v", err)
			return
		}
		_ = f.Close()
		do()
		done = true
	}()
	<-ended
	return done
}
