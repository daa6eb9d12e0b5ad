package support

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func writeProgram(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

// TestBundleSaysWhatSystemdSaid: why the unit could not be asked for is what
// systemctl says, and not that it failed.
func TestBundleSaysWhatSystemdSaid(t *testing.T) {
	dir := t.TempDir()
	writeProgram(t, filepath.Join(dir, "systemctl"), "#!/bin/sh\necho 'Failed to connect to bus' >&2\nexit 1\n")
	writeProgram(t, filepath.Join(dir, "journalctl"), "#!/bin/sh\necho a line\n")
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	b := &Bundle{}
	b.addSystemd(t.Context())
	if want := []string{"unit.txt: systemctl: Failed to connect to bus"}; !slices.Equal(b.missing, want) {
		t.Errorf("%q, want %q", b.missing, want)
	}
	if len(b.parts) != 1 || b.parts[0].name != "journal.txt" || string(b.parts[0].data) != "a line\n" {
		t.Errorf("%+v", b.parts)
	}
	// A journal without a line is none.
	writeProgram(t, filepath.Join(dir, "journalctl"), "#!/bin/sh\necho\n")
	b = &Bundle{}
	b.addSystemd(t.Context())
	if want := "journal.txt: journalctl knows nothing of talos-agent"; len(b.parts) != 0 || len(b.missing) != 2 || b.missing[1] != want {
		t.Errorf("%+v, %q, want %q", b.parts, b.missing, want)
	}
}
