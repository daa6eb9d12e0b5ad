package sources

import (
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// flood makes a repository of clusters that are equal but for their names, each with a row of
// workers; with apart they share nothing.
func flood(clusters, workers int, apart bool, more string) fstest.MapFS {
	fsys := fstest.MapFS{}
	for i := range clusters {
		name, net, first := fmt.Sprintf("c%03d", i), 0, 1000
		if apart {
			net, first = i, 1000+i*(workers+1)
		}
		set(fsys, name, "cluster.yaml", fmt.Sprintf(`cluster_name: %s
talos_version: v1.13.9
kubernetes_version: v1.36.1
network: {cidr: 20.%d.0.0/16, gateway: 20.%[2]d.0.1}
proxmox: {node: pve1}
%s`, name, net, more))
		set(fsys, name, "nodes.yaml", fmt.Sprintf(`controlplane:
  - {name: cp, ip: 20.%d.0.11, vmid: %d}
counted:
  - {role: worker, count: %d, name: "w-{n}", first_ip: 20.%[1]d.1.1, first_vmid: %[4]d}
`, net, first, workers, first+1))
	}
	return fsys
}

// readAll reads every cluster of a repository, and returns the problems of each.
func readAll(t testing.TB, fsys fstest.MapFS) map[string]cluster.Problems {
	t.Helper()
	repo, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	tree := Tree{Revision: revision, Content: "x", FS: fsys}
	names, _, err := repo.Clusters(t.Context(), tree)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]cluster.Problems{}
	for _, name := range names {
		_, problems, err := repo.Snapshot(t.Context(), tree, name)
		if err != nil {
			t.Fatal(err)
		}
		out[name] = problems
	}
	return out
}

// TestFloods: what one push adds up to is bounded, in what is read and in what is reported of
// it, and the error names what is too much, where it stands and what to do.
func TestFloods(t *testing.T) {
	big := strings.Repeat("# text\n", 128<<10) + "machine: {}\n"
	values := "a: " + strings.Repeat("x", 900<<10) + "\n"
	addon := func(n int) string {
		return "name: a\nchart: {repository: https://x.example.org, name: a, version: 1.0.0}\nvalues_files: [" + strings.Repeat("v.yaml, ", n) + "v.yaml]\n"
	}
	with := func(fsys fstest.MapFS, more map[string]string) fstest.MapFS {
		for file, text := range more {
			for i := range 250 {
				if name := fmt.Sprintf("c%03d", i); fsys["inventory/"+name+"/cluster.yaml"] != nil {
					set(fsys, name, file, text)
				}
			}
		}
		return fsys
	}
	text := "machine: {sysctls: {a: \"" + strings.Repeat("x", 900<<10) + "\"}}\n"
	for what, c := range map[string]struct {
		files   fstest.MapFS
		refused int
		want    string
	}{
		"clashes": {flood(40, 201, false, ""), 40, "c001/nodes.yaml:4:5: nodes.w-1: VMID 1001 of w-1 is that of w-1 in cluster c000"},
		"nodes":   {flood(100, 999, true, ""), 95, "inventory/c005/nodes.yaml:2:5: nodes.controlplane[0]: more than 5000 nodes in all clusters of this host together (remove some, or name the clusters"},
		"patches of a node": {with(flood(1, 1, true, "patches: {all: ["+strings.Repeat("p.yaml, ", 499)+"p.yaml]}\n"), map[string]string{"p.yaml": text}), 1,
			"nodes.cp: the patches of cp have 450013 KiB together, and 1024 KiB at most are taken"},
		"patches of all": {with(flood(1, 40, true, "patches: {all: [p.yaml]}\n"), map[string]string{"p.yaml": text}), 1,
			"patches: the patches of all nodes have more than 32 MiB together"},
		"patches of all clusters": {with(flood(4, 30, true, "patches: {all: [p.yaml]}\n"), map[string]string{"p.yaml": text}), 2,
			"patches: the patches of all nodes of all clusters of this host have more than 64 MiB together"},
		"empty patches": {with(flood(1, 900, true, "patches: {all: ["+strings.Repeat("p.yaml, ", 499)+"p.yaml]}\n"), map[string]string{"p.yaml": "machine: {}\n"}), 1,
			"patches: the patches of all nodes have more than 32 MiB together"},
		"values": {with(flood(1, 1, true, "addons: [a.yaml]\n"), map[string]string{"a.yaml": addon(500), "v.yaml": values}), 1,
			"values_files[2]: the YAML files of the cluster have more than 2 MiB together; one that is named several times counts each time (name each once, or shorten them)"},
		"YAML of all": {with(flood(10, 1, true, "patches: {all: [p.yaml]}\n"), map[string]string{"p.yaml": big}), 6,
			"patches.all[0]: the YAML files of all clusters of this host have more than 4 MiB together"},
		"charts": {with(flood(1, 1, true, "addons: ["+strings.Repeat("a.yaml, ", 40)+"a.yaml]\n"), map[string]string{"a.yaml": "name: a\nchart: {path: chart}\n", "chart/Chart.yaml": "name: a\nversion: 1.0.0\n", "chart/big": values}), 1,
			"the charts of the cluster have more than 16 MiB together"},
	} {
		t.Run(what, func(t *testing.T) {
			refused, found := 0, false
			for name, problems := range readAll(t, c.files) {
				if problems.HasErrors() {
					refused++
				}
				if len(problems) > 102 {
					t.Errorf("%s has %d problems", name, len(problems))
				}
				for _, p := range problems {
					found = found || strings.Contains(p.String(), c.want)
					if p.File == "" || p.Severity == cluster.Error && p.Hint == "" {
						t.Errorf("%s: incomplete: %v", name, p)
					}
				}
				if !found && len(c.files) < 10 {
					t.Log(problems)
				}
			}
			if refused != c.refused || !found {
				t.Errorf("%d clusters are refused, want %d; %q found: %v", refused, c.refused, c.want, found)
			}
		})
	}
}

// BenchmarkWorst reads the largest repositories that are accepted, and such as are refused for
// what their clusters have together.
func BenchmarkWorst(b *testing.B) {
	var values strings.Builder
	for i := range 580 {
		fmt.Fprintf(&values, "key-%05d: a text of values\n", i)
	}
	addons := flood(250, 19, true, "addons: [a.yaml]\n")
	for i := range 250 {
		name := fmt.Sprintf("c%03d", i)
		set(addons, name, "a.yaml", "name: a\nchart: {repository: https://x.example.org, name: a, version: 1.0.0}\nvalues_files: [v.yaml]\n")
		set(addons, name, "v.yaml", values.String()[:14<<10])
	}
	for what, c := range map[string]struct {
		files   fstest.MapFS
		refused bool
	}{
		"accepted/5000 nodes and 4 MiB": {addons, false},
		"accepted/5000 nodes":           {flood(5, 999, true, ""), false},
		"refused/40 clusters clash":     {flood(40, 119, false, ""), true},
		"refused/100,000 nodes":         {flood(100, 999, true, ""), true},
	} {
		b.Run(what, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				refused := false
				for _, problems := range readAll(b, c.files) {
					if problems.HasErrors() && !refused {
						refused = true
						if !c.refused {
							b.Fatal(problems.First())
						}
					}
				}
				if refused != c.refused {
					b.Fatal("nothing is refused")
				}
			}
		})
	}
}
