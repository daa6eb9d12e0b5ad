package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/host/hosttest"
	"github.com/talos-agent/talos-agent/internal/host/setup"
	"github.com/talos-agent/talos-agent/internal/host/setup/wizard"
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
	a := h.atTerminal(strings.Repeat("\n", 20), append(h.InitFlags(), "--dry-run", "-o", "json")...)
	if a.err != nil || !json.Valid([]byte(a.out)) {
		t.Errorf("no JSON: %v", a)
	}
}

// TestInitNotesOnce: what is left as it is, is told once before it is agreed to.
func TestInitNotesOnce(t *testing.T) {
	h := newFresh(t, "9.2")
	a := h.atTerminal(strings.Repeat("\n", 20), append(h.InitFlags(), "--no-import")...)
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
	hosttest.Write(t, file, "other.example.org "+key, 0o644)
	a := h.done("--known-hosts-file", file, "--known-host", line)
	if want := "other.example.org " + key + "\n" + line + "\n"; h.file(setup.KnownHostsFile) != want {
		t.Errorf("%q, want %q; %v", h.file(setup.KnownHostsFile), want, a)
	}
}

// TestInitDirectory: a directory of the host that is not there is made, and stays
// when init is undone; what is no directory is reported before anything is changed.
func TestInitDirectory(t *testing.T) {
	h := newFresh(t, "9.2")
	dir, file := filepath.Join(h.dir, "srv", "infra"), filepath.Join(h.dir, "file")
	must(os.WriteFile(file, nil, 0o600))
	args := []string{"--yes", "--proxmox-url", h.PVE.URL(), "--directory"}
	if a := h.bare(t.Context(), append(args, file)...); a.err == nil || !strings.Contains(a.err.Error(), "--directory: "+file+" is no directory") || len(h.pveshs) > 0 {
		t.Errorf("%v; %v", a, h.pveshs)
	}
	a := h.bare(t.Context(), append(args, dir)...)
	if a.err != nil || !strings.Contains(h.file(setup.ConfigFile), "\n  directory: "+dir+"\n") || !strings.Contains(a.out, "talos-agent init repo "+dir+"\n") {
		t.Fatalf("%v", a)
	}
	info, err := os.Stat(dir)
	must(err)
	if info.Mode().Perm() != 0o755 {
		t.Errorf("its mode is %v, and the agent has to read it", info.Mode())
	}
	if a := h.bare(t.Context(), "--yes"); a.err != nil || !strings.Contains(a.out, "nothing to do") {
		t.Errorf("a second run: %v", a)
	}
	// Another directory is copied there, and nothing is pushed.
	if a := h.bare(t.Context(), "repo", filepath.Join(t.TempDir(), "other"), "--yes"); a.err != nil || !strings.Contains(a.out, "/other/. "+dir+"/") || strings.Contains(a.out, "git push") {
		t.Errorf("a repository elsewhere: %v", a)
	}
	if a := h.bare(t.Context(), "--yes", "--undo"); a.err != nil || !strings.Contains(a.out, dir+" stays") {
		t.Errorf("undone: %v", a)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Error(err)
	}
}

// TestSizesOfInitRepo: a repository that is begun on a host asks for no more than there
// is, by the host's policy and by what other VMs are promised; where nothing fits it is
// refused.
func TestSizesOfInitRepo(t *testing.T) {
	h := newFresh(t, "9.2")
	h.done("--yes")
	policy := filepath.Join(h.dir, setup.PolicyFile)
	before, err := os.ReadFile(policy)
	must(err)
	for reserve, want := range map[string]string{
		"2GiB":  "  controlplane: {cpu: 4, ram: 4096, disk: 30G}\n  worker: {cpu: 4, ram: 8192, disk: 30G}\n",
		"56GiB": "  controlplane: {cpu: 4, ram: 2048, disk: 30G}\n  worker: {cpu: 4, ram: 2048, disk: 30G}\n",
		"61GiB": "",
	} {
		must(os.WriteFile(policy, []byte(string(before)+"capacity: {memory_reserve: "+reserve+", thin_overcommit: 10}\n"), 0o644))
		repo := filepath.Join(t.TempDir(), "infra")
		a := h.bare(t.Context(), "repo", repo, "--yes", "--network", "10.10.0.0/24", "--gateway", "10.10.0.1", "--bridge", "vmbr0")
		if want == "" {
			if a.err == nil || !strings.Contains(a.err.Error(), "--workers: 3 nodes need 4096 MiB of memory and 30 GiB on local-lvm at least, and pve1 has 3072 MiB and 102 GiB for VMs") {
				t.Errorf("reserve %s: %v", reserve, a)
			}
			continue
		}
		if a.err != nil {
			t.Errorf("reserve %s: %v", reserve, a)
			continue
		}
		text, err := os.ReadFile(filepath.Join(repo, "inventory", "dev", "cluster.yaml"))
		must(err)
		if !strings.Contains(string(text), want) {
			t.Errorf("reserve %s: want\n%sin\n%s", reserve, want, text)
		}
	}
}

