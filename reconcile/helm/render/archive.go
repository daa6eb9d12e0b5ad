package render

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"

	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/text"
)

// sanitize makes a foreign text fit to be shown.
func sanitize(s string) string { return text.Sanitize(s, mostWords) }

// mostWords is how much of a foreign text is repeated, in bytes.
const mostWords = 400

func newError(hint, format string, args ...any) error {
	return &fault.Error{Op: fmt.Sprintf(format, args...), Hint: hint}
}

// The bounds of a chart.
const (
	maxFile     = 5 << 20  // one file, unpacked
	maxUnpacked = 64 << 20 // all files, those of packed subcharts included
	maxFiles    = 10000
	maxNested   = 5 // packed charts within packed charts
)

// budget is what is left of the bounds while an archive is looked through.
type budget struct{ bytes, files int64 }

// checkArchive looks through a packed chart, and the packed charts inside it,
// before Helm unpacks any of it: Helm's own bounds hold for each archive alone,
// so that a small one could unpack to gigabytes, and it turns links into empty
// files.
func checkArchive(packed []byte) error {
	return (&budget{maxUnpacked, maxFiles}).check(packed, 0)
}

func (l *budget) check(packed []byte, depth int) error {
	if depth > maxNested {
		return fmt.Errorf("it holds packed charts %d deep", depth)
	}
	zip, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return errors.New("it is no packed chart (.tgz)")
	}
	tape := tar.NewReader(zip)
	for {
		h, err := tape.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("it is cut off or damaged: %s", sanitize(err.Error()))
		}
		name := sanitize(h.Name)
		switch h.Typeflag {
		case tar.TypeReg:
		case tar.TypeDir, tar.TypeXGlobalHeader:
			continue
		default:
			return fmt.Errorf("%s in it is a link or a device, which a chart must not hold", name)
		}
		l.files--
		l.bytes -= h.Size
		switch {
		case h.Size > maxFile:
			return fmt.Errorf("%s in it is larger than %d MiB", name, maxFile>>20)
		case l.files < 0:
			return fmt.Errorf("it holds more than %d files", maxFiles)
		case l.bytes < 0:
			return fmt.Errorf("it unpacks to more than %d MiB", maxUnpacked>>20)
		}
		if clean := strings.ReplaceAll(h.Name, `\`, "/"); path.Ext(clean) == ".tgz" && strings.Contains(clean, "/charts/") {
			inner, err := io.ReadAll(tape)
			if err != nil {
				return fmt.Errorf("it is cut off or damaged: %s", sanitize(err.Error()))
			}
			if err := l.check(inner, depth+1); err != nil {
				return fmt.Errorf("%s in it: %w", name, err)
			}
		}
	}
}

// unpackChart reads a packed chart. Each use needs its own: Helm changes the chart
// it renders.
func unpackChart(packed []byte) (*chart.Chart, error) {
	if err := checkArchive(packed); err != nil {
		return nil, err
	}
	c, err := loader.LoadArchive(bytes.NewReader(packed))
	if err != nil {
		return nil, errors.New(sanitize(err.Error()))
	}
	return c, nil
}

// assembleChart reads a chart from the files of the inventory.
func assembleChart(files map[string][]byte) (*chart.Chart, error) {
	files, err := dropIgnored(files)
	if err != nil {
		return nil, err
	}
	all := make([]*loader.BufferedFile, 0, len(files))
	left := &budget{maxUnpacked, maxFiles}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if path.Ext(name) == ".tgz" && strings.HasPrefix(name, "charts/") {
			if err := left.check(files[name], 1); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		}
		all = append(all, &loader.BufferedFile{Name: name, Data: files[name]})
	}
	c, err := loader.LoadFiles(all)
	if err != nil {
		return nil, errors.New(sanitize(err.Error()))
	}
	return c, nil
}

// checkChart looks whether a chart is the one that was asked for and can be
// installed. Errors have a hint.
func checkChart(c *chart.Chart, want Want) error {
	meta := c.Metadata
	if want.Name != "" && (meta.Name != want.Name || !SameVersion(meta.Version, want.Version)) {
		return newError("look at what the source really holds", "it is chart %s %s, not %s %s", sanitize(meta.Name), sanitize(meta.Version), want.Name, want.Version)
	}
	if meta.Type != "" && meta.Type != "application" {
		return newError("install the chart that uses it", "it is a chart of type %s, which cannot be installed", sanitize(meta.Type))
	}
	if err := action.CheckDependencies(c, meta.Dependencies); err != nil {
		return newError("run `helm dependency update` on the chart and commit its folder charts/, or use a chart that is packed with them",
			"charts it depends on are %s", sanitize(err.Error()))
	}
	return nil
}

// dropSchemas takes those schemas off a chart, and off the charts in it, that refer to
// another document, and names the references: Helm 3.22 reads these from anywhere, files of
// the host and addresses that only the host reaches included. Values are not checked against
// what is missing then.
func dropSchemas(c *chart.Chart) (refused []string) {
	var read refusing
	if c.Schema != nil && !read.compiles(c.Schema) {
		c.Schema, refused = nil, read
	}
	for _, inner := range c.Dependencies() {
		refused = append(refused, dropSchemas(inner)...)
	}
	return refused
}

// refusing loads no document, and notes what it was asked for.
type refusing []string

// Load implements jsonschema.URLLoader. A name is no place: Helm has everything match it.
func (r *refusing) Load(url string) (any, error) {
	if strings.HasPrefix(url, "urn:") {
		return true, nil
	}
	*r = append(*r, sanitize(url))
	return nil, errors.New("other documents are not read")
}

// compiles reports whether a schema needs no other document. One that is no schema needs
// none either: Helm reports it.
func (r *refusing) compiles(schema []byte) bool {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		return true
	}
	const name = "file:///values.schema.json" // as Helm calls it
	compiler := jsonschema.NewCompiler()
	compiler.UseLoader(r)
	if compiler.AddResource(name, doc) == nil {
		_, _ = compiler.Compile(name) // what it asked for is what counts
	}
	return len(*r) == 0
}

// SameVersion compares versions of charts as people write them: some charts
// have a leading v, and registries know no plus sign.
func SameVersion(a, b string) bool {
	normal := func(v string) string { return strings.ReplaceAll(strings.TrimPrefix(v, "v"), "_", "+") }
	return normal(a) == normal(b)
}
