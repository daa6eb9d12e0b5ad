package ladder

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/golden"
)

const page = "../../docs/reference/upgrade-paths.md"

// TestReference makes the tables of the page of upgrade paths from those of this package.
func TestReference(t *testing.T) {
	minors := slices.Sorted(maps.Keys(windows))
	var known, paths strings.Builder
	known.WriteString("| Talos | newest known patch | Kubernetes that runs on it |\n| --- | --- | --- |\n")
	for _, m := range minors {
		fmt.Fprintf(&known, "| v1.%d | %s | %s |\n", m, version{minor: m, patch: lastTalos[m]}, windows[m])
	}
	known.WriteString("\n| Kubernetes | newest known patch |\n| --- | --- |\n")
	for _, m := range slices.Sorted(maps.Keys(lastKubernetes)) {
		fmt.Fprintf(&known, "| v1.%d | %s |\n", m, version{minor: m, patch: lastKubernetes[m]})
	}
	// From each minor version to the newest, with the Kubernetes that needs most of its own hops
	// and the one that needs none.
	newest := minors[len(minors)-1]
	paths.WriteString("| from Talos | from Kubernetes | to Talos | to Kubernetes | hops |\n| --- | --- | --- | --- | --- |\n")
	for _, m := range minors[:len(minors)-1] {
		for _, k := range []int{windows[m].first, windows[m].last} {
			want := max(k, windows[newest].first)
			from := run(version{minor: m, patch: lastTalos[m]}.String(), version{minor: k, patch: lastKubernetes[k]}.String())
			to := run(version{minor: newest, patch: lastTalos[newest]}.String(), version{minor: want, patch: lastKubernetes[want]}.String())
			hops, err := Find(from, to)
			words := cluster.DescribeHops(hops)
			if err != nil {
				words = "none: " + err.Error()
			}
			fmt.Fprintf(&paths, "| %s | %s | %s | %s | %s |\n", from.Talos, from.Kubernetes, to.Talos, to.Kubernetes, words)
		}
	}
	out, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for name, table := range map[string]string{"known": known.String(), "paths": paths.String()} {
		begin, end := "<!-- "+name+" -->\n", "<!-- end of "+name+" -->"
		before, rest, ok := strings.Cut(string(out), begin)
		_, after, ended := strings.Cut(rest, end)
		if !ok || !ended {
			t.Fatalf("%s has no %q and %q", page, begin, end)
		}
		out = []byte(before + begin + "\n" + table + "\n" + end + after)
	}
	golden.Check(t, page, out)
}

// TestReferenceNamesItsSources: the page names the version of the library that the windows are of,
// and when the patches were looked up, as the tables do.
func TestReferenceNamesItsSources(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	tables, err := os.ReadFile("versions.go")
	if err != nil {
		t.Fatal(err)
	}
	library := regexp.MustCompile(`github.com/siderolabs/talos/pkg/machinery v([0-9.]+)`).FindSubmatch(mod)
	known := regexp.MustCompile(`\((2[0-9]{3}-[0-9]{2})\)`).FindSubmatch(tables)
	if library == nil || known == nil {
		t.Fatalf("no version of the library in go.mod (%q), or no date in versions.go (%q)", library, known)
	}
	for _, want := range []string{"machinery " + string(library[1]), string(known[1])} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s does not name %q", page, want)
		}
	}
	if !strings.Contains(string(tables), "machinery "+string(library[1])) {
		t.Errorf("versions.go does not name the library of go.mod, %s", library[1])
	}
}
