//go:build linux

package probe

import (
	"path/filepath"
	"testing"

	"github.com/talos-agent/talos-agent/internal/host/config"
)

// TestFindSnapshots: what lies on one disk is seen to, also before the folder is made.
func TestFindSnapshots(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		s      config.Settings
		beside bool
		fails  bool
	}{
		{s: config.Settings{StateDir: dir, Snapshots: config.Snapshots{Directory: filepath.Join(dir, "a", "b")}}, beside: true},
		{s: config.Settings{StateDir: dir, Snapshots: config.Snapshots{Directory: "/proc"}}},
		{s: config.Settings{StateDir: dir, Snapshots: config.Snapshots{Directory: "/proc/version/x"}}, fails: true},
		{s: config.Settings{StateDir: dir, Snapshots: config.Snapshots{Directory: dir, Disabled: true}}},
		{fails: true},
	} {
		got, err := findSnapshots(c.s)
		if (err != nil) != c.fails || !c.fails && (got.Beside != c.beside || got.Disabled != c.s.Snapshots.Disabled || got.Directory != c.s.Snapshots.Directory) {
			t.Errorf("%+v: %+v, %v", c.s.Snapshots, got, err)
		}
	}
}
