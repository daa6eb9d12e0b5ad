package talosagent

import (
	"go/ast"
	"go/token"
	"testing"
)

// TestEveryWaitHasAReason: whoever makes a Wait or a Block gives it a Reason, and
// not as a string of its own: the codes are those of the table.
func TestEveryWaitHasAReason(t *testing.T) {
	eachFile(t, func(room string, fset *token.FileSet, f *ast.File) {
		ast.Inspect(f, func(n ast.Node) bool {
			lit, ok := n.(*ast.CompositeLit)
			if !ok || len(lit.Elts) == 0 || !isNoun(room, lit.Type, "Wait") && !isNoun(room, lit.Type, "Block") {
				return true
			}
			for _, e := range lit.Elts {
				kv, ok := e.(*ast.KeyValueExpr)
				if !ok {
					continue
				}
				if key, ok := kv.Key.(*ast.Ident); ok && key.Name == "Reason" {
					if _, literal := kv.Value.(*ast.BasicLit); literal {
						t.Errorf("%s: a reason that is not in the table of internal/cluster", fset.Position(kv.Pos()))
					}
					return true
				}
			}
			t.Errorf("%s: it has no Reason", fset.Position(n.Pos()))
			return true
		})
	})
}

// isNoun reports whether a type is the one of that name in internal/cluster.
func isNoun(room string, typ ast.Expr, name string) bool {
	switch x := typ.(type) {
	case *ast.Ident:
		return room == "internal/cluster" && x.Name == name
	case *ast.SelectorExpr:
		pkg, ok := x.X.(*ast.Ident)
		return ok && pkg.Name == "cluster" && x.Sel.Name == name
	default:
		return false
	}
}

// TestNothingGoesByASentence: a message is for people. To compare it, or to look
// for words in it, would make rewording it a change of what the program does.
func TestNothingGoesByASentence(t *testing.T) {
	eachFile(t, func(room string, fset *token.FileSet, f *ast.File) {
		if room == "internal/terminal" {
			return // it prints them
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BinaryExpr:
				if (n.Op == token.EQL || n.Op == token.NEQ) && (isMessage(n.X) && !isEmpty(n.Y) || isMessage(n.Y) && !isEmpty(n.X)) {
					t.Errorf("%s: it goes by a message: go by its reason", fset.Position(n.Pos()))
				}
			case *ast.CallExpr:
				for _, look := range []string{"Contains", "HasPrefix", "HasSuffix", "Cut", "Index", "EqualFold"} {
					if isCall(n, "strings", look) && len(n.Args) > 0 && isMessage(n.Args[0]) {
						t.Errorf("%s: it looks for words in a message: go by its reason", fset.Position(n.Pos()))
					}
				}
			case *ast.SwitchStmt:
				if n.Tag != nil && isMessage(n.Tag) {
					t.Errorf("%s: it goes by a message: go by its reason", fset.Position(n.Pos()))
				}
			}
			return true
		})
	})
}

// isMessage reports whether an expression is a field Message.
func isMessage(e ast.Expr) bool {
	s, ok := e.(*ast.SelectorExpr)
	return ok && s.Sel.Name == "Message"
}

func isEmpty(e ast.Expr) bool {
	lit, ok := e.(*ast.BasicLit)
	return ok && lit.Value == `""`
}
