package importing

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/golden"
)

// now is when the tests import.
var now = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

// TestFormats imports the files of each example, below in/, and compares what is written,
// below out/, and what is reported. The comment has the arguments: the files in their order,
// and KEY=VALUE for --set.
func TestFormats(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("%v: %v", files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			path, err := filepath.Abs(file)
			if err != nil {
				t.Fatal(err)
			}
			t.Chdir(t.TempDir())
			var kept []txtar.File
			for _, f := range a.Files {
				if name, ok := strings.CutPrefix(f.Name, "in/"); ok {
					writeFile(t, name, string(f.Data))
					kept = append(kept, f)
				}
			}
			a.Files = append(kept, importExample(t, string(a.Comment))...)
			golden.Check(t, path, txtar.Format(a))
		})
	}
}

// importExample imports what the comment of an example asks for, and returns what came out.
func importExample(t *testing.T, comment string) []txtar.File {
	t.Helper()
	c := Config{Dir: "repo", Folder: "inventory", Set: map[string]string{}}
	for line := range strings.Lines(comment) {
		line, ok := strings.CutPrefix(line, "import ")
		if !ok {
			continue
		}
		for arg := range strings.FieldsSeq(line) {
			if key, value, set := strings.Cut(arg, "="); set {
				c.Set[key] = value
			} else {
				c.Files = append(c.Files, arg)
			}
		}
	}
	made, err := Import(t.Context(), c, now)
	if err != nil {
		return []txtar.File{{Name: "error", Data: []byte(err.Error() + "\n-> " + fault.HintOf(err) + "\n")}}
	}
	out := []txtar.File{{Name: "left", Data: formatProblems(made.Left)}, {Name: "problems", Data: formatProblems(made.Problems)}}
	for _, name := range made.Written {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		in, err := filepath.Rel(filepath.Join("repo/inventory", made.Cluster), name)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, txtar.File{Name: "out/" + filepath.ToSlash(in), Data: b})
	}
	return out
}

func formatProblems(all cluster.Problems) []byte {
	var b strings.Builder
	for _, p := range all {
		fmt.Fprintln(&b, p)
	}
	return []byte(b.String())
}

