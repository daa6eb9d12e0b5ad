package render

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chartutil"

	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/worker"
)

// limits bound the worker of one chart. The largest that people use, with certificates that
// its templates make, takes less than a tenth of each.
var limits = worker.Limits{CPU: 10 * time.Second, Wall: 2 * time.Minute, Memory: 384 << 20, Output: 32 << 20}

// maxRendered is how much a chart may render to, its definitions of custom resources
// included, in bytes. Kubernetes keeps at most 1 MiB of it, packed.
const maxRendered = 16 << 20

// Packed is a chart as it came: an archive, or the files of a directory by their names.
type Packed struct {
	Archive []byte
	Files   map[string][]byte
}

// Want is which chart it must be. Without a name any is right.
type Want struct{ Name, Version string }

// File is a part of a chart, or what it rendered to.
type File struct {
	Name string
	Data []byte
}

// Chart is what there is to know of a chart without rendering it.
type Chart struct {
	Metadata *chart.Metadata
	Values   map[string]any // by default
	CRDs     []File         // its custom resource definitions, and those of charts in it
	// Unchecked are the documents that schemas in it refer to: the values are not checked
	// against such a schema.
	Unchecked []string
}

// Release is what a chart is rendered for.
type Release struct {
	Name, Namespace string
	Revision        int
	Upgrade         bool
	Values          []byte // YAML
	Capabilities    *chartutil.Capabilities
	// Private are texts that are asked for in the chart: what stands there is no secret.
	Private []string
}

// Rendered is what a chart rendered to.
type Rendered struct {
	Files  []File   // by the name of the template, below the chart's folder
	Public []string // of the release's private texts those that stand in the chart
}

// Lookup reads an object of the cluster, or all of a kind when no name is given. What does
// not exist is an empty map.
type Lookup func(apiVersion, kind, namespace, name string) (map[string]any, error)

// Read reads a chart and checks that it is the wanted one and can be installed. Errors have
// a hint, but those of the worker.
func Read(ctx context.Context, on worker.Runner, packed Packed, want Want) (*Chart, error) {
	got, err := reading.Run(ctx, on, limits, readRequest{packed, want}, nil)
	if err != nil {
		return nil, err
	}
	if got.Problem != "" {
		return nil, fault.Errorf(got.Hint, "%s", got.Problem)
	}
	made := &Chart{CRDs: got.CRDs, Unchecked: got.Unchecked}
	return made, errors.Join(json.Unmarshal(got.Metadata, &made.Metadata), json.Unmarshal(got.Values, &made.Values))
}

// Render renders a chart for a release. Errors are *worker.Exceeded and others of the
// worker, and *Error of the chart.
func Render(ctx context.Context, on worker.Runner, packed Packed, r Release, lookup Lookup) (Rendered, error) {
	answer := func(_ context.Context, question []byte) ([]byte, error) {
		var q lookupQuestion
		if err := json.Unmarshal(question, &q); err != nil {
			return nil, err
		}
		found, err := lookup(q.APIVersion, q.Kind, q.Namespace, q.Name)
		if err != nil {
			return nil, err
		}
		return json.Marshal(found)
	}
	capabilities, err := json.Marshal(r.Capabilities)
	if err != nil {
		return Rendered{}, err
	}
	got, err := rendering.Run(ctx, on, limits, renderRequest{packed, r.Name, r.Namespace, r.Revision, r.Upgrade, r.Values, capabilities, r.Private}, answer)
	if err != nil {
		return Rendered{}, err
	}
	out := Rendered{got.Files, got.Public}
	if got.Problem != "" {
		return out, &Error{got.Problem}
	}
	return out, nil
}

// Error is what Helm or a template reports. It may hold values of the release.
type Error struct{ text string }

// Error implements error.
func (e *Error) Error() string { return e.text }

// The jobs of a worker.
var (
	reading   = worker.RegisterTyped("read-chart", func(r readRequest, _ worker.Ask) (readAnswer, error) { return readPacked(r), nil })
	rendering = worker.RegisterTyped("render-chart", func(r renderRequest, ask worker.Ask) (renderAnswer, error) { return renderPacked(r, ask), nil })
)

// What goes to the worker and comes back.
type (
	readRequest struct {
		Packed Packed
		Want   Want
	}
	readAnswer struct {
		Metadata, Values []byte // JSON
		CRDs             []File
		Unchecked        []string
		Problem, Hint    string
	}
	renderRequest struct {
		Packed          Packed
		Name, Namespace string
		Revision        int
		Upgrade         bool
		Values          []byte
		Capabilities    []byte // JSON
		Private         []string
	}
	renderAnswer struct {
		Files   []File
		Public  []string
		Problem string
	}
	lookupQuestion struct{ APIVersion, Kind, Namespace, Name string }
)
