package rehearsal

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/talos-agent/talos-agent/internal/repo/validation"
	"github.com/talos-agent/talos-agent/sources/inventory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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
