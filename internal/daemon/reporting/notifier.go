package reporting

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/talos-agent/talos-agent/internal/callgate"
	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/outbox"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/sources/notify"
)

// Target is who is notified of what.
type Target struct {
	Name     string
	To       notify.Config
	Clusters []string // empty: all
	On       []cluster.Condition
}

// How often a target is notified at most: once a minute, and of one cluster five
// times before it is once in a quarter of an hour. The newest notice wins.
const (
	minNoticeGap  = time.Minute
	noticeBurst   = 5
	noticeRefill  = 15 * time.Minute
	repositoryKey = "" // of a notice that is no cluster's
)

// Config is what a Notifier is made of.
type Config struct {
	Agent, Host string // their names, for the notices
	Targets     []Target
	Sent        *SentNotices
	Gate        *callgate.Gate
	// OnAttempt is called with how each attempt to notify a target ended.
	OnAttempt func(target string, err error)
	Log       *slog.Logger
}

// Notifier notifies targets of how clusters stand, and of a repository that
// cannot be fetched.
type Notifier struct {
	c        Config
	channels []*channel
}

// NewNotifier starts to notify. Close ends it.
func NewNotifier(c Config) (*Notifier, error) {
	n := &Notifier{c: c}
	for _, t := range c.Targets {
		t.To.Wrap = c.Gate.HTTP("notify")
		sender, err := notify.New(t.To)
		if err != nil {
			n.Close()
			return nil, fmt.Errorf("notifications: %s: %w", t.Name, err)
		}
		if t.To.Apart() {
			sender = countedSender{sender, c.Gate}
		}
		n.add(t, sender)
	}
	return n, nil
}

// add starts to notify one target.
func (n *Notifier) add(t Target, sender notify.Target) {
	n.channels = append(n.channels, newChannel(t, sender, n.c.Sent, n.c.OnAttempt, n.c.Log))
}

// Close ends the notices; what is not sent yet is given up.
func (n *Notifier) Close() {
	for _, ch := range n.channels {
		ch.out.Close()
	}
}

// Report takes a status; it never blocks.
func (n *Notifier) Report(s cluster.Status) {
	for _, ch := range n.channels {
		ch.report(s, n.c.Agent, n.c.Host)
	}
}

// Forget drops what is known of a cluster that is not managed any more; what is not sent
// yet is not sent.
func (n *Notifier) Forget(name string) {
	for _, ch := range n.channels {
		ch.out.Remove(name)
		ch.sent.set(ch.t.Name, name, nil)
	}
}

// reportOutage notifies who is notified of Unknown that the repository cannot be
// fetched.
func (n *Notifier) reportOutage(notice notify.Notice) {
	for _, ch := range n.channels {
		if slices.Contains(ch.t.On, cluster.Unknown) {
			ch.out.Put(repositoryKey, notice)
		}
	}
}

// endOutage notifies who was notified of an outage that it is over.
func (n *Notifier) endOutage(notice notify.Notice) {
	for _, ch := range n.channels {
		ch.out.Amend(repositoryKey, notice)
	}
}

// channel notifies one target.
type channel struct {
	t    Target
	out  *outbox.Outbox[notify.Notice]
	sent *SentNotices
}

func newChannel(t Target, sender notify.Target, sent *SentNotices, onAttempt func(target string, err error), log *slog.Logger) *channel {
	var last outbox.LastError
	ch := &channel{t: t, sent: sent}
	ch.out = outbox.New(outbox.Config[notify.Notice]{
		Send: sender.Send, Same: isSameNotice,
		Gap: minNoticeGap, Burst: noticeBurst, Refill: noticeRefill,
		OnAttempt: func(name string, _ notify.Notice, err error) {
			onAttempt(t.Name, err)
			sent.set(t.Name, name, ch.out.Sent(name))
			if last.Changed(err) {
				log.Warn("cannot send a notification; it is retried", logging.Detail, t.Name, logging.Err, err, logging.Hint, fault.HintOf(err))
			}
		},
		Sent: sent.of(t.Name),
	})
	return ch
}

// report takes a status; it never blocks.
func (ch *channel) report(s cluster.Status, agent, host string) {
	if len(ch.t.Clusters) > 0 && !slices.Contains(ch.t.Clusters, s.Cluster) {
		return
	}
	if slices.Contains(ch.t.On, s.Condition) {
		ch.out.Put(s.Cluster, noticeOf(s, agent, host))
		return
	}
	// What was not sent yet is over. A problem that comes back after all was well
	// is a new one; after a mere try to fix it, it is the same.
	well := s.Condition == cluster.Ready || s.Condition == cluster.Suspended
	ch.out.Drop(s.Cluster, well)
	if well {
		ch.sent.set(ch.t.Name, s.Cluster, nil)
	}
}

// noticeOf is the notice of a status.
func noticeOf(s cluster.Status, agent, host string) notify.Notice {
	return notify.Notice{Agent: agent, Host: host, Cluster: s.Cluster, Condition: string(s.Condition),
		Reason: string(s.Reason), Concerns: s.Concerns, About: s.About, Message: s.Message, Hint: s.Hint,
		Since: s.Since, Revision: string(s.Revision), Applied: string(s.Applied)}
}

// countedSender counts the messages to a target that do not go through the gate:
// for most chat services the library has connections of its own.
type countedSender struct {
	notify.Target
	gate *callgate.Gate
}

// Send implements notify.Target.
func (c countedSender) Send(ctx context.Context, n notify.Notice) error {
	err := c.Target.Send(ctx, n)
	c.gate.Did("notify", err)
	return err
}

// isSameNotice reports whether two notices report the same: Ready at another
// revision is news, and another problem; other words for one are not.
func isSameNotice(a, b notify.Notice) bool {
	if a.Condition != b.Condition {
		return false
	}
	if a.Cluster == repositoryKey {
		return true // of the repository, which is fetched or not
	}
	switch cluster.Condition(a.Condition) {
	case cluster.Ready:
		return a.Applied == b.Applied
	case cluster.Stalled, cluster.Unknown:
		return a.Reason == b.Reason && a.Concerns == b.Concerns && a.About == b.About
	}
	return true
}
