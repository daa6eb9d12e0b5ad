package charts

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/talos-agent/talos-agent/internal/lab/httpservice"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// Media types of OCI, and those Helm 3 packs charts with.
const (
	mediaManifest    = "application/vnd.oci.image.manifest.v1+json"
	mediaChartConfig = "application/vnd.cncf.helm.config.v1+json"
	mediaChart       = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
)

// chartsPath is where the charts of a registry are.
const chartsPath = "charts"

// RegistryConfig sizes an OCI registry.
type RegistryConfig struct {
	Service httpservice.Config
	Charts  []Chart // empty: Stock
}

// Registry is a read-only OCI registry with charts as Helm 3 pushes them:
// charts/<chart>:<version>. Errors are those of the OCI distribution
// specification.
type Registry struct {
	*httpservice.Server
	world *world.World

	mu     sync.Mutex
	charts shelf
}

// NewRegistry opens an OCI registry.
func NewRegistry(c RegistryConfig) (*Registry, error) {
	charts, err := fillShelf(c.Charts)
	if err != nil {
		return nil, err
	}
	server, err := httpservice.Open(c.Service)
	if err != nil {
		return nil, fmt.Errorf("open registry: %w", err)
	}
	g := &Registry{Server: server, world: c.Service.World, charts: charts}
	t := &httpservice.Routes{World: c.Service.World, System: "registry", Refuse: refuseOCI}
	t.Handle("GET /v2/{$}", false, httpservice.NoSubject, func(rw http.ResponseWriter, r *http.Request) {
		httpservice.WriteBody(rw, r, "application/json", []byte("{}"))
	})
	base := "GET /v2/" + chartsPath + "/{chart}/"
	t.Handle(base+"tags/list", false, httpservice.PathValue("chart"), g.listTags)
	t.Handle(base+"manifests/{reference}", false, httpservice.PathValue("chart"), g.getManifest)
	t.Handle(base+"blobs/{digest}", false, httpservice.PathValue("chart"), g.getBlob)
	t.HandleRest("repository name not known to registry")
	g.Serve(t)
	return g, nil
}

// Publish adds a chart, or moves the tag of the same name and version to other
// content.
func (g *Registry) Publish(c Chart) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.charts.putChart(c)
}

// Reference is what Helm pulls a chart by: oci://host/prefix/name.
func (g *Registry) Reference(chart string) string {
	_, host, _ := strings.Cut(g.URL(), "://")
	return "oci://" + host + "/" + chartsPath + "/" + chart
}

// ManifestDigest is the digest ("sha256:...") a published chart is pinned by.
func (g *Registry) ManifestDigest(chart, version string) (string, error) {
	for _, a := range g.listArtifacts(chart) {
		if a.chart.Version == version {
			return digestOf(a.manifest), nil
		}
	}
	return "", fmt.Errorf("chart %s %s is not in the registry", chart, version)
}

// artifact is one chart as the registry keeps it.
type artifact struct {
	chart            Chart
	manifest, config []byte
}

// listArtifacts returns the versions of a chart, in order of publication.
func (g *Registry) listArtifacts(name string) []artifact {
	g.mu.Lock()
	charts := slices.Clone(g.charts)
	g.mu.Unlock()
	var all []artifact
	for _, c := range charts {
		if c.Name != name {
			continue
		}
		a, err := packArtifact(c)
		if err != nil {
			// Chart.yaml came from YAML; what JSON cannot express is not a chart.
			g.world.Log.Error("a chart of the lab cannot be an OCI artifact", "chart", c.Name, "err", err)
			continue
		}
		all = append(all, a)
	}
	return all
}

// tag is the version as a tag: OCI has no "+", Helm writes "_".
func (a artifact) tag() string { return strings.ReplaceAll(a.chart.Version, "+", "_") }

func packArtifact(c Chart) (artifact, error) {
	config, err := json.Marshal(c.Meta)
	if err != nil {
		return artifact{}, err
	}
	type descriptor struct {
		MediaType string `json:"mediaType"`
		Digest    string `json:"digest"`
		Size      int    `json:"size"`
	}
	manifest, err := json.Marshal(struct {
		SchemaVersion int               `json:"schemaVersion"`
		MediaType     string            `json:"mediaType"`
		Config        descriptor        `json:"config"`
		Layers        []descriptor      `json:"layers"`
		Annotations   map[string]string `json:"annotations"`
	}{
		SchemaVersion: 2,
		MediaType:     mediaManifest,
		Config:        descriptor{mediaChartConfig, digestOf(config), len(config)},
		Layers:        []descriptor{{mediaChart, digestOf(c.Archive), len(c.Archive)}},
		Annotations: map[string]string{
			"org.opencontainers.image.title":   c.Name,
			"org.opencontainers.image.version": c.Version,
			"org.opencontainers.image.created": indexTime,
		},
	})
	return artifact{chart: c, manifest: manifest, config: config}, err
}

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func (g *Registry) listTags(rw http.ResponseWriter, r *http.Request) {
	name := r.PathValue("chart")
	tags := []string{}
	for _, a := range g.listArtifacts(name) {
		tags = append(tags, a.tag())
	}
	if len(tags) == 0 {
		refuseOCI(rw, http.StatusNotFound, "repository name not known to registry")
		return
	}
	slices.Sort(tags)
	httpservice.WriteJSON(rw, http.StatusOK, map[string]any{"name": chartsPath + "/" + name, "tags": tags})
}

func (g *Registry) getManifest(rw http.ResponseWriter, r *http.Request) {
	ref := r.PathValue("reference")
	for _, a := range g.listArtifacts(r.PathValue("chart")) {
		if ref == a.tag() || ref == digestOf(a.manifest) {
			httpservice.WriteBlob(rw, r, mediaManifest, a.manifest)
			return
		}
	}
	refuseOCI(rw, http.StatusNotFound, "manifest unknown")
}

func (g *Registry) getBlob(rw http.ResponseWriter, r *http.Request) {
	want := r.PathValue("digest")
	for _, a := range g.listArtifacts(r.PathValue("chart")) {
		switch want {
		case digestOf(a.config):
			httpservice.WriteBlob(rw, r, "application/octet-stream", a.config)
			return
		case digestOf(a.chart.Archive):
			rw.Header().Set("Docker-Content-Digest", want)
			sendChart(g.world, rw, r, "application/octet-stream", a.chart)
			return
		}
	}
	refuseOCI(rw, http.StatusNotFound, "blob unknown to registry")
}

// ociCodes are the error codes of the distribution specification by what the
// registry answers; anything else goes by its status.
var ociCodes = map[string]string{
	"manifest unknown":                      "MANIFEST_UNKNOWN",
	"blob unknown to registry":              "BLOB_UNKNOWN",
	"repository name not known to registry": "NAME_UNKNOWN",
}

var ociStatusCodes = map[int]string{
	http.StatusUnauthorized:    "UNAUTHORIZED",
	http.StatusForbidden:       "DENIED",
	http.StatusTooManyRequests: "TOOMANYREQUESTS",
}

func refuseOCI(rw http.ResponseWriter, status int, text string) {
	code := cmp.Or(ociCodes[text], ociStatusCodes[status], "UNKNOWN")
	httpservice.WriteJSON(rw, status, map[string]any{"errors": []map[string]string{{"code": code, "message": text}}})
}
