package eventlog

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
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// TestEventsAreTheJournal: an event has, word for word, what the journal has of
// the same record.
func TestEventsAreTheJournal(t *testing.T) {
	events := NewEvents()
	var fields map[string]string
	var message string
	log := logging.New(logging.Config{Verbose: true, Observe: events.Add, Journal: func(m string, _ journal.Priority, f map[string]string) error {
		message, fields = m, f
		return nil
	}}).With("cluster", "dev")
	log.Debug("nobody needs it")
	log.With("node", "cp-1", "vmid", 411).Warn("action failed", "detail", "create vm 411", "err", errors.New("no room"), "hint", "make room",
		"duration_ms", 12, "token", cluster.SecretString("s3cret"), "upid", "")
	all := events.Select(cluster.EventQuery{})
	if len(all) != 1 {
		t.Fatalf("events %+v", all)
	}
	e := all[0]
	has := map[string]string{"SYSLOG_IDENTIFIER": "talos-agent", "CLUSTER": e.Cluster, "NODE": e.Node, "ERROR": e.Error, "HINT": e.Hint}
	for k, v := range e.Fields {
		has[k] = v
	}
	if e.Level != "warning" || "["+e.Cluster+"] "+e.Message+": "+e.Error+" ("+e.Hint+")" != message || e.Message != "action failed (cp-1): create vm 411" || fmt.Sprint(has) != fmt.Sprint(fields) {
		t.Errorf("event %+v\njournal %q %v", e, message, fields)
	}
	if fields["TOKEN"] != "[redacted]" {
		t.Errorf("a secret is told: %v", fields)
	}
	log.Info(strings.Repeat("x", 2*maxField))
	if all := events.Select(cluster.EventQuery{Last: 1}); len(all[0].Message) > maxField+3 {
		t.Errorf("a message of %d bytes is kept", len(all[0].Message))
	}
}

// openEvents keeps events in a directory as a daemon does.
func openEvents(t *testing.T, files Files) (*Events, *slog.Logger, *bytes.Buffer) {
	t.Helper()
	ev, logged := NewEvents(), &bytes.Buffer{}
	log := logging.New(logging.Config{Output: logged, Observe: ev.Add})
	ev.Open(files, logging.WithoutObserver(log))
	return ev, log, logged
}

func TestEventsSurviveARestart(t *testing.T) {
	dir := t.TempDir()
	_, log, _ := openEvents(t, state.Dir{Path: dir})
	log.Info("one")
	log.Info("two")
	if info, err := os.Stat(filepath.Join(dir, EventsFile)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	events, log, _ := openEvents(t, state.Dir{Path: dir})
	log.Info("three")
	messages := func(ev *Events) (out []string) {
		for _, e := range ev.Select(cluster.EventQuery{}) {
			out = append(out, e.Message)
		}
		return out
	}
	if got := messages(events); fmt.Sprint(got) != "[one two three]" {
		t.Errorf("events %v", got)
	}

	// A torn end and garbage cost what they are, and are told.
	path := filepath.Join(dir, EventsFile)
	b, err := os.ReadFile(path)
	must(err)
	must(os.WriteFile(path, append([]byte("\x00garbage\n"), b[:len(b)-4]...), 0o600))
	events, _, said := openEvents(t, state.Dir{Path: dir})
	if got := messages(events); fmt.Sprint(got) != "[one two]" || !strings.Contains(said.String(), "lines=2") {
		t.Errorf("events %v; said %s", got, said)
	}

	// Nothing is glued to the torn end.
	must(os.WriteFile(path, b[:len(b)-4], 0o600))
	_, log, _ = openEvents(t, state.Dir{Path: dir})
	log.Info("four")
	if events, _, _ = openEvents(t, state.Dir{Path: dir}); fmt.Sprint(messages(events)) != "[one two four]" {
		t.Errorf("events %v", messages(events))
	}

	// What is no file of ours is not followed, and the daemon goes on.
	must(os.Remove(path))
	must(os.Symlink("/etc/passwd", path))
	events, log, said = openEvents(t, state.Dir{Path: dir})
	log.Info("four")
	log.Info("five")
	if got := messages(events); fmt.Sprint(got) != "[four five]" || strings.Count(said.String(), "the list begins empty") != 1 {
		t.Errorf("events %v; said %s", got, said)
	}
}

// TestEventsOfManySurviveARestart: loops and actions log side by side, and what
// is written first is not always what was told first.
func TestEventsOfManySurviveARestart(t *testing.T) {
	dir := t.TempDir()
	events, log, _ := openEvents(t, state.Dir{Path: dir})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				log.Info("something")
			}
		})
	}
	wg.Wait()
	want := events.Select(cluster.EventQuery{})
	events, _, _ = openEvents(t, state.Dir{Path: dir})
	if got := events.Select(cluster.EventQuery{}); len(want) != 800 || !slices.EqualFunc(got, want, func(a, b cluster.Event) bool { return a.Seq == b.Seq }) {
		t.Errorf("%d of %d events survive", len(got), len(want))
	}
}

