// Package repotest makes repositories for tests.
//
// Only tests import it.
package repotest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// LargeRepository writes a repository with one cluster of n nodes, patches and
// labels as people have them, made of the example repository.
func LargeRepository(t testing.TB, example string, n int) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(example)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"dev", "lab"} {
		if err := os.RemoveAll(filepath.Join(dir, "inventory", name)); err != nil {
			t.Fatal(err)
		}
	}
	var nodes strings.Builder
	nodes.WriteString("controlplane:\n")
	for i := range n {
		if i == 3 {
			nodes.WriteString("workers:\n")
		}
		fmt.Fprintf(&nodes, "  - {name: node-%d, ip: 10.20.0.%d, vmid: %d, labels: {zone: z%d}}\n", i, 11+i, 1000+i, i%3)
	}
	if err := os.WriteFile(filepath.Join(dir, "inventory/prod/nodes.yaml"), []byte(nodes.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}
