package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/daemon/daemontest"
	"github.com/talos-agent/talos-agent/internal/host/setup"
	"github.com/talos-agent/talos-agent/internal/lab/pvehost"
	"github.com/talos-agent/talos-agent/internal/lab/world"
	"github.com/talos-agent/talos-agent/sources/secrets"
)

// bareStand is a fresh host in a lab on loopback, on which programs are run as
// on a real one.
type bareStand struct {
	*pvehost.Bare
	dir  string
	t    *testing.T
	base string // of the lab's addresses, "127.84.7."
}

func newBareStand(t *testing.T, flavour string) *bareStand {
	t.Helper()
	t.Parallel()
	program, err := exec.LookPath("talos-agent")
	if err != nil {
		t.Fatal(err)
	}
	prefix, release, err := world.FreePrefix()
	if err != nil {
		t.Fatal(err)
	}
	h, err := pvehost.StartBare(pvehost.Config{Dir: t.TempDir(), Prefix: prefix, Flavour: flavour, Speed: 200}, program)
	if err != nil {
		release()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		h.Close()
		release()
		if err := h.Broken(); err != nil {
			t.Errorf("broken law: %v", err)
		}
	})
	a := prefix.Addr().As4()
	a[3] = 0
	return &bareStand{Bare: h, dir: h.Dir, t: t, base: strings.TrimSuffix(netip.AddrFrom4(a).String(), "0")}
}

