package main

import (
	"bytes"
	"cmp"
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
	number         int // among those of its package that are tried, from 1
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

// edit puts text around a part of a file, or removes that part. %s of the text is whether
// what was there decides nothing from now on.
type edit struct {
	from, to      int
	before, after string
	inverse       bool // %s is the opposite
	removes       bool
}

// apply makes the mutant of a file.
func (e edit) apply(source []byte) []byte {
	if e.removes {
		return slices.Concat(source[:e.from], source[e.to:])
	}
	return slices.Concat(source[:e.from], []byte(e.before), source[e.from:e.to], fmt.Appendf(nil, e.after, fmt.Sprint(!e.inverse)), source[e.to:])
}

// The switch of a program that has many mutants in it: which of them it is stands in its
// environment, as a number from 1.
const (
	chosenMutant = "TALOS_AGENT_MUTANT"
	switchFile   = "mutant_is_chosen.go"
	switchSource = `package %s

import (
	"os"
	"strconv"
)

var chosenMutant = func() int { n, _ := strconv.Atoi(os.Getenv("` + chosenMutant + `")); return n }()

func mutantIs(n int) bool { return chosenMutant == n }
`
)

// switchAll puts mutants into one file, each for when it is the chosen one. Those that
// remove something are left out.
func switchAll(source []byte, mutants []mutant) []byte {
	type insertion struct {
		at, order int // of those at one place the smallest is first
		text      string
	}
	var all []insertion
	for _, m := range mutants {
		e := m.edit
		if e.removes {
			continue
		}
		is := fmt.Sprintf("mutantIs(%d)", m.number)
		if e.inverse {
			is = "!" + is
		}
		// Of two that begin at one place the longer is outside, and so it is of two that
		// end at one.
		all = append(all, insertion{e.from, -e.to, e.before}, insertion{e.to, -len(source) - e.from, fmt.Sprintf(e.after, is)})
	}
	slices.SortStableFunc(all, func(a, b insertion) int { return cmp.Or(a.at-b.at, a.order-b.order) })
	var out []byte
	done := 0
	for _, in := range all {
		out = append(append(out, source[done:in.at]...), in.text...)
		done = in.at
	}
	return append(out, source[done:]...)
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

// packageOf is the name of the package of a file.
func packageOf(source []byte) (string, error) {
	f, err := parser.ParseFile(token.NewFileSet(), "", source, parser.PackageClauseOnly)
	if err != nil {
		return "", err
	}
	return f.Name.Name, nil
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
			f.wrapOperand(n.Op, n.X)
			f.wrapOperand(n.Op, n.Y)
		}
	case *ast.IfStmt:
		if n.Else == nil && leaves(n.Body) {
			f.wrap(dropGuard, n.Cond, ") && %s", true)
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
		f.wrap(dropCase, cond, ") && %s", true)
	}
}

func (f *finder) remove(c *ast.CaseClause) {
	var words []string
	for _, e := range c.List {
		words = append(words, f.textOf(e))
	}
	f.add(dropCase, strings.Join(words, ", "), c, edit{from: f.at(c.Pos()), to: f.at(c.End()), removes: true})
}

// wrapOperand drops an operand of && or ||. One of || may be such a chain itself, which &&
// would bind only the end of.
func (f *finder) wrapOperand(op token.Token, e ast.Expr) {
	neutral := map[token.Token]string{token.LAND: " || %s)", token.LOR: " && %s)"}[op]
	f.wrap(dropOperand, e, neutral, op == token.LOR)
	if b, ok := e.(*ast.BinaryExpr); ok && op == token.LOR && b.Op == token.LOR {
		last := &f.found[len(f.found)-1].edit
		last.before, last.after = "((", ")"+neutral
	}
}

// wrap puts text around an expression.
func (f *finder) wrap(kind string, e ast.Expr, after string, inverse bool) {
	f.add(kind, f.textOf(e), e, edit{from: f.at(e.Pos()), to: f.at(e.End()), before: "(", after: after, inverse: inverse})
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
