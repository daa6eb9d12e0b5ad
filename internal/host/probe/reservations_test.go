//go:build linux

package probe

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/host/doctor"
)

// TestFindReservations: a user who owns nothing of it must come through every directory, and list
// the last.
func TestFindReservations(t *testing.T) {
	if tmp, err := findReservations(config.Settings{Reservations: os.TempDir()}); err != nil || tmp.Closed != "" {
		t.Skipf("not everybody may enter %s here: %v", tmp.Closed, err)
	}
	top, err := os.MkdirTemp("", "reservations") // below directories that everybody may enter
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(top); err != nil {
			t.Error(err)
		}
	})
	above, dir, file := filepath.Join(top, "a"), filepath.Join(top, "a", "dhcp"), filepath.Join(top, "file")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		dir               string
		top, above, below os.FileMode
		want              doctor.Reservations
		fails             bool
	}{
		"none is written": {},
		"open":            {dir: dir, top: 0o755, above: 0o755, below: 0o755, want: doctor.Reservations{Directory: dir}},
		"entered alone":   {dir: dir, top: 0o711, above: 0o711, below: 0o755, want: doctor.Reservations{Directory: dir}},
		"not listed":      {dir: dir, top: 0o755, above: 0o755, below: 0o711, want: doctor.Reservations{Directory: dir, Closed: dir}},
		"not entered":     {dir: dir, top: 0o755, above: 0o755, below: 0o744, want: doctor.Reservations{Directory: dir, Closed: dir}},
		"closed above":    {dir: dir, top: 0o755, above: 0o750, below: 0o755, want: doctor.Reservations{Directory: dir, Closed: above}},
		"closed at first": {dir: dir, top: 0o700, above: 0o755, below: 0o755, want: doctor.Reservations{Directory: dir, Closed: top}},
		"missing":         {dir: dir + "/x", top: 0o755, above: 0o755, below: 0o755, want: doctor.Reservations{Directory: dir + "/x", Missing: true}},
		"a file":          {dir: file, top: 0o755, above: 0o755, below: 0o755, fails: true},
		"below a file":    {dir: file + "/x", top: 0o755, above: 0o755, below: 0o755, fails: true},
	} {
		if c.dir != "" {
			for path, mode := range map[string]os.FileMode{dir: c.below, above: c.above, top: c.top} {
				if err := os.Chmod(path, mode); err != nil {
					t.Fatal(err)
				}
			}
		}
		got, err := findReservations(config.Settings{Reservations: c.dir})
		if (err != nil) != c.fails || !c.fails && got != c.want {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		if c.dir != "" {
			for _, path := range []string{top, above, dir} {
				if err := os.Chmod(path, 0o755); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}
