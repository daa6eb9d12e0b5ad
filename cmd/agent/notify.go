package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/talos-agent/talos-agent/internal/callgate"
	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/reconcile"
	"github.com/talos-agent/talos-agent/sources/notify"
)

// How often a target is told at most: once a minute, and of one cluster five
// times before it is once in a quarter of an hour. The newest word wins.
const (
	leastBetweenNotices  = time.Minute
	noticesInARow        = 5
	leastBetweenTheSames = 15 * time.Minute
)

// notifier tells one target of the clusters.
type notifier struct {
	c      config.Notification
	out    *outbox[notify.Notice]
	spoken *spoken
}

// newNotifier starts a notifier. ended is told how each attempt ended.
func newNotifier(c config.Notification, target notify.Target, sp *spoken, ended func(target string, err error), log *slog.Logger) *notifier {
	var said complaint
	n := &notifier{c: c, spoken: sp}
	n.out = newOutbox(outboxConfig[notify.Notice]{
		Send: target.Send, Same: sameNotice,
		Gap: leastBetweenNotices, Burst: noticesInARow, Refill: leastBetweenTheSames,
		Told: func(name string, _ notify.Notice, err error) {
			ended(c.Name, err)
			sp.set(c.Name, name, n.out.known(name))
			if said.news(err) {
				log.Warn("cannot notify "+c.Name+"; it is tried again", "err", err, "hint", fault.HintOf(err))
			}
		},
	}, sp.of(c.Name))
	return n
}

// counted has the messages to a target counted that do not go through the gate:
// for most chat services the library has connections of its own.
type counted struct {
	notify.Target
	gate *callgate.Gate
}

// Send implements notify.Target.
func (c counted) Send(ctx context.Context, n notify.Notice) error {
	err := c.Target.Send(ctx, n)
	c.gate.Did("notify", err)
	return err
}

func (n *notifier) close() { n.out.close() }

// report takes a status; it never blocks.
func (n *notifier) report(s cluster.Status, agent, host string) {
	if len(n.c.Clusters) > 0 && !slices.Contains(n.c.Clusters, s.Cluster) {
		return
	}
	if slices.Contains(n.c.On, s.Condition) {
		n.out.put(s.Cluster, notify.Notice{Agent: agent, Host: host, Cluster: s.Cluster, Condition: string(s.Condition), Message: s.Message, Hint: s.Hint,
			Since: s.Since, Revision: string(s.Revision), Applied: string(s.Applied)})
		return
	}
	// What was not told yet is over. A trouble that comes back after all was well
	// is a new one; after a mere try to mend it, it is the same.
	well := s.Condition == cluster.Ready || s.Condition == cluster.Suspended
	n.out.drop(s.Cluster, well)
	if well {
		n.spoken.set(n.c.Name, s.Cluster, nil)
	}
}

// sameNotice reports whether two notices tell the same: Ready at another revision
// is news, and another trouble; progress in other words is not.
func sameNotice(a, b notify.Notice) bool {
	if a.Condition != b.Condition {
		return false
	}
	if a.Cluster == "" {
		return true // of the repository, which is fetched or not
	}
	switch cluster.Condition(a.Condition) {
	case cluster.Ready:
		return a.Applied == b.Applied
	case cluster.Stalled, cluster.Blind:
		return a.Message == b.Message
	}
	return true
}

// spokenFile is the file of the state directory that remembers what was told. It
// is not a journal's name.
const spokenFile = "notified"

// spoken remembers what each target was told last of each cluster, so that a
// restart is no news. It may be lost: then everything is told once more.
type spoken struct {
	files reconcile.Files // nil: in memory only
	log   *slog.Logger

	mu    sync.Mutex
	words map[string]map[string]notify.Notice // by target and cluster
}

// openSpoken reads what was told, and forgets targets that are not there any more.
func openSpoken(files reconcile.Files, targets []config.Notification, log *slog.Logger) *spoken {
	sp := &spoken{files: files, log: log, words: map[string]map[string]notify.Notice{}}
	if files == nil || len(targets) == 0 {
		return sp
	}
	raw, err := files.Read(spokenFile)
	var all map[string]map[string]notify.Notice
	if err == nil {
		err = json.Unmarshal(raw, &all)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Warn("cannot read what was notified before; it is notified again", "err", err)
	}
	for _, t := range targets {
		if all[t.Name] != nil {
			sp.words[t.Name] = all[t.Name]
		}
	}
	return sp
}

// of is what a target was told last of each cluster.
func (sp *spoken) of(target string) map[string]notify.Notice {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	out := map[string]notify.Notice{}
	for name, word := range sp.words[target] {
		out[name] = word
	}
	return out
}

// set remembers a word, or with nil that nobody knows.
func (sp *spoken) set(target, name string, word *notify.Notice) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	_, had := sp.words[target][name]
	switch {
	case word == nil && !had:
		return
	case word == nil:
		delete(sp.words[target], name)
	default:
		if sp.words[target] == nil {
			sp.words[target] = map[string]notify.Notice{}
		}
		sp.words[target][name] = *word
	}
	if sp.files == nil {
		return
	}
	raw, err := json.Marshal(sp.words)
	if err == nil {
		err = reconcile.Replace(sp.files, spokenFile, raw)
	}
	if err != nil {
		sp.log.Warn("cannot write down what was notified; after a restart it is notified again", "err", err, "hint", reconcile.RecordsHint)
	}
}

// notify tells everybody who wants to know how a cluster stands.
func (a *agent) notify(s cluster.Status) {
	for _, n := range a.notifiers {
		n.report(s, a.w.owner, a.w.host)
	}
}

// announce starts the notifiers.
func (a *agent) announce() error {
	ended := func(target string, err error) {
		a.unheard("notifications: "+target, err)
		if a.w.onNotified != nil {
			a.w.onNotified(target, err)
		}
	}
	for _, c := range a.w.notify {
		c.To.Wrap = a.gate.HTTP("notify")
		target, err := notify.New(c.To)
		if err != nil {
			a.hush()
			return fmt.Errorf("notifications: %s: %w", c.Name, err)
		}
		if c.To.Apart() {
			target = counted{target, a.gate}
		}
		a.notifiers = append(a.notifiers, newNotifier(c, target, a.w.spoken, ended, a.w.log))
	}
	return nil
}

// unheard notes that somebody who is to be told of the clusters cannot be, or with
// nil that they can.
func (a *agent) unheard(who string, err error) {
	if a.w.onUnheard != nil {
		a.w.onUnheard(who, err)
	}
}

// hush ends the notifiers.
func (a *agent) hush() {
	for _, n := range a.notifiers {
		n.close()
	}
}
