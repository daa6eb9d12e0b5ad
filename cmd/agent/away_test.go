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
	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestWhyADaemonIsAway: where no daemon listens, what keeps one from starting is
// told, as far as whoever asks may read it.
func TestWhyADaemonIsAway(t *testing.T) {
	files := hostFiles(t)
	const config = "repository: {url: \"https://example.org/infra.git\", token_file: git.token}\nage_key_file: age.key\nproxmox: {token_file: proxmox.token}\n"
	dir := newHost(t, files, map[string]string{"config.yaml": config})
	path := filepath.Join(dir, "config.yaml")
	_, away := api.NewClient(filepath.Join(dir, "none.sock")).About(t.Context())
	put := func(name, text string, mode os.FileMode) {
		write(t, filepath.Join(dir, name), text, mode)
		must(os.Chmod(filepath.Join(dir, name), mode))
	}
	put("policy.yaml", files["policy.yaml"], 0o644)
	if got := whyAway(away, path); got != away {
		t.Errorf("nothing is wrong: %v", got)
	}
	put("policy.yaml", "pool: talos\nvmids: []\n", 0o644)
	got := whyAway(away, path)
	if !errors.Is(got, api.ErrNoDaemon) || exitCode(got) != exitNoDaemon || !strings.Contains(got.Error(), "there is no socket; as far as can be seen from here, it does not start with these files:\n"+dir+"/policy.yaml:2:") ||
		!strings.Contains(cluster.HintOf(got), "`systemctl status talos-agent` and `journalctl -u talos-agent`") {
		t.Errorf("a policy that is no use: %v\n%s", got, cluster.HintOf(got))
	}
	for _, other := range []error{nil, errors.New("other"), fmt.Errorf("status: %w", &api.Error{Message: "no"})} {
		if got := whyAway(other, path); got != other {
			t.Errorf("%v became %v", other, got)
		}
	}
	// Who may read less is told less, and nothing that is not so.
	for at := dir; at != os.TempDir() && at != "/"; at = filepath.Dir(at) {
		must(os.Chmod(at, 0o755))
	}
	put("config.yaml", config, 0o644)
	for name, mode := range map[string]os.FileMode{"age.key": 0o600, "proxmox.token": 0o600, "git.token": 0o600} {
		put(name, files[name], mode)
	}
	asNobody(t, dir, func() {
		if got := unfit(path); len(got) != 1 || !strings.Contains(got[0].String(), "policy.yaml:2:") {
			t.Errorf("to whom the keys are closed: %v", got)
		}
	})
	put("policy.yaml", "pool: talos\nvmids: []\n", 0o600)
	asNobody(t, dir, func() {
		if got := unfit(path); len(got) != 0 {
			t.Errorf("to whom the policy is closed: %v", got)
		}
	})
	put("config.yaml", "owner: 7\n", 0o600)
	asNobody(t, dir, func() {
		if got := unfit(path); len(got) != 0 {
			t.Errorf("to whom the config is closed: %v", got)
		}
	})
	if got := unfit(path); len(got) == 0 {
		t.Error("a config that is no use is told to nobody")
	}
}

// asNobody does something as somebody who owns nothing here, if we are root and
// such a one comes as far as the folder.
func asNobody(t *testing.T, dir string, do func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
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
		if _, err := os.Stat(dir); err != nil {
			t.Logf("not tried as somebody else, to whom the folder for temporary files is closed: %v", err)
			return
		}
		do()
	}()
	<-done
}
