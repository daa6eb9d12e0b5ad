package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// largeRepository writes a repository with one cluster of n nodes, patches and
// labels as people have them.
func largeRepository(t testing.TB, n int) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("../../examples/repo")); err != nil {
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
	write(t, filepath.Join(dir, "inventory/prod/nodes.yaml"), nodes.String(), 0o644)
	return dir
}

// TestValidateIsRepeatable: the same repository is told the same, whatever order
// the machine configs are rendered in.
func TestValidateIsRepeatable(t *testing.T) {
	dir := largeRepository(t, 20)
	write(t, filepath.Join(dir, "inventory/prod/patches/controlplane.yaml"), "cluster: {nonsense: 1}\n", 0o644)
	var first string
	for range 3 {
		v, err := validate(t.Context(), dir, validateFlags{folder: "inventory", owner: "a"}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if v.Valid || !v.Problems.HasErrors() {
			t.Fatal("the patch is taken for valid")
		}
		text := fmt.Sprintf("%+v", v)
		if first == "" {
			first = text
		}
		if text != first {
			t.Errorf("got  %s\nwant %s", text, first)
		}
	}
}

// TestValidateTellsPolicyBlocksOnly: what the planner would block anyway, as for
// missing secrets, is not the policy's.
func TestValidateTellsPolicyBlocksOnly(t *testing.T) {
	dir := largeRepository(t, 4)
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	write(t, policy, "pool: talos\nvmids: [1000-1002]\nbridges: [vmbr9]\n", 0o644)
	if err := os.Remove(filepath.Join(dir, "inventory/prod/secrets.sops.yaml")); err != nil {
		t.Fatal(err)
	}
	v, err := validate(t.Context(), dir, validateFlags{folder: "inventory", owner: "a", policy: policy}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range v.Problems {
		if p.Severity == cluster.Error {
			got = append(got, fmt.Sprintf("%s:%d %s", p.File, p.Line, p.Message))
		}
	}
	want := []string{
		`inventory/prod/nodes.yaml:2 it wants bridge "vmbr2", and the host allows vmbr9 (host policy, ` + policy + `:3: bridges)`,
		`inventory/prod/nodes.yaml:3 it wants bridge "vmbr2", and the host allows vmbr9 (host policy, ` + policy + `:3: bridges)`,
		`inventory/prod/nodes.yaml:4 it wants bridge "vmbr2", and the host allows vmbr9 (host policy, ` + policy + `:3: bridges)`,
		`inventory/prod/nodes.yaml:6 it wants bridge "vmbr2", and the host allows vmbr9 (host policy, ` + policy + `:3: bridges)`,
		`inventory/prod/nodes.yaml:6 its vmid 1003 lies outside 1000-1002 (host policy, ` + policy + `:2: vmids)`,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// BenchmarkValidate is a cold process that checks a cluster of 100 nodes with
// its secrets: the CPU it takes is what counts.
func BenchmarkValidate(b *testing.B) {
	dir := largeRepository(b, 100)
	exe, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	var cpu time.Duration
	for b.Loop() {
		cmd := exec.Cmd{Path: exe, Args: []string{"talos-agent", "validate", dir, "--age-key", filepath.Join(dir, "lab-age-key.txt")}}
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "100 machine configs validated") {
			b.Fatalf("%v\n%s", err, out)
		}
		cpu += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	b.ReportMetric(cpu.Seconds()/float64(b.N), "cpu-s/op")
}
