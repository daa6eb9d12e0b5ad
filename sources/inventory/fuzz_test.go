package inventory

import (
	"encoding/binary"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/rogpeppe/go-internal/txtar"
	"go.yaml.in/yaml/v4"

	"github.com/talos-agent/talos-agent/internal/yamlschema"
	"github.com/talos-agent/talos-agent/sources/inventory/subnets"
)

// seed gives a fuzz target every file of that name in testdata/load.
func seed(f *testing.F, match func(name string) bool) {
	f.Helper()
	files, err := filepath.Glob("testdata/load/*.txtar")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for _, part := range txtar.Parse(data).Files {
			if match(part.Name) {
				f.Add(part.Data)
			}
		}
	}
	for _, data := range hostile() {
		if len(data) < 1<<16 {
			f.Add([]byte(data))
		}
	}
}

func named(base string) func(string) bool {
	return func(name string) bool { return filepath.Base(name) == base }
}

// loadFuzzed loads a small cluster with some of its files replaced and checks
// what holds whatever they are.
func loadFuzzed(t *testing.T, files map[string]string) {
	t.Helper()
	fsys := fstest.MapFS{
		"inventory/dev/cluster.yaml": {Data: []byte(smallCluster)},
		"inventory/dev/nodes.yaml":   {Data: []byte(smallNodes)},
	}
	for name, data := range files {
		fsys[name] = &fstest.MapFile{Data: []byte(data)}
	}
	snap, problems := Load(fsys, "inventory/dev", Options{Owner: DefaultOwner})
	checkProblems(t, problems)
	if !problems.HasErrors() {
		checkSnapshot(t, snap)
	}
}

func FuzzCluster(f *testing.F) {
	seed(f, named(ClusterFile))
	f.Fuzz(func(t *testing.T, data []byte) {
		loadFuzzed(t, map[string]string{"inventory/dev/cluster.yaml": string(data)})
	})
}

func FuzzNodes(f *testing.F) {
	seed(f, named(NodesFile))
	f.Fuzz(func(t *testing.T, data []byte) {
		loadFuzzed(t, map[string]string{"inventory/dev/nodes.yaml": string(data)})
	})
}

func FuzzAddon(f *testing.F) {
	seed(f, func(name string) bool {
		return strings.Contains(name, "addons/") || len(filepath.Base(name)) == len("a.yaml")
	})
	f.Fuzz(func(t *testing.T, data []byte) {
		loadFuzzed(t, map[string]string{
			"inventory/dev/cluster.yaml":      smallCluster + "cni: none\naddons: [addons/a.yaml]\n",
			"inventory/dev/addons/a.yaml":     string(data),
			"inventory/dev/charts/Chart.yaml": "name: x\nversion: 1.0.0\n",
		})
	})
}

// FuzzPatch checks the promise of substitution: a secret is text wherever it
// stands, so that the structure of a patch is that of its file, and every
// document can be read back.
func FuzzPatch(f *testing.F) {
	for _, patch := range []string{"a: ${values.x}", "a: |\n  ${values.x}\n  b", "a: >\n  ${values.x}\n", "- ['${values.x}']", "a: \"$${values.x}\"\n---\nb: {c: x${values.x}y}", "a: ${values.x}${values.x}\nb: $$${values.x}"} {
		for _, value := range []string{"plain", "a: b", "- x\n- y", "#", "'\"", "\t", " lead", "trail ", "\n\n", "|", "%", "${values.x}", "\u0085\u2028", "true", "0x1"} {
			f.Add([]byte(patch), value)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte, value string) {
		secrets, problems := ParseSecrets("secrets", []byte("values: {x: "+jsonText(value)+"}"))
		if problems.HasErrors() {
			return // not every text can be written in YAML
		}
		before := yamlschema.Document{File: "p.yaml", Report: yamlschema.NewReport()}.Parse(data)
		fsys := fstest.MapFS{
			"d/cluster.yaml": {Data: []byte(smallCluster + "patches: {all: [p.yaml]}\n")},
			"d/nodes.yaml":   {Data: []byte(smallNodes)},
			"d/p.yaml":       {Data: data},
		}
		snap, problems := Load(fsys, "d", Options{Secrets: &secrets})
		checkProblems(t, problems)
		if problems.HasErrors() {
			return
		}
		out := snap.Spec.Nodes[0].Patches[0].Document.Reveal()
		after := yamlschema.Document{File: "p.yaml", Report: yamlschema.NewReport()}
		docs := after.Parse(out)
		if len(after.Problems) > 0 {
			t.Fatalf("cannot be read back: %v\n%s", after.Problems, out)
		}
		i := 0
		for _, n := range before {
			if yamlschema.IsNull(n) {
				continue
			}
			if shapeOfYAML(n) != shapeOfYAML(docs[i]) {
				t.Fatalf("structure changed:\n%s\nbecame\n%s", data, out)
			}
			compareTexts(t, n, docs[i], secrets.values["x"].RevealString())
			i++
		}
	})
}

