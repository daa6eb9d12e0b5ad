package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
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
