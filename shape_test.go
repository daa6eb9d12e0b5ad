package talosagent

import (
	"go/ast"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// What a room may grow to. A newcomer reads a room as one piece, so it must fit
// a head: so many files and lines, and no more files than this that cannot be
// read one after another because each needs the next.
const (
	mostFiles  = 25
	mostLines  = 4500
	mostCircle = 10

	// Of a room's unexported functions so many percent may be one word, and a few
	// in a room that has few.
	mostOneWord = 15
	fewOneWord  = 3
)

// shape is what a room may have today beyond the measure; 0 is the measure.
// Numbers only go down, unless code moves in from a room whose number goes down
// as much.
type shape struct {
	files, lines, circle int
	oneWord              int // unexported functions of one word
}

var shapes = map[string]shape{
	"cmd/agent": {circle: 17},

	// The simulated Proxmox VE and Kubernetes are as large as what they serve.
	"internal/lab/pve":     {files: 35, lines: 8288, circle: 27},
	"internal/lab/kube":    {lines: 6000},
	"internal/lab/talos":   {circle: 14},
	"internal/lab/factory": {oneWord: 9},

	"reconcile": {oneWord: 4},
}

// functionsOfOneWord reports the unexported functions, and those of them whose
// name is one word. Methods are read with their receiver, which says the rest.
func functionsOfOneWord(files []source) (all int, oneWord []string) {
	for _, s := range files {
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv != nil || f.Name.IsExported() || f.Name.Name == "main" {
				continue
			}
			all++
			if isOneWord(f.Name.Name) {
				oneWord = append(oneWord, f.Name.Name)
			}
		}
	}
	slices.Sort(oneWord)
	return all, oneWord
}

var isOneWord = regexp.MustCompile(`^[a-z0-9]+$`).MatchString

func TestRoomsKeepTheirShape(t *testing.T) {
	rooms := byRoom(t)
	for _, dir := range slices.Sorted(maps.Keys(rooms)) {
		files, today := rooms[dir], shapes[dir]
		t.Run(dir, func(t *testing.T) {
			lines := 0
			for _, s := range files {
				lines += s.lines
			}
			checkRatchet(t, "files", len(files), today.files, mostFiles)
			checkRatchet(t, "lines", lines, today.lines, mostLines)
			circle := largestCircle(files)
			checkRatchet(t, "files in a circle of references ("+strings.Join(circle, " ")+")", len(circle), today.circle, mostCircle)
			all, oneWord := functionsOfOneWord(files)
			checkRatchet(t, "unexported functions of one word, where verbNoun says more ("+strings.Join(oneWord, " ")+")",
				len(oneWord), today.oneWord, max(fewOneWord, all*mostOneWord/100))
		})
	}
	for dir := range shapes {
		if rooms[dir] == nil {
			t.Errorf("shape_test.go has numbers for %q, which holds no Go files", dir)
		}
	}
}

// largestCircle names the files of the largest set in which each file leads to
// each other by references to top-level names.
func largestCircle(files []source) []string {
	declaredIn := map[string]string{} // by top-level name, the file
	for _, s := range files {
		for _, name := range topLevelNames(s.file) {
			declaredIn[name] = path.Base(s.path)
		}
	}
	refers := map[string][]string{}
	for _, s := range files {
		from := path.Base(s.path)
		imported := importedNames(s.file)
		// What the parser cannot resolve in a file is of another file of its
		// package, an import, or Go's own.
		for _, id := range s.file.Unresolved {
			if to := declaredIn[id.Name]; to != "" && to != from && !imported[id.Name] && !slices.Contains(refers[from], to) {
				refers[from] = append(refers[from], to)
			}
		}
	}
	reach := map[string]map[string]bool{}
	for _, s := range files {
		from := path.Base(s.path)
		reach[from] = reachableFrom(from, refers)
	}
	var largest []string
	for from := range reach {
		circle := []string{from}
		for to := range reach[from] {
			if to != from && reach[to][from] {
				circle = append(circle, to)
			}
		}
		slices.Sort(circle)
		if len(circle) > len(largest) {
			largest = circle
		}
	}
	return largest
}

func reachableFrom(from string, refers map[string][]string) map[string]bool {
	reached := map[string]bool{}
	for next := []string{from}; len(next) > 0; {
		file := next[len(next)-1]
		next = next[:len(next)-1]
		for _, to := range refers[file] {
			if !reached[to] {
				reached[to] = true
				next = append(next, to)
			}
		}
	}
	return reached
}

func topLevelNames(f *ast.File) (names []string) {
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil {
				names = append(names, d.Name.Name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					names = append(names, spec.Name.Name)
				case *ast.ValueSpec:
					for _, id := range spec.Names {
						names = append(names, id.Name)
					}
				}
			}
		}
	}
	return slices.DeleteFunc(names, func(name string) bool { return name == "_" || name == "init" })
}

// importedNames are the names that a file's imports take, as far as their paths
// show them.
func importedNames(f *ast.File) map[string]bool {
	names := map[string]bool{}
	for _, imp := range f.Imports {
		if imp.Name != nil {
			names[imp.Name.Name] = true
			continue
		}
		names[path.Base(strings.Trim(imp.Path.Value, `"`))] = true
	}
	return names
}
