package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/daemontest"
	"github.com/talos-agent/talos-agent/internal/daemon/reporting"
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
	daemontest.LeaveToExhaust(t)
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

	r.until("the refusal is told", func() bool { return r.log.has("cannot send a notification; it is retried: broken") })
	// What a target has taken is counted when its answer is back.
	r.until("it is counted", func() bool {
		seen := r.scrape(r.base + "200:9477")
		return seen[`talos_agent_notifications_total{result="sent",target="programs"}`] == 1 &&
			seen[`talos_agent_notifications_total{result="failed",target="broken"}`] >= 1 && seen[`talos_agent_api_calls_total{outcome="ok",system="notify"}`] >= 1
	})
	kept, err := os.ReadFile(filepath.Join(r.config["state_dir"].(string), reporting.SentFile))
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
		raw, err := os.ReadFile(filepath.Join(r.config["state_dir"].(string), reporting.SentFile))
		var all map[string]map[string]notify.Notice
		return err == nil && json.Unmarshal(raw, &all) == nil && all[target]["dev"].Condition == string(c)
	})
}
