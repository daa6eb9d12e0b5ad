package agent

import (
	"errors"
	"io/fs"
	"slices"
	"time"

	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/reconcile"
)

// discover takes up the clusters that appear in the repository, and those that
// could not be taken up before. One that disappears stays managed: a missing
// inventory changes nothing.
func (a *Agent) discover() {
	asOf := time.Now().Add(-a.c.Interval)
	// How long a repository that cannot be read is left alone: its server may
	// shut out whoever it refuses too often.
	soon := firstRetry
	for {
		pause := a.c.Interval
		newer := a.hub.kicked() // taken before the look: what comes after it counts
		names, err := a.c.Clusters, error(nil)
		if len(names) == 0 {
			names, err = a.hub.clusters(a.ctx, asOf)
		}
		looked := time.Now()
		for _, name := range append(slices.Clone(names), a.stillRefused(names, err == nil)...) {
			a.manage(name)
		}
		if err != nil {
			pause = min(soon, pause)
			soon = min(2*soon, a.c.Interval)
		} else {
			soon = firstRetry
		}
		if a.ctx.Err() == nil {
			a.foundOut(err)
		}
		timer := time.NewTimer(pause)
		select {
		case <-a.ctx.Done():
			timer.Stop()
			return
		case asOf = <-a.asked:
			timer.Stop()
			continue
		case <-newer:
			timer.Stop()
		case <-timer.C:
		}
		asOf = time.Now().Add(-a.c.Interval)
		if err != nil {
			asOf = looked.Add(1) // the answer that was no use is not asked for again
		}
	}
}

// stillRefused are the clusters that could not be looked after and are not in the
// repository, or not known to be: they are tried again too, for what is wrong with
// their records may be mended. One that is in neither any more is forgotten.
func (a *Agent) stillRefused(names []string, known bool) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []string
	for name := range a.refused {
		if slices.Contains(names, name) {
			continue
		}
		if _, err := a.c.Files.Read(reconcile.JournalName(name)); known && errors.Is(err, fs.ErrNotExist) {
			delete(a.refused, name)
			a.c.Log.Info("a cluster that could not be managed is no longer in the repository, and has no journal; it is forgotten", logging.Cluster, name)
			a.c.Pulse.Beat()
			continue
		}
		out = append(out, name)
	}
	return out
}

// firstRetry is when a repository that could not be read is asked again; the
// pause doubles from there up to the interval.
const firstRetry = 5 * time.Second

// foundOut takes how it went to read which clusters there are. The log has it
// when it is news: not as often as it is tried.
func (a *Agent) foundOut(err error) {
	a.mu.Lock()
	before := a.unread
	a.unread = err
	a.mu.Unlock()
	switch {
	case err != nil && (before == nil || before.Error() != err.Error()):
		a.c.Log.Warn(cannotRead, logging.Err, err, logging.Hint, fault.HintOf(err))
	case err == nil && before != nil:
		a.c.Log.Info(readAgain)
	default:
		return
	}
	a.c.Pulse.Beat()
}

const (
	cannotRead = "cannot read the clusters of the repository"
	readAgain  = "the clusters of the repository are read"
)

// Trouble is why there is no cluster to tell of. What keeps one that is known
// from going on stands in its own status.
func (a *Agent) Trouble() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.unread == nil || len(a.managed)+len(a.refused) > 0 {
		return nil
	}
	words := cannotRead + ": " + a.unread.Error()
	if hint := fault.HintOf(a.unread); hint != "" {
		words += " (" + hint + ")"
	}
	return []string{words}
}
