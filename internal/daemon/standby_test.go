package daemon

import (
	"errors"
	"io/fs"
	"log/slog"
	"slices"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/election"
	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/host/state"
	"github.com/talos-agent/talos-agent/reconcile/journal"
)

// TestTakeOver: what an agent remembers holds as long as it was the last one that led, and is set aside when another one has led since;
// what was suspended stays so.
func TestTakeOver(t *testing.T) {
	for name, c := range map[string]struct {
		led       string // who led last; "own": this one
		hasLed    bool   // it has led before
		suspended []string
		isOld     bool
	}{
		"the first one ever":             {},
		"it was the last":                {led: "own", hasLed: true},
		"it was, and the note is late":   {led: "own", hasLed: true, suspended: []string{"dev"}},
		"another one led":                {led: "b", hasLed: true, isOld: true},
		"another one led, and it never":  {led: "b", isOld: true},
		"another one had something held": {led: "b", hasLed: true, suspended: []string{"dev", "prod", "../x", ""}, isOld: true},
		"somebody removed all terms":     {hasLed: true, isOld: true},
	} {
		files := state.Dir{Path: t.TempDir()}
		const owner = "talos-agent"
		open := func(name string) cluster.Facts {
			j, err := journal.Open(files, name, cluster.ClusterID(owner, name))
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			return j.Facts()
		}
		j, err := journal.Open(files, "dev", cluster.ClusterID(owner, "dev"))
		if err == nil {
			err = j.Update(func(f *cluster.Facts) { f.Fingerprint, f.Lost = "kept", false })
		}
		own, readErr := readOwnState(files)
		own.Led = c.hasLed
		if err := errors.Join(err, readErr, writeOwnState(files, own)); err != nil {
			t.Fatal(err)
		}
		d := &Daemon{log: slog.New(slog.DiscardHandler), files: files, settings: config.Settings{Owner: owner}}
		d.standby.own = own
		d.states = map[string]cluster.Status{"dev": {}} // of an earlier time
		lease := election.Lease{Led: c.led, Suspended: c.suspended}
		if c.led == "own" {
			lease.Led = own.State
		}
		if err := d.takeOver(lease); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		facts := open("dev")
		if isKept := facts.Fingerprint == "kept"; isKept == c.isOld || facts.Lost != c.isOld {
			t.Errorf("%s: %+v", name, facts)
		}
		_, err = files.Read("dev.json.old")
		if (err == nil) != c.isOld || err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: set aside: %v", name, err)
		}
		if held := c.isOld && slices.Contains(c.suspended, "dev"); facts.Suspended() != held || c.isOld && len(c.suspended) > 1 && !open("prod").Suspended() {
			t.Errorf("%s: suspended: %t", name, facts.Suspended())
		}
		if again, err := readOwnState(files); err != nil || again != own {
			t.Errorf("%s: %+v, %v", name, again, err)
		}
		if c.isOld && !slices.Equal(d.suspended(), slices.DeleteFunc(slices.Clone(c.suspended), func(name string) bool { return name == "" || name == "../x" })) {
			t.Errorf("%s: the next one is to hold %v", name, d.suspended())
		}
		// Until its loop has looked a cluster counts as it was.
		d.states = map[string]cluster.Status{"dev": {}, "other": {Destroying: true}}
		if got := d.suspended(); slices.Contains(got, "dev") || !slices.Contains(got, "other") {
			t.Errorf("%s: with statuses: %v", name, got)
		}
	}
}

// TestOwnStateThatIsTorn: a file that cannot be read is named, and nothing is made up for it.
func TestOwnStateThatIsTorn(t *testing.T) {
	files := state.Dir{Path: t.TempDir()}
	if err := files.Write(electionFile, []byte("{")); err != nil {
		t.Fatal(err)
	}
	if own, err := readOwnState(files); err == nil {
		t.Errorf("%+v", own)
	}
}

// TestSuspendedByItself: what a person has this agent leave alone stays so where it is not known that another one has led since, and not
// where another one has: there a person may have let it go on.
func TestSuspendedByItself(t *testing.T) {
	for name, c := range map[string]struct {
		led    string
		hasLed bool
		held   bool
	}{
		"somebody removed all terms":                  {hasLed: true, held: true},
		"it was alone, and another one led before":    {led: "b", held: true},
		"another one led since":                       {led: "b", hasLed: true},
		"it was the last, whose own journal has that": {led: "own", hasLed: true, held: true},
	} {
		files := state.Dir{Path: t.TempDir()}
		suspend := func(name string, kind cluster.IntentKind) error {
			j, err := journal.Open(files, name, cluster.ClusterID("o", name))
			if err != nil {
				return err
			}
			return j.Update(func(f *cluster.Facts) { f.Intend(cluster.Intent{Kind: kind}) })
		}
		own, err := readOwnState(files)
		if err := errors.Join(err, suspend("dev", cluster.IntendSuspend), suspend("prod", cluster.IntendDestroy)); err != nil {
			t.Fatal(err)
		}
		own.Led = c.hasLed
		d := &Daemon{log: slog.New(slog.DiscardHandler), files: files, settings: config.Settings{Owner: "o"}}
		d.standby.own = own
		lease := election.Lease{Led: c.led}
		if c.led == "own" {
			lease.Led = own.State
		}
		if err := d.takeOver(lease); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, cl := range []string{"dev", "prod"} {
			j, err := journal.Open(files, cl, cluster.ClusterID("o", cl))
			if err != nil {
				t.Fatal(err)
			}
			if facts := j.Facts(); (facts.Suspended() || facts.Destroying()) != c.held {
				t.Errorf("%s: %s: %+v", name, cl, facts.Intents)
			}
		}
	}
}

// TestReloadKeepsSuspended: what is suspended is not forgotten while the next agent of the same daemon has not looked, and what is
// not managed any more is.
func TestReloadKeepsSuspended(t *testing.T) {
	d := &Daemon{log: slog.New(slog.DiscardHandler)}
	d.standby.takes.Store(&[]string{"dev", "old"})
	d.states = map[string]cluster.Status{"dev": {}, "prod": {Suspended: true}}
	d.keepSuspended()
	d.states = map[string]cluster.Status{}
	if got := d.suspended(); !slices.Equal(got, []string{"old", "prod"}) {
		t.Errorf("after a reload: %v", got)
	}
	d.dropSuspended("old")
	if got := d.suspended(); !slices.Equal(got, []string{"prod"}) {
		t.Errorf("without the one that is forgotten: %v", got)
	}
}
