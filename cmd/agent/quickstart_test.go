package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/daemon/daemontest"
)

// TestQuickStart: the few commands at which the README begins lead from a host as its
// installer leaves it to a Ready cluster, without a Git server or a key from elsewhere.
func TestQuickStart(t *testing.T) {
	daemontest.LeaveToExhaust(t)
	s := newBareStand(t, "9.2")
	const page = "/srv/infra"
	dir := s.dir + page
	file := func(name string) string { return filepath.Join(s.dir, name) }
	// What a real host finds out by itself, or a person answers with Enter.
	lab := map[string][]string{
		"init --directory": {"--yes", "--root", s.dir, "--bridge", "vmbr1", "--proxmox-url", s.PVE.URL(), "--ca-file", file("ca.pem"),
			"--mirror-factory", s.Factory.URL(), "--mirror-charts", "https://helm.cilium.io=" + s.Charts.URL()},
		"init repo":  {"--yes", "--root", s.dir, "--network", s.base + "0/24", "--gateway", s.base + "1"},
		"status dev": {"--socket", s.socket()},
	}
	said, ran := map[string]string{}, 0
	for _, p := range readPages(t) {
		for _, b := range p.blocks {
			if b.checked != "by TestQuickStart" {
				continue
			}
			for line := range strings.Lines(b.text) {
				words, err := shellWords(line)
				if err != nil {
					t.Fatalf("%s: %v", b.at(), err)
				}
				if words[0] == "apt" {
					continue // that is what boot tests
				}
				what := strings.Join(words[1:3], " ")
				if lab[what] == nil {
					t.Fatalf("%s: nobody knows how to run %q", b.at(), line)
				}
				if what == "status dev" {
					s.knows("dev")
				}
				args := append(words[1:], lab[what]...)
				for i, w := range args {
					args[i] = strings.Replace(w, page, dir, 1)
				}
				said[what] = s.program(args...)
				ran++
				if what == "init --directory" {
					s.daemon() // which systemd would have started
				}
			}
		}
	}
	if ran != len(lab) {
		t.Fatalf("%d commands were run", ran)
	}
	if out := said["init --directory"]; !strings.Contains(out, "talos-agent init repo "+dir) {
		t.Errorf("init does not lead on:\n%s", out)
	}
	if out := said["init repo"]; strings.Contains(out, "git ") || !strings.Contains(out, "talos-agent status dev --wait 15m") {
		t.Errorf("init repo speaks of Git, or does not lead on:\n%s", out)
	}
	if out := said["status dev"]; !strings.Contains(out, "dev  Ready") || !strings.Contains(out, "3 nodes are Ready at dir@sha256:") {
		t.Errorf("not Ready:\n%s", out)
	}
	for _, name := range []string{".git", ".github", "renovate.json"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			t.Errorf("%s is there, and nobody asked for Git", name)
		}
	}
}

// knows waits until the daemon knows of a cluster.
func (s *bareStand) knows(name string) {
	s.t.Helper()
	must(waitUntil(s.t.Context(), 50*time.Millisecond, func() (bool, error) {
		out, err := exec.CommandContext(s.t.Context(), "talos-agent", "status", name, "-o", "json", "--socket", s.socket()).Output()
		return len(out) > 0 || err == nil, nil
	}))
}
