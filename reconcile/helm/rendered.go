package helm

import (
	"context"
	"strconv"
	"strings"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"

	"github.com/talos-agent/talos-agent/reconcile/helm/render"
)

// render has a worker render the chart, and returns one whose templates are what came of
// it: Helm makes the same release of it, and runs no template of the chart. Revision is
// what templates see of it: Helm 3.22 shows 1 to every installation.
func (j *job) render(ctx context.Context, revision int, upgrade bool) (*chart.Chart, error) {
	caps, err := j.capabilities()
	if err != nil {
		return nil, err
	}
	config, err := j.getter.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	config.Transport = &lookups{next: config.Transport}
	r := render.Release{Name: j.addon.Name, Namespace: j.addon.Namespace, Revision: revision, Upgrade: upgrade, Values: j.addon.Values.Reveal(),
		Capabilities: caps, Private: secretsIn(j.addon.Values.Reveal())}
	var got render.Rendered
	err = j.Try(j.digest, func() (err error) {
		got, err = render.Render(ctx, j.worker, j.packed, r, engine.NewLookupFunction(config))
		return err
	})
	j.public = got.Public
	if err != nil {
		return nil, explainWorker("render", j.addon.Chart, err)
	}
	made := &chart.Chart{Metadata: j.chart.Metadata, Values: j.chart.Values}
	for _, f := range got.Files {
		made.Templates = append(made.Templates, &chart.File{Name: f.Name, Data: []byte(quoteTemplate(string(f.Data)))})
	}
	return made, nil
}

// quoteTemplate makes a template that renders to a text. It is parsed in this process: one
// string, however many {{ are in it, each of which would take some 300 bytes by itself.
func quoteTemplate(text string) string {
	if !strings.Contains(text, "{{") {
		return text
	}
	return "{{" + strconv.Quote(text) + "}}"
}

// capabilities are what the API serves, as templates see it, and Helm from then on. Source:
// Helm 3.22, getCapabilities in pkg/action/action.go.
func (j *job) capabilities() (*chartutil.Capabilities, error) {
	j.getter.served.Invalidate()
	version, err := j.getter.served.ServerVersion()
	if err != nil {
		return nil, err
	}
	kinds, err := action.GetVersionSet(j.getter.served)
	if err != nil {
		return nil, err
	}
	j.helm.Capabilities = &chartutil.Capabilities{
		APIVersions: kinds, HelmVersion: chartutil.DefaultCapabilities.HelmVersion,
		KubeVersion: chartutil.KubeVersion{Version: version.GitVersion, Major: version.Major, Minor: version.Minor},
	}
	return j.helm.Capabilities, nil
}
