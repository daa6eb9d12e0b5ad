package publicfiles

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/talos-agent/talos-agent/internal/fault"
)

// TestExplain: an error has what to do about it.
func TestExplain(t *testing.T) {
	for _, refused := range []error{fs.ErrPermission, syscall.EROFS} {
		if hint := fault.HintOf(New("/srv/dhcp", "own").explain(refused)); !strings.Contains(hint, "ReadWritePaths=") {
			t.Errorf("%v: %s", refused, hint)
		}
	}
	missing := filepath.Join(t.TempDir(), "missing")
	if hint := fault.HintOf(New(missing, "own").Set("dev", nil, true)); !strings.Contains(hint, missing) {
		t.Errorf("%s", hint)
	}
}

// TestSet: files are made what they should be, those that are right and those of others
// stay as they are.
func TestSet(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"own.dev.old", ".own.dev.cut", "own.prod.x", "x.own.dev.y"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), Mode); err != nil {
			t.Fatal(err)
		}
	}
	is := func(text string) func([]byte) bool { return func(have []byte) bool { return string(have) == text } }
	all := []File{{Name: "a", What: "a", Data: []byte("1"), IsRight: is("1")}, {Name: "b", What: "b", IsRight: is("")}}
	for range 2 {
		if err := New(dir, "own").Set("dev", all, true); err != nil {
			t.Fatal(err)
		}
		found, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil || len(found) != 3 || filepath.Base(found[0]) != "own.dev.a" || filepath.Base(found[1]) != "own.prod.x" {
			t.Errorf("%v %v", found, err)
		}
	}
}
