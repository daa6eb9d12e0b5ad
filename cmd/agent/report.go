package main

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/sources/forge"
)

// poster sends commit statuses; *forge.Client is one.
type poster interface {
	Post(ctx context.Context, s forge.Status) error
}

// reporter tells the forge how a cluster stands, on change only, beside the
// loop: a forge that is slow or down delays nothing. Only the newest word
// counts, so that the queue is one slot.
type reporter struct {
	forge poster
	log   *slog.Logger

	mu     sync.Mutex
	next   *news
	last   news
	blind  time.Time // since when the agent cannot see
	wake   chan struct{}
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{}
}

// blindFor is how long the agent must have been unable to see before the forge
// is told: every start and every short outage begins that way.
const blindFor = time.Minute

func newReporter(p poster, log *slog.Logger) *reporter {
	ctx, cancel := context.WithCancel(context.Background())
	r := &reporter{forge: p, log: log, wake: make(chan struct{}, 1), ctx: ctx, cancel: cancel, done: make(chan struct{})}
	go r.run()
	return r
}

// close gives up what is not sent yet.
func (r *reporter) close() {
	r.cancel()
	<-r.done
}

// report takes a status; it never blocks.
func (r *reporter) report(s cluster.Status, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.Condition != cluster.Blind {
		r.blind = time.Time{}
	} else if r.blind.IsZero() {
		r.blind = now
	}
	st, ok := commitStatus(s)
	n := news{st, s.Condition}
	if !ok || s.Condition == cluster.Blind && now.Sub(r.blind) < blindFor {
		return
	}
	if r.next != nil && sameNews(*r.next, n) || r.next == nil && sameNews(r.last, n) {
		return
	}
	r.next = &n
	select {
	case r.wake <- struct{}{}:
	default:
	}
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

func (r *reporter) run() {
	defer close(r.done)
	pause := time.Second
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-r.wake:
		}
		for {
			r.mu.Lock()
			next := r.next
			r.mu.Unlock()
			if next == nil {
				break
			}
			ctx, cancel := context.WithTimeout(r.ctx, 30*time.Second)
			err := r.forge.Post(ctx, next.Status)
			cancel()
			if r.ctx.Err() != nil {
				return
			}
			if err == nil {
				r.mu.Lock()
				r.last = *next
				if r.next == next {
					r.next = nil
				}
				r.mu.Unlock()
				pause = time.Second
				continue
			}
			r.log.Warn("cannot tell the forge how the cluster stands; it is tried again", "err", err, "hint", cluster.HintOf(err))
			t := time.NewTimer(pause)
			pause = min(2*pause, 5*time.Minute)
			select {
			case <-r.ctx.Done():
				t.Stop()
				return
			case <-t.C:
			}
		}
	}
}
