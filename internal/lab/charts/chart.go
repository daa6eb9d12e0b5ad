package charts

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"go.yaml.in/yaml/v4"
)

// Chart is a Helm chart, packed.
type Chart struct {
	Name       string
	Version    string
	AppVersion string
	// Meta is Chart.yaml, decoded.
	Meta map[string]any
	// Archive is the .tgz; the same files give the same bytes.
	Archive []byte
}

// Digest is the SHA-256 of the archive in hex, as an index.yaml states it.
func (c Chart) Digest() string {
	sum := sha256.Sum256(c.Archive)
	return hex.EncodeToString(sum[:])
}

// fileName is the archive's name in a repository.
func (c Chart) fileName() string { return c.Name + "-" + c.Version + ".tgz" }

// Pack packs the files of a chart, given by their paths inside it
// ("Chart.yaml", "templates/deployment.yaml").
func Pack(files map[string]string) (Chart, error) {
	var meta struct {
		Name       string         `yaml:"name"`
		Version    string         `yaml:"version"`
		AppVersion string         `yaml:"appVersion"`
		Rest       map[string]any `yaml:",inline"`
	}
	if err := yaml.Unmarshal([]byte(files["Chart.yaml"]), &meta); err != nil {
		return Chart{}, fmt.Errorf("pack chart: read Chart.yaml: %w", err)
	}
	if meta.Name == "" || meta.Version == "" {
		return Chart{}, errors.New("pack chart: Chart.yaml has no name or no version")
	}
	c := Chart{Name: meta.Name, Version: meta.Version, AppVersion: meta.AppVersion, Meta: meta.Rest}
	if c.Meta == nil {
		c.Meta = map[string]any{}
	}
	c.Meta["name"], c.Meta["version"] = meta.Name, meta.Version
	if meta.AppVersion != "" {
		c.Meta["appVersion"] = meta.AppVersion
	}

	var packed bytes.Buffer
	zip := gzip.NewWriter(&packed)
	ball := tar.NewWriter(zip)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		content := files[name]
		h := &tar.Header{
			Name: path.Join(c.Name, name), Mode: 0o644, Size: int64(len(content)),
			ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR,
		}
		if err := ball.WriteHeader(h); err != nil {
			return Chart{}, fmt.Errorf("pack chart %s: %w", c.Name, err)
		}
		if _, err := ball.Write([]byte(content)); err != nil {
			return Chart{}, fmt.Errorf("pack chart %s: %w", c.Name, err)
		}
	}
	if err := errors.Join(ball.Close(), zip.Close()); err != nil {
		return Chart{}, fmt.Errorf("pack chart %s: %w", c.Name, err)
	}
	c.Archive = packed.Bytes()
	return c, nil
}

//go:embed stock
var chartFiles embed.FS

// stockFiles are the files of a chart that is built in.
func stockFiles(name string) (map[string]string, error) {
	root := path.Join("stock", name)
	files := map[string]string{}
	err := fs.WalkDir(chartFiles, root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := chartFiles.ReadFile(name)
		files[strings.TrimPrefix(name, root+"/")] = string(content)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read chart %s: %w", name, err)
	}
	return files, nil
}

// NewStandIn makes a chart that takes the place of one that is not at hand: of the
// same name and version, deaf to values, with one workload that becomes ready.
// Cilium's is the simulated one, because nodes wait for it.
func NewStandIn(name, version string) (Chart, error) {
	files := map[string]string{"templates/deployment.yaml": standInTemplate}
	if name == "cilium" {
		var err error
		if files, err = stockFiles(name); err != nil {
			return Chart{}, err
		}
	}
	files["Chart.yaml"] = fmt.Sprintf("apiVersion: v2\nname: %q\nversion: %q\nappVersion: %q\ndescription: A stand-in of the talos-agent lab.\n", name, version, version)
	return Pack(files)
}

const standInTemplate = `apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ .Release.Name }}
  namespace: {{ .Release.Namespace }}
spec:
  replicas: 1
  selector:
    matchLabels:
      app.kubernetes.io/instance: {{ .Release.Name }}
  template:
    metadata:
      labels:
        app.kubernetes.io/instance: {{ .Release.Name }}
    spec:
      containers:
        - name: stand-in
          image: registry.example.org/stand-in:1
`

// Stock are the charts a repository of the lab holds when nobody asks
// for others: cilium (a simulated one), podinfo in two versions, stuck
// (never ready) and broken (cannot be rendered). The slice is the caller's; what
// the charts hold is everybody's, and not to be written to.
func Stock() ([]Chart, error) {
	all, err := stockCharts()
	return slices.Clone(all), err
}

// stockCharts are packed once in a process: a simulation opens hundreds of labs,
// each with a repository and a registry.
var stockCharts = sync.OnceValues(packStock)

func packStock() ([]Chart, error) {
	var all []Chart
	for _, want := range []struct{ name, from, to string }{
		{name: "cilium"},
		{name: "podinfo"},
		{name: "podinfo", from: "6.9.0", to: "6.9.1"},
		{name: "stuck"},
		{name: "broken"},
	} {
		files, err := stockFiles(want.name)
		if err != nil {
			return nil, err
		}
		if want.from != "" {
			files["Chart.yaml"] = strings.ReplaceAll(files["Chart.yaml"], want.from, want.to)
		}
		c, err := Pack(files)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

// shelf holds charts, the newest publication of each name and version.
type shelf []Chart

// putChart adds a chart, or replaces the one of the same name and version.
func (s *shelf) putChart(c Chart) {
	i := slices.IndexFunc(*s, func(have Chart) bool { return have.Name == c.Name && have.Version == c.Version })
	if i >= 0 {
		(*s)[i] = c
		return
	}
	*s = append(*s, c)
}

// fillShelf fills a shelf with the given charts, or with the stock ones.
func fillShelf(charts []Chart) (shelf, error) {
	if len(charts) == 0 {
		var err error
		if charts, err = Stock(); err != nil {
			return nil, err
		}
	}
	var s shelf
	for _, c := range charts {
		s.putChart(c)
	}
	return s, nil
}
