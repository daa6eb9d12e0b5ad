package agent_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/reporting"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/world"
	"github.com/talos-agent/talos-agent/sources/notify"
)

// inbox takes notices as a webhook.
type inbox struct {
	t       *testing.T
	mu      sync.Mutex
	notices []notify.Notice
}

// take is what the inbox serves.
func (b *inbox) take(_ http.ResponseWriter, r *http.Request) {
	var n struct {
		Kind string
		Data notify.Notice
	}
	if err := json.NewDecoder(r.Body).Decode(&n); err != nil || n.Kind != "Notice" {
		b.t.Errorf("%q: %v", n.Kind, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.notices = append(b.notices, n.Data)
}

// reports are what a target was notified of so far: of which cluster, and what.
func (b *inbox) reports() (out []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, n := range b.notices {
		out = append(out, fmt.Sprintf("%s %s: %s", n.Cluster, n.Condition, n.Message))
	}
	return out
}

// lockedBuffer takes the log of many.
type lockedBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestRepositoryOutage: a cluster that is Ready stays so while its repository
// cannot be fetched, and nobody who does not ask would know that what is pushed
// waits. People are told when it has lasted, once, over restarts; and when it is
// over.
func TestRepositoryOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, size{ControlPlanes: 1, Workers: 0}, lab.Config{})
		defer s.Close()
		log := &lockedBuffer{}
		s.Log = slog.New(slog.NewTextHandler(log, nil))
		everything, trouble, quiet := &inbox{t: t}, &inbox{t: t}, &inbox{t: t}
		for i, box := range []*inbox{everything, trouble, quiet} {
			on := [][]cluster.Condition{{cluster.Ready, cluster.Stalled, cluster.Unknown}, {cluster.Stalled, cluster.Unknown}, {cluster.Ready, cluster.Stalled}}[i]
			addr := fmt.Sprintf("127.0.0.9:%d", 8081+i)
			l, err := s.Lab.World.Net.Listen(addr)
			must(err)
			server := &http.Server{Handler: http.HandlerFunc(box.take)}
			go func() { _ = server.Serve(l) }() // until it is closed
			defer func() { must(server.Close()) }()
			s.Notify = append(s.Notify, reporting.Target{Name: addr, On: on, To: notify.Config{Kind: notify.Webhook, URL: "http://" + addr + "/"}})
		}
		down := func(words string) {
			if s.Lab.World.Heal(); words != "" {
				s.Lab.World.Inject(world.Fault{System: "git", Kind: world.Answer, Status: 503, Text: words})
			}
		}

		expect := func(when string, box *inbox, want ...string) {
			t.Helper()
			got := box.reports()
			if !slices.EqualFunc(got, want, strings.HasPrefix) {
				t.Errorf("%s: told %q, want %q", when, got, want)
			}
		}

		s.Boot()
		s.UntilReady(time.Hour)
		time.Sleep(time.Hour)
		const ready = "dev Ready: 1 node is Ready"
		expect("at first", everything, ready)

		// Some minutes are no news.
		down("restarting")
		time.Sleep(10 * time.Minute)
		down("")
		time.Sleep(time.Hour)
		expect("after a short outage", everything, ready)

		// The server need not always say the same of the same outage.
		for n := range 4 {
			down(fmt.Sprintf("request %d failed", n))
			time.Sleep(30 * time.Minute)
		}
		const outage = " Unknown: the repository has not been fetched for 15m15s, and what is pushed is not applied: "
		expect("in an outage", everything, ready, outage)
		expect("in an outage", trouble, outage)
		if st := s.Status(); st.Condition != cluster.Ready || !strings.Contains(trouble.reports()[0], "request 0 failed") {
			t.Errorf("%s, told %q", st.Condition, trouble.reports())
		}

		// A restart is no news but for the log: what was applied last stays in force.
		s.Halt()
		s.Boot()
		time.Sleep(2 * time.Hour)
		expect("after a restart", everything, ready, outage)
		expect("after a restart", trouble, outage)

		down("")
		time.Sleep(24 * time.Hour)
		const over = " Ready: the repository is fetched again"
		expect("in the end", everything, ready, outage, over)
		expect("in the end", trouble, outage, over)
		expect("in the end", quiet, ready)
		for text, n := range map[string]int{`msg="cannot fetch the repository"`: 3, `msg="repository unavailable" detail="the repository has not been fetched for 15m15s`: 2, `msg="the repository answers again"`: 2} {
			if got := strings.Count(log.String(), text); got != n {
				t.Errorf("%d events, want %d: %s", got, n, text)
			}
		}
	})
}

// TestSilentRepositoryAfterARestart: a Git server that accepts and is silent keeps
// nobody from healing what was applied last, and the status shows both.
func TestSilentRepositoryAfterARestart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 1}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(time.Hour)
		s.Halt()
		must(s.Lab.PVE.Stop(541))
		s.Lab.World.Inject(world.Fault{System: "git", Kind: world.Slow, Delay: 10 * time.Minute})
		s.Boot()
		s.Until(2*time.Minute, "healed", func(st cluster.Status) bool {
			return st.Condition == cluster.Ready && strings.Contains(st.Message, "the repository cannot be fetched: it has not answered since the agent started")
		})
		s.CheckRules(sz)
		s.Lab.World.Heal()
		s.Halt()
	})
}
