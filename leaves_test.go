package talosagent

import (
	"go/ast"
	"go/token"
	"maps"
	"slices"
	"strings"
	"testing"
)

// eachFile checks every production file of the module.
func eachFile(t *testing.T, check func(room string, fset *token.FileSet, f *ast.File)) {
	t.Helper()
	for _, s := range house(t) {
		if !s.test {
			check(s.dir, s.fset, s.file)
		}
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

// TestOneSleep: who waits for a time or the end of a context, and for nothing
// else, asks retry.Sleep. A ticker is no such wait.
func TestOneSleep(t *testing.T) {
	eachFile(t, func(room string, fset *token.FileSet, f *ast.File) {
		if room == "internal/retry" {
			return
		}
		timers := map[string]bool{}
		ast.Inspect(f, func(n ast.Node) bool {
			if a, ok := n.(*ast.AssignStmt); ok && len(a.Lhs) == 1 && len(a.Rhs) == 1 {
				id, named := a.Lhs[0].(*ast.Ident)
				if c, ok := a.Rhs[0].(*ast.CallExpr); ok && named && isCall(c, "time", "NewTimer") {
					timers[id.Name] = true
				}
			}
			return true
		})
		ast.Inspect(f, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectStmt); ok && len(s.Body.List) == 2 {
				var ends, waits bool
				for _, c := range s.Body.List {
					switch x := received(c).(type) {
					case *ast.CallExpr:
						sel, ok := x.Fun.(*ast.SelectorExpr)
						ends = ends || ok && sel.Sel.Name == "Done"
						waits = waits || isCall(x, "time", "After")
					case *ast.SelectorExpr:
						id, ok := x.X.(*ast.Ident)
						waits = waits || ok && x.Sel.Name == "C" && timers[id.Name]
					}
				}
				if ends && waits {
					t.Errorf("%s: a sleep by hand: use retry.Sleep", fset.Position(n.Pos()))
				}
			}
			return true
		})
	})
}

// received is the channel that a case of a select receives from.
func received(c ast.Stmt) ast.Expr {
	if s, ok := c.(*ast.CommClause).Comm.(*ast.ExprStmt); ok {
		if u, ok := s.X.(*ast.UnaryExpr); ok && u.Op == token.ARROW {
			return u.X
		}
	}
	return nil
}

// TestLogKeys: the attributes of a log record have the keys that internal/logging
// declares, written as its constants or as literals equal to one, and each key is
// in use. The lab is no part of this: what it logs goes to no journal.
func TestLogKeys(t *testing.T) {
	names := map[string]string{} // of constants, their keys
	unused := map[string]bool{}
	eachFile(t, func(room string, _ *token.FileSet, f *ast.File) {
		if room != "internal/logging" {
			return
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if v, ok := n.(*ast.ValueSpec); ok && len(v.Values) == 1 {
				if lit, ok := v.Values[0].(*ast.BasicLit); ok && lit.Kind == token.STRING {
					names[v.Names[0].Name] = strings.Trim(lit.Value, `"`)
					unused[strings.Trim(lit.Value, `"`)] = true
				}
			}
			return true
		})
	})
	keyOf := func(e ast.Expr) (string, bool) {
		switch e := e.(type) {
		case *ast.BasicLit:
			return strings.Trim(e.Value, `"`), true
		case *ast.SelectorExpr:
			id, ok := e.X.(*ast.Ident)
			key, known := names[e.Sel.Name]
			return key, ok && known && id.Name == "logging"
		}
		return "", false
	}
	known := slices.Collect(maps.Values(names))
	first := map[string]int{"Debug": 1, "Info": 1, "Warn": 1, "Error": 1, "Log": 3, "With": 0,
		"DebugContext": 2, "InfoContext": 2, "WarnContext": 2, "ErrorContext": 2}
	eachFile(t, func(room string, fset *token.FileSet, f *ast.File) {
		if strings.HasPrefix(room, "internal/lab") || room == "internal/logging" {
			return
		}
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || !isLog(sel.X) {
				return true
			}
			at, ok := first[sel.Sel.Name]
			for ; ok && at < len(call.Args); at += 2 {
				key, is := keyOf(call.Args[at])
				if !is || !slices.Contains(known, key) {
					t.Errorf("%s: attribute %d of a log record has no key of internal/logging", fset.Position(call.Args[at].Pos()), at)
				}
				delete(unused, key)
			}
			return true
		})
	})
	for key := range unused {
		t.Errorf("internal/logging declares the key %q, which no record has", key)
	}
}

// isLog reports whether an expression is a logger, by its name: log, c.Log,
// slog, log.With(...).
func isLog(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.Ident:
		return strings.HasSuffix(strings.ToLower(e.Name), "log")
	case *ast.SelectorExpr:
		return strings.HasSuffix(strings.ToLower(e.Sel.Name), "log")
	case *ast.CallExpr:
		s, ok := e.Fun.(*ast.SelectorExpr)
		return ok && isLog(s.X)
	}
	return false
}

// TestOneTokenForm: a token of Proxmox VE is taken apart and put together by
// cluster.Token and cluster.TokenID.
func TestOneTokenForm(t *testing.T) {
	eachFile(t, func(room string, fset *token.FileSet, f *ast.File) {
		if room == "internal/cluster" || strings.HasPrefix(room, "internal/lab") {
			return
		}
		ast.Inspect(f, func(n ast.Node) bool {
			var parts []ast.Expr
			switch n := n.(type) {
			case *ast.BinaryExpr:
				parts = []ast.Expr{n.X, n.Y}
			case *ast.CallExpr:
				if isCall(n, "strings", "Cut") {
					parts = n.Args
				}
			}
			for _, e := range parts {
				if lit, ok := e.(*ast.BasicLit); ok && lit.Value == `"!"` {
					t.Errorf("%s: a token is handled by hand: use cluster.TokenID", fset.Position(n.Pos()))
				}
			}
			return true
		})
	})
}