// program runs this program, which must succeed, and returns what it prints.
func (s *bareStand) program(args ...string) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), daemonPatience)
	defer cancel()
	// Whoever runs it may have the umask that forbids nothing.
	out, err := exec.CommandContext(ctx, "sh", append([]string{"-c", `umask 0; exec talos-agent "$@"`, "sh"}, args...)...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("talos-agent %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// TestInitBringsUp: init, with flags only and the host's pvesh, then a deploy key
// registered at the forge and a push, and there is a Ready cluster. Undo then
// refuses while it lives, and leaves the host as it was found once it is gone.
func TestInitBringsUp(t *testing.T) {
	daemontest.LeaveToExhaust(t)
	for _, flavour := range []string{"9.2", "8.4"} {
		t.Run(flavour, func(t *testing.T) { newBareStand(t, flavour).bringsUp() })
	}
}

// TestBareLabLeadsOn: what lab --bare tells to type sets its host up and runs the
// agent there.
func TestBareLabLeadsOn(t *testing.T) {
	daemontest.LeaveToExhaust(t)
	s := newBareStand(t, "9.2")
	// after is the lines that follow a heading.
	after := func(heading string) (lines []string) {
		_, rest, _ := strings.Cut(s.Instructions(), "\n"+heading+"\n")
		for line := range strings.SplitSeq(rest, "\n") {
			text, indented := strings.CutPrefix(line, "  ")
			if !indented {
				break
			}
			lines = append(lines, text)
		}
		return append(lines, "exit 9 # not told", "exit 9 # not told")
	}
	shell := func(ctx context.Context, line string) *exec.Cmd { return exec.CommandContext(ctx, "sh", "-euc", line) }
	run := after("run the agent, with its keys as systemd would hand them to it:")
	for _, line := range []string{after("set it up:")[0] + " --yes --bridge vmbr1", run[0]} {
		if out, err := shell(t.Context(), line).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
	}
	daemon := shell(t.Context(), "exec env "+run[1])
	daemon.Cancel = func() error { return daemon.Process.Signal(os.Interrupt) }
	must(daemon.Start())
	defer func() { must(errors.Join(daemon.Process.Signal(os.Interrupt), daemon.Wait())) }()
	look := strings.TrimSuffix(after("look, in another terminal:")[0], "--watch")
	// It is at the door of the repository, with the key that nobody let in yet.
	for began := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		out, err := shell(t.Context(), look).CombinedOutput()
		if strings.Contains(string(out), "refuses the deploy key") {
			break
		}
		if time.Since(began) > daemonPatience {
			t.Fatalf("%s: %v\n%s", look, err, out)
		}
	}
	// doctor fails for the deploy key's sake, and finds the others.
	doctor := after("look, in another terminal:")[1]
	if out, err := shell(t.Context(), doctor).CombinedOutput(); err == nil || !strings.Contains(string(out), "  pass    config ") || !strings.Contains(string(out), "  pass    daemon ") {
		t.Errorf("%s: %v\n%s", doctor, err, out)
	}
}

func (s *bareStand) bringsUp() {
	t := s.t
	before := s.everything()
	said := s.program(append([]string{"init", "--root", s.dir, "--yes", "--bridge", "vmbr1"}, s.InitFlags()...)...)
	token, err := os.ReadFile(filepath.Join(s.dir, setup.Credential(setup.ProxmoxToken)))
	must(err)
	_, secret, _ := strings.Cut(strings.TrimSpace(string(token)), "=")
	if len(secret) < 30 || strings.Contains(said, secret) {
		t.Fatalf("the token is %d bytes long, or told:\n%s", len(secret), said)
	}
	for path, mode := range map[string]fs.FileMode{
		setup.ConfigDir: 0o755, setup.CredentialDir: 0o700, setup.ConfigFile: 0o640, setup.PolicyFile: 0o644, setup.KnownHostsFile: 0o644, setup.RecordFile: 0o600,
		setup.Credential(setup.ProxmoxToken): 0o600, setup.Credential(setup.AgeKey): 0o600, setup.Credential(setup.SSHKey): 0o600, setup.Credential(setup.ForgeToken): 0o600,
	} {
		if info, err := os.Stat(s.dir + path); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v %v, want %v", path, info.Mode(), err, mode)
		}
	}
	// What a person does with what init has said.
	_, key, found := strings.Cut(said, "ssh-ed25519 ")
	if !found {
		t.Fatalf("no deploy key is told:\n%s", said)
	}
	key, _, _ = strings.Cut(key, "\n")
	must(os.WriteFile(filepath.Join(s.dir, "authorized_keys"), []byte("ssh-ed25519 "+key+"\n"), 0o600))
	recipient := "age1" + strings.Fields(strings.SplitN(said, "age1", 2)[1])[0]
	s.push(recipient)

	stop := s.daemon()
	s.examined()
	status := s.program("status", "dev", "--wait", "2m", "--socket", s.socket())
	if !strings.Contains(status, "Ready") {
		t.Errorf("not Ready:\n%s", status)
	}
	undo := []string{"init", "--root", s.dir, "--undo", "--yes"}
	out, err := exec.CommandContext(t.Context(), "talos-agent", undo...).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "has 1 VMs") || !strings.Contains(string(out), "talos-agent destroy") {
		t.Errorf("undone under a cluster: %v\n%s", err, out)
	}
	s.program("destroy", "dev", "--confirm", "dev", "--socket", s.socket())
	stop()
	if said = s.program(undo...); !strings.Contains(said, "talos-agent.age.key stays") {
		t.Errorf("nothing is said of the age key:\n%s", said)
	}
	after := s.everything()
	// What undo says that it leaves.
	left := strings.Replace(before, "local: iso,vztmpl,backup\n", "local: iso,vztmpl,backup,import\n", 1) + "etc/credstore/talos-agent.age.key\n"
	if after != left {
		t.Errorf("the host was\n%s\nand is\n%s", before, after)
	}
}

// examined: what the daemon sees of Proxmox VE is as doctor would have it.
func (s *bareStand) examined() {
	s.t.Helper()
	var told struct {
		Data struct {
			Checks []struct{ Name, Subject, Level, Message string }
		}
	}
	// A daemon that has just begun may be busy with its first look.
	ctx, cancel := context.WithTimeout(s.t.Context(), daemonPatience)
	defer cancel()
	must(waitUntil(ctx, 50*time.Millisecond, func() (bool, error) {
		// It fails where this machine is no Proxmox VE host; what it says counts.
		out, err := exec.CommandContext(ctx, "talos-agent", "doctor", "-o", "json", "--socket", s.socket(), "--config", s.dir+setup.ConfigFile).Output()
		if json.Unmarshal(out, &told) != nil {
			return false, fmt.Errorf("%w: %s", err, out)
		}
		for _, c := range told.Data.Checks {
			if c.Name == "daemon" {
				return c.Level == "pass", nil
			}
		}
		return false, nil
	}))
	seen := map[string]bool{}
	for _, c := range told.Data.Checks {
		seen[c.Name] = true
		if slices.Contains([]string{"api", "certificate", "version", "token", "privileges", "excess", "pool", "storage"}, c.Name) && c.Level != "pass" {
			s.t.Errorf("doctor: %+v", c)
		}
	}
	if !seen["privileges"] || !seen["excess"] || !seen["pool"] {
		s.t.Errorf("doctor examines only %v", slices.Sorted(maps.Keys(seen)))
	}
}

