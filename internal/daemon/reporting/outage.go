package reporting

import (
	"errors"
	"log/slog"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/sources/git"
	"github.com/talos-agent/talos-agent/sources/notify"
)

// outageAfter is how long every fetch of the repository must have failed before
// that is reported to who does not ask. A forge that is upgraded is away for minutes,
// and a Ready cluster does not miss it; who pushes does. The alerting rules wait
// as long for a cluster that is out of sight.
const outageAfter = 15 * time.Minute

// Outage reports a repository that cannot be fetched: once for all clusters, and
// again when it is over. One fetch at a time.
type Outage struct {
	// Notifier notifies of it.
	Notifier *Notifier
	// Covered reports whether each cluster is reported to be Unknown itself,
	// because none was read since the start.
	Covered func() bool
	Log     *slog.Logger

	since  time.Time // the first fetch that failed; zero: none
	logged bool
}

// Observe takes how a fetch of the repository ended.
func (o *Outage) Observe(err error) {
	c := o.Notifier.c
	notice := notify.Notice{Agent: c.Agent, Host: c.Host, Condition: string(cluster.Ready), Message: "the repository is fetched again", Since: time.Now().UTC()}
	if err == nil || errors.Is(err, git.ErrEmpty) { // it answers
		o.since, o.logged = time.Time{}, false
		o.Notifier.endOutage(notice)
		return
	}
	if o.since.IsZero() {
		o.since = time.Now()
	}
	lasts := time.Since(o.since)
	if lasts < outageAfter || o.Covered() {
		return
	}
	message := "the repository has not been fetched for " + text.Duration(lasts) + ", and what is pushed is not applied"
	if !o.logged {
		o.logged = true
		o.Log.Warn("repository unavailable", logging.Detail, message, logging.Err, err, logging.Hint, fault.HintOf(err))
	}
	notice.Condition, notice.Message, notice.Hint, notice.Since = string(cluster.Unknown), message+": "+text.OneLine(err.Error()), fault.HintOf(err), o.since.UTC()
	o.Notifier.reportOutage(notice)
}
