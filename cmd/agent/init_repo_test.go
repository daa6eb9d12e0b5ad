package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/talos-agent/talos-agent/internal/daemon/daemontest"
	"github.com/talos-agent/talos-agent/internal/repo/sealed"
)

// TestCIOfInitRepo: the checks that a repository begins with pass on it, as the
// CI of each forge would run them.
func TestCIOfInitRepo(t *testing.T) {
	daemontest.LeaveToExhaust(t)
	dir := filepath.Join(t.TempDir(), "infra")
	out, err := exec.CommandContext(t.Context(), "talos-agent", "init", "repo", dir, "--host", "pve1", "--bridge", "vmbr1", "--network", "10.10.0.0/24",
		"--gateway", "10.10.0.1", "--workers", "0", "--recipient", sealed.ExampleRecipient).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	ran := map[string]bool{}
	for _, file := range []string{".github/workflows/talos-agent.yaml", ".gitea/workflows/talos-agent.yaml", ".gitlab-ci.yml"} {
		b, err := os.ReadFile(filepath.Join(dir, file))
		must(err)
		var doc any
		must(yaml.Unmarshal(b, &doc))
		var commands []string
		var walk func(v any)
		walk = func(v any) {
			switch v := v.(type) {
			case map[string]any:
				for _, below := range v {
					walk(below)
				}
			case []any:
				for _, below := range v {
					walk(below)
				}
			case string:
				if strings.HasPrefix(v, "talos-agent ") {
					commands = append(commands, v)
				}
			}
		}
		walk(doc)
		if len(commands) != 2 {
			t.Errorf("%s runs %q", file, commands)
		}
		for _, c := range commands {
			if ran[c] {
				continue
			}
			ran[c] = true
			cmd := exec.CommandContext(t.Context(), "sh", "-eu", "-c", c)
			cmd.Dir = dir
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s: %s: %v: %s", file, c, err, out)
			}
		}
	}
}
