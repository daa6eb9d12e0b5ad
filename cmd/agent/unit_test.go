package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const unitFile = "../../packaging/systemd/talos-agent.service"

// TestUnit: systemd understands the unit, and the program what the unit starts.
func TestUnit(t *testing.T) {
	b, err := os.ReadFile(unitFile)
	if err != nil {
		t.Fatal(err)
	}
	start := regexp.MustCompile(`(?m)^ExecStart=(\S+)(.*)$`).FindStringSubmatch(string(b))
	if start == nil || start[1] != "/usr/bin/talos-agent" {
		t.Fatalf("the unit starts %v", start)
	}
	if err := parses(strings.Fields(start[2])); err != nil {
		t.Errorf("ExecStart: %v", err)
	}
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("there is no systemd-analyze")
	}
	// What it starts must be there, or systemd complains of that.
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "talos-agent.service")
	write(t, file, strings.ReplaceAll(string(b), start[1], program), 0o644)
	if out, err := exec.CommandContext(t.Context(), analyze, "verify", file).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v: %s", err, out)
	}
}

// TestDocsHostFiles: configs and policies that pages show have the keys and
// values that the program takes.
func TestDocsHostFiles(t *testing.T) {
	shown := 0
	for _, p := range readPages(t) {
		for _, b := range p.blocks {
			for _, which := range []string{"config", "policy"} {
				if strings.HasPrefix(b.text, "# /etc/talos-agent/"+which+".yaml\n") {
					shown++
					if err := compileSchema(t, which).Validate(instance(t, b.text)); err != nil {
						t.Errorf("%s: %v", b.at(), err)
					}
				}
			}
		}
	}
	if shown < 3 {
		t.Errorf("only %d configs and policies found", shown)
	}
}
