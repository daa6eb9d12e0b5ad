package logging

import (
	"bytes"
	"errors"
	"maps"
	"testing"

	"github.com/coreos/go-systemd/v22/journal"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestJournalFields holds the fields by which people ask the journal for one
// node's story, and that the sentence stands without them.
func TestJournalFields(t *testing.T) {
	type entry struct {
		message  string
		priority journal.Priority
		fields   map[string]string
	}
	var got entry
	log := New(Config{Journal: func(m string, p journal.Priority, f map[string]string) error {
		got = entry{m, p, f}
		return nil
	}}).With("cluster", "dev")

	action := log.With("action", "create vm", "node", "cp-1", "vmid", 411, "revision", "main@sha1:0123")
	action.Info("action started", "detail", "create vm 411 (cp-1)", "upid", "UPID:pve1:1", "phase", cluster.PhaseCreating, "duration_ms", 1200)
	want := entry{"[dev] action started: create vm 411 (cp-1)", journal.PriInfo, map[string]string{"SYSLOG_IDENTIFIER": "talos-agent", "CLUSTER": "dev", "ACTION": "create vm", "NODE": "cp-1",
		"DETAIL": "create vm 411 (cp-1)",
		"VMID":   "411", "REVISION": "main@sha1:0123", "UPID": "UPID:pve1:1", "PHASE": "Creating", "DURATION_MS": "1200"}}
	if got.message != want.message || got.priority != want.priority || !maps.Equal(got.fields, want.fields) {
		t.Errorf("%+v\nwant %+v", got, want)
	}

	// A node that no word names is named.
	log.Warn("cannot read the config", "node", "cp-1", "detail", "two\nlines")
	if want := "[dev] cannot read the config (cp-1): two lines"; got.message != want {
		t.Errorf("%q, want %q", got.message, want)
	}

	// An error and its hint are part of the sentence; what an action does not
	// have is no field; a secret prints nowhere.
	log.With("node", "", "vmid", 0).Warn("could not upload the image", "err", errors.New("no room\n  left"), "hint", "make room", "token", cluster.SecretString("s3cret"))
	want = entry{"[dev] could not upload the image: no room left (make room)", journal.PriWarning, map[string]string{"SYSLOG_IDENTIFIER": "talos-agent", "CLUSTER": "dev",
		"ERROR": "no room\n  left", "HINT": "make room", "TOKEN": "[redacted]"}}
	if got.message != want.message || got.priority != want.priority || !maps.Equal(got.fields, want.fields) {
		t.Errorf("%+v\nwant %+v", got, want)
	}

	got = entry{}
	log.Debug("waits")
	if got.fields != nil {
		t.Errorf("a debug record was written: %+v", got)
	}
}

// TestLogLines holds the lines that a terminal shows for the same records.
func TestLogLines(t *testing.T) {
	var b bytes.Buffer
	log := New(Config{Output: &b}).With("cluster", "dev")
	log.Info("action started", "detail", "create vm 411 (cp-1)", "node", "cp-1", "vmid", 411)
	log.Error("could not fetch", "err", errors.New("no\nroute"), "hint", "mend the network", "stack", "x")
	const clock = len("15:04:05")
	var lines []string
	for line := range bytes.Lines(b.Bytes()) {
		lines = append(lines, string(line))
	}
	if len(lines) != 3 || lines[0][clock:] != " [dev] action started: create vm 411 (cp-1)\n" || lines[1][clock:] != " error: [dev] could not fetch: no route stack=x\n" || lines[2] != "         -> mend the network\n" {
		t.Errorf("lines %q", lines)
	}
}