// TestEventsFileIsBounded: it is written anew from its newer half, and never
// larger than any file of the state directory.
func TestEventsFileIsBounded(t *testing.T) {
	dir := t.TempDir()
	_, log, said := openEvents(t, state.Dir{Path: dir})
	long := strings.Repeat("y", maxField)
	for range 3 * maxFile / maxField {
		log.Info(long)
	}
	info, err := os.Stat(filepath.Join(dir, EventsFile))
	if err != nil || info.Size() > maxFile || info.Size() < maxFile/4 {
		t.Errorf("%v %v", info.Size(), err)
	}
	if strings.Contains(said.String(), "warning") {
		t.Error("it is told to be in trouble")
	}
	events, _, _ := openEvents(t, state.Dir{Path: dir})
	if n := len(events.Select(cluster.EventQuery{})); n < maxFile/4/maxField {
		t.Errorf("%d events left", n)
	}
}

// TestATroubledDiskIsToldOnce: without room events are kept in memory, and one
// line says so.
func TestATroubledDiskIsToldOnce(t *testing.T) {
	dir := t.TempDir()
	files := &state.Dir{Path: dir}
	events, log, said := openEvents(t, files)
	files.Path = filepath.Join(dir, "gone")
	for range 3 {
		log.Info("x")
	}
	if n := strings.Count(said.String(), "cannot keep"); n != 1 || len(events.Select(cluster.EventQuery{})) != 3 {
		t.Errorf("told %d times: %s", n, said)
	}
	files.Path = dir
	log.Info("again")
	if _, err := os.Stat(filepath.Join(dir, EventsFile)); errors.Is(err, fs.ErrNotExist) {
		t.Error("nothing is kept after the trouble")
	}
}

func TestRunsSurviveARestart(t *testing.T) {
	dir := t.TempDir()
	files := state.Dir{Path: dir}
	var said bytes.Buffer
	log := logging.New(logging.Config{Output: &said})
	now := time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC)
	tell := func(c *Runs, revision cluster.Revision, cond cluster.Condition) {
		now = now.Add(time.Minute)
		c.AddStatus(cluster.Status{Cluster: "dev", Revision: revision, Condition: cond}, now, func() ([]cluster.Step, bool) { return nil, true })
	}
	first := NewRuns(files, 2, log)
	tell(first, "a", cluster.Reconciling)
	tell(first, "a", cluster.Ready)
	tell(first, "b", cluster.Reconciling)
	first.AddAction("dev", cluster.Outcome{Text: "create vm", Began: now})
	first.Close()

	second := NewRuns(files, 2, log)
	runs := second.List("dev")
	if len(runs) != 2 || runs[1].Result != cluster.Ready || runs[0].Result != cluster.Interrupted || len(runs[0].Actions) != 1 {
		t.Errorf("%+v", runs)
	}
	second.AddCommand("dev", "suspended", false)
	tell(second, "b", cluster.Suspended)
	if r := second.List("dev"); len(r) != 2 || r[0].Number != 3 || r[0].Cause != "root suspended" {
		t.Errorf("%+v", r)
	}
	// Many runs: the file is written anew, and what is left is the newest.
	for i := range 2000 {
		second.AddStatus(cluster.Status{Cluster: "dev", Revision: cluster.Revision(fmt.Sprint(i)), Condition: cluster.Stalled, Message: strings.Repeat("z", 2000)}, now,
			func() ([]cluster.Step, bool) { return nil, true })
	}
	if info, err := os.Stat(filepath.Join(dir, "history-dev.jsonl")); err != nil || info.Size() > maxFile {
		t.Errorf("%v %v", info, err)
	}
	if r := NewRuns(files, 2, log).List("dev"); len(r) != 2 || r[0].Revision != "1999" {
		t.Errorf("%+v", r)
	}
	// Garbage is told, and no obstacle.
	must(os.WriteFile(filepath.Join(dir, "history-dev.jsonl"), []byte("garbage\n"), 0o600))
	if r := NewRuns(files, history.DefaultKeep, log).List("dev"); len(r) != 0 || !strings.Contains(said.String(), "lines=1") {
		t.Errorf("%+v; said %s", r, &said)
	}
}

