package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// systemd listens to what a daemon tells its service manager.
type systemd struct {
	conn *net.UnixConn
	done chan struct{}
	mu   sync.Mutex
	said []string // lines, in order
}

func newSystemd(t *testing.T, path string) *systemd {
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	must(err)
	s := &systemd{conn: conn, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		b := make([]byte, 64<<10)
		for {
			n, err := conn.Read(b)
			if err != nil {
				return
			}
			s.mu.Lock()
			s.said = append(s.said, strings.Split(string(b[:n]), "\n")...)
			s.mu.Unlock()
		}
	}()
	t.Cleanup(func() { _ = conn.Close(); <-s.done })
	return s
}

// heard counts the lines that begin so.
func (s *systemd) heard(prefix string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, line := range s.said {
		if strings.HasPrefix(line, prefix) {
			n++
		}
	}
	return n
}

func (s *systemd) lines() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.said)
}

// TestDaemonAndItsHost is the daemon beside what runs on its host: systemd, which
// gives it its credentials, editors that change its files and the directory it
// follows, and another daemon.
func TestDaemonAndItsHost(t *testing.T) {
	r := newRig(t, lab.Config{})
	// The keys come from systemd, whose files have its own modes.
	creds := filepath.Join(r.dir, "creds")
	must(os.Mkdir(creds, 0o755))
	for file, credential := range map[string]string{"age.key": "age.key", "proxmox.token": "proxmox.token"} {
		must(os.Rename(filepath.Join(r.dir, file), filepath.Join(creds, credential)))
		must(os.Chmod(filepath.Join(creds, credential), 0o444))
	}
	delete(r.config, "age_key_file")
	delete(r.config["proxmox"].(map[string]any), "token_file")
	delete(r.config, "forge")
	repo := filepath.Join(r.dir, "infra")
	r.config["repository"] = map[string]any{"directory": repo, "interval": "1h"}
	r.write()
	r.file("policy.yaml", "pool: talos\nvmids: [500-599]\nbridges: [vmbr1]\n")
	files := r.inventory(0)
	secrets := files["inventory/dev/secrets.sops.yaml"]
	delete(files, "inventory/dev/secrets.sops.yaml")
	save(repo, files)

	manager := newSystemd(t, filepath.Join(r.dir, "notify.sock"))
	r.env = []string{"CREDENTIALS_DIRECTORY=" + creds, "NOTIFY_SOCKET=" + filepath.Join(r.dir, "notify.sock"), "WATCHDOG_USEC=150000"}
	r.start()
	// The socket answers before everything is ready.
	r.until("systemd is told", func() bool { return slices.Contains(manager.lines(), "READY=1") })
	if said := manager.lines(); said[0] != "READY=1" && !strings.HasPrefix(said[0], "STATUS=") {
		t.Errorf("told systemd: %q", said)
	}

	changed := func() int {
		return len(r.calls(func(c world.CallRecord) bool { return c.Mutating }))
	}
	// No secrets, then more than the host allows: refused before anything is
	// touched, and taken up as soon as the files are mended.
	r.untilStalled("")
	r.run(exitStalled, do("status"), "the inventory has no secrets.sops.yaml", "talos-agent secrets new --cluster dev DIR")
	save(repo, map[string][]byte{"inventory/dev/secrets.sops.yaml": secrets})
	var s cluster.Status
	r.until("the secrets are read", func() bool { s = r.status(); return s.Condition == cluster.Stalled && len(s.Blocked) == 1 })
	r.run(exitStalled, do("status"), filepath.Join(r.dir, "policy.yaml")+":2: vmids")
	r.run(exitFailed, do("plan"), "its vmid 412 lies outside 500-599")
	if n := changed(); n != 0 || !strings.HasPrefix(string(s.Revision), "dir@") {
		t.Errorf("%d changes at %s", n, s.Revision)
	}
	r.file("policy.yaml", "pool: talos\nvmids: [400-599]\nbridges: [vmbr1]\n")
	r.untilReady("")
	r.until("systemd is told", func() bool { return manager.heard("STATUS=dev Ready: 1 node is Ready at dir@sha256:") > 0 })

	// What is wrong in the directory is told by its place, and mended.
	before := changed()
	save(repo, map[string][]byte{"inventory/dev/nodes.yaml": []byte("controlplane:\n  - {name: dev-cp-1, ip: 10.0.0.1}\n")})
	r.untilStalled("inventory/dev/nodes.yaml:2:26: nodes.controlplane[0].ip: 10.0.0.1 is not in network.cidr")
	r.run(exitFailed, do("plan"), "the inventory is invalid")
	save(repo, files)
	r.untilReady("")
	if n := changed(); n != before {
		t.Errorf("an invalid file changed the world: %d changes, and before %d", n, before)
	}

	t.Run("reload", func(t *testing.T) { reload(t, r, manager) })
	t.Run("plan a directory", func(t *testing.T) { planDirectory(t, r, repo) })

	// Another daemon on the same records.
	other := r.proc
	r.launch()
	if code := r.proc.end(t); code != exitFailed || !r.log.has("another agent works with state directory "+filepath.Join(r.dir, "state")) {
		t.Errorf("a second daemon ended with code %d", code)
	}
	r.proc = other
	r.run(exitOK, do("status"))

	beats := manager.heard("WATCHDOG=1")
	r.until("the watchdog is fed", func() bool { return manager.heard("WATCHDOG=1") > beats })
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", r.proc.cmd.Process.Pid)); err != nil || !strings.Contains(strings.Join(strings.Fields(string(b)), " "), "Max core file size 0 0") {
		t.Errorf("limits: %v\n%s", err, b)
	}
	if code := r.stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	// The word may outlive the daemon on its way.
	r.until("systemd is told", func() bool { return manager.heard("STOPPING=1") > 0 })
	if n := manager.heard("STOPPING=1"); n != 1 {
		t.Errorf("told systemd %d times that it stops", n)
	}
}

