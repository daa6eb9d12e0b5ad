package render

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"helm.sh/helm/v3/pkg/chartutil"

	"github.com/talos-agent/talos-agent/internal/worker"
)

// webOf is a chart of some files.
func webOf(files map[string]string) Packed {
	all := map[string][]byte{"Chart.yaml": []byte("apiVersion: v2\nname: web\nversion: 1.0.0\n")}
	for name, text := range files {
		all[name] = []byte(text)
	}
	return Packed{Files: all}
}

// runBriefly is worker.Run with less processor time, so that a test that takes all of it is
// over soon.
func runBriefly(ctx context.Context, job worker.Job, l worker.Limits, request []byte, answer worker.Answer) ([]byte, error) {
	l.CPU = 2 * time.Second
	return worker.Run(ctx, job, l, request, answer)
}

// renderWeb reads and renders a chart in a real worker.
func renderWeb(ctx context.Context, packed Packed, lookup Lookup) (Rendered, error) {
	if _, err := Read(ctx, runBriefly, packed, Want{}); err != nil {
		return Rendered{}, err
	}
	return Render(ctx, runBriefly, packed, Release{Name: "web", Namespace: "apps", Revision: 1, Values: []byte("{}"), Capabilities: chartutil.DefaultCapabilities}, lookup)
}

// TestChartsThatTakeTooMuch: a chart that never ends, or that grows beyond all bounds, ends
// its worker and nothing else.
func TestChartsThatTakeTooMuch(t *testing.T) {
	template := func(text string) map[string]string { return map[string]string{"templates/x.yaml": text} }
	doubling := strings.Repeat(`{{ $d = printf "%s%s" $d $d }}`, 40)
	var schema strings.Builder
	for i := range 28 {
		fmt.Fprintf(&schema, `"a%d":{"anyOf":[{"$ref":"#/$defs/a%d"},{"$ref":"#/$defs/a%d"}]},`, i, i+1, i+1)
	}
	aliases := "a0: &a0 [x,x,x,x,x,x,x,x,x]\n"
	for i := range 12 {
		aliases += fmt.Sprintf("a%d: &a%d [*a%d,*a%d,*a%d,*a%d,*a%d,*a%d,*a%d,*a%d,*a%d]\n", i+1, i+1, i, i, i, i, i, i, i, i, i)
	}
	for name, c := range map[string]struct {
		files    map[string]string
		exceeded bool // else Helm finds an error
	}{
		"one long text":      {template(`{{ repeat 20000000000 "x" }}`), true},
		"a long text thrice": {template(`{{ $a := repeat 100000000 "x" }}{{ $b := printf "%s%s" $a $a }}{{ $b }}{{ $b }}{{ $b }}`), true},
		"doubled text":       {template(`{{ $d := "xxxxxxxx" }}` + doubling + `{{ $d }}`), true},
		"a long range":       {template(`{{ range $i := untilStep 0 2000000000 1 }}{{ end }}`), true},
		"nested ranges":      {template(`{{ range until 100000 }}{{ range until 100000 }}{{ end }}{{ end }}`), true},
		"keys without end":   {template(`{{ range until 100000 }}{{ $c := genCA "x" 365 }}{{ end }}`), true},
		"passwords":          {template(`{{ range until 10000 }}{{ $c := htpasswd "x" "y" }}{{ end }}`), true},
		"a dict of itself":   {template(`{{ $d := dict "a" "b" }}{{ range until 40 }}{{ $_ := set $d (toString .) (deepCopy $d) }}{{ end }}`), true},
		"includes":           {map[string]string{"templates/_h.tpl": `{{ define "a" }}{{ include "a" . }}{{ end }}`, "templates/x.yaml": `{{ include "a" . }}`}, false},
		"a schema":           {map[string]string{"values.yaml": "count: 1\n", "values.schema.json": `{"properties":{"count":{"$ref":"#/$defs/a0"}},"$defs":{` + schema.String() + `"a28":{"type":"string"}}}`}, true},
		"aliases":            {map[string]string{"values.yaml": aliases}, false},
		"aliases rendered":   {template("kind: ConfigMap\n" + aliases), false},
		"much output":        {template(`{{ repeat 20000000 "x" }}`), false},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := renderWeb(t.Context(), webOf(c.files), nil)
			if exceeded := (*worker.Exceeded)(nil); err == nil || errors.As(err, &exceeded) != c.exceeded {
				t.Errorf("%v, want too much: %v", err, c.exceeded)
			}
		})
	}
}

// TestLookup: what a template looks up in the cluster is asked of the parent, is what the
// parent found, and an error of it is one of the chart.
func TestLookup(t *testing.T) {
	var asked []string
	lookup := func(apiVersion, kind, namespace, name string) (map[string]any, error) {
		asked = append(asked, strings.Join([]string{apiVersion, kind, namespace, name}, " "))
		switch name {
		case "":
			return map[string]any{"apiVersion": "v1", "kind": "List", "items": []any{map[string]any{"metadata": map[string]any{"name": "a"}}, map[string]any{"metadata": map[string]any{"name": "b"}}}}, nil
		case "there":
			return map[string]any{"data": map[string]any{"n": int64(12345678)}}, nil
		case "forbidden":
			return nil, errors.New("not allowed")
		}
		return map[string]any{}, nil
	}
	got, err := renderWeb(t.Context(), webOf(map[string]string{
		"templates/x.yaml": `a: {{ (lookup "v1" "Secret" "apps" "there").data.n }}
b: {{ if lookup "v1" "Secret" "apps" "missing" }}there{{ else }}missing{{ end }}
c: {{ range (lookup "apps/v1" "Deployment" "" "").items }}{{ .metadata.name }},{{ end }}
`}), lookup)
	if err != nil || len(got.Files) != 1 || string(got.Files[0].Data) != "a: 12345678\nb: missing\nc: a,b,\n" {
		t.Errorf("%s, %v", got.Files, err)
	}
	if want := "v1 Secret apps there|v1 Secret apps missing|apps/v1 Deployment  "; strings.Join(asked, "|") != want {
		t.Errorf("asked %q, want %q", asked, want)
	}
	_, err = renderWeb(t.Context(), webOf(map[string]string{"templates/x.yaml": `{{ lookup "v1" "Secret" "apps" "forbidden" }}`}), lookup)
	if ours := (*Error)(nil); !errors.As(err, &ours) || !strings.Contains(err.Error(), "not allowed") {
		t.Errorf("an error of the parent is %v", err)
	}
}
