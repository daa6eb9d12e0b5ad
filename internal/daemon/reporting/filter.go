package reporting

import (
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// unknownFor is how long the agent must have been unable to see before anybody
// outside gets a report: every start and every short outage begins that way.
const unknownFor = time.Minute

// waitsFor is how long a Ready cluster must have been waited for before that is
// reported. A machine that has just become ready takes it back for a while: Talos
// was recorded to be ready, 3 s later not to be because of the scheduler's pod, and
// 17 s later to be again.
const waitsFor = 30 * time.Second

// Filter knows which of the statuses of a cluster are for others than who asks
// for them. The zero value has seen none.
type Filter struct {
	unknown time.Time        // since when the agent cannot see it
	ready   cluster.Revision // at which it was reported to be Ready last, unless another condition was reported since
}

// Passes reports whether a status is for the forge, for who is notified, and for
// the history.
func (f *Filter) Passes(s cluster.Status, now time.Time) bool {
	if s.Condition == cluster.Unknown {
		if f.unknown.IsZero() {
			f.unknown = now
		}
		return now.Sub(f.unknown) >= unknownFor
	}
	f.unknown = time.Time{}
	if s.Waits() && s.Revision == f.ready && now.Sub(s.Since) < waitsFor {
		return false
	}
	f.ready = ""
	if s.Condition == cluster.Ready {
		f.ready = s.Revision
	}
	return true
}
