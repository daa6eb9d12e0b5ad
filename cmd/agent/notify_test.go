package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/host/state"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/sources/notify"
)

// inbox takes notices as a webhook, and messages as ntfy does.
type inbox struct {
	*httptest.Server
	t        *testing.T
	mu       sync.Mutex
	notices  []notify.Notice
	messages []string // title and text
	refuse   bool
}

func newInbox(t *testing.T) *inbox {
	b := &inbox{t: t}
	b.Server = httptest.NewServer(http.HandlerFunc(b.take))
	t.Cleanup(b.Close)
	return b
}

// take is what the inbox serves.
func (b *inbox) take(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		b.t.Error(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.refuse {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	if r.Header.Get("Content-Type") != "application/json" {
		b.messages = append(b.messages, r.Header.Get("Title")+": "+string(body))
		_, _ = io.WriteString(w, "{}")
		return
	}
	var n struct {
		Kind string
		Data notify.Notice
	}
	if err := json.Unmarshal(body, &n); err != nil || n.Kind != "Notice" {
		b.t.Errorf("%s: %v", body, err)
	}
	b.notices = append(b.notices, n.Data)
}

func (b *inbox) refuses(yes bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refuse = yes
}

func (b *inbox) conditions() (out []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, n := range b.notices {
		out = append(out, n.Condition)
	}
	return out
}

func (b *inbox) said() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Join(b.messages, "\n")
}

// TestNotifications: people and programs are told of what they want to know, once,
// over restarts; a target that refuses delays nothing, and its address is secret.
func TestNotifications(t *testing.T) {
	r := newRig(t, lab.Config{})
	programs, people, broken := newInbox(t), newInbox(t), newInbox(t)
	broken.refuses(true)
	r.file("programs.url", programs.URL+"/canary-path-of-programs\n")
	r.file("programs.key", "canary-key-of-programs\n")
	r.file("people.url", "ntfy://me:canary-password-of-people@"+strings.TrimPrefix(people.URL, "http://")+"/canary-topic?scheme=http\n")
	r.file("broken.url", broken.URL+"/canary-path-of-broken\n")
	r.config["metrics"] = map[string]any{"listen": r.base + "200:9477"}
	r.config["notifications"] = []map[string]any{
		{"name": "programs", "kind": "webhook", "url_file": "programs.url", "secret_file": "programs.key"},
		{"name": "people", "kind": "chat", "url_file": "people.url", "on": []string{"Stalled"}},
		{"name": "broken", "kind": "webhook", "url_file": "broken.url"},
	}
	r.write()
	commit := r.push(r.inventory(0))
	r.start()
	r.untilReady(commit)
	r.until("programs are told", func() bool { return len(programs.conditions()) == 1 })
	programs.mu.Lock()
	n := programs.notices[0]
	programs.mu.Unlock()
	if n.Cluster != "dev" || n.Condition != "Ready" || n.Agent != "rig" || n.Host == "" || cluster.Revision(n.Applied).Commit() != commit || n.Since.IsZero() {
		t.Errorf("%+v", n)
	}

	// A mistake: everybody learns of it. Programs have their minute between two
	// words, which a restart ends.
	r.push(with(r.inventory(0), "inventory/dev/nodes.yaml", "controlplane: []\n"))
	r.run(exitOK, do("reconcile"))
	r.untilStalled("the inventory is invalid")
	r.until("people are told", func() bool { return strings.Contains(people.said(), "dev is Stalled: dev: the inventory is invalid") })
	r.spoke("people", cluster.Stalled)
	r.stop()
	r.start()
	r.untilStalled("the inventory is invalid")
	r.until("programs are told", func() bool { return len(programs.conditions()) == 2 })
	r.spoke("programs", cluster.Stalled)

	// Restarts are no news.
	for range 2 {
		r.stop()
		r.start()
		r.untilStalled("the inventory is invalid")
	}
	mended := r.push(with(r.inventory(0), "README.md", "mended\n"))
	r.run(exitOK, do("reconcile"))
	r.untilReady(mended)
	r.until("programs are told", func() bool { return len(programs.conditions()) == 3 })
	if got := strings.Join(programs.conditions(), " "); got != "Ready Stalled Ready" {
		t.Errorf("programs were told %s", got)
	}
	if got := people.said(); strings.Count(got, "Stalled") != 1 || strings.Contains(got, "Ready:") {
		t.Errorf("people were told:\n%s", got)
	}

	r.until("the refusal is told", func() bool { return r.log.has("cannot notify broken; it is tried again") })
	if seen := r.scrape(r.base + "200:9477"); seen[`talos_agent_notifications_total{result="sent",target="programs"}`] != 1 ||
		seen[`talos_agent_notifications_total{result="failed",target="broken"}`] < 1 || seen[`talos_agent_api_calls_total{outcome="ok",system="notify"}`] < 1 {
		t.Errorf("counted: %v", seen)
	}
	kept, err := os.ReadFile(filepath.Join(r.config["state_dir"].(string), spokenFile))
	must(err)
	for place, text := range map[string]string{"the log": r.log.String(), "what is kept": string(kept), "the status": r.try("status", "-o", "json").out} {
		if strings.Contains(text, "canary-") {
			t.Errorf("a secret is in %s:\n%s", place, text)
		}
	}
}

// spoke waits until the daemon has written down what it told a target last: one
// that ends before does not know whether it was heard.
func (r *rig) spoke(target string, c cluster.Condition) {
	r.t.Helper()
	r.until("it is written down that "+target+" were told", func() bool {
		raw, err := os.ReadFile(filepath.Join(r.config["state_dir"].(string), spokenFile))
		var all map[string]map[string]notify.Notice
		return err == nil && json.Unmarshal(raw, &all) == nil && all[target]["dev"].Condition == string(c)
	})
}

// TestNoticesAreNews: which of the words of a cluster are told.
func TestNoticesAreNews(t *testing.T) {
	type told struct {
		condition cluster.Condition
		message   string
		applied   cluster.Revision
	}
	for name, c := range map[string]struct {
		on    []cluster.Condition
		words []told
		want  string
	}{
		"the usual": {[]cluster.Condition{cluster.Ready, cluster.Stalled, cluster.Blind},
			[]told{{cluster.Reconciling, "1", "a"}, {cluster.Ready, "r", "a"}, {cluster.Reconciling, "2", "a"}, {cluster.Ready, "r2", "a"}, {cluster.Ready, "r", "b"},
				{cluster.Stalled, "no room", "b"}, {cluster.Stalled, "no room", "b"}, {cluster.Stalled, "no bridge", "b"}, {cluster.Ready, "r", "b"}},
			"Ready:r Ready:r Stalled:no room Stalled:no bridge Ready:r"},
		"trouble only": {[]cluster.Condition{cluster.Stalled},
			[]told{{cluster.Ready, "r", "a"}, {cluster.Stalled, "x", "a"}, {cluster.Reconciling, "", "a"}, {cluster.Stalled, "x", "a"}, {cluster.Ready, "r", "a"}, {cluster.Stalled, "x", "a"}},
			"Stalled:x Stalled:x"},
		"suspension": {[]cluster.Condition{cluster.Suspended}, []told{{cluster.Suspended, "a", ""}, {cluster.Suspended, "b", ""}, {cluster.Ready, "", ""}, {cluster.Suspended, "c", ""}},
			"Suspended:a Suspended:c"},
		"another cluster": {nil, []told{{cluster.Stalled, "x", "a"}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				target := &noted{}
				n := newNotifier(config.Notification{Name: "x", Clusters: []string{"dev"}, On: c.on}, target,
					openSpoken(nil, nil, slog.New(slog.DiscardHandler)), func(string, error) {}, slog.New(slog.DiscardHandler))
				for _, w := range c.words {
					s := cluster.Status{Cluster: "dev", Condition: w.condition, Message: w.message, Applied: w.applied}
					n.report(s, "north", "pve1")
					s.Cluster = "other"
					n.report(s, "north", "pve1")
					time.Sleep(time.Hour)
				}
				n.close() // nobody writes to what is read now
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
		log := slog.New(slog.DiscardHandler)
		c := config.Notification{Name: "x", On: []cluster.Condition{cluster.Stalled}}
		files, target := state.Dir{Path: t.TempDir()}, &noted{takes: 10 * time.Second}
		for range 2 {
			n := newNotifier(c, target, openSpoken(files, []config.Notification{c}, log), func(string, error) {}, log)
			n.report(cluster.Status{Cluster: "dev", Condition: cluster.Stalled, Message: "no room"}, "north", "pve1")
			time.Sleep(time.Second)
			n.report(cluster.Status{Cluster: "dev", Condition: cluster.Ready}, "north", "pve1")
			time.Sleep(time.Minute)
			n.close()
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

// TestSpokenSurvives: what was told is remembered over restarts, targets that are
// gone are forgotten, and a file that cannot be read is no more than told again.
func TestSpokenSurvives(t *testing.T) {
	files := state.Dir{Path: t.TempDir()}
	targets := []config.Notification{{Name: "a"}, {Name: "b"}}
	log := &output{}
	logger := slog.New(slog.NewTextHandler(log, nil))
	sp := openSpoken(files, targets, logger)
	sp.set("a", "dev", &notify.Notice{Condition: "Ready"})
	sp.set("a", "prod", &notify.Notice{Condition: "Ready"})
	sp.set("b", "dev", &notify.Notice{Condition: "Stalled"})
	sp.set("a", "prod", nil)
	sp = openSpoken(files, targets[:1], logger)
	if a, b := sp.of("a"), sp.of("b"); len(a) != 1 || a["dev"].Condition != "Ready" || len(b) != 0 {
		t.Errorf("%v, %v", a, b)
	}
	must(files.Write(spokenFile, []byte("{")))
	if sp = openSpoken(files, targets, logger); len(sp.of("a")) != 0 || !log.has("it is notified again") {
		t.Errorf("%v, %s", sp.of("a"), log)
	}
	sp.set("a", "dev", &notify.Notice{Condition: "Ready"})
	if sp = openSpoken(files, targets, logger); len(sp.of("a")) != 1 {
		t.Error("a broken file is not written anew")
	}
	names, err := files.Journals()
	if err != nil || len(names) != 0 {
		t.Errorf("taken for the journals of %v, %v", names, err)
	}
}

// TestStoppedAgentIsSilent: with an agent end its notifiers; those of the next
// one would say everything twice.
func TestStoppedAgentIsSilent(t *testing.T) {
	work := t.TempDir()
	dir := newHost(t, hostFiles(t), map[string]string{"config.yaml": sshConfig + "state_dir: " + work + "\ncache_dir: " + t.TempDir() + "\n" +
		"notifications: [{name: a, kind: webhook, url_file: hook.url}]\n"})
	s, problems := config.LoadFrom(filepath.Join(dir, "config.yaml"), config.Credentials{})
	must(problems.Err())
	w, err := wireSettings(s, state.Dir{Path: work}, slog.New(slog.DiscardHandler))
	must(err)
	a, err := newAgent(w)
	must(err)
	if len(a.notifiers) != 1 {
		t.Fatalf("%d notifiers", len(a.notifiers))
	}
	a.stop()
	select {
	case <-a.notifiers[0].out.done:
	default:
		t.Error("the notifier goes on")
	}
}
