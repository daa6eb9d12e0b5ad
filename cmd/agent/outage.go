package main

import (
	"errors"
	"slices"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/sources/git"
	"github.com/talos-agent/talos-agent/sources/notify"
)

// unfetchedFor is how long every fetch of the repository must have failed before
// that is told to who does not ask. A forge that is upgraded is away for minutes,
// and a Ready cluster does not miss it; who pushes does. The alerting rules wait
// as long for a cluster that is out of sight.
const unfetchedFor = 15 * time.Minute

// outage is a repository that cannot be fetched. The zero value is none.
type outage struct {
	since time.Time // the first fetch that failed
	told  bool      // in the log
}

// fetched takes how a fetch of the repository ended, one at a time. That it fails
// is told once for all clusters, and again when it is over.
func (a *agent) fetched(err error) {
	a.gate.Did("git", err)
	o := &a.outage
	notice := notify.Notice{Agent: a.w.owner, Host: a.w.host, Condition: string(cluster.Ready), Message: "the repository is fetched again", Since: time.Now().UTC()}
	if err == nil || errors.Is(err, git.ErrEmpty) { // it answers
		*o = outage{}
		for _, n := range a.notifiers {
			n.out.amend(notice.Cluster, notice)
		}
		return
	}
	if o.since.IsZero() {
		o.since = time.Now()
	}
	lasts := time.Since(o.since)
	if lasts < unfetchedFor || a.unreadSinceStart() {
		return
	}
	words := "the repository has not been fetched for " + text.Duration(lasts) + ", and what is pushed is not applied"
	if !o.told {
		o.told = true
		a.w.log.Warn(words, "err", err, "hint", fault.HintOf(err))
	}
	notice.Condition, notice.Message, notice.Hint, notice.Since = string(cluster.Blind), words+": "+text.OneLine(err.Error()), fault.HintOf(err), o.since.UTC()
	for _, n := range a.notifiers {
		if slices.Contains(n.c.On, cluster.Blind) {
			n.out.put(notice.Cluster, notice)
		}
	}
}

// unreadSinceStart reports whether no cluster was read since the agent started:
// each of them is Unknown, and is told so itself.
func (a *agent) unreadSinceStart() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, m := range a.managed {
		if !m.r.Status().Fetched.IsZero() {
			return false
		}
	}
	return len(a.managed) > 0
}
