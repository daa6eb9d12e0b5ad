package web

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"

	"github.com/talos-agent/talos-agent/internal/lab/world"
	"go.yaml.in/yaml/v4"
)

// ChartsConfig sizes a chart repository.
type ChartsConfig struct {
	Config
	Charts []Chart // empty: StockCharts
}

// Charts is a Helm chart repository: index.yaml and the archives it lists.
type Charts struct {
	*face
	world *world.World

	mu     sync.Mutex
	charts shelf
}

// NewCharts opens a chart repository.
func NewCharts(c ChartsConfig) (*Charts, error) {
	charts, err := stock(c.Charts)
	if err != nil {
		return nil, err
	}
	face, err := listen(c.Config)
	if err != nil {
		return nil, fmt.Errorf("open chart repository: %w", err)
	}
	h := &Charts{face: face, world: c.World, charts: charts}
	t := &routes{world: c.World, system: "charts", refuse: plainText}
	t.handle("GET /index.yaml", false, noSubject, h.getIndex)
	t.handle("GET /{archive}", false, pathValue("archive"), h.getArchive)
	t.nothingElse("404 page not found")
	h.serve(c.World, &t.mux)
	return h, nil
}

// Publish adds a chart, or replaces the one of the same name and version: what
// a repository should never do, and an attacker would.
func (h *Charts) Publish(c Chart) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.charts.put(c)
}

func (h *Charts) all() []Chart {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.charts)
}

// indexTime is when everything was made, so that the index is the same bytes
// every time.
const indexTime = "2026-01-01T00:00:00Z"

func (h *Charts) getIndex(rw http.ResponseWriter, r *http.Request) {
	entries := map[string][]map[string]any{}
	for _, c := range h.all() {
		e := map[string]any{"created": indexTime, "digest": c.Digest(), "urls": []string{c.fileName()}}
		for k, v := range c.Meta {
			e[k] = v
		}
		entries[c.Name] = append(entries[c.Name], e)
	}
	body, err := yaml.Marshal(map[string]any{"apiVersion": "v1", "generated": indexTime, "entries": entries})
	if err != nil {
		plainText(rw, http.StatusInternalServerError, err.Error())
		return
	}
	writeBody(rw, r, "text/yaml; charset=utf-8", body)
}

func (h *Charts) getArchive(rw http.ResponseWriter, r *http.Request) {
	for _, c := range h.all() {
		if c.fileName() != r.PathValue("archive") {
			continue
		}
		sendChart(h.world, rw, r, "application/gzip", c)
		return
	}
	plainText(rw, http.StatusNotFound, "404 page not found")
}

// sendChart sends an archive after Latency.Chart.
func sendChart(w *world.World, rw http.ResponseWriter, r *http.Request, contentType string, c Chart) {
	if r.Method == http.MethodGet {
		if w.Sleep(r.Context(), w.Latency.Chart) != nil {
			panic(http.ErrAbortHandler)
		}
		w.Spend("chart", c.Name, w.Latency.Chart)
		w.Tell("charts", "sent chart %s %s", c.Name, c.Version)
	}
	writeBody(rw, r, contentType, c.Archive)
}

// writeBody answers 200 with body; HEAD gets the headers only.
func writeBody(rw http.ResponseWriter, r *http.Request, contentType string, body []byte) {
	rw.Header().Set("Content-Type", contentType)
	rw.Header().Set("Content-Length", strconv.Itoa(len(body)))
	rw.WriteHeader(http.StatusOK)
	if r.Method != http.MethodHead {
		_, _ = rw.Write(body)
	}
}
