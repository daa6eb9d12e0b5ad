package render

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chartutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// entry is one entry of an archive a test builds.
type entry struct {
	name string
	kind byte
	body string
	link string
}

// pack builds an archive without any of the care labcharts.Pack takes.
func pack(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	ball := tar.NewWriter(zip)
	for _, e := range entries {
		if e.kind == 0 {
			e.kind = tar.TypeReg
		}
		h := &tar.Header{Name: e.name, Typeflag: e.kind, Linkname: e.link, Mode: 0o644, Size: int64(len(e.body))}
		if err := ball.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(ball, e.body); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(ball.Close(), zip.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestHostileArchives(t *testing.T) {
	chartYAML := entry{name: "web/Chart.yaml", body: "apiVersion: v2\nname: web\nversion: 1.0.0\n"}
	zeros := func(name string, mib int) entry { return entry{name: name, body: strings.Repeat("\x00", mib<<20)} }
	bomb := pack(t, chartYAML, zeros("web/a", 5), zeros("web/b", 5), zeros("web/c", 5), zeros("web/d", 5))
	nest := pack(t, chartYAML)
	for range maxNested + 1 {
		nest = pack(t, chartYAML, entry{name: "web/charts/in.tgz", body: string(nest)})
	}
	var many []entry
	for i := range maxFiles + 1 {
		many = append(many, entry{name: fmt.Sprintf("web/%d", i)})
	}
	var bombs []entry
	for i := range 10 {
		bombs = append(bombs, entry{name: fmt.Sprintf("web/charts/c%d.tgz", i), body: string(bomb)})
	}
	for _, c := range []struct {
		name   string
		packed []byte
		words  string
	}{
		{"no archive", []byte("hello"), "no packed chart"},
		{"cut off", pack(t, chartYAML)[:60], "cut off or damaged"},
		{"symlink", pack(t, chartYAML, entry{name: "web/values.yaml", kind: tar.TypeSymlink, link: "/etc/shadow"}), "is a link or a device"},
		{"hard link", pack(t, chartYAML, entry{name: "web/values.yaml", kind: tar.TypeLink, link: "/etc/shadow"}), "is a link or a device"},
		{"device", pack(t, chartYAML, entry{name: "web/null", kind: tar.TypeChar}), "is a link or a device"},
		{"parent", pack(t, chartYAML, entry{name: "web/../../etc/x"}), "parent directory"},
		{"absolute", pack(t, chartYAML, entry{name: "web//etc/x"}), "absolute"},
		{"windows", pack(t, chartYAML, entry{name: `web\..\..\x`}), "parent directory"},
		{"large file", pack(t, chartYAML, zeros("web/big", 6)), "larger than 5 MiB"},
		{"bombs", pack(t, append([]entry{chartYAML}, bombs...)...), "unpacks to more than 64 MiB"},
		{"deep", nest, "packed charts 6 deep"},
		{"many files", pack(t, many...), "more than 10000 files"},
		{"no chart", pack(t, entry{name: "web/README", body: "x"}), "Chart.yaml file is missing"},
		{"flat", pack(t, entry{name: "Chart.yaml", body: chartYAML.body}), "base directory"},
		{"bad chart", pack(t, entry{name: "web/Chart.yaml", body: "apiVersion: v2\nname: ../x\nversion: 1.0.0\n"}), "chart.metadata"},
	} {
		t.Run(c.name, func(t *testing.T) {
			made, err := unpackChart(c.packed)
			if err == nil {
				t.Errorf("it is taken for chart %s", made.Name())
			}
			if err == nil || !strings.Contains(err.Error(), c.words) {
				t.Errorf("error is %v, want %q", err, c.words)
			}
		})
	}
}

func FuzzCheckArchive(f *testing.F) {
	f.Add(pack(f, entry{name: "web/Chart.yaml", body: "apiVersion: v2\nname: web\nversion: 1.0.0\n"}))
	f.Add(pack(f, entry{name: "web/charts/x.tgz", body: string(pack(f, entry{name: "a/b"}))}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if made, err := unpackChart(b); err == nil && made.Metadata == nil {
			t.Error("a chart without metadata")
		}
	})
}

// TestSchemasReadNothingElse: the schema of a chart, and of a chart in it, reads no file of
// the host and nothing of the net. The values are not checked then; those of any other are.
func TestSchemasReadNothingElse(t *testing.T) {
	var asked atomic.Int32
	net := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		_, _ = io.WriteString(w, `{"type":"integer"}`)
	}))
	defer net.Close()
	file := filepath.Join(t.TempDir(), "secret.json")
	if err := os.WriteFile(file, []byte(`{"type":"integer"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, ref := range map[string]string{
		"net": net.URL + "/latest/meta-data?x=y", "file": "file://" + file, "relative": strings.TrimPrefix(file, "/"), "fragment": net.URL + "/#/definitions/a",
		"dialect": "", "urn": "urn:example:x",
	} {
		t.Run(name, func(t *testing.T) {
			schema := `{"properties":{"count":{"$ref":"` + ref + `"}}}`
			if name == "dialect" {
				schema = `{"$schema":"` + net.URL + `/dialect","properties":{"count":{"type":"integer"}}}`
			}
			outer := assemble(t, map[string]string{"Chart.yaml": "apiVersion: v2\nname: web\nversion: 0.1.0\n", "values.schema.json": schema,
				"charts/inner/Chart.yaml": "apiVersion: v2\nname: inner\nversion: 0.1.0\n", "charts/inner/values.schema.json": schema,
				"charts/strict/Chart.yaml": "apiVersion: v2\nname: strict\nversion: 0.1.0\n", "charts/strict/values.schema.json": `{"properties":{"count":{"$ref":"#/$defs/n"}},"$defs":{"n":{"type":"integer"}}}`})
			refused := dropSchemas(outer)
			if want := map[bool]int{true: 0, false: 2}[name == "urn"]; len(refused) != want {
				t.Errorf("refused %q", refused)
			}
			values := map[string]any{"count": "text", "inner": map[string]any{"count": "text"}}
			if err := chartutil.ValidateAgainstSchema(outer, values); err != nil {
				t.Errorf("values are checked all the same: %v", err)
			}
			if err := chartutil.ValidateAgainstSchema(outer, map[string]any{"strict": values}); err == nil {
				t.Error("values are not checked against a schema that stands by itself")
			}
			if n := asked.Load(); n != 0 {
				t.Errorf("%d requests", n)
			}
		})
	}
}

// assemble makes a chart of files.
func assemble(t *testing.T, files map[string]string) *chart.Chart {
	t.Helper()
	all := map[string][]byte{}
	for name, text := range files {
		all[name] = []byte(text)
	}
	c, err := assembleChart(all)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
