package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
)

// mutant is a source file with one clause that no longer decides anything. What it says is
// still evaluated, so that no variable becomes unused; a switch's constant case is taken
// out.
type mutant struct {
	file string // below the root of the repository
	line int
	// in is the function, kind what was done, and text the clause, on one line. With of, its
	// number among equal ones, they name a mutant whatever else changes in the file.
	in, kind, text string
	of             int
	edit           edit
}

// The kinds of mutants.
const (
	dropOperand = "drop operand" // of && and ||
	dropGuard   = "drop guard"   // an if that leaves the function, the loop or the case
	dropCase    = "drop case"    // of a switch
)

func (m mutant) key() string {
	return fmt.Sprintf("%s %s: %s %d: %s", m.file, m.in, m.kind, m.of, m.text)
}

// edit replaces a part of a file.
type edit struct {
	from, to int
	with     string
}

func (e edit) apply(source []byte) []byte {
	return slices.Concat(source[:e.from], []byte(e.with), source[e.to:])
}

// mutate lists the mutants of a file, in their order.
func mutate(file string, source []byte) ([]mutant, error) {
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, file, source, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	f := &finder{set: set, file: file, source: source, count: map[string]int{}}
	for _, d := range parsed.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil {
			f.in = nameFunc(fn)
			ast.Inspect(fn.Body, f.visit)
		}
	}
	slices.SortStableFunc(f.found, func(a, b mutant) int { return a.edit.from - b.edit.from })
	return f.found, nil
}

// nameFunc is a function, with the type of its receiver.
func nameFunc(fn *ast.FuncDecl) string {
	if fn.Recv == nil || len(fn.Recv.List) == 0 {
		return fn.Name.Name
	}
	of := fn.Recv.List[0].Type
	for {
		switch t := of.(type) {
		case *ast.StarExpr:
			of = t.X
			continue
		case *ast.IndexExpr:
			of = t.X
			continue
		case *ast.IndexListExpr:
			of = t.X
			continue
		case *ast.Ident:
			return t.Name + "." + fn.Name.Name
		}
		return fn.Name.Name
	}
}

type finder struct {
	set    *token.FileSet
	file   string
	source []byte
	in     string
	count  map[string]int
	found  []mutant
}

func (f *finder) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.BinaryExpr:
		if n.Op == token.LAND || n.Op == token.LOR {
			neutral := map[token.Token]string{token.LAND: " || true)", token.LOR: " && false)"}[n.Op]
			f.wrap(dropOperand, n.X, "(", neutral)
			f.wrap(dropOperand, n.Y, "(", neutral)
		}
	case *ast.IfStmt:
		if n.Else == nil && leaves(n.Body) {
			f.wrap(dropGuard, n.Cond, "(", ") && false")
		}
	case *ast.SwitchStmt:
		for _, s := range n.Body.List {
			if c, ok := s.(*ast.CaseClause); ok && c.List != nil {
				f.visitCase(n, c)
			}
		}
	case *ast.TypeSwitchStmt:
		for _, s := range n.Body.List {
			if c, ok := s.(*ast.CaseClause); ok && c.List != nil {
				f.remove(c)
			}
		}
	}
	return true
}

// visitCase drops one case of a switch: what leads to it, one by one where these are
// conditions.
func (f *finder) visitCase(s *ast.SwitchStmt, c *ast.CaseClause) {
	if s.Tag != nil {
		f.remove(c)
		return
	}
	for _, cond := range c.List {
		f.wrap(dropCase, cond, "(", ") && false")
	}
}

func (f *finder) remove(c *ast.CaseClause) {
	var words []string
	for _, e := range c.List {
		words = append(words, f.textOf(e))
	}
	f.add(dropCase, strings.Join(words, ", "), c, edit{f.at(c.Pos()), f.at(c.End()), ""})
}

// wrap puts text around an expression.
func (f *finder) wrap(kind string, e ast.Expr, before, after string) {
	text := f.textOf(e)
	f.add(kind, text, e, edit{f.at(e.Pos()), f.at(e.End()), before + string(f.source[f.at(e.Pos()):f.at(e.End())]) + after})
}

func (f *finder) add(kind, text string, at ast.Node, e edit) {
	m := mutant{file: f.file, line: f.set.Position(at.Pos()).Line, in: f.in, kind: kind, text: text, edit: e}
	f.count[m.key()]++
	m.of = f.count[m.key()]
	f.found = append(f.found, m)
}

func (f *finder) at(p token.Pos) int { return f.set.Position(p).Offset }

// textOf is an expression on one line.
func (f *finder) textOf(e ast.Expr) string {
	return string(bytes.Join(bytes.Fields(f.source[f.at(e.Pos()):f.at(e.End())]), []byte(" ")))
}

// leaves reports whether a block ends with leaving what it is in.
func leaves(b *ast.BlockStmt) bool {
	if len(b.List) == 0 {
		return false
	}
	switch last := b.List[len(b.List)-1].(type) {
	case *ast.ReturnStmt, *ast.BranchStmt:
		return true
	case *ast.ExprStmt:
		call, ok := last.X.(*ast.CallExpr)
		if !ok {
			return false
		}
		name, ok := call.Fun.(*ast.Ident)
		return ok && name.Name == "panic"
	}
	return false
}