// TestDaemonThatCannotStartOver: a daemon that has lost its agent to a changed
// config, and cannot go back to the old one either, ends, so that systemd starts
// it until it works: alive and idle, nobody would notice.
func TestDaemonThatCannotStartOver(t *testing.T) {
	r := newRig(t, lab.Config{})
	delete(r.config, "forge")
	repo := filepath.Join(r.dir, "infra")
	r.config["repository"] = map[string]any{"directory": repo, "interval": "1h"}
	r.write()
	save(repo, r.inventory(0))
	r.start()
	r.until("the cluster is looked after", func() bool { return r.try("status").has("dev  ") })
	// One cluster's records are that cluster's trouble; without any the agent
	// cannot begin.
	// Moved in one go: the daemon goes on writing into it.
	state := filepath.Join(r.dir, "state")
	must(os.Rename(state, state+".gone"))
	must(os.WriteFile(state, nil, 0o600))
	r.config["repository"] = map[string]any{"directory": repo, "interval": "2h"}
	r.write()
	if code := r.proc.end(t); code != exitFailed || !r.log.has("start over with the old config: list the journals") {
		t.Errorf("it ended with code %d", code)
	}
}

// reload takes up changed files, and keeps the old ones when the new are wrong.
func reload(t *testing.T, r *rig, manager *systemd) {
	ready := manager.heard("READY=1")
	loaded := strings.Count(r.log.String(), "config and policy loaded")
	r.signal(syscall.SIGHUP)
	r.until("SIGHUP loads the files", func() bool { return strings.Count(r.log.String(), "config and policy loaded") > loaded })
	r.until("systemd is told", func() bool { return manager.heard("READY=1") > ready })
	if manager.heard("RELOADING=1") == 0 || manager.heard("MONOTONIC_USEC=") != manager.heard("RELOADING=1") {
		t.Errorf("told systemd: %q", manager.lines())
	}

	r.config["colour"] = "blue"
	r.write()
	r.until("the trouble is told", func() bool { return r.try("status").has(`unknown key "colour"`) })
	r.run(exitOK, do("status"), "problem", "dev  Ready")
	delete(r.config, "colour")
	r.config["clusters"] = []string{"dev", "gone"}
	r.write()
	r.until("the trouble is over, and another cluster looked after", func() bool {
		a := r.try("status")
		return !a.has("problem") && a.has("gone  Stalled") && a.has("dev  Ready")
	})
	r.config["clusters"] = []string{"dev"}
	r.write()
	r.until("it is dropped again", func() bool { a := r.try("status"); return !a.has("gone") && a.has("dev  Ready") })
	r.until("systemd does not hear of it any more", func() bool {
		last := ""
		for _, line := range manager.lines() {
			if strings.HasPrefix(line, "STATUS=") {
				last = line
			}
		}
		return strings.HasPrefix(last, "STATUS=dev Ready")
	})

	// A policy elsewhere is watched from the moment the config names it.
	must(os.Mkdir(filepath.Join(r.dir, "elsewhere"), 0o700))
	policy := filepath.Join("elsewhere", "policy.yaml")
	r.file(policy, "pool: talos\nvmids: [400-599]\nbridges: [vmbr1]\n")
	const over = "restarting with changed files: "
	loaded = strings.Count(r.log.String(), over)
	r.config["policy_file"] = policy
	r.write()
	r.until("it is loaded", func() bool {
		return strings.Count(r.log.String(), over) > loaded && r.try("status").has("dev  Ready")
	})
	r.file(policy, "pool: talos\nvmids: [400-599]\nbridges: [vmbr9]\n")
	r.until("its change is in force", func() bool { return r.try("status").has("elsewhere/policy.yaml:3: bridges") })
	r.file(policy, "pool: talos\nvmids: [400-599]\nbridges: [vmbr1]\n")
	r.untilReady("")
}