// TestRunsOfAnAgentThatIsKilled: nothing is closed, and the next agent finds all that was done
// and what was interrupted, in a file of its form whatever was held back at first.
func TestRunsOfAnAgentThatIsKilled(t *testing.T) {
	for _, held := range []bool{false, true} {
		files := state.Dir{Path: t.TempDir()}
		log := slog.New(slog.DiscardHandler)
		now := time.Now().Truncate(time.Second)
		status := func(rs *Runs) {
			rs.AddStatus(cluster.Status{Cluster: "dev", Revision: "a", Condition: cluster.Reconciling}, now, func() ([]cluster.Step, bool) { return nil, true })
		}
		first := NewRuns(files, 5, log)
		if held {
			first.Hold("dev")
		}
		status(first)
		first.AddBegun("dev", cluster.Outcome{Action: cluster.CreateVM, Subject: "cp-1", Text: "create vm", Began: now})
		first.AddAction("dev", cluster.Outcome{Action: cluster.CreateVM, Subject: "cp-1", Text: "create vm", Began: now, DurationMS: 4000, Result: cluster.Done})
		now = now.Add(10 * time.Second)
		first.AddBegun("dev", cluster.Outcome{Action: cluster.DrainNode, Subject: "cp-1", Text: "drain", Began: now})
		now = now.Add(14 * time.Second)
		status(first)

		for range 2 {
			r := NewRuns(files, 5, log).List("dev")
			if len(r) != 1 || r[0].Result != cluster.Interrupted || r[0].Ended.Sub(r[0].Began) != 24*time.Second || len(r[0].Actions) != 2 ||
				r[0].Actions[0].Result != cluster.Done || r[0].Actions[1].Result != cluster.ResultInterrupted || r[0].Actions[1].DurationMS != 14_000 {
				t.Errorf("held %v: %+v", held, r)
			}
		}
	}
}

// TestRunsOfNothing: a cluster that leads to no action and no command leaves no file, one that
// does has all its runs in it, and a cluster that is forgotten whole loses it.
func TestRunsOfNothing(t *testing.T) {
	dir := t.TempDir()
	log := slog.New(slog.DiscardHandler)
	runs := NewRuns(state.Dir{Path: dir}, 10, log)
	nothing := func() ([]cluster.Step, bool) { return nil, true }
	status := func(name string, c cluster.Condition, rev int) {
		runs.AddStatus(cluster.Status{Cluster: name, Condition: c, Revision: cluster.Revision(fmt.Sprintf("main@sha1:%040d", rev)), Message: "m"}, time.Now(), nothing)
	}
	files := func() (names []string) {
		entries, err := os.ReadDir(dir)
		must(err)
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	for _, name := range []string{"ghost", "dev"} {
		runs.Hold(name)
		status(name, cluster.Stalled, 1)
		status(name, cluster.Stalled, 2)
	}
	if got := files(); len(got) > 0 {
		t.Errorf("files %v", got)
	}
	want := len(runs.List("dev"))
	runs.AddAction("dev", cluster.Outcome{Action: "create vm", Result: cluster.Done})
	runs.Forget("ghost", true)
	runs.Forget("dev", false)
	if got := files(); !slices.Equal(got, []string{"history-dev.jsonl"}) || len(runs.List("ghost")) > 0 || want == 0 || len(runs.List("dev")) < want {
		t.Errorf("files %v; %d runs of dev, there were %d", got, len(runs.List("dev")), want)
	}
	runs.Forget("dev", true)
	if got := files(); len(got) > 0 {
		t.Errorf("files %v", got)
	}
}
