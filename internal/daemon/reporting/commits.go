package reporting

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/outbox"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/sources/forge"
)

// Poster sends commit statuses; *forge.Client is one.
type Poster interface {
	Post(ctx context.Context, s forge.Status) error
}

// Commits reports to the forge how one cluster stands, on change only.
type Commits struct{ out *outbox.Outbox[commitReport] }

// NewCommits starts to report. onAttempt is called with how each attempt ended.
func NewCommits(p Poster, onAttempt func(error), log *slog.Logger) *Commits {
	var last outbox.LastError
	return &Commits{outbox.New(outbox.Config[commitReport]{
		Send: func(ctx context.Context, r commitReport) error { return p.Post(ctx, r.Status) },
		Same: isSameReport,
		RetryAfter: func(err error) time.Duration {
			if e, ok := errors.AsType[*forge.Error](err); ok {
				return e.RetryAfter
			}
			return 0
		},
		OnAttempt: func(_ string, _ commitReport, err error) {
			onAttempt(err)
			if last.Changed(err) {
				log.Warn("cannot set the commit status; it is retried", logging.Err, err, logging.Hint, fault.HintOf(err))
			}
		},
	})}
}

// Close ends it; what is not sent yet is given up.
func (c *Commits) Close() { c.out.Close() }

// Report takes a status; it never blocks.
func (c *Commits) Report(s cluster.Status) {
	if st, ok := commitStatus(s); ok {
		c.out.Put("", commitReport{st, s.Condition, s.Cause()})
	}
}

// commitReport is a status for the forge with the condition that it stands for,
// pending standing for two, and why.
type commitReport struct {
	forge.Status
	condition cluster.Condition
	cause     cluster.Key
}

// isSameReport reports whether two statuses report the same: progress is no news,
// nor are other words for one failure; another failure is.
func isSameReport(a, b commitReport) bool {
	return a.Commit == b.Commit && a.Context == b.Context && a.State == b.State && a.condition == b.condition &&
		(a.cause == b.cause || a.State == forge.StatePending || a.State == forge.StateSuccess)
}

// commitStatus is the status of a commit: pending while reconciling, success
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