// push puts a cluster of one node into the repository.
func (s *bareStand) push(recipient string) {
	s.t.Helper()
	encrypted, err := secrets.Encrypt(rigKeys().plain, []string{recipient})
	must(err)
	_, err = s.Repo.Commit("main", map[string][]byte{
		"inventory/dev/cluster.yaml": fmt.Appendf(nil, `cluster_name: dev
talos_version: v1.13.9
kubernetes_version: v1.36.1
network: {cidr: %s0/24, gateway: %s1}
proxmox: {node: pve1, bridge: vmbr1}
`, s.base, s.base),
		"inventory/dev/nodes.yaml":        fmt.Appendf(nil, "controlplane:\n  - {name: dev-cp-1, ip: %s11}\n", s.base),
		"inventory/dev/secrets.sops.yaml": encrypted,
	}, "a cluster")
	must(err)
}

func (s *bareStand) socket() string { return filepath.Join(s.dir, "run/talos-agent/agent.sock") }

// daemon runs the daemon with its credentials where systemd puts them. It
// returns what ends it.
func (s *bareStand) daemon() func() {
	s.t.Helper()
	given := s.t.TempDir()
	stored, err := filepath.Glob(filepath.Join(s.dir, setup.CredentialDir, "talos-agent.*"))
	must(err)
	for _, file := range stored {
		text, err := os.ReadFile(file)
		must(err)
		must(os.WriteFile(filepath.Join(given, strings.TrimPrefix(filepath.Base(file), "talos-agent.")), text, 0o400))
	}
	must(os.MkdirAll(filepath.Dir(s.socket()), 0o755))
	log := &output{}
	cmd := exec.Command("talos-agent", "run", "--config", s.dir+setup.ConfigFile)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "CREDENTIALS_DIRECTORY=" + given}
	cmd.Stdout, cmd.Stderr = log, log
	must(cmd.Start())
	ended := false
	end := func() {
		if !ended {
			ended = true
			_ = cmd.Process.Signal(os.Interrupt) // it may have ended by itself
			_ = cmd.Wait()
		}
		if s.t.Failed() {
			s.t.Logf("log of the daemon:\n%s", log)
		}
	}
	s.t.Cleanup(end)
	ctx, cancel := context.WithTimeout(s.t.Context(), daemonPatience)
	defer cancel()
	must(waitUntil(ctx, 20*time.Millisecond, func() (bool, error) {
		out, err := exec.CommandContext(ctx, "talos-agent", "version", "-o", "json", "--socket", s.socket()).Output()
		return err == nil && strings.Contains(string(out), `"daemon"`), nil
	}))
	return end
}

// everything is what init may touch, before and after.
func (s *bareStand) everything() string {
	s.t.Helper()
	var b strings.Builder
	for _, path := range []string{"/pools", "/access/users", "/access/acl", "/access/roles"} {
		out, err := exec.CommandContext(s.t.Context(), filepath.Join(s.dir, "usr/bin/pvesh"), "get", path, "--output-format", "json").Output()
		must(err)
		b.Write(out)
	}
	a := administrator{t: s.t, lab: s.Lab, token: s.PVE.AdminToken()}
	for _, st := range a.storages() {
		b.WriteString(st + "\n")
	}
	must(fs.WalkDir(os.DirFS(s.dir), "etc", func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() && !strings.HasPrefix(path, "etc/pve/") {
			b.WriteString(path + "\n")
		}
		return err
	}))
	return b.String()
}
