package inventory

import (
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"go.uber.org/goleak"

	"github.com/talos-agent/talos-agent/internal/yamlschema"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hostile are files made to hurt whoever reads them.
func hostile() map[string]string {
	repeat := strings.Repeat
	lines := func(n int, line func(i int) string) string {
		var b strings.Builder
		for i := range n {
			b.WriteString(line(i))
			b.WriteByte('\n')
		}
		return b.String()
	}
	return map[string]string{
		"brackets":      repeat("[", 200_000),
		"braces":        repeat("{", 200_000),
		"pairs":         "a: [" + repeat("[],", 300_000) + "]",
		"dashes":        repeat("- ", 400_000),
		"dash lines":    repeat("-\n", 500_000),
		"questions":     repeat("? ", 400_000),
		"comments":      repeat("#\n", 500_000) + "a: b",
		"keys":          lines(20_000, func(i int) string { return fmt.Sprintf("k%d:", i) }),
		"same key":      repeat("a:\n", 200_000),
		"stairs":        lines(700, func(i int) string { return repeat(" ", i) + "a:" }),
		"anchors":       lines(20_000, func(i int) string { return fmt.Sprintf("- &a%d x", i) }),
		"laughs":        "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b]\nd: [*c,*c,*c,*c,*c,*c]\n",
		"self":          "a: &a [*a]\n",
		"merge":         "a: &a {b: c}\nd: {<<: *a}\n",
		"huge text":     "cluster_name: " + repeat("x", 1_000_000),
		"huge key":      repeat("k", 1_000_000) + ": x",
		"quotes":        "cluster_name: \"" + repeat(`\n`, 400_000) + "\"",
		"block":         "cluster_name: |\n" + repeat(" x\n", 300_000),
		"too large":     "# " + repeat("x", yamlschema.MaxFileBytes),
		"nul":           "cluster_name: a\x00b\n",
		"escape":        "cluster_name: \x1b[2J\n",
		"byte mark":     "\xef\xbb\xbf" + smallCluster,
		"utf-16":        "\xff\xfea\x00:\x00",
		"not utf-8":     "cluster_name: \xff\xfe\xfd\n",
		"tabs":          "network:\n\tcidr: 10.10.0.0/24\n",
		"line ends":     strings.ReplaceAll(smallCluster, "\n", "\r\n"),
		"documents":     repeat("---\na: b\n", 50_000),
		"directive":     "%YAML 1.1\n%TAG ! tag:example.org,2000:\n---\ncluster_name: !x dev\n",
		"binary":        "cluster_name: !!binary aGVsbG8=\n",
		"set":           "? a\n? b\n",
		"complex key":   "? [a, b]\n: c\n? {d: e}\n: f\n",
		"next line":     "cluster_name: a\u0085b\u2028c\n",
		"right to left": "cluster_name: \u202edev\n",
		"nodes":         "controlplane:\n" + repeat("  - {name: x, ip: 10.10.0.1}\n", 8_000),
		"rows":          "counted:\n" + repeat("  - {role: worker, count: 1000, name: 'x{n}', first_ip: 10.10.0.1}\n", 1000),
		"long pattern":  "counted:\n  - {role: worker, count: 1000, name: '" + repeat("x", 57) + "{n}', first_ip: 255.255.255.250}\n",
		"empty":         "",
		"blank":         "\n\n  \n",
		"null":          "~",
		"just text":     "hello",
	}
}

// TestHostileFiles loads every hostile file in every role a file can have. Most
// are refused; none may take the program with it, and what is reported about
// them is bounded and printable.
func TestHostileFiles(t *testing.T) {
	fine := map[string]bool{"byte mark": true, "line ends": true}
	for name, data := range hostile() {
		t.Run(name, func(t *testing.T) {
			if len(data) > 1<<15 {
				t.Parallel()
			}
			base := map[string]string{
				"d/cluster.yaml": smallCluster + "cni: none\npatches: {all: [p.yaml]}\naddons: [a.yaml]\n",
				"d/nodes.yaml":   smallNodes,
				"d/p.yaml":       "machine: {}\n",
				"d/a.yaml":       "name: a\nchart: {repository: https://x.example.org, name: a, version: 1.0.0}\nvalues_files: [v.yaml]\n",
				"d/v.yaml":       "a: b\n",
			}
			for _, role := range []string{"cluster", "nodes", "p", "a", "v"} {
				fsys := fstest.MapFS{}
				for file, text := range base {
					if file == "d/"+role+".yaml" {
						text = data
					}
					fsys[file] = &fstest.MapFile{Data: []byte(text)}
				}
				snap, problems := Load(fsys, "d", Options{})
				checkProblems(t, problems)
				if !problems.HasErrors() {
					checkSnapshot(t, snap)
				}
				if role == "cluster" && problems.HasErrors() == fine[name] {
					t.Errorf("as cluster.yaml: %v", problems)
				}
			}
			_, problems := ParseSecrets("s", []byte(data))
			checkProblems(t, problems)
		})
	}
}

// TestWidePatches: Talos' library compares every key of a mapping with every other.
func TestWidePatches(t *testing.T) {
	for keys, want := range map[int]string{maxKeys: "", maxKeys + 1: "d/p.yaml:3:5: a mapping with more than 1000 keys"} {
		var patch strings.Builder
		patch.WriteString("machine:\n  sysctls:\n")
		for i := range keys {
			fmt.Fprintf(&patch, "    k%d: \"1\"\n", i)
		}
		fsys := fstest.MapFS{
			"d/cluster.yaml": {Data: []byte(smallCluster + "cni: none\npatches: {all: [p.yaml]}\n")}, "d/nodes.yaml": {Data: []byte(smallNodes)},
			"d/p.yaml": {Data: []byte(patch.String())},
		}
		_, problems := Load(fsys, "d", Options{})
		if got := problems.HasErrors(); got != (want != "") {
			t.Errorf("%d keys: %v", keys, problems)
		}
		if want != "" && !strings.HasPrefix(problems[0].String(), want) {
			t.Errorf("%d keys: %v", keys, problems)
		}
	}
}

// TestManyFolders: folders that are no clusters are some problems, and how many more.
func TestManyFolders(t *testing.T) {
	fsys := fstest.MapFS{"inventory/dev/cluster.yaml": {}}
	for i := range 1000 {
		fsys[fmt.Sprintf("inventory/No_%03d/cluster.yaml", i)] = &fstest.MapFile{}
	}
	names, problems := Clusters(fsys, "inventory")
	last := problems[len(problems)-1]
	if len(names) != 1 || len(problems) != maxFolderProblems+1 || last.Message != "950 more folders are no clusters" || last.Hint == "" {
		t.Errorf("%v, %d problems, the last being %v", names, len(problems), last)
	}
}

// TestLargeSecretsInManyPlaces: a secret that is named often is bounded by what is filled in.
func TestLargeSecretsInManyPlaces(t *testing.T) {
	secrets, problems := ParseSecrets("s", []byte("values: {a: "+strings.Repeat("x", 100_000)+"}\n"))
	if problems.HasErrors() {
		t.Fatal(problems)
	}
	for times, want := range map[int]bool{5: false, 500: true} {
		var patch strings.Builder
		patch.WriteString("machine:\n  sysctls:\n")
		for i := range times {
			fmt.Fprintf(&patch, "    k%d: ${values.a}\n", i)
		}
		fsys := fstest.MapFS{
			"d/cluster.yaml": {Data: []byte(smallCluster + "cni: none\npatches: {all: [p.yaml]}\n")}, "d/nodes.yaml": {Data: []byte(smallNodes)},
			"d/p.yaml": {Data: []byte(patch.String())},
		}
		_, problems := Load(fsys, "d", Options{Secrets: &secrets})
		refused := strings.Contains(problems.Error(), "d/p.yaml:23:10: with the secrets filled in, the YAML files of the cluster have more than 2 MiB together")
		if refused != want || refused != problems.HasErrors() {
			t.Errorf("%d times: %.400s", times, problems.Error())
		}
	}
}
