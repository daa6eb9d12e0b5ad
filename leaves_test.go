package talosagent

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// eachFile parses every production file of the module.
func eachFile(t *testing.T, check func(room string, fset *token.FileSet, f *ast.File)) {
	t.Helper()
	fset := token.NewFileSet()
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && skipped(p):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(p, ".go") || strings.HasSuffix(p, "_test.go"):
			return nil
		}
		f, err := parser.ParseFile(fset, p, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		check(filepath.ToSlash(filepath.Dir(p)), fset, f)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestOnlyFaultCarriesHints: there is one kind of error with a hint. A method of
// that name, of a type or asked for by an interface, would be a second.
func TestOnlyFaultCarriesHints(t *testing.T) {
	eachFile(t, func(_ string, fset *token.FileSet, f *ast.File) {
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if n.Recv != nil && n.Name.Name == "Hint" {
					t.Errorf("%s: a method Hint: hints are in fault.Error", fset.Position(n.Pos()))
				}
			case *ast.InterfaceType:
				for _, m := range n.Methods.List {
					if len(m.Names) == 1 && m.Names[0].Name == "Hint" {
						t.Errorf("%s: an interface with a method Hint: ask fault.HintOf", fset.Position(m.Pos()))
					}
				}
			}
			return true
		})
	})
}

// TestOneWayToOneLine: who puts text on one line asks internal/text, which says
// what is kept of text of ours and what of another system's.
func TestOneWayToOneLine(t *testing.T) {
	eachFile(t, func(room string, fset *token.FileSet, f *ast.File) {
		if room == "internal/text" {
			return
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if join, ok := n.(*ast.CallExpr); ok && isCall(join, "strings", "Join") {
				if fields, ok := join.Args[0].(*ast.CallExpr); ok && isCall(fields, "strings", "Fields") {
					t.Errorf("%s: text is put on one line by hand: use internal/text", fset.Position(n.Pos()))
				}
			}
			return true
		})
	})
}

// isCall reports whether a call is of one function of another package.
func isCall(c *ast.CallExpr, pkg, name string) bool {
	s, ok := c.Fun.(*ast.SelectorExpr)
	if !ok || s.Sel.Name != name {
		return false
	}
	id, ok := s.X.(*ast.Ident)
	return ok && id.Name == pkg
}
