package rehearsal

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/talos-agent/talos-agent/internal/repo/validation"
	"github.com/talos-agent/talos-agent/sources/inventory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestWindowsAreOpen: a change of a node that waits for a window is rehearsed while that is closed, be it the
// cluster's or the policy's.
func TestWindowsAreOpen(t *testing.T) {
	closed := fmt.Sprintf("window: {days: [%s], from: \"01:00\", to: \"02:00\"}\n", strings.ToLower(time.Now().UTC().AddDate(0, 0, 3).Weekday().String()[:3]))
	const repo = "../../../examples/repo"
	before, after := t.TempDir(), t.TempDir()
	for _, dir := range []string{before, after} {
		if err := os.CopyFS(dir, os.DirFS(filepath.FromSlash(repo))); err != nil {
			t.Fatal(err)
		}
		edit(t, filepath.Join(dir, "inventory", "dev", "cluster.yaml"), "environment: lab\n", "environment: lab\n"+closed)
	}
	edit(t, filepath.Join(after, "inventory", "dev", "cluster.yaml"), "worker: {cpu: 4,", "worker: {cpu: 2,")
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(policy, []byte("pool: talos\nvmids: [100-999]\nbridges: [vmbr1]\n"+closed), 0o600); err != nil {
		t.Fatal(err)
	}
	c := Config{Speed: 200, From: before, Validation: validation.Config{Cluster: "dev", Folder: "inventory", Owner: inventory.DefaultOwner, Policy: policy}}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	out, err := Run(ctx, after, c)
	if err != nil || !out.Ready {
		t.Fatalf("%v, %v", out, err)
	}
}

// edit replaces a text that is in a file.
func edit(t *testing.T, file, old, now string) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(data), old) {
		t.Fatalf("%s has no %q", file, old)
	}
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(string(data), old, now)), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestNothingStays: a rehearsal leaves no file behind, and none open: Windows removes
// no file that is.
func TestNothingStays(t *testing.T) {
	scratch := t.TempDir()
	t.Setenv("TMPDIR", scratch)
	c := Config{Speed: 200, Validation: validation.Config{Cluster: "dev", Folder: "inventory", Owner: inventory.DefaultOwner}}
	out, err := Run(t.Context(), filepath.FromSlash("../../../examples/repo"), c)
	if err != nil || !out.Ready {
		t.Fatalf("%v, %v", out, err)
	}
	left, err := os.ReadDir(scratch)
	if err != nil || len(left) > 0 {
		t.Errorf("%v stay behind (%v)", left, err)
	}
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range open {
		if name, err := os.Readlink(filepath.Join("/proc/self/fd", fd.Name())); err == nil && strings.HasPrefix(name, scratch) {
			t.Errorf("%s is open", name)
		}
	}
}