// TestMapping: of pairs and none, what comes last counts.
func TestMapping(t *testing.T) {
	for want, said := range map[string][]string{"map[]": {"a=b", "none"}, "map[c:d]": {"a=b", "none", "c=d"}, "map[c:d e:f]": {"none", "c=d", "e=f"}} {
		var f wizard.Flags
		cmd := &cobra.Command{}
		declareInitFlags(cmd, &f)
		for _, s := range said {
			must(cmd.Flags().Set("mirror-charts", s))
		}
		if got := fmt.Sprint(f.MirrorCharts); got != want {
			t.Errorf("%q: %s, want %s", said, got, want)
		}
	}
}

// TestInitTakesBack: what may be left out is left out again once that is said, and
// what it leaves behind is told.
func TestInitTakesBack(t *testing.T) {
	h := newFresh(t, "9.2")
	h.done("--limit-ram", "64GiB", "--fingerprint", strings.Repeat("AB:", 31)+"AB")
	load := func() config.Settings {
		t.Helper()
		s, problems := config.LoadFrom(h.dir+setup.ConfigFile, config.FromStore(h.dir+setup.CredentialDir))
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		return s
	}
	url := load().Proxmox.URL
	if s := load(); s.Forge == nil || s.Charts == nil || s.CA == nil || s.Policy.Limits.MemoryMiB == 0 || s.Proxmox.Fingerprint == "" || s.Factory != h.Factory.URL() {
		t.Fatalf("nothing to take back: %+v", s)
	}
	for _, tc := range []struct {
		flags []string
		notes string
		gone  func(config.Settings) bool
	}{
		{[]string{"--forge", "none"}, "remove " + setup.Credential(setup.ForgeToken) + ", and revoke it at the forge", func(s config.Settings) bool { return s.Forge == nil }},
		{[]string{"--mirror-charts", "none"}, "", func(s config.Settings) bool { return s.Charts == nil }},
		{[]string{"--mirror-factory", "none"}, "", func(s config.Settings) bool { return s.Factory != h.Factory.URL() }},
		{[]string{"--ca-file", "none"}, setup.AuthoritiesFile + " stays", func(s config.Settings) bool { return s.CA == nil }},
		{[]string{"--limit-ram", "none"}, "", func(s config.Settings) bool { return s.Policy.Limits == cluster.Limits{} }},
		{[]string{"--fingerprint", "none"}, "", func(s config.Settings) bool { return s.Proxmox.Fingerprint == "" && len(s.Proxmox.CA) > 0 }},
		{[]string{"--proxmox-url", "none"}, "", func(s config.Settings) bool { return s.Proxmox.URL != url }},
	} {
		told := h.bare(t.Context(), append(tc.flags, "--dry-run")...)
		if told.err != nil || !strings.Contains(told.out, "- replace the ") || strings.Contains(told.out, "note: ") != (tc.notes != "") || !strings.Contains(told.out, tc.notes) || tc.gone(load()) {
			t.Errorf("%s, tried: %v", tc.flags, told)
		}
		if a := h.bare(t.Context(), append(tc.flags, "--yes")...); a.err != nil || !tc.gone(load()) {
			t.Errorf("%s: %v", tc.flags, a)
		}
		if a := h.bare(t.Context(), "--yes"); a.err != nil || !strings.Contains(a.out, "nothing to do") || strings.Contains(a.out, "note: ") || !tc.gone(load()) {
			t.Errorf("after %s: %v", tc.flags, a)
		}
	}
	if a := h.bare(t.Context(), "--yes", "--forge", "none", "--forge-repository", "org/infra"); a.err == nil || exitCode(a.err) != exitUsage {
		t.Errorf("none, and which: %v", a)
	}
}
