package metrics

import (
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/common/expfmt"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// Calls is how many calls to a system ended in one way.
type Calls struct {
	System, Outcome string
	N               int64
}

// Config has the sources of the numbers that are kept elsewhere. Each is asked
// at a scrape, and must answer at once, from memory.
type Config struct {
	Version string
	// Clusters are those that are managed: the others' last state is not reported
	// any more.
	Clusters func() []string
	// Certificates are those of a cluster, or with "" those of the host.
	Certificates func(cluster string) []cluster.Certificate
	Calls        func() []Calls
}

// Metrics gathers what happens. Its methods may be called from anywhere, and
// never block for long.
type Metrics struct {
	c Config
	// own is what is reported of clusters and agent, process what every Go program
	// reports of itself. A text file has only the former: whoever reads it out has
	// those of its own process.
	own, process *prometheus.Registry

	passes        *prometheus.HistogramVec
	actions       *prometheus.CounterVec
	notifications *prometheus.CounterVec
	webhooks      *prometheus.CounterVec

	mu         sync.Mutex
	seen       map[string]seen
	reloadOK   bool
	reloadedAt time.Time
}

// seen is the last word of a cluster.
type seen struct {
	status cluster.Status
	at     time.Time
	ready  time.Time // when it was last Ready; zero: never
}

// New makes Metrics that know of nothing yet.
func New(c Config) *Metrics {
	m := &Metrics{
		c: c, own: prometheus.NewPedanticRegistry(), process: prometheus.NewRegistry(),
		passes: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: passDuration.Name, Help: passDuration.Help,
			Buckets: []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}}, passDuration.Labels),
		actions: actions.counter(), notifications: notifications.counter(), webhooks: webhooks.counter(),
		seen: map[string]seen{},
	}
	m.own.MustRegister(m.passes, m.actions, m.notifications, m.webhooks, views{m})
	m.process.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Status takes how a cluster stands after a pass that ended now.
func (m *Metrics) Status(s cluster.Status, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	was := m.seen[s.Cluster]
	if s.Condition == cluster.Ready {
		was.ready = now
	}
	m.seen[s.Cluster] = seen{status: s, at: now, ready: was.ready}
}

// Pass takes how long a pass of a cluster took.
func (m *Metrics) Pass(name string, took time.Duration) {
	m.passes.WithLabelValues(name).Observe(took.Seconds())
}

// Action takes how an action on a cluster ended.
func (m *Metrics) Action(name string, o cluster.Outcome) {
	m.actions.WithLabelValues(name, string(o.Action), string(o.Result)).Inc()
}

// Forget drops the series of a cluster that is not managed any more.
func (m *Metrics) Forget(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.seen, name)
	m.passes.DeletePartialMatch(prometheus.Labels{"cluster": name})
	m.actions.DeletePartialMatch(prometheus.Labels{"cluster": name})
}

// Reload takes whether the config's files could be loaded.
func (m *Metrics) Reload(ok bool, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reloadOK = ok
	if ok {
		m.reloadedAt = now
	}
}

// Notification takes how an attempt to notify a target ended: sent or failed.
func (m *Metrics) Notification(target, result string) {
	m.notifications.WithLabelValues(target, result).Inc()
}

// Webhook takes what became of a request to the webhook listener.
func (m *Metrics) Webhook(result string) { m.webhooks.WithLabelValues(result).Inc() }

// Handler serves /metrics.
func (m *Metrics) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(prometheus.Gatherers{m.own, m.process}, promhttp.HandlerOpts{}))
	return mux
}

// Text is everything that /metrics serves.
func (m *Metrics) Text() (string, error) {
	families, err := prometheus.Gatherers{m.own, m.process}.Gather()
	if err != nil {
		return "", fmt.Errorf("gather metrics: %w", err)
	}
	var b strings.Builder
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&b, f); err != nil {
			return "", fmt.Errorf("write metrics: %w", err)
		}
	}
	return b.String(), nil
}

// WriteText writes a file for the textfile collector of node_exporter, in one
// piece and readable by everybody.
func (m *Metrics) WriteText(path string) error {
	if err := prometheus.WriteToTextfile(path, m.own); err != nil {
		return fmt.Errorf("write metrics to %s: %w", path, err)
	}
	return nil
}

// views collects what is a view of something kept elsewhere.
type views struct{ m *Metrics }

// Describe implements prometheus.Collector.
func (t views) Describe(out chan<- *prometheus.Desc) {
	counted := []string{passDuration.Name, actions.Name, notifications.Name, webhooks.Name}
	for _, f := range Families() {
		if !slices.Contains(counted, f.Name) {
			out <- f.desc()
		}
	}
}

// Collect implements prometheus.Collector.
func (t views) Collect(out chan<- prometheus.Metric) {
	c := t.m.c
	out <- buildInfo.sample(1, c.Version, runtime.Version())
	names := c.Clusters()
	t.m.mu.Lock()
	var words []seen
	for _, name := range names {
		if w, ok := t.m.seen[name]; ok {
			words = append(words, w)
		}
	}
	ok, at := t.m.reloadOK, t.m.reloadedAt
	t.m.mu.Unlock()
	out <- reloaded.sample(boolNumber(ok))
	if !at.IsZero() {
		out <- reloadedAt.sample(unixSeconds(at))
	}
	for _, w := range words {
		for _, s := range listSamples(w) {
			out <- s
		}
	}
	for _, name := range append([]string{""}, names...) {
		for _, cert := range c.Certificates(name) {
			out <- notBefore.sample(unixSeconds(cert.NotBefore), name, cert.Name)
			out <- notAfter.sample(unixSeconds(cert.NotAfter), name, cert.Name)
		}
	}
	for _, n := range c.Calls() {
		out <- calls.sample(float64(n.N), n.System, n.Outcome)
	}
}
