package plan

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/golden"
)

const changesFile = "../../docs/reference/changes.md"

// replacePart checks a part of the page of changes, between its marks.
func replacePart(t *testing.T, name, want string) {
	t.Helper()
	begin, end := "<!-- "+name+" -->\n", "<!-- end of "+name+" -->"
	page, err := os.ReadFile(changesFile)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(page), begin)
	_, after, ended := strings.Cut(rest, end)
	if !ok || !ended {
		t.Fatalf("%s has no %q and %q", changesFile, begin, end)
	}
	golden.Check(t, changesFile, []byte(before+begin+"\n"+want+"\n"+end+after))
}

// addonChange is one field of an addon that is edited on a cluster that has it.
type addonChange struct {
	field string
	edit  func(*world, *cluster.Addon)
}

// makeOld has the release of the addon be of what the inventory had before.
func makeOld(w *world, edit func(*cluster.Release)) {
	rel := w.o.Releases.Value["web"]
	edit(&rel)
	w.o.Releases = cluster.Saw(map[string]cluster.Release{"web": rel})
}

var addonChanges = []addonChange{
	{"`chart`", func(w *world, a *cluster.Addon) {
		a.Chart.Version = "1.1.0"
		delete(w.o.Charts, "web")
		makeOld(w, func(r *cluster.Release) { r.Digest, r.Version = "old", "1.0.0" })
	}},
	{"`values`, `values_files`", func(w *world, _ *cluster.Addon) {
		makeOld(w, func(r *cluster.Release) { r.Digest, r.Version, r.OtherValues = "old", "1.0.0", "replicas, image.tag" })
	}},
	{"`namespace_labels`, `namespace_annotations`", func(w *world, a *cluster.Addon) {
		a.Asks.Labels = map[string]string{"team": "web"}
	}},
	{"`namespace`", moveRelease},
	{"`namespace`, or the `name`, with `prune: true` in cluster.yaml", func(w *world, a *cluster.Addon) { w.d.Spec.Prune = true; moveRelease(w, a) }},
	{"`ownership: bootstrap-only`", func(_ *world, a *cluster.Addon) { a.Ownership = cluster.BootstrapOnly }},
	{"`on_failure: rollback`", func(_ *world, a *cluster.Addon) { a.RollBack = true }},
	{"`depends_on`, `ready.timeout`, `prune`", func(_ *world, a *cluster.Addon) { a.ReadyAfter = 1 }},
	{"the addon, which the inventory no longer has (a file, or one of `addons`)", leaveRelease},
	{"the same, with `prune: true` in cluster.yaml", func(w *world, a *cluster.Addon) { w.d.Spec.Prune = true; leaveRelease(w, a) }},
}

// moveRelease has the addon in another namespace than its release.
func moveRelease(w *world, a *cluster.Addon) {
	w.o.Left = []cluster.LeftRelease{{ReleaseName: cluster.ReleaseName{Namespace: "kube-system", Name: "web"}, Status: "deployed"}}
	w.o.Releases, a.Namespace = cluster.Saw(map[string]cluster.Release{}), "web"
}

// leaveRelease takes the addon out of the inventory.
func leaveRelease(w *world, _ *cluster.Addon) {
	w.o.Left = []cluster.LeftRelease{{ReleaseName: cluster.ReleaseName{Namespace: "kube-system", Name: "web"}, Status: "deployed"}}
	w.o.Releases, w.d.Spec.Addons = cluster.Saw(map[string]cluster.Release{}), nil
}

// TestReferenceOfAddonChanges makes the table of what a change of an addon leads to, from what
// the planner does about it.
func TestReferenceOfAddonChanges(t *testing.T) {
	var b strings.Builder
	b.WriteString("| Changed of an addon | What it leads to |\n| --- | --- |\n")
	for _, c := range addonChanges {
		w := converged()
		w.run(t, "addon web")
		for range 20 {
			if w.step().Converged() {
				break
			}
		}
		w.o.Namespaces = map[string]cluster.NamespaceMeta{"kube-system": {}}
		c.edit(w, &w.d.Spec.Addons[0])
		var texts []string
		for _, s := range Forecast(w.d, w.o, w.p).Steps {
			texts = append(texts, s.Text)
		}
		if len(texts) == 0 {
			texts = []string{"nothing"}
		}
		fmt.Fprintf(&b, "| %s | %s |\n", c.field, strings.Join(texts, "; "))
	}
	replacePart(t, "changes of addons", b.String())
}

// schema is what is read of a JSON schema.
type schema struct {
	Properties map[string]schema `json:"properties"`
	Items      *schema           `json:"items"`
	Enum       []any             `json:"enum"`
	OneOf      []schema          `json:"oneOf"`
	AnyOf      []schema          `json:"anyOf"`
}

// fields calls visit with the path of every field.
func (s schema) fields(at string, visit func(path string, s schema)) {
	for name, p := range s.Properties {
		path := strings.TrimPrefix(at+"."+name, ".")
		visit(path, p)
		p.fields(path, visit)
	}
	for _, other := range slices.Concat(s.OneOf, s.AnyOf) {
		other.fields(at, visit)
	}
	if s.Items != nil {
		s.Items.fields(at, visit)
	}
}

// named are the fields that the tables of the page name in their first columns.
func named(t *testing.T) map[string]bool {
	t.Helper()
	page, err := os.ReadFile(changesFile)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, "|")
		if strings.HasPrefix(line, "Another `") { // what no plan of a cluster shows
			cells = []string{"", line}
		}
		if len(cells) > 1 && cells[0] == "" {
			for _, m := range regexp.MustCompile("`([^`:]+)(: [^`]*)?`").FindAllStringSubmatch(cells[1], -1) {
				out[m[1]] = true
			}
		}
	}
	return out
}

// TestEveryFieldHasARow: every field of the inventory is named by a row of the page of
// changes, by itself or by what it is in.
func TestEveryFieldHasARow(t *testing.T) {
	rows := named(t)
	for _, file := range []string{"cluster", "nodes", "addon"} {
		src, err := os.ReadFile("../../docs/reference/schema/" + file + ".schema.json")
		if err != nil {
			t.Fatal(err)
		}
		var top schema
		if err := json.Unmarshal(src, &top); err != nil {
			t.Fatal(err)
		}
		found := 0
		top.fields("", func(path string, s schema) {
			found++
			parts := strings.Split(path, ".")
			if file == "nodes" { // the lists of nodes have the same fields
				if parts = parts[1:]; len(parts) == 0 {
					return
				}
			}
			isNamed, isParent := false, len(s.Properties) > 0 || s.Items != nil && len(s.Items.Properties) > 0
			for i := range parts {
				isNamed = isNamed || rows[strings.Join(parts[:i+1], ".")]
			}
			if !isNamed && !isParent {
				t.Errorf("no row of %s names %s of %s", changesFile, strings.Join(parts, "."), file)
			}
		})
		if found < 10 {
			t.Errorf("%s has %d fields", file, found)
		}
	}
}
