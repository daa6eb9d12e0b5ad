package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/daemontest"
	"github.com/talos-agent/talos-agent/internal/golden"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// screensPage shows what the commands print that people look at the agent with.
const screensPage = "docs/how-to/watch-what-the-agent-does.md"

// screens are what the page shows, by the command line in it.
type screens map[string]string

var screenDates = regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|\b\d\d:\d\d:\d\d\b`)

// screenWords makes screens comparable: what differs from run to run counts as
// the same, and phases that are quickly over are seen or not.
func screenWords(text string) string {
	var out []string
	for line := range strings.SplitSeq(text, "\n") {
		if m := passing.FindStringSubmatch(line); m != nil && m[1] != "Ready" {
			continue
		}
		out = append(out, words(screenDates.ReplaceAllString(line, "DATE")))
	}
	return strings.TrimSpace(strings.Join(out, "\n"))
}

// passing is an event that tells a phase.
var passing = regexp.MustCompile(`\[dev\] node phase changed: \S+ is ([A-Z]\w+)$`)

// TestScreenWords: a phase that was seen later, or not at all, makes no other
// screen; everything else does.
func TestScreenWords(t *testing.T) {
	const screen = "2026-11-22 04:04:45 [dev] action started: start vm 412\n2026-11-22 04:04:45 [dev] action done: start vm 412\n2026-11-22 04:04:45 [dev] node phase changed: cp-1 is Booting\n2026-11-22 04:04:46 [dev] node phase changed: cp-1 is Ready\n"
	lines := strings.SplitAfter(screen, "\n")
	for name, c := range map[string]struct {
		lines []string
		same  bool
	}{
		"a phase seen before": {[]string{lines[0], lines[2], lines[1], lines[3]}, true},
		"a phase not seen":    {[]string{lines[0], lines[1], lines[3]}, true},
		"another order":       {[]string{lines[1], lines[0], lines[2], lines[3]}, false},
		"never Ready":         {lines[:3], false},
	} {
		if same := screenWords(strings.Join(c.lines, "")) == screenWords(screen); same != c.same {
			t.Errorf("%s: the same: %v", name, same)
		}
	}
}

// leaveOut replaces the lines that a run may have or not by "...".
func leaveOut(text string, keep func(line string) bool) string {
	var out []string
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch {
		case keep(line):
			out = append(out, line)
		case len(out) == 0 || out[len(out)-1] != "...":
			out = append(out, "...")
		}
	}
	return strings.Join(out, "\n")
}

// TestScreens leads a cluster through what the page tells, and holds every screen
// of it to what the program prints. With -update it writes them anew, where they
// differ.
func TestScreens(t *testing.T) {
	daemontest.LeaveToExhaust(t)
	r := newRig(t, lab.Config{})
	r.config["snapshots"] = map[string]any{"disabled": true} // they are due by the clock
	r.write()
	got := screens{}
	address := regexp.MustCompile(regexp.QuoteMeta(r.base) + `(\d+)(  )?`)
	names := strings.NewReplacer(filepath.Join(r.dir, "config.yaml"), "/etc/talos-agent/config.yaml", r.socket(), "/run/talos-agent/agent.sock").Replace
	shown := func(text string) string {
		return names(address.ReplaceAllStringFunc(text, func(old string) string {
			m := address.FindStringSubmatch(old)
			if m[2] == "" {
				return "10.10.0." + m[1]
			}
			return fmt.Sprintf("%-*s", len(old), "10.10.0."+m[1]) // a column stays one
		}))
	}
	take := func(command string, args ...string) string {
		t.Helper()
		a := r.try(args...)
		if a.errOut != "" {
			t.Errorf("%v", a)
		}
		got[command] = shown(a.out)
		return got[command]
	}
	push := func(files map[string][]byte, message string) string {
		t.Helper()
		hash, err := r.lab.Repo.Commit("main", files, message)
		must(err)
		return hash
	}
	first := push(r.inventory(0), "begin with one node")
	r.start()
	r.untilReady(first)

	// What a push will do, while nothing is done.
	r.run(exitOK, do("suspend"))
	r.until("it is suspended", func() bool { return r.status().Condition == cluster.Suspended })
	second := push(r.inventory(1), "add a worker")
	r.run(exitOK, do("reconcile"))
	r.until("the push is seen", func() bool { s := r.status(); return s.Revision.Commit() == second && len(s.Nodes) == 2 })
	take("talos-agent plan dev", "plan", "dev")

	// A worker whose machine does not come up: everything stands still.
	r.lab.World.Inject(world.Fault{System: "pve", Op: "POST /nodes/{node}/qemu/{vmid}/status/start", Kind: world.NeverUp})
	r.run(exitOK, do("resume"))
	r.until("the worker boots", func() bool {
		s := r.status()
		// Just after its start the node still waits for that action, of which the
		// next pass learns that it is over.
		return len(s.Nodes) == 2 && s.Nodes[1].Phase == cluster.PhaseBooting && len(s.Running) == 0 && strings.HasPrefix(s.Nodes[1].WaitsFor, "boots: ")
	})
	until := func(end string) func(string) bool {
		over := false
		return func(line string) bool {
			over = over || strings.HasPrefix(strings.TrimSpace(line), end)
			return !over
		}
	}
	got["talos-agent status dev"] = leaveOut(take("", "status", "dev"), until("PASS"))
	r.lab.World.Heal()
	worker := r.status().Nodes[1].VMID
	must(r.lab.PVE.Stop(worker))
	if err := r.lab.PVE.Start(worker); err != nil && !strings.Contains(err.Error(), "already running") {
		t.Fatal(err)
	}
	r.untilReady(second)
	got["talos-agent history dev"] = take("", "history", "dev")
	// A machine that is busy waits for something long enough to tell it.
	got["talos-agent history dev 1"], _, _ = strings.Cut(take("", "history", "dev", "1"), "\n  WAITED ")
	take("talos-agent events dev --node dev-cp-1", "events", "dev", "--node", "dev-cp-1")
	got["sudo talos-agent doctor"] = doctorScreen(take("", "doctor", "--config", filepath.Join(r.dir, "config.yaml")))

	lines, stop := r.background(nil, "status", "dev", "--watch")
	r.until("the watcher sees it", func() bool { return lines.has("dev-wk-1 is Ready") })
	r.run(exitOK, do("suspend"))
	r.until("the watcher sees it", func() bool { return lines.has("Suspended: ") })
	r.run(exitOK, do("resume"))
	r.until("the watcher sees it", func() bool { return strings.Count(lines.String(), "dev Ready: ") == 2 })
	stop()
	got["talos-agent status dev --watch | cat"] = shown(lines.String())
	delete(got, "")
	got.hold(t)
}

// doctorScreen is the part of doctor's report that is the same on every machine
// this test runs on.
func doctorScreen(report string) string {
	section := ""
	return leaveOut(report, func(line string) bool {
		if line != "" && !strings.HasPrefix(line, " ") {
			section = line
		}
		switch section {
		case "Proxmox VE", "Storages and bridges":
			return strings.HasPrefix(line, "  pass") && !strings.Contains(line, " until ") && !strings.Contains(line, " bridge ") || line == section
		}
		return false
	})
}

// hold compares the page's screens with these, and every one must be there.
func (s screens) hold(t *testing.T) {
	t.Helper()
	path := filepath.Join("../..", screensPage)
	b, err := os.ReadFile(path)
	must(err)
	text := string(b)
	page := parsePage(t, screensPage, text)
	found, drifted := 0, false
	for _, block := range page.blocks {
		if block.checked != "by TestScreens" {
			continue
		}
		head, screen, _ := strings.Cut(block.text, "\n")
		want, ok := s[strings.TrimPrefix(head, "$ ")]
		if !ok {
			t.Errorf("%s: nothing prints the screen of %s", block.at(), head)
			continue
		}
		found++
		if same := screenWords(screen) == screenWords(want); !same && !golden.Update() {
			t.Errorf("%s: %s prints\n%s\nand the page shows\n%s\n-update writes it", block.at(), head, want, screen)
		} else if !same {
			drifted = true
		}
		text = strings.Replace(text, "```console\n"+block.text+"```", "```console\n"+head+"\n"+strings.TrimRight(want, "\n")+"\n```", 1)
	}
	if found != len(s) {
		t.Errorf("%s shows %d screens of %d", screensPage, found, len(s))
	}
	// All of them or none: they tell one story.
	if golden.Update() && drifted {
		must(os.WriteFile(path, []byte(text), 0o644))
	}
}