// compareTexts checks that every text of after is that of before with the
// value filled in.
func compareTexts(t *testing.T, before, after *yaml.Node, value string) {
	t.Helper()
	if before.Kind == yaml.ScalarNode {
		want, _ := expandText(before.Value, func(string) (string, *refusal) { return value, nil })
		if yamlschema.IsNull(before) && yamlschema.IsNull(after) {
			return
		}
		if after.Value != want || want != before.Value && after.ShortTag() != "!!str" || want == before.Value && after.ShortTag() != before.ShortTag() {
			t.Fatalf("%q (%s) became %q (%s), want %q", before.Value, before.ShortTag(), after.Value, after.ShortTag(), want)
		}
	}
	for i := range before.Content {
		compareTexts(t, before.Content[i], after.Content[i], value)
	}
}

func jsonText(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

func FuzzExpand(f *testing.F) {
	for _, s := range []string{"", "$", "${", "${}", "${values.}", "${values.a}", "$${", "$$${values.a}", "${values.a", "a${values.a}b${values.b}c", "${values.${values.a}}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		out, refused := expandText(text, func(name string) (string, *refusal) { return "", nil })
		if refused != nil {
			return
		}
		if !strings.Contains(text, "${") && out != text {
			t.Errorf("%q became %q", text, out)
		}
		// Written out again as literals, the result expands to itself.
		again, refused := expandText(strings.ReplaceAll(out, "${", "$${"), nil)
		if refused != nil || again != out {
			t.Errorf("%q became %q, which quoted expands to %q", text, out, again)
		}
	})
}

// FuzzAddresses checks the arithmetic of networks and addresses.
func FuzzAddresses(f *testing.F) {
	f.Add("10.10.0.0/24", "10.10.0.11", uint16(3))
	f.Add("0.0.0.0/0", "255.255.255.255", uint16(1))
	f.Add("10.0.0.0/31", "10.0.0.1", uint16(65535))
	f.Fuzz(func(t *testing.T, network, address string, n uint16) {
		a, err := netip.ParseAddr(address)
		if err != nil || !a.Is4() {
			return
		}
		next, ok := subnets.After(a, int(n))
		if ok && next.Compare(a) < 0 || ok && n == 0 && next != a {
			t.Errorf("%s + %d = %s", a, n, next)
		}
		if p, err := netip.ParsePrefix(network); err == nil && p.Addr().Is4() && p == p.Masked() && p.Contains(a) {
			part := subnets.HostPart(a, p)
			if back, ok := subnets.After(p.Addr(), part); !ok || back != a {
				t.Errorf("%s in %s has host part %d", a, p, part)
			}
		}
		if subnets.HostPart(a, netip.Prefix{}) != int(binary.BigEndian.Uint32(a.AsSlice())&0xff) {
			t.Errorf("host part of %s", a)
		}
	})
}

// FuzzSecrets checks that what is wrong with secrets never shows them.
func FuzzSecrets(f *testing.F) {
	seed(f, func(name string) bool { return name == "secrets" })
	const canary = "c4n4ryc4n4ryc4n4ry"
	f.Fuzz(func(t *testing.T, data []byte) {
		text := strings.ReplaceAll(string(data), "secret", canary)
		s, problems := ParseSecrets("secrets.sops.yaml", []byte(text))
		checkProblems(t, problems)
		if problems.HasErrors() && (!s.Bundle.IsZero() || len(s.values) > 0) {
			t.Error("secrets in spite of errors")
		}
		for _, p := range problems {
			// The name of a value may be shown; it is how one finds it.
			if strings.Contains(p.Message+p.Hint, canary) {
				t.Errorf("a problem shows the text: %s", p)
			}
		}
	})
}
