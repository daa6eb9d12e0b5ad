package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/sources/forge"
)

// poster sends commit statuses; *forge.Client is one.
type poster interface {
	Post(ctx context.Context, s forge.Status) error
}

// reporter tells the forge how a cluster stands, on change only.
type reporter struct{ out *outbox[news] }

// newReporter starts a reporter. ended is told how each attempt ended.
func newReporter(p poster, ended func(error), log *slog.Logger) *reporter {
	var said complaint
	return &reporter{newOutbox(outboxConfig[news]{
		Send: func(ctx context.Context, n news) error { return p.Post(ctx, n.Status) },
		Same: sameNews,
		Rest: func(err error) time.Duration {
			if e, ok := errors.AsType[*forge.Error](err); ok {
				return e.RetryAfter
			}
			return 0
		},
		Told: func(_ string, _ news, err error) {
			ended(err)
			if said.news(err) {
				log.Warn("cannot tell the forge how the cluster stands; it is tried again", "err", err, "hint", fault.HintOf(err))
			}
		},
	}, nil)}
}

func (r *reporter) close() { r.out.close() }

// report takes a status; it never blocks.
func (r *reporter) report(s cluster.Status) {
	if st, ok := commitStatus(s); ok {
		r.out.put("", news{st, s.Condition})
	}
}

// blindFor is how long the agent must have been unable to see before anybody
// outside is told: every start and every short outage begins that way.
const blindFor = time.Minute

// lapseFor is how long a Ready cluster must have been waited for before that is
// told. A machine that has just become ready takes it back for a while: Talos was
// recorded to be ready, 3 s later not to be because of the scheduler's pod, and
// 17 s later to be again.
const lapseFor = 30 * time.Second

// sight knows what of the statuses of a cluster is for others than who asks for
// them.
type sight struct {
	blind time.Time        // since when the agent cannot see it
	ready cluster.Revision // at which it was told to be Ready last, unless it was told to be something else since
}

// worthTelling reports whether a status is for the forge, for who is notified,
// and for the history.
func (v *sight) worthTelling(s cluster.Status, now time.Time) bool {
	if s.Condition == cluster.Blind {
		if v.blind.IsZero() {
			v.blind = now
		}
		return now.Sub(v.blind) >= blindFor
	}
	v.blind = time.Time{}
	if s.Waits() && s.Revision == v.ready && now.Sub(s.Since) < lapseFor {
		return false
	}
	v.ready = ""
	if s.Condition == cluster.Ready {
		v.ready = s.Revision
	}
	return true
}

// news is a status for the forge and the condition it is told of: pending is
// told of two.
type news struct {
	forge.Status
	condition cluster.Condition
}

// sameNews reports whether two statuses tell the same: progress in other words
// is no news, another failure is.
func sameNews(a, b news) bool {
	return a.Commit == b.Commit && a.Context == b.Context && a.State == b.State && a.condition == b.condition &&
		(a.Description == b.Description || a.State == forge.StatePending || a.State == forge.StateSuccess)
}

// commitStatus is the word for a commit: pending while reconciling, success
// only when Ready at that commit, failure when a person must act, error when
// the agent cannot see.
func commitStatus(s cluster.Status) (forge.Status, bool) {
	st := forge.Status{Commit: s.Revision.Commit(), Context: "talos-agent/" + s.Cluster, Description: s.Message}
	if st.Commit == "" {
		return st, false
	}
	switch s.Condition {
	case cluster.Ready:
		if s.Revision != s.Applied {
			return st, false
		}
		st.State = forge.StateSuccess
	case cluster.Reconciling, cluster.Suspended:
		st.State = forge.StatePending
	case cluster.Stalled:
		st.State = forge.StateFailure
	default:
		st.State = forge.StateError
	}
	return st, true
}
