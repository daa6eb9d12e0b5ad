package formats

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"go.uber.org/goleak"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/repo/importing/draft"
	"github.com/talos-agent/talos-agent/internal/yamlschema"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// seedFrom adds the inputs of the examples that have some ending.
func seedFrom(f *testing.F, ending string, more ...string) {
	f.Helper()
	examples, err := filepath.Glob("../testdata/*.txtar")
	if err != nil || len(examples) == 0 {
		f.Fatalf("there are no examples: %v", err)
	}
	for _, file := range examples {
		a, err := txtar.ParseFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for _, in := range a.Files {
			if strings.HasPrefix(in.Name, "in/") && strings.HasSuffix(in.Name, ending) {
				f.Add(in.Data)
			}
		}
	}
	for _, s := range more {
		f.Add([]byte(s))
	}
}

// checkRead checks what holds of every input: reading it ends, gives the same each time, and
// what would be written is YAML; what is reported is whole, and fits on a line.
func checkRead(t *testing.T, name string, data []byte) {
	t.Helper()
	read := func() (map[string]string, cluster.Problems, error) {
		d, err := Read([]File{{Name: name, Data: data}}, Options{Set: map[string]string{"proxmox.node": "pve1"}})
		if err != nil {
			return nil, nil, err
		}
		return d.Files(), d.Left(), nil
	}
	files, left, err := read()
	again, leftAgain, errAgain := read()
	if !maps.Equal(files, again) || !slices.Equal(left, leftAgain) || (err == nil) != (errAgain == nil) {
		t.Errorf("the same input gives\n%q %v %v\nand\n%q %v %v", files, left, err, again, leftAgain, errAgain)
	}
	if err != nil {
		if text := err.Error(); text == "" || !strings.Contains(text, name) && !strings.Contains(text, "only patches") && !strings.Contains(text, "nothing in the files") {
			t.Errorf("the error does not name the file: %q", text)
		}
		return
	}
	for _, p := range left {
		if p.File == "" || p.Message == "" || p.Line < 0 {
			t.Errorf("incomplete problem %+v", p)
		}
		if text := p.String(); strings.ContainsAny(text, "\n\r\x00\x1b") || len(text) > 6000 {
			t.Errorf("unprintable problem %q", text)
		}
	}
	for _, name := range []string{"cluster.yaml", "nodes.yaml"} {
		d := yamlschema.Document{File: name, Report: yamlschema.NewReport()}
		d.Parse([]byte(files[name]))
		if d.Problems.HasErrors() {
			t.Errorf("%s is no YAML of ours: %v\n%s", name, d.Problems, files[name])
		}
	}
}

func FuzzTerraform(f *testing.F) {
	seedFrom(f, ".tfvars", "a = [", "a = {b = 1, (c) = 2, \"d\" = <<E\nx\nE\n}", "cluster_name = \"a\\nb\"", "worker_count = 3\nworker_count = 4", "a = 1e999999999",
		"worker_count = 1000\ntarget_nodes = [\"a\", \"b\"]\n", "x = "+strings.Repeat("[", 200), "x = "+strings.Repeat("-", 200)+"1")
	f.Fuzz(func(t *testing.T, data []byte) { checkRead(t, "a.tfvars", data) })
}

func FuzzTerraformJSON(f *testing.F) {
	seedFrom(f, ".tfvars.json", "{", "{}", `{"cluster_name": "a"} {}`, `{"a": 1, "a": 2}`, `{"worker_count": 1e400}`, strings.Repeat(`{"a":`, 100))
	f.Fuzz(func(t *testing.T, data []byte) { checkRead(t, "a.tfvars.json", data) })
}

func FuzzNodesJSON(f *testing.F) {
	seedFrom(f, "nodes.json", `{"nodes": {"": {}, "cp": null}}`, `{"workers": [{"name": "a\u2028b", "dhcp": "::1"}]}`, `{"controlplanes": {}}`)
	f.Fuzz(func(t *testing.T, data []byte) { checkRead(t, "nodes.json", data) })
}

func FuzzInventory(f *testing.F) {
	seedFrom(f, "cluster.yaml", "cluster_name: [a]\n", "cluster_name: a\nnetwork: &a {cidr: 1}\nproxmox: *a\n", "proxmox: {nodes: [[a]]}\n", "talos_version: !!binary x\n",
		"cluster_name: a\n# b\n# c\nenvironment: d # e\n", "cluster_name: \"\\u0085\\u2028\\uFEFF\"\n")
	seedFrom(f, "nodes.yaml")
	f.Fuzz(func(t *testing.T, data []byte) { checkRead(t, "a.yaml", data) })
}

func FuzzTalhelper(f *testing.F) {
	seedFrom(f, "talconfig.yaml", "clusterName: a\nnodes: [&n {hostname: a}, {<<: *n, hostname: b}]\n", "clusterName: &a [*a]\n", "clusterName: a\npatches: ['@', '@/etc/passwd', '- op: add']\n",
		"clusterName: a\nnodes: [{hostname: a, networkInterfaces: [{vlans: [{}], vip: {}}]}]\n")
	f.Fuzz(func(t *testing.T, data []byte) { checkRead(t, "talconfig.yaml", data) })
}

// FuzzTexts: whatever a text is, YAML reads it back as it was.
func FuzzTexts(f *testing.F) {
	for _, s := range []string{"", "a", "no", "1.2.3.4", "10.0.0.0/24", "0x1f", "1e3", "2026-11-29", "12:30:45", "a: b", "# a", "a\nb", "\u0085", "\u2028", "\ufeff", "\x7f", "{n}", "<<", "=", "~", "null", "40G", "100-199", "&a", "*a", "!a", "'", "\"", "\\", "😀"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		s = strings.ToValidUTF8(s, "?")
		v := draft.Mapping()
		v.Set(draft.Origin{}, draft.Text(s), "key")
		v.Set(draft.Origin{}, draft.Texts(s, s), "list")
		v.Set(draft.Origin{}, draft.Text(s), "map", s)
		docs, err := readYAML([]byte(v.YAML()))
		if err != nil {
			if strings.Contains(err.Error(), "larger than") {
				return
			}
			t.Fatalf("%v: %q", err, v.YAML())
		}
		got := docs[0]
		for _, one := range []*value{got.keys[0].value, got.keys[1].value.items[0], got.keys[1].value.items[1], got.keys[2].value.keys[0].value} {
			if one.kind != text || one.text != s {
				t.Errorf("%q became %q (%s)\n%s", s, one.text, kindNames[one.kind], v.YAML())
			}
		}
		if got.keys[2].value.keys[0].key != s {
			t.Errorf("the key %q became %q", s, got.keys[2].value.keys[0].key)
		}
	})
}
