package render

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/releaseutil"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/worker"
)

// load reads a chart. Each use needs its own: Helm changes the chart it renders.
func (p Packed) load() (*chart.Chart, error) {
	if p.Archive == nil {
		c, err := assembleChart(p.Files)
		if err != nil {
			return nil, newError("correct the chart in the repository", "%v", err)
		}
		return c, nil
	}
	c, err := unpackChart(p.Archive)
	if err != nil {
		return nil, newError("tell the owner of the chart, or use another version", "%v", err)
	}
	return c, nil
}

// readPacked is what a worker does to read a chart.
func readPacked(r readRequest) readAnswer {
	c, err := r.Packed.load()
	if err == nil {
		err = checkChart(c, r.Want)
	}
	if err != nil {
		return readAnswer{Problem: shortenProblem(err), Hint: fault.HintOf(err)}
	}
	var crds []File
	size := 0
	for _, crd := range c.CRDObjects() {
		crds = append(crds, File{crd.Filename, crd.File.Data})
		if size += len(crd.File.Data); size > maxRendered {
			return readAnswer{Problem: fmt.Sprintf("its custom resource definitions are larger than %d MiB", maxRendered>>20), Hint: "use another version of the chart"}
		}
		readDocuments(crd.File.Data)
	}
	answer := readAnswer{CRDs: crds, Unchecked: dropSchemas(c)}
	meta := *c.Metadata
	meta.Dependencies = nil // what is rendered holds them
	values := c.Values
	var errs [2]error
	answer.Metadata, errs[0] = json.Marshal(meta)
	answer.Values, errs[1] = json.Marshal(values)
	if err := errors.Join(errs[:]...); err != nil {
		return readAnswer{Problem: sanitize(err.Error())}
	}
	return answer
}

// notes is how the name of a template ends that is a text for people. Helm keeps that of
// the chart itself beside the release.
const notes = "NOTES.txt"

// renderPacked is what a worker does to render a chart. Source: Helm 3.22, pkg/action, install.go
// and upgrade.go, and renderResources in action.go.
func renderPacked(r renderRequest, ask worker.Ask) (answer renderAnswer) {
	c, err := r.Packed.load()
	if err != nil {
		return renderAnswer{Problem: shortenProblem(err)}
	}
	answer.Public = textsIn(c, r.Private)
	dropSchemas(c)
	files, err := renderFiles(c, r, ask)
	if err != nil {
		answer.Problem = shortenProblem(err)
		return answer
	}
	size := 0
	for _, name := range slices.Sorted(maps.Keys(files)) {
		text := files[name]
		isNotes := strings.HasSuffix(name, notes)
		if isNotes {
			delete(files, name) // also those of subcharts: they are no manifests to be sorted
		}
		if isNotes && name != path.Join(c.Name(), "templates", notes) || strings.TrimSpace(text) == "" {
			continue
		}
		if size += len(text); size > maxRendered {
			return renderAnswer{Public: answer.Public, Problem: fmt.Sprintf("it renders to more than %d MiB", maxRendered>>20)}
		}
		answer.Files = append(answer.Files, File{strings.TrimPrefix(name, c.ChartFullPath()+"/"), []byte(text)})
		if !isNotes {
			readDocuments([]byte(text))
		}
	}
	// Whoever takes these texts sorts them again.
	if _, _, err := releaseutil.SortManifests(files, nil, releaseutil.InstallOrder); err != nil {
		answer.Problem = shortenProblem(err)
	}
	return answer
}

// maxProblem bounds each end of an error that a template makes as long as it likes, in bytes:
// the parent looks for secrets in it.
const maxProblem = 8 << 10

// shortenProblem is an error's text, of a long one its two ends.
func shortenProblem(err error) string {
	s := err.Error()
	if len(s) <= 2*maxProblem {
		return s
	}
	return s[:maxProblem] + " ... " + s[len(s)-maxProblem:]
}

// renderFiles renders all templates of a chart.
func renderFiles(c *chart.Chart, r renderRequest, ask worker.Ask) (map[string]string, error) {
	values, err := chartutil.ReadValues(r.Values)
	if err != nil {
		return nil, errors.New("its values cannot be read")
	}
	caps := new(chartutil.Capabilities)
	if err := json.Unmarshal(r.Capabilities, caps); err != nil {
		return nil, err
	}
	if err := chartutil.ProcessDependenciesWithMerge(c, values); err != nil {
		return nil, err
	}
	if want := c.Metadata.KubeVersion; want != "" && !chartutil.IsCompatibleRange(want, caps.KubeVersion.String()) {
		return nil, fmt.Errorf("chart requires kubeVersion: %s which is incompatible with Kubernetes %s", want, caps.KubeVersion.String())
	}
	options := chartutil.ReleaseOptions{Name: r.Name, Namespace: r.Namespace, Revision: r.Revision, IsInstall: !r.Upgrade, IsUpgrade: r.Upgrade}
	all, err := chartutil.ToRenderValues(c, values, options, caps)
	if err != nil {
		return nil, err
	}
	return engine.RenderWithClientProvider(c, all, asker{ask})
}

// readDocuments parses what the parent is going to parse: where that takes too much, this
// process ends of it, not the parent. What is no YAML is for the parent to report.
func readDocuments(b []byte) {
	d := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(b), 4096)
	for {
		var document any
		if d.Decode(&document) != nil {
			return
		}
	}
}

// textsIn are those of some texts that stand in a chart, which everybody can read.
func textsIn(c *chart.Chart, texts []string) (found []string) {
	for _, s := range texts {
		if c.Name() == s || slices.ContainsFunc(c.Raw, func(f *chart.File) bool { return bytes.Contains(f.Data, []byte(s)) }) {
			found = append(found, s)
		}
	}
	return found
}
