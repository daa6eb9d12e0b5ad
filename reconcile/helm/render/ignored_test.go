package render

import (
	"bytes"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
)

// TestIgnoredFiles: of a chart in a folder the same files are left out as Helm leaves out.
func TestIgnoredFiles(t *testing.T) {
	files := []string{
		"Chart.yaml", "values.yaml", "OWNERS", "crds/a.yaml", "crds/kustomization.yaml", "templates/.gitignore", "templates/a.yaml", "templates/sub/b.yaml",
		"templates/tests/c.yaml", "templates/a.tmp", "tests/unit/d.yaml", "docs/readme.md", "sub/OWNERS", "sub/.hidden", ".git/config",
	}
	for _, rules := range []string{
		"", "# nothing\n\n", "crds/kustomization.yaml\n", "tests/\n", "templates/tests\n", "/OWNERS\n", "OWNERS\n", "*.tmp\n.*\n", "docs/*\n", "templates/*/\n",
		"tests/\n*.md\n.git/\n",
	} {
		dir := t.TempDir()
		all := map[string][]byte{".helmignore": []byte(rules)}
		for _, name := range files {
			all[name] = []byte("# " + name + "\n")
		}
		all["Chart.yaml"] = []byte("apiVersion: v2\nname: web\nversion: 1.0.0\n")
		for name, data := range all {
			if err := errors.Join(os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755), os.WriteFile(filepath.Join(dir, name), data, 0o644)); err != nil {
				t.Fatal(err)
			}
		}
		want, err := loader.LoadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		got, err := assembleChart(all)
		if err != nil {
			t.Fatal(err)
		}
		if g, w := namesOf(got), namesOf(want); !slices.Equal(g, w) {
			t.Errorf("with %q there are %v, and Helm has %v", rules, g, w)
		}
	}
	if _, err := assembleChart(map[string][]byte{"Chart.yaml": []byte("name: web\n"), ".helmignore": []byte("a/**/b\n")}); err == nil || !strings.Contains(err.Error(), ".helmignore: ") {
		t.Errorf("rules that Helm does not take: %v", err)
	}
}

func namesOf(c *chart.Chart) []string {
	names := map[string]bool{}
	for _, f := range c.Raw {
		names[f.Name] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// TestRulesAskForFoldersOnly: Helm's rules ask nothing of a file but whether it is a folder;
// an entryKind has an answer to nothing else.
func TestRulesAskForFoldersOnly(t *testing.T) {
	for _, rules := range []string{"a\n", "a/\n", "/a\n", "a/b\n", "!a\n", "*.x\n", "[ab]\n", "!a/\n", "/a/*\n"} {
		if _, err := dropIgnored(map[string][]byte{".helmignore": []byte(rules), "a/b": nil, "a.x": nil, "b": nil}); err != nil {
			t.Errorf("%q: %v", rules, err)
		}
	}
}

// TestIgnoreFileOfAnySize: rules without end are refused, and as many as may be are not.
func TestIgnoreFileOfAnySize(t *testing.T) {
	rules := bytes.Repeat([]byte("/tests/x\n"), maxIgnoreSize/9+1)
	files := map[string][]byte{".helmignore": rules[:maxIgnoreSize], "a.yaml": nil}
	if _, err := dropIgnored(files); err != nil {
		t.Error(err)
	}
	files[".helmignore"] = rules[:maxIgnoreSize+1]
	if _, err := dropIgnored(files); err == nil || !strings.Contains(err.Error(), ".helmignore has 16385 bytes") {
		t.Errorf("one byte more: %v", err)
	}
}
