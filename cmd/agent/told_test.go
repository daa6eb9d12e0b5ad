package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coreos/go-systemd/v22/journal"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/history"
	"github.com/talos-agent/talos-agent/internal/host/state"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/internal/terminal"
)

// TestEventsAreTheJournal: an event has, word for word, what the journal has of
// the same record.
func TestEventsAreTheJournal(t *testing.T) {
	td := newTold()
	var fields map[string]string
	var message string
	log := logging.New(logging.Config{Verbose: true, Observe: td.take, Journal: func(m string, _ journal.Priority, f map[string]string) error {
		message, fields = m, f
		return nil
	}}).With("cluster", "dev")
	log.Debug("nobody needs it")
	log.With("node", "cp-1", "vmid", 411).Warn("could not create vm 411", "err", errors.New("no room"), "hint", "make room",
		"duration_ms", 12, "token", cluster.SecretString("s3cret"), "upid", "")
	all := td.ring.Select(cluster.EventQuery{})
	if len(all) != 1 {
		t.Fatalf("events %+v", all)
	}
	e := all[0]
	has := map[string]string{"SYSLOG_IDENTIFIER": "talos-agent", "CLUSTER": e.Cluster, "NODE": e.Node, "ERROR": e.Error, "HINT": e.Hint}
	for k, v := range e.Fields {
		has[k] = v
	}
	if e.Level != "warning" || e.Message+": "+e.Error+" ("+e.Hint+")" != message || fmt.Sprint(has) != fmt.Sprint(fields) {
		t.Errorf("event %+v\njournal %q %v", e, message, fields)
	}
	if fields["TOKEN"] != "[redacted]" {
		t.Errorf("a secret is told: %v", fields)
	}
	log.Info(strings.Repeat("x", 2*maxField))
	if all := td.ring.Select(cluster.EventQuery{Last: 1}); len(all[0].Message) > maxField+3 {
		t.Errorf("a message of %d bytes is kept", len(all[0].Message))
	}
}

// tolded keeps events in a directory as a daemon does.
func tolded(t *testing.T, dir string) (*told, *slog.Logger, *bytes.Buffer) {
	t.Helper()
	td, said := newTold(), &bytes.Buffer{}
	log := logging.New(logging.Config{Output: terminal.NewCleaner(said), Observe: td.take})
	td.open(state.Dir{Path: dir}, logging.WithoutObserver(log))
	return td, log, said
}

func TestEventsSurviveARestart(t *testing.T) {
	dir := t.TempDir()
	_, log, _ := tolded(t, dir)
	log.Info("one")
	log.Info("two")
	if info, err := os.Stat(filepath.Join(dir, eventsFile)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	td, log, _ := tolded(t, dir)
	log.Info("three")
	messages := func(td *told) (out []string) {
		for _, e := range td.ring.Select(cluster.EventQuery{}) {
			out = append(out, e.Message)
		}
		return out
	}
	if got := messages(td); fmt.Sprint(got) != "[one two three]" {
		t.Errorf("events %v", got)
	}

	// A torn end and garbage cost what they are, and are told.
	path := filepath.Join(dir, eventsFile)
	b, err := os.ReadFile(path)
	must(err)
	must(os.WriteFile(path, append([]byte("\x00garbage\n"), b[:len(b)-4]...), 0o600))
	td, _, said := tolded(t, dir)
	if got := messages(td); fmt.Sprint(got) != "[one two]" || !strings.Contains(said.String(), "lines=2") {
		t.Errorf("events %v; said %s", got, said)
	}

	// Nothing is glued to the torn end.
	must(os.WriteFile(path, b[:len(b)-4], 0o600))
	_, log, _ = tolded(t, dir)
	log.Info("four")
	if td, _, _ = tolded(t, dir); fmt.Sprint(messages(td)) != "[one two four]" {
		t.Errorf("events %v", messages(td))
	}

	// What is no file of ours is not followed, and the daemon goes on.
	must(os.Remove(path))
	must(os.Symlink("/etc/passwd", path))
	td, log, said = tolded(t, dir)
	log.Info("four")
	log.Info("five")
	if got := messages(td); fmt.Sprint(got) != "[four five]" || strings.Count(said.String(), "begin anew") != 1 {
		t.Errorf("events %v; said %s", got, said)
	}
}

// TestEventsOfManySurviveARestart: loops and actions log side by side, and what
// is written first is not always what was told first.
func TestEventsOfManySurviveARestart(t *testing.T) {
	dir := t.TempDir()
	td, log, _ := tolded(t, dir)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				log.Info("something")
			}
		})
	}
	wg.Wait()
	want := td.ring.Select(cluster.EventQuery{})
	td, _, _ = tolded(t, dir)
	if got := td.ring.Select(cluster.EventQuery{}); len(want) != 800 || !slices.EqualFunc(got, want, func(a, b cluster.Event) bool { return a.Seq == b.Seq }) {
		t.Errorf("%d of %d events survive", len(got), len(want))
	}
}

