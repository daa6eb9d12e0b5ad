//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/fault"
)

// TestHoldDir: two labs do not write their files into one directory.
func TestHoldDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "lab", "dev")
	for range 2 {
		release, err := holdDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := holdDir(dir); err == nil || !strings.Contains(err.Error(), dir) || fault.HintOf(err) == "" {
			t.Errorf("a second lab: %v", err)
		}
		if err := release(); err != nil {
			t.Error(err)
		}
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := holdDir(file); err == nil {
		t.Error("a file is held")
	}
}
