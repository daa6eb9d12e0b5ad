package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/daemon/daemontest"
	"github.com/talos-agent/talos-agent/internal/lab"
)

// TestDaemonsOwnFiles: whatever file the daemon was made from may be replaced
// under it. What is whole is taken up by itself; with what is not the daemon
// goes on as before, and says so wherever one looks, until it is mended. The
// policy is another matter.
func TestDaemonsOwnFiles(t *testing.T) {
	daemontest.LeaveToExhaust(t)
	r := newRig(t, lab.Config{})
	authority := r.authorities()
	commit := r.push(r.inventory(0))
	r.start()
	r.untilReady(commit)
	lines, stopLines := r.background(nil, "status", "--watch")
	tty, shown, _ := openTerminal(t, 200, 30)
	_, stopTTY := r.background(tty, "status", "--watch")
	r.until("it is watched", func() bool { return lines.has("dev Ready") && shown.has("Ready") })
	inTrouble := func(words string) {
		t.Helper()
		r.until("trouble: "+words, func() bool { return r.try("status").has("problem ") && r.try("status").has(words) })
		r.run(exitOK, do("status"), words, "what was loaded before stays in force", "dev  Ready", "talos-agent doctor")
		r.until("whoever watches is told: "+words, func() bool { return lines.has(words) && shown.has(words) })
	}
	over := func() int { return strings.Count(r.log.String(), "restarting with changed files: ") }
	mended := func() {
		t.Helper()
		r.until("the trouble is over", func() bool { return !r.try("status").has("problem") })
		r.until("whoever watches is told", func() bool {
			text := lines.String()
			ended := strings.Count(text, "problem is over: ")
			return ended > 0 && strings.Count(text, " problem ") == 2*ended
		})
		r.untilReady(commit)
	}

	// A token is written as a shell does it: emptied, begun, whole. It is the same
	// as before in the end, so that nothing starts over.
	token := filepath.Join(r.dir, "proxmox.token")
	for _, step := range []struct{ text, told string }{{"", "the file " + token + " is empty"}, {r.lab.Token[:9], "the file " + token + " holds no API token"}} {
		must(os.WriteFile(token, []byte(step.text), 0o600))
		inTrouble(step.told)
		r.run(exitOK, do("reconcile"))
		r.untilReady(commit)
	}
	must(os.WriteFile(token, []byte(r.lab.Token), 0o600))
	mended()
	if n := over(); n != 0 {
		t.Errorf("started over %d times with what is the same", n)
	}
	if r.log.has("401 Authentication failed") {
		t.Error("asked with a token that was not whole")
	}

	// Authorities are exchanged with the folder that a link leads to.
	authority("broken", "no certificate")
	inTrouble("holds no certificate")
	authority("another", string(r.lab.CA())+string(r.lab.CA()))
	mended()
	if n := over(); n != 1 || !r.log.has("restarting with changed files: "+filepath.Join(r.dir, "ca.pem")) {
		t.Errorf("started over %d times", n)
	}

	// What is only touched is no news.
	said := r.log.String()
	must(os.Chtimes(token, time.Time{}, time.Now()))
	r.file("policy.yaml", "pool: talos\nvmids: [500-599]\nbridges: [vmbr1]\n")
	r.untilStalled("")
	if more := strings.TrimPrefix(r.log.String(), said); strings.Count(more, "loaded") != 1 || strings.Contains(more, "restarting with changed files") {
		t.Errorf("said of a policy and a file that was touched: %s", more)
	}
	stopLines()
	stopTTY()
}

// authorities puts the rig's CA file behind two links, as a mounted volume has
// it, and returns what exchanges all behind them at once.
func (r *rig) authorities() func(version, pem string) {
	r.t.Helper()
	dir := filepath.Join(r.dir, "authorities")
	must(os.Mkdir(dir, 0o755))
	exchange := func(version, pem string) {
		r.t.Helper()
		must(os.Mkdir(filepath.Join(dir, version), 0o755))
		must(os.WriteFile(filepath.Join(dir, version, "ca.pem"), []byte(pem), 0o644))
		must(os.Symlink(version, filepath.Join(dir, "..new")))
		must(os.Rename(filepath.Join(dir, "..new"), filepath.Join(dir, "..data")))
	}
	exchange("first", string(r.lab.CA()))
	must(os.Remove(filepath.Join(r.dir, "ca.pem")))
	must(os.Symlink("authorities/..data/ca.pem", filepath.Join(r.dir, "ca.pem")))
	return exchange
}
