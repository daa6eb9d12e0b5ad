package reporting

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/talos-agent/talos-agent/internal/callgate"
	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/journal"
	"github.com/talos-agent/talos-agent/sources/notify"
)

// memFiles is a state directory in memory.
type memFiles map[string][]byte

func (m memFiles) Read(name string) ([]byte, error) {
	if b, ok := m[name]; ok {
		return b, nil
	}
	return nil, fs.ErrNotExist
}

func (m memFiles) Write(name string, data []byte) error { m[name] = data; return nil }

func (memFiles) Sync(string) error { return nil }

func (m memFiles) Remove(name string) error { delete(m, name); return nil }

func (m memFiles) Rename(from, to string) error {
	m[to] = m[from]
	delete(m, from)
	return nil
}

// startNotifier notifies one target, and remembers it in files, if there are any.
func startNotifier(t Target, sender notify.Target, files journal.Files) *Notifier {
	log := slog.New(slog.DiscardHandler)
	n := &Notifier{c: Config{Agent: "north", Host: "pve1", Sent: OpenSentNotices(files, []Target{t}, log), OnAttempt: func(string, error) {}, Log: log}}
	n.add(t, sender)
	return n
}

// TestNoticesAreNews: which of the words of a cluster are told.
func TestNoticesAreNews(t *testing.T) {
	type told struct {
		condition cluster.Condition
		message   string // its first letter stands for its reason
		applied   cluster.Revision
	}
	for name, c := range map[string]struct {
		on    []cluster.Condition
		words []told
		want  string
	}{
		"the usual": {[]cluster.Condition{cluster.Ready, cluster.Stalled, cluster.Unknown},
			[]told{{cluster.Reconciling, "1", "a"}, {cluster.Ready, "r", "a"}, {cluster.Reconciling, "2", "a"}, {cluster.Ready, "r2", "a"}, {cluster.Ready, "r", "b"},
				{cluster.Stalled, "no room", "b"}, {cluster.Stalled, "not enough room", "b"}, {cluster.Stalled, "bridge missing", "b"}, {cluster.Ready, "r", "b"}},
			"Ready:r Ready:r Stalled:no room Stalled:bridge missing Ready:r"},
		"trouble only": {[]cluster.Condition{cluster.Stalled},
			[]told{{cluster.Ready, "r", "a"}, {cluster.Stalled, "x", "a"}, {cluster.Reconciling, "", "a"}, {cluster.Stalled, "x", "a"}, {cluster.Ready, "r", "a"}, {cluster.Stalled, "x", "a"}},
			"Stalled:x Stalled:x"},
		"suspension": {[]cluster.Condition{cluster.Suspended}, []told{{cluster.Suspended, "a", ""}, {cluster.Suspended, "b", ""}, {cluster.Ready, "", ""}, {cluster.Suspended, "c", ""}},
			"Suspended:a Suspended:c"},
		"problems, and a suspension": {[]cluster.Condition{cluster.Stalled},
			[]told{{cluster.Stalled, "x", "a"}, {cluster.Suspended, "", "a"}, {cluster.Stalled, "x", "a"}}, "Stalled:x Stalled:x"},
		"another cluster": {nil, []told{{cluster.Stalled, "x", "a"}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				target := &noted{}
				n := startNotifier(Target{Name: "x", Clusters: []string{"dev"}, On: c.on}, target, nil)
				for _, w := range c.words {
					s := cluster.Status{Cluster: "dev", Condition: w.condition, Message: w.message, Applied: w.applied}
					if w.message != "" {
						s.Reason = cluster.Reason(w.message[:1])
					}
					n.Report(s)
					s.Cluster = "other"
					n.Report(s)
					time.Sleep(time.Hour)
				}
				n.Close() // nobody writes to what is read now
				if got := strings.Join(target.sent, " "); got != c.want {
					t.Errorf("told %s\nwant %s", got, c.want)
				}
			})
		})
	}
}

// TestTroubleThatComesBackAfterARestart: a cluster is well again while its trouble
// is being told. The next agent takes the same trouble for a new one.
func TestTroubleThatComesBackAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := Target{Name: "x", On: []cluster.Condition{cluster.Stalled}}
		files, target := memFiles{}, &noted{takes: 10 * time.Second}
		for range 2 {
			n := startNotifier(c, target, files)
			n.Report(cluster.Status{Cluster: "dev", Condition: cluster.Stalled, Message: "no room"})
			time.Sleep(time.Second)
			n.Report(cluster.Status{Cluster: "dev", Condition: cluster.Ready})
			time.Sleep(time.Minute)
			n.Close()
		}
		if len(target.sent) != 2 {
			t.Errorf("told %v, want it twice", target.sent)
		}
	})
}

// noted takes every notice, and its time.
type noted struct {
	sent  []string
	takes time.Duration
}

func (r *noted) Send(_ context.Context, n notify.Notice) error {
	if n.Cluster != "dev" && n.Cluster != "" {
		return errors.New("nobody asked for " + n.Cluster)
	}
	time.Sleep(r.takes)
	r.sent = append(r.sent, n.Condition+":"+n.Message)
	return nil
}

