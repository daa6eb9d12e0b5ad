package metrics

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"go.uber.org/goleak"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/golden"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// busy is a cluster that has everything to report.
var busy = cluster.Status{
	Cluster: "dev", Condition: cluster.Stalled, Reason: cluster.StorageMissing, Message: "a message", NextPass: noon.Add(time.Minute), Since: noon.Add(-time.Hour),
	Revision: "main@sha1:2222222222222222222222222222222222222222", Applied: "main@sha1:1111111111111111111111111111111111111111",
	Nodes:     []cluster.NodeStatus{{Name: "cp-1", Phase: cluster.PhaseReady}, {Name: "wk-1", Phase: cluster.PhaseReady}, {Name: "wk-2", Phase: cluster.PhaseBooting}},
	Addons:    []cluster.AddonStatus{{Name: "cilium", State: "ready"}, {Name: "x", State: "pending-install"}, {Name: "y", State: "pending-rollback"}},
	Running:   []cluster.RunningStatus{{Action: "create vm", Subject: "wk-2"}, {Action: cluster.TakeSnapshot, Subject: "dev"}},
	Snapshots: &cluster.SnapshotStatus{Newest: noon.Add(-time.Hour), Verified: noon.Add(-2 * time.Hour), Due: noon.Add(5 * time.Hour), Kept: 3, Damaged: 1, Bytes: 5 << 20, Error: "no space left"},
	Upgrade:   &cluster.UpgradeStatus{Hops: []string{"Talos v1.13.9", "Talos v1.14.1"}, Upgraded: 1, Nodes: 3, StuckSince: noon.Add(-time.Hour)},
	Waiting: []cluster.WaitStatus{
		{Wait: cluster.Wait{Subject: "wk-2", Reason: cluster.WaitingForBoot, Message: "boots"}, Since: noon.Add(-10 * time.Minute)},
		{Wait: cluster.Wait{Subject: "wk-1", Reason: cluster.WaitingToRegister, Message: "joins"}, Since: noon.Add(-50 * time.Minute), Overdue: true},
	},
	Blocked:  []cluster.Block{{Subject: "dev", Reason: cluster.StorageMissing, Message: "no room"}},
	Problems: cluster.Problems{{Message: "no severity is an error"}, {Severity: cluster.Warning, Message: "w"}},
}

// whole are Metrics to which everything has happened once.
func whole() *Metrics {
	m := New(Config{
		Version:  "v1.2.3",
		Clusters: func() []string { return []string{"dev", "new"} },
		Certificates: func(name string) []cluster.Certificate {
			return map[string][]cluster.Certificate{
				"":    {{Name: "proxmox", NotBefore: noon.AddDate(-1, 0, 0), NotAfter: noon.AddDate(1, 0, 0)}},
				"dev": {{Name: "talos ca", NotBefore: noon.AddDate(-2, 0, 0), NotAfter: noon.AddDate(8, 0, 0)}},
			}[name]
		},
		Calls: func() []Calls { return []Calls{{"proxmox", "ok", 7}, {"proxmox", "lost", 2}} },
	})
	ready := busy
	ready.Condition = cluster.Ready
	m.Status(ready, noon.Add(-2*time.Hour))
	m.Status(busy, noon)
	removed := busy
	removed.Cluster = "gone"
	m.Status(removed, noon)
	m.Pass("dev", 300*time.Millisecond)
	m.Pass("dev", 40*time.Second)
	m.Action("dev", cluster.Outcome{Action: "create vm", Result: cluster.Done})
	m.Action("dev", cluster.Outcome{Action: "create vm", Result: cluster.Failed})
	m.Action("dev", cluster.Outcome{Action: "create vm", Result: cluster.Failed})
	m.Reload(true, noon)
	m.Reload(false, noon.Add(time.Minute))
	m.Notification("phone", "sent")
	m.Webhook("accepted")
	return m
}

// TestTextFile: the file has exactly this, and everybody may read it.
func TestTextFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.prom")
	m := whole()
	check(t, m.WriteText(path))
	check(t, m.WriteText(path))
	info, err := os.Stat(path)
	check(t, err)
	if info.Mode().Perm() != 0o644 {
		t.Errorf("mode %v", info.Mode())
	}
	if left, err := filepath.Glob(path + "?*"); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	got, err := os.ReadFile(path)
	check(t, err)
	got = regexp.MustCompile(`goversion="[^"]*"`).ReplaceAll(got, []byte(`goversion="x"`))
	golden.Check(t, filepath.Join("testdata", "whole.prom"), got)
	if err := m.WriteText(filepath.Join(t.TempDir(), "no", "such")); err == nil || !strings.Contains(err.Error(), "write metrics to") {
		t.Errorf("a folder that is not there: %v", err)
	}
}

