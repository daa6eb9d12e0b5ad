package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/repo/repotest"
)

// BenchmarkValidate is a cold process that checks a cluster of 100 nodes with
// its secrets: the CPU it takes is what counts.
func BenchmarkValidate(b *testing.B) {
	dir := repotest.LargeRepository(b, "../../examples/repo", 100)
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