// TestEventsFileIsBounded: it is written anew from its newer half, and never
// larger than any file of the state directory.
func TestEventsFileIsBounded(t *testing.T) {
	dir := t.TempDir()
	_, log, said := tolded(t, dir)
	long := strings.Repeat("y", maxField)
	for range 3 * state.MaxFile / maxField {
		log.Info(long)
	}
	info, err := os.Stat(filepath.Join(dir, eventsFile))
	if err != nil || info.Size() > state.MaxFile || info.Size() < state.MaxFile/4 {
		t.Errorf("%v %v", info.Size(), err)
	}
	if strings.Contains(said.String(), "warning") {
		t.Error("it is told to be in trouble")
	}
	td, _, _ := tolded(t, dir)
	if n := len(td.ring.Select(cluster.EventQuery{})); n < state.MaxFile/4/maxField {
		t.Errorf("%d events left", n)
	}
}

// TestATroubledDiskIsToldOnce: without room events are kept in memory, and one
// line says so.
func TestATroubledDiskIsToldOnce(t *testing.T) {
	dir := t.TempDir()
	td, log, said := tolded(t, dir)
	td.file.files.Path = filepath.Join(dir, "gone")
	for range 3 {
		log.Info("x")
	}
	if n := strings.Count(said.String(), "cannot keep"); n != 1 || len(td.ring.Select(cluster.EventQuery{})) != 3 {
		t.Errorf("told %d times: %s", n, said)
	}
	td.file.files.Path = dir
	log.Info("again")
	if _, err := os.Stat(filepath.Join(dir, eventsFile)); errors.Is(err, fs.ErrNotExist) {
		t.Error("nothing is kept after the trouble")
	}
}

func TestChronicleSurvivesARestart(t *testing.T) {
	dir := t.TempDir()
	files := state.Dir{Path: dir}
	var said bytes.Buffer
	log := logging.New(logging.Config{Output: terminal.NewCleaner(&said)})
	now := time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC)
	tell := func(c *chronicle, revision cluster.Revision, cond cluster.Condition) {
		now = now.Add(time.Minute)
		c.told(cluster.Status{Cluster: "dev", Revision: revision, Condition: cond}, now, func() ([]cluster.Step, bool) { return nil, true })
	}
	first := newChronicle(&files, 2, log)
	tell(first, "a", cluster.Reconciling)
	tell(first, "a", cluster.Ready)
	tell(first, "b", cluster.Reconciling)
	first.did("dev", cluster.Outcome{Text: "create vm", Began: now})
	first.close()

	second := newChronicle(&files, 2, log)
	runs := second.runs("dev")
	if len(runs) != 2 || runs[1].Result != cluster.Ready || runs[0].Result != cluster.Interrupted || len(runs[0].Actions) != 1 {
		t.Errorf("%+v", runs)
	}
	second.said("dev", "suspended")
	tell(second, "b", cluster.Suspended)
	if r := second.runs("dev"); len(r) != 2 || r[0].Number != 3 || r[0].Cause != "root suspended" {
		t.Errorf("%+v", r)
	}
	// Many runs: the file is written anew, and what is left is the newest.
	for i := range 2000 {
		second.told(cluster.Status{Cluster: "dev", Revision: cluster.Revision(fmt.Sprint(i)), Condition: cluster.Stalled, Message: strings.Repeat("z", 2000)}, now,
			func() ([]cluster.Step, bool) { return nil, true })
	}
	if info, err := os.Stat(filepath.Join(dir, "history-dev.jsonl")); err != nil || info.Size() > state.MaxFile {
		t.Errorf("%v %v", info, err)
	}
	if r := newChronicle(&files, 2, log).runs("dev"); len(r) != 2 || r[0].Revision != "1999" {
		t.Errorf("%+v", r)
	}
	// Garbage is told, and no obstacle.
	must(os.WriteFile(filepath.Join(dir, "history-dev.jsonl"), []byte("garbage\n"), 0o600))
	if r := newChronicle(&files, history.DefaultKeep, log).runs("dev"); len(r) != 0 || !strings.Contains(said.String(), "lines=1") {
		t.Errorf("%+v; said %s", r, &said)
	}
	if names, err := (state.Dir{Path: dir}).Journals(); err != nil || len(names) != 0 {
		t.Errorf("the history is taken for the journal of a cluster: %v %v", names, err)
	}
}
