package talosagent

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// module is the module path every room begins with.
const module = "github.com/talos-agent/talos-agent/"

// source is one Go file of the module.
type source struct {
	path  string // from the top of the repository, with slashes
	dir   string // its room; "" is the top
	test  bool
	lines int
	fset  *token.FileSet
	file  *ast.File // of a test, the imports alone
}

// house is every Go file of the module, parsed once for all checks.
func house(t *testing.T) []source {
	t.Helper()
	all, err := readHouse()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

var readHouse = sync.OnceValues(func() ([]source, error) {
	var all []source
	fset := token.NewFileSet()
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if isSkipped(p) {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(p, ".go") {
			return nil
		}
		s := source{path: filepath.ToSlash(p), fset: fset, test: strings.HasSuffix(p, "_test.go")}
		if s.dir = path.Dir(s.path); s.dir == "." {
			s.dir = ""
		}
		mode := parser.ParseComments
		if s.test {
			mode = parser.ImportsOnly
		}
		if s.file, err = parser.ParseFile(fset, p, nil, mode); err != nil {
			return err
		}
		s.lines = fset.File(s.file.FileStart).LineCount()
		all = append(all, s)
		return nil
	})
	return all, err
})

// isSkipped reports folders that hold no rooms: other modules and test data.
func isSkipped(dir string) bool {
	base := path.Base(dir)
	if base == "testdata" || strings.HasPrefix(base, ".") && base != "." {
		return true
	}
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil && dir != "."
}

// byRoom sorts the files that are no tests into their rooms.
func byRoom(t *testing.T) map[string][]source {
	t.Helper()
	rooms := map[string][]source{}
	for _, s := range house(t) {
		if !s.test {
			rooms[s.dir] = append(rooms[s.dir], s)
		}
	}
	return rooms
}

// checkRatchet compares what was counted with what is allowed today. A number
// that is worse fails; one that is better is logged, to be written down.
func checkRatchet(t *testing.T, what string, have, most, goal int) {
	t.Helper()
	switch {
	case have > max(most, goal):
		t.Errorf("%s: %d, and at most %d are allowed", what, have, max(most, goal))
	case have < most && most > goal:
		t.Logf("%s: %d, better than the %d written down: lower it to %d", what, have, most, max(have, goal))
	}
}