func writeFile(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// listTree lists everything below a folder, with the content of files.
func listTree(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		out[path] = e.Type().String()
		if e.Type().IsRegular() {
			b, err := os.ReadFile(path)
			out[path] = string(b)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

const usual = `
cluster_name: dev
talos_version: v1.13.9
kubernetes_version: v1.36.1
proxmox: {node: pve1}
`

const usualNodes = "controlplane: [{name: dev-cp-1, ip: 10.0.10.11}]\n"

// TestNothingIsReplaced: what is there stays, and an import that fails leaves nothing, not
// even a folder.
func TestNothingIsReplaced(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(t *testing.T)
		change  func(*Config)
		want    string
	}{
		"the cluster is there":        {func(t *testing.T) { writeFile(t, "repo/inventory/dev/mine.txt", "mine") }, nil, "nothing that is there is overwritten"},
		"an empty folder is there":    {func(t *testing.T) { mkdir(t, "repo/inventory/dev") }, nil, "nothing that is there is overwritten"},
		"a link leads elsewhere":      {func(t *testing.T) { mkdir(t, "repo/inventory"); symlink(t, "/nowhere", "repo/inventory/dev") }, nil, "nothing that is there is overwritten"},
		"a file in place of a folder": {func(t *testing.T) { writeFile(t, "repo/inventory", "a file") }, nil, "not a directory"},
		"no such input":               {nil, func(c *Config) { c.Files = append(c.Files, "absent.yaml") }, "read absent.yaml: file does not exist"},
		"an input twice":              {nil, func(c *Config) { c.Files = append(c.Files, "cluster.yaml") }, "cluster.yaml is named twice"},
		"a folder as input":           {func(t *testing.T) { mkdir(t, "x.yaml") }, func(c *Config) { c.Files = []string{"x.yaml"} }, "is not a regular file"},
		"secrets":                     {func(t *testing.T) { writeFile(t, "talsecret.sops.yaml", "clusterName: x") }, func(c *Config) { c.Files = append(c.Files, "talsecret.sops.yaml") }, "holds secrets by its name"},
		"too many files":              {nil, func(c *Config) { c.Files = make([]string, maxFiles+1) }, "name at most 64"},
		"no name":                     {func(t *testing.T) { writeFile(t, "cluster.yaml", "talos_version: v1.13.9\n") }, nil, "write --cluster NAME"},
		"no name of a cluster":        {nil, func(c *Config) { c.Cluster = "../../etc" }, "is no name of a cluster"},
		"an unknown file":             {func(t *testing.T) { writeFile(t, "x.yaml", "a: b\n") }, func(c *Config) { c.Files = append(c.Files, "x.yaml") }, "is no description of a cluster that import knows"},
		"a folder that climbs":        {nil, func(c *Config) { c.Folder = "../out" }, "--path"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			writeFile(t, "cluster.yaml", usual)
			writeFile(t, "nodes.yaml", usualNodes)
			if tc.prepare != nil {
				tc.prepare(t)
			}
			c := Config{Files: []string{"cluster.yaml", "nodes.yaml"}, Dir: "repo", Folder: "inventory"}
			if tc.change != nil {
				tc.change(&c)
			}
			before := listTree(t, ".")
			_, err := Import(t.Context(), c, now)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
			if after := listTree(t, "."); !maps.Equal(before, after) {
				t.Errorf("there is now\n%q\nand was\n%q", after, before)
			}
		})
	}
}

func mkdir(t *testing.T, name string) {
	t.Helper()
	if err := os.MkdirAll(name, 0o755); err != nil {
		t.Fatal(err)
	}
}

func symlink(t *testing.T, to, name string) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("links need a right of their own")
	}
	if err := os.Symlink(to, name); err != nil {
		t.Fatal(err)
	}
}

// TestBesideOthers: a cluster is added to a repository, with nothing but its own files.
func TestBesideOthers(t *testing.T) {
	t.Chdir(t.TempDir())
	writeFile(t, "cluster.yaml", usual)
	writeFile(t, "nodes.yaml", usualNodes)
	writeFile(t, "repo/clusters/other/cluster.yaml", "not: valid\n")
	made, err := Import(t.Context(), Config{Files: []string{"cluster.yaml", "nodes.yaml"}, Dir: "repo", Folder: "clusters", Cluster: "home"}, now)
	if err != nil || made.Problems.HasErrors() {
		t.Fatalf("%v, %v", err, made.Problems)
	}
	all := slices.Sorted(maps.Keys(listTree(t, "repo")))
	want := []string{"repo", "repo/clusters", "repo/clusters/home", "repo/clusters/home/cluster.yaml", "repo/clusters/home/nodes.yaml", "repo/clusters/other", "repo/clusters/other/cluster.yaml"}
	if !slices.Equal(all, want) {
		t.Errorf("there is %q", all)
	}
	if len(made.Left) != 1 || !strings.Contains(made.Left[0].String(), "cluster.yaml:2: ") {
		t.Errorf("the name that was replaced is not reported: %v", made.Left)
	}
}

// TestReadOnlyFolder: an import into a folder that cannot be written fails.
func TestReadOnlyFolder(t *testing.T) {
	if os.Getuid() == 0 || runtime.GOOS == "windows" {
		t.Skip("everything can be written")
	}
	t.Chdir(t.TempDir())
	writeFile(t, "cluster.yaml", usual)
	mkdir(t, "repo/inventory")
	if err := os.Chmod("repo/inventory", 0o555); err != nil {
		t.Fatal(err)
	}
	if _, err := Import(t.Context(), Config{Files: []string{"cluster.yaml"}, Dir: "repo", Folder: "inventory"}, now); err == nil {
		t.Error("written into a folder that cannot be written")
	}
}
