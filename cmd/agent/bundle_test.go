package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/daemon/daemontest"
	"github.com/talos-agent/talos-agent/internal/lab"
)

// unpack reads a bundle.
func unpack(t *testing.T, path string) map[string]string {
	t.Helper()
	b, err := os.ReadFile(path)
	must(err)
	zip, err := gzip.NewReader(bytes.NewReader(b))
	must(err)
	out := map[string]string{}
	for tr := tar.NewReader(zip); ; {
		h, err := tr.Next()
		if err == io.EOF {
			return out
		}
		must(err)
		text, err := io.ReadAll(tr)
		must(err)
		name, ok := strings.CutPrefix(h.Name, "talos-agent-support/")
		if !ok || h.Mode != 0o600 {
			t.Errorf("%s has mode %o", h.Name, h.Mode)
		}
		out[name] = string(text)
	}
}

func TestSupportBundle(t *testing.T) {
	daemontest.LeaveToExhaust(t)
	r := newRig(t, lab.Config{})
	config := filepath.Join(r.dir, "config.yaml")
	bundled := func(name string) map[string]string {
		t.Helper()
		path := filepath.Join(r.work, name)
		a := r.run(exitOK, do("support-bundle", "--config", config, "--file", path), "look at it before you send it", "looking at doctor")
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v %v", info, err)
		}
		parts := unpack(t, path)
		for _, line := range strings.Split(a.out, "\n")[1:] {
			if what := strings.TrimPrefix(strings.TrimSpace(line), "without "); what != "" && !strings.Contains(parts["README.txt"], what) {
				t.Errorf("%q is missing, and README.txt does not say so:\n%s", what, parts["README.txt"])
			}
		}
		return parts
	}
	has := func(parts map[string]string, name string, texts ...string) {
		t.Helper()
		for _, text := range texts {
			if !strings.Contains(parts[name], text) {
				t.Errorf("%s has no %q:\n%.2000s", name, text, parts[name])
			}
		}
		var v any
		if strings.HasSuffix(name, ".json") && json.Unmarshal([]byte(parts[name]), &v) != nil {
			t.Errorf("%s is no JSON", name)
		}
	}
	// A daemon that is down is what bundles are for.
	parts := bundled("down.tar.gz")
	has(parts, "README.txt", "daemon: cannot reach", "status.json: cannot reach")
	has(parts, "config.yaml", "owner: rig")
	has(parts, "policy.yaml", "pool: talos")
	has(parts, "doctor.json", `"kind": "Doctor"`)
	has(parts, "files.txt", "-rw------- ", "config.yaml")

	commit := r.push(r.inventory(0))
	r.start()
	r.untilReady(commit)
	parts = bundled("up.tar.gz")
	has(parts, "versions.json", `"daemon"`)
	has(parts, "status.json", `"condition": "Ready"`)
	has(parts, "status.txt", "dev  Ready")
	has(parts, "events.json", "create vm 412 (dev-cp-1)")
	has(parts, "clusters/dev/plan.json", `"steps": []`)
	has(parts, "clusters/dev/history.json", `"result": "Ready"`)
	has(parts, "daemon/goroutines.txt", "goroutine profile", "reconcile.(*Reconciler).Run")
	has(parts, "daemon/metrics.txt", "talos_agent_", "go_goroutines")
	has(parts, "daemon/memory.json", "heapInUse")
	has(parts, "files.txt", "state/dev.json", "state/history-dev.jsonl")
	if strings.Contains(parts["files.txt"], "BEGIN") {
		t.Error("contents of files are listed")
	}
	r.run(exitFailed, do("support-bundle", "--config", config, "--file", filepath.Join(r.work, "up.tar.gz")), "file exists")
}