// planDirectory tells what a directory would do if it were pushed.
func planDirectory(t *testing.T, r *rig, repo string) {
	r.run(exitOK, do("plan", "--dir", repo), "nothing to do")
	draft := filepath.Join(r.work, "draft")
	save(draft, r.inventory(1))
	a := r.run(exitChanges, do("plan", "--dir", draft), "create vm 522 (dev-wk-1)")
	if strings.Contains(a.out, "AGE-SECRET") || len(r.vms()) != 1 {
		t.Errorf("planned: %v", a)
	}
	save(draft, map[string][]byte{"inventory/dev/nodes.yaml": []byte("controlplane: []\n")})
	r.run(exitFailed, do("plan", "--dir", draft), "a cluster needs at least one control plane")
	save(draft, with(r.inventory(0), "inventory/dev/cluster.yaml", strings.Replace(string(r.inventory(0)["inventory/dev/cluster.yaml"]), "v1.36.1", "v1.20.0", 1)))
	r.run(exitFailed, do("plan", "--dir", draft), "Kubernetes v1.20.0 does not run on Talos v1.13.9")
	r.run(exitFailed, do("plan", "--dir", filepath.Join(draft, "inventory", "dev")), "inventory: there is no such folder (name the top of the repository that has the folder inventory/dev)", "blocked dev: the inventory is invalid")
	save(draft, r.inventory(1))
	r.run(exitChanges, do("plan", "--dir", draft), "create vm 522 (dev-wk-1)")
	if s := r.status(); s.Condition != cluster.Ready {
		t.Errorf("planning did something: %+v", s)
	}
}

// save writes files into a directory, as an editor does.
func save(dir string, files map[string][]byte) {
	for name, data := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		must(os.MkdirAll(filepath.Dir(path), 0o755))
		must(os.WriteFile(path+"~", data, 0o644))
		must(os.Rename(path+"~", path))
	}
}
