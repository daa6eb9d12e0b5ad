package render

import (
	"slices"
	"strings"
	"testing"
)

// TestNotesOfSubcharts: what a subchart has for people is no manifest, whatever it looks
// like, and only the notes of the chart itself are kept. kube-prometheus-stack has
// Grafana's.
func TestNotesOfSubcharts(t *testing.T) {
	const noYAML = "1. Get the password: run this: kubectl get secret\n   a: b: c\n\t- x\n"
	files := map[string]string{
		"Chart.yaml":                     "apiVersion: v2\nname: web\nversion: 1.0.0\ndependencies: [{name: sub, version: 1.0.0}]\n",
		"templates/NOTES.txt":            "of web: " + noYAML,
		"templates/map.yaml":             "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web}\n",
		"charts/sub/Chart.yaml":          "apiVersion: v2\nname: sub\nversion: 1.0.0\n",
		"charts/sub/templates/NOTES.txt": "of sub: " + noYAML,
		"charts/sub/templates/map.yaml":  "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: sub}\n",
	}
	out, err := renderWeb(t.Context(), webOf(files), nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range out.Files {
		names = append(names, f.Name)
		if strings.Contains(string(f.Data), "of sub") {
			t.Errorf("%s has the notes of the subchart", f.Name)
		}
	}
	slices.Sort(names)
	if want := []string{"charts/sub/templates/map.yaml", "templates/NOTES.txt", "templates/map.yaml"}; !slices.Equal(names, want) {
		t.Errorf("got %v, want %v", names, want)
	}
}