// TestFamilies: what is reported is what is listed, each family in the type and
// with the labels of the list, and the names are as Prometheus wants them.
func TestFamilies(t *testing.T) {
	families, err := whole().own.Gather()
	check(t, err)
	gathered := map[string]bool{}
	for _, f := range families {
		i := slices.IndexFunc(Families(), func(l Family) bool { return l.Name == f.GetName() })
		if i < 0 {
			t.Errorf("%s is reported and not listed", f.GetName())
			continue
		}
		listed := Families()[i]
		gathered[listed.Name] = true
		if f.GetHelp() != listed.Help || strings.ToLower(f.GetType().String()) != listed.Type {
			t.Errorf("%s is a %s: %s, and listed as a %s: %s", listed.Name, f.GetType(), f.GetHelp(), listed.Type, listed.Help)
		}
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName())
			}
			slices.Sort(labels)
			if want := slices.Sorted(slices.Values(listed.Labels)); !slices.Equal(labels, want) {
				t.Errorf("%s has labels %v, listed are %v", listed.Name, labels, want)
			}
		}
	}
	for _, f := range Families() {
		if !gathered[f.Name] {
			t.Errorf("%s is listed and not reported", f.Name)
		}
	}
	found, err := promlint.NewWithMetricFamilies(families).Lint()
	check(t, err)
	for _, p := range found {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// TestHandler: a scrape has the process's own numbers too, and nothing else is
// served.
func TestHandler(t *testing.T) {
	h := whole().Handler()
	get := func(method, path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
		return w
	}
	if w := get(http.MethodGet, "/metrics"); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "\ngo_goroutines ") ||
		!strings.Contains(w.Body.String(), `talos_agent_cluster_condition{cluster="dev",condition="Stalled"} 1`) {
		t.Errorf("%d\n%s", w.Code, w.Body)
	}
	for _, c := range [][2]string{{http.MethodPost, "/metrics"}, {http.MethodGet, "/"}, {http.MethodGet, "/debug/pprof/"}} {
		if w := get(c[0], c[1]); w.Code < 400 {
			t.Errorf("%s %s: %d", c[0], c[1], w.Code)
		}
	}
}

// TestNothingKnown: before the first pass there is nothing to report of
// clusters, and nothing is made up.
func TestNothingKnown(t *testing.T) {
	m := New(Config{Clusters: func() []string { return []string{"dev"} },
		Certificates: func(string) []cluster.Certificate { return nil }, Calls: func() []Calls { return nil }})
	families, err := m.own.Gather()
	check(t, err)
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), prefix+"cluster_") {
			t.Errorf("%s is reported", f.GetName())
		}
	}
	var _ prometheus.Collector = views{m}
}

// TestEveryWordIsANumber: no condition and no phase is left out.
func TestEveryWordIsANumber(t *testing.T) {
	known := map[string]bool{}
	for _, c := range conditions {
		known[string(c)] = true
	}
	for _, p := range phases {
		known[string(p)] = true
	}
	words := regexp.MustCompile(`(?m)^\s+\w+\s+(?:Condition|Phase)\s+= "(\w+)"`)
	found := 0
	for _, name := range []string{"status.go", "steps.go"} {
		src, err := os.ReadFile(filepath.Join("..", "cluster", name))
		check(t, err)
		for _, m := range words.FindAllStringSubmatch(string(src), -1) {
			if found++; !known[m[1]] {
				t.Errorf("%s is in no metric", m[1])
			}
		}
	}
	if found < len(conditions)+len(phases) {
		t.Errorf("found %d words only", found)
	}
}

// TestForgottenCluster: a cluster that is not managed any more leaves no series.
func TestForgottenCluster(t *testing.T) {
	m := whole()
	m.Forget("dev")
	text, err := m.Text()
	check(t, err)
	for line := range strings.Lines(text) {
		if strings.Contains(line, `cluster="dev"`) && !strings.Contains(line, "certificate") {
			t.Errorf("left: %s", line)
		}
	}
}