// TestSentNoticesSurvive: what was told is remembered over restarts, targets that are
// gone are forgotten, and a file that cannot be read is no more than told again.
func TestSentNoticesSurvive(t *testing.T) {
	files := memFiles{}
	targets := []Target{{Name: "a"}, {Name: "b"}}
	log := &bytes.Buffer{}
	logger := slog.New(slog.NewTextHandler(log, nil))
	sp := OpenSentNotices(files, targets, logger)
	if sp.set("a", "dev", nil); len(files) > 0 {
		t.Error("that nothing is known is written down")
	}
	sp.set("a", "dev", &notify.Notice{Condition: "Ready"})
	sp.set("a", "prod", &notify.Notice{Condition: "Ready"})
	sp.set("b", "dev", &notify.Notice{Condition: "Stalled"})
	sp.set("a", "prod", nil)
	sp = OpenSentNotices(files, targets[:1], logger)
	if a, b := sp.of("a"), sp.of("b"); len(a) != 1 || a["dev"].Condition != "Ready" || len(b) != 0 {
		t.Errorf("%v, %v", a, b)
	}
	if log.Len() > 0 {
		t.Errorf("what was read is no failure: %s", log)
	}
	files[SentFile] = []byte("{")
	if OpenSentNotices(files, nil, logger); log.Len() > 0 {
		t.Errorf("nobody is notified again where there are no targets: %s", log)
	}
	if sp = OpenSentNotices(files, targets, logger); len(sp.of("a")) != 0 || !strings.Contains(log.String(), "it is notified again") {
		t.Errorf("%v, %s", sp.of("a"), log)
	}
	sp.set("a", "dev", &notify.Notice{Condition: "Ready"})
	if sp = OpenSentNotices(files, targets, logger); len(sp.of("a")) != 1 {
		t.Error("a broken file is not written anew")
	}
}

// TestOtherWordsAreNoNews: what was reported once, to people or to the forge, is not
// reported again because its sentence is another.
func TestOtherWordsAreNoNews(t *testing.T) {
	reasons := cluster.Reasons()
	rapid.Check(t, func(t *rapid.T) {
		s := cluster.Status{Cluster: "dev", Revision: "main@sha1:2222222222222222222222222222222222222222",
			Condition: rapid.SampledFrom([]cluster.Condition{cluster.Ready, cluster.Reconciling, cluster.Stalled, cluster.Suspended, cluster.Unknown}).Draw(t, "condition"),
			Reason:    reasons[rapid.IntRange(0, len(reasons)-1).Draw(t, "reason")].Reason,
			Concerns:  rapid.SampledFrom([]string{"dev", "cp-1"}).Draw(t, "concerns"), About: rapid.SampledFrom([]string{"", "cores"}).Draw(t, "about")}
		s.Applied = s.Revision
		other := s
		s.Message, s.Hint = rapid.String().Draw(t, "message"), rapid.String().Draw(t, "hint")
		other.Message, other.Hint = rapid.String().Draw(t, "other message"), rapid.String().Draw(t, "other hint")
		if !isSameNotice(noticeOf(s, "a", "h"), noticeOf(other, "a", "h")) {
			t.Errorf("%s because of %v is notified again", s.Condition, s.Cause())
		}
		if a, b := reportOf(s), reportOf(other); a.Commit != "" && !isSameReport(a, b) {
			t.Errorf("%s because of %v is reported again", s.Condition, s.Cause())
		}
	})
}

func reportOf(s cluster.Status) commitReport {
	st, _ := commitStatus(s)
	return commitReport{st, s.Condition, s.Cause()}
}

// TestNoticesThatAreTheSame: Ready is news at another revision, a problem when it is another
// one, and any other condition when it is new.
func TestNoticesThatAreTheSame(t *testing.T) {
	notice := func(c cluster.Condition, change func(*notify.Notice)) notify.Notice {
		n := notify.Notice{Cluster: "dev", Condition: string(c), Reason: "r", Concerns: "cp-1", About: "cores", Applied: "a"}
		if change != nil {
			change(&n)
		}
		return n
	}
	reason := func(n *notify.Notice) { n.Reason = "other" }
	concerns := func(n *notify.Notice) { n.Concerns = "cp-2" }
	about := func(n *notify.Notice) { n.About = "mac" }
	applied := func(n *notify.Notice) { n.Applied = "b" }
	for _, c := range []struct {
		condition cluster.Condition
		change    func(*notify.Notice)
		want      bool
	}{
		{cluster.Stalled, nil, true}, {cluster.Stalled, reason, false}, {cluster.Stalled, concerns, false}, {cluster.Stalled, about, false}, {cluster.Stalled, applied, true},
		{cluster.Unknown, nil, true}, {cluster.Unknown, reason, false}, {cluster.Unknown, concerns, false}, {cluster.Unknown, about, false},
		{cluster.Ready, nil, true}, {cluster.Ready, reason, true}, {cluster.Ready, applied, false},
		{cluster.Suspended, reason, true}, {cluster.Suspended, applied, true},
	} {
		if got := isSameNotice(notice(c.condition, nil), notice(c.condition, c.change)); got != c.want {
			t.Errorf("%s: %+v is the same: %v", c.condition, notice(c.condition, c.change), got)
		}
	}
	if isSameNotice(notice(cluster.Stalled, nil), notice(cluster.Unknown, nil)) {
		t.Error("another condition is no news")
	}
}

// TestTargetThatCannotBeNotified: a notifier is made of targets that can be notified, all of
// them.
func TestTargetThatCannotBeNotified(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	hook := Target{Name: "a", To: notify.Config{Kind: notify.Webhook, URL: "https://hooks.example.org/x"}}
	bad := Target{Name: "b", To: notify.Config{Kind: notify.Webhook, URL: "http://hooks.example.org/x"}}
	for _, targets := range [][]Target{{hook}, {hook, bad}} {
		n, err := NewNotifier(Config{Targets: targets, Gate: callgate.New(t.Context()), Sent: OpenSentNotices(nil, targets, log), OnAttempt: func(string, error) {}, Log: log})
		if (err == nil) != (len(targets) == 1) || (n == nil) != (err != nil) || err != nil && !strings.HasPrefix(err.Error(), "notifications: b: ") {
			t.Errorf("%v, %v", n, err)
		}
		if n != nil {
			n.Close()
		}
	}
}
