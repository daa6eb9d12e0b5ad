package main

import (
	"bytes"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/talos-agent/talos-agent/internal/daemon/daemontest"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// startLabProcess runs talos-agent lab in a network of its own until the end of the
// test. The command holds the network itself, so between this search and its start
// another test may take it; then it is refused, and gets the next.
func startLabProcess(t *testing.T, args ...string) (*daemonProcess, netip.Prefix) {
	t.Helper()
	for range 20 {
		prefix, release, err := world.FreePrefix()
		must(err)
		release()
		out := &output{}
		cmd := exec.Command("talos-agent", append([]string{"lab", "--prefix", prefix.String()}, args...)...)
		cmd.Stdout, cmd.Stderr = out, out
		must(cmd.Start())
		p := &daemonProcess{cmd: cmd, done: make(chan struct{})}
		go func() { defer close(p.done); p.err = cmd.Wait() }()
		t.Cleanup(func() { _ = cmd.Process.Kill(); <-p.done })
		const taken = "choose another network with --prefix"
		if !soon(func() bool { return out.has("talos-agent status --socket ") || out.has(taken) }) {
			t.Fatalf("the lab does not say what to do: %s", out)
		}
		if !out.has(taken) {
			return p, prefix
		}
	}
	t.Fatal("twenty networks were taken one after another")
	return nil, netip.Prefix{}
}

// TestLabCommand tries the agent as `talos-agent lab` tells people to: the lab in
// one terminal, git push and the daemon in others.
func TestLabCommand(t *testing.T) {
	daemontest.LeaveToExhaust(t)
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("needs git")
	}
	t.Parallel()
	r := &rig{t: t, dir: t.TempDir(), work: t.TempDir(), log: &output{}}
	t.Cleanup(r.kill)
	repo := filepath.Join(r.work, "repo")
	must(os.CopyFS(repo, os.DirFS("../../examples/repo")))
	lives, prefix := startLabProcess(t, "--dir", r.dir, "--speed", "200", "--cluster", "lab", "--age-key", filepath.Join(repo, "lab-age-key.txt"))
	told := lives.cmd.Stdout.(*output)
	r.base = strings.TrimSuffix(prefix.Addr().String(), "0")
	for _, name := range []string{"cluster.yaml", "nodes.yaml"} {
		path := filepath.Join(repo, "inventory", "lab", name)
		b, err := os.ReadFile(path)
		must(err)
		must(os.WriteFile(path, bytes.ReplaceAll(b, []byte("127.84.7."), []byte(r.base)), 0o644))
	}

	second, err := exec.Command("talos-agent", "lab", "--bare", "--prefix", prefix.String()).CombinedOutput()
	if err == nil || !strings.Contains(string(second), prefix.String()) || !strings.Contains(string(second), "choose another network with --prefix") {
		t.Errorf("a second lab at the same addresses: %v\n%s", err, second)
	}

	other, release, err := world.FreePrefix()
	must(err)
	release()
	third, err := exec.Command("talos-agent", "lab", "--bare", "--dir", r.dir, "--prefix", other.String()).CombinedOutput()
	if err == nil || !strings.Contains(string(third), "another lab has its files there") {
		t.Errorf("a third lab in the same directory: %v\n%s", err, third)
	}

	// What it says is run as it stands.
	run := func(dir, script string) {
		t.Helper()
		cmd := exec.Command("sh", "-ec", script)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_TERMINAL_PROMPT=0",
			"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.org", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.org")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s\nthe lab said\n%s", script, err, out, told)
		}
	}
	command := func(with string) string {
		t.Helper()
		for line := range strings.Lines(told.String()) {
			if strings.Contains(line, with) {
				return strings.TrimSpace(line)
			}
		}
		t.Fatalf("the lab names no command with %q:\n%s", with, told)
		return ""
	}
	run(repo, git+" init -q -b main . && "+git+" add -A && "+git+" commit -qm inventory")
	run(r.work, strings.Replace(command(" push "), "REPOSITORY", "repo", 1))
	daemon := exec.Command("sh", "-c", "exec "+command("talos-agent run "))
	daemon.Stdout, daemon.Stderr = r.log, r.log
	must(daemon.Start())
	r.proc = &daemonProcess{cmd: daemon, done: make(chan struct{})}
	go func(p *daemonProcess) { defer close(p.done); p.err = daemon.Wait() }(r.proc)
	if !soon(func() bool { return r.try("status", "lab").has("3 nodes are Ready") }) {
		t.Fatalf("%s\nthe daemon said\n%s", r.try("status"), r.log)
	}
	run(r.work, command("talos-agent status "))
	// The lab is what doctor expects of a host, also with VMs in its pool.
	run(r.work, command("talos-agent doctor "))
	if a := r.run(exitOK, do("doctor", "--config", filepath.Join(r.dir, "config.yaml"))); !a.has("pass    excess") || !a.has("registry factory.talos.dev: answers") {
		t.Errorf("the lab is not what doctor expects: %v", a)
	}
	if told.has(lab.ForgeToken) || !told.has("lab-wk-2") {
		t.Errorf("the lab told\n%s", told)
	}
	if code := r.stop(); code != exitOK {
		t.Errorf("the daemon ended with code %d", code)
	}
	must(lives.cmd.Process.Signal(syscall.SIGINT))
	if code := lives.end(t); code != exitOK || !told.has("the lab is closed") {
		t.Errorf("the lab ended with code %d", code)
	}
}
