package charts

import (
	"fmt"
	"net/http"
	"slices"
	"sync"

	"go.yaml.in/yaml/v4"

	"github.com/talos-agent/talos-agent/internal/lab/httpservice"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// RepositoryConfig sizes a chart repository.
type RepositoryConfig struct {
	Service httpservice.Config
	Charts  []Chart // empty: Stock
}

// Repository is a Helm chart repository: index.yaml and the archives it lists.
type Repository struct {
	*httpservice.Server
	world *world.World

	mu     sync.Mutex
	charts shelf
}

// NewRepository opens a chart repository.
func NewRepository(c RepositoryConfig) (*Repository, error) {
	charts, err := fillShelf(c.Charts)
	if err != nil {
		return nil, err
	}
	server, err := httpservice.Open(c.Service)
	if err != nil {
		return nil, fmt.Errorf("open chart repository: %w", err)
	}
	h := &Repository{Server: server, world: c.Service.World, charts: charts}
	t := &httpservice.Routes{World: c.Service.World, System: "charts", Refuse: httpservice.RefuseText}
	t.Handle("GET /index.yaml", false, httpservice.NoSubject, h.getIndex)
	t.Handle("GET /{archive}", false, httpservice.PathValue("archive"), h.getArchive)
	t.HandleRest("404 page not found")
	h.Serve(t)
	return h, nil
}

// Publish adds a chart, or replaces the one of the same name and version: what
// a repository should never do, and an attacker would.
func (h *Repository) Publish(c Chart) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.charts.putChart(c)
}

func (h *Repository) listCharts() []Chart {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.charts)
}

// indexTime is when everything was made, so that the index is the same bytes
// every time.
const indexTime = "2026-01-01T00:00:00Z"

func (h *Repository) getIndex(rw http.ResponseWriter, r *http.Request) {
	entries := map[string][]map[string]any{}
	for _, c := range h.listCharts() {
		e := map[string]any{"created": indexTime, "digest": c.Digest(), "urls": []string{c.fileName()}}
		for k, v := range c.Meta {
			e[k] = v
		}
		entries[c.Name] = append(entries[c.Name], e)
	}
	body, err := yaml.Marshal(map[string]any{"apiVersion": "v1", "generated": indexTime, "entries": entries})
	if err != nil {
		httpservice.RefuseText(rw, http.StatusInternalServerError, err.Error())
		return
	}
	httpservice.WriteBody(rw, r, "text/yaml; charset=utf-8", body)
}

func (h *Repository) getArchive(rw http.ResponseWriter, r *http.Request) {
	for _, c := range h.listCharts() {
		if c.fileName() != r.PathValue("archive") {
			continue
		}
		sendChart(h.world, rw, r, "application/gzip", c)
		return
	}
	httpservice.RefuseText(rw, http.StatusNotFound, "404 page not found")
}

// sendChart sends an archive after Latency.Chart.
func sendChart(w *world.World, rw http.ResponseWriter, r *http.Request, contentType string, c Chart) {
	if r.Method == http.MethodGet {
		if w.Sleep(r.Context(), w.Latency.Chart) != nil {
			panic(http.ErrAbortHandler)
		}
		w.Spend("chart", c.Name, w.Latency.Chart)
		w.Report("charts", "sent chart %s %s", c.Name, c.Version)
	}
	httpservice.WriteBody(rw, r, contentType, c.Archive)
}
