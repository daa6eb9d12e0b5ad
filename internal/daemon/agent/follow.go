package agent

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/follower"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/reconcile/journal"
)

// StuckAfter is how far behind its own schedule a loop may be before it counts
// as stuck: that which fetches the repository may take follower.Within, the first
// pass of a cluster waits for it, and then for everybody else's answers.
const StuckAfter = follower.Within + time.Minute

// NextFetch is when the repository is fetched next, or when the fetch began that is
// under way.
func (a *Agent) NextFetch() time.Time { return a.follower.Due() }

// takeFetched takes how a fetch of the repository ended: it manages the clusters
// that appear, and those that could not be managed before. One that disappears stays
// managed while something of it is left: a missing inventory changes nothing. The error is why the clusters are not
// known, or not as they are now.
func (a *Agent) takeFetched(r follower.Result, isNews bool) error {
	a.gate.Did("git", r.Err)
	a.outage.Observe(r.Err)
	if isNews {
		a.lookAtOnce()
	}
	names, err := a.c.Clusters, error(nil)
	if len(names) == 0 {
		names, err = a.listClusters(r)
	}
	for _, name := range append(slices.Clone(names), a.stillRefused(names, err == nil)...) {
		a.manage(name)
	}
	if a.ctx.Err() == nil {
		a.foundOut(err)
	}
	return cmp.Or(r.Err, err)
}

// listClusters lists the clusters of a tree. What panics over the repository's files
// is an error.
func (a *Agent) listClusters(r follower.Result) (names []string, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fault.Internal(v)
		}
	}()
	if r.Err != nil {
		return nil, r.Err
	}
	names, problems, err := a.repo.Clusters(a.ctx, r.Tree)
	if err != nil {
		return nil, err
	}
	if len(names) > 0 {
		a.foundMisnamed(problems)
		return names, nil
	}
	a.foundMisnamed(nil) // they are the error
	for _, p := range problems {
		if p.Severity == cluster.Error { // why there is none at all
			err = errors.Join(err, fault.WithHint(fmt.Errorf("%s: %s", p.File, p.Message), p.Hint))
		}
	}
	return nil, err
}

// stillRefused are the clusters that could not be looked after and are not in the
// repository, or not known to be: they are tried again too, for what is wrong with
// their records may be fixed. One that is in neither any more is forgotten.
func (a *Agent) stillRefused(names []string, known bool) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []string
	for name := range a.refused {
		if slices.Contains(names, name) {
			continue
		}
		if _, err := a.c.Files.Read(journal.NameOf(name)); known && errors.Is(err, fs.ErrNotExist) {
			delete(a.refused, name)
			a.dropTraces(name, true)
			a.c.Log.Info("a cluster that could not be managed is no longer in the repository, and has no journal; it is forgotten", logging.Cluster, name)
			a.c.Pulse.Beat()
			continue
		}
		out = append(out, name)
	}
	return out
}

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

// foundMisnamed takes what is wrong with folders that are no clusters because of their
// names. The log has it when it is news.
func (a *Agent) foundMisnamed(problems cluster.Problems) {
	var texts []string
	for _, p := range problems {
		if p.Severity == cluster.Error {
			texts = append(texts, fmt.Sprintf("%s: %s (%s)", p.File, p.Message, p.Hint))
		}
	}
	a.mu.Lock()
	changed := !slices.Equal(texts, a.misnamed)
	a.misnamed = texts
	a.mu.Unlock()
	if !changed {
		return
	}
	for _, t := range texts {
		a.c.Log.Warn("a folder of the repository is no cluster", logging.Detail, t)
	}
	a.c.Pulse.Beat()
}

const (
	cannotRead = "cannot read the clusters of the repository"
	readAgain  = "the clusters of the repository are read"
)

// Trouble is why there is no cluster to tell of, or why a folder is none. What keeps
// one that is known from going on stands in its own status.
func (a *Agent) Trouble() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.unread == nil || len(a.managed)+len(a.refused) > 0 {
		return slices.Clone(a.misnamed)
	}
	words := cannotRead + ": " + a.unread.Error()
	if hint := fault.HintOf(a.unread); hint != "" {
		words += " (" + hint + ")"
	}
	return []string{words}
}
