package gate

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
)

// What a status may have. What is not known of a cluster is not in its status, so that a status does not show which fields
// there are.
const (
	StatusAddons = "addons"
	StatusEtcd   = "etcd"
	StatusNodes  = "nodes"
)

// shape is what a part of the status is: an object with fields, a map from names to objects of one shape, or a value.
type shape struct {
	name   string // of an object, for people
	fields map[string]*shape
	each   *shape
	value  string // what a value is, for people
}

// The values of a status.
var (
	flagValue   = &shape{value: valueFlag}
	textValue   = &shape{value: "a text"}
	numberValue = &shape{value: "a number"}
)

// valueFlag is what a condition, and each part of it that others are joined with, has to be.
const valueFlag = "true or false"

// statusShape is that of a status of which all is known.
var statusShape = &shape{name: "status", fields: map[string]*shape{
	StatusNodes:  {each: &shape{name: "a node of status", fields: map[string]*shape{"role": textValue, "ready": flagValue, "cordoned": flagValue, "talos": textValue, "kubernetes": textValue}}},
	StatusAddons: {each: &shape{name: "an addon of status", fields: map[string]*shape{"status": textValue, "ready": flagValue}}},
	StatusEtcd:   {name: "status.etcd", fields: map[string]*shape{"members": numberValue}},
}}

// UnknownField is that a condition asks the status, or a node or an addon in it, for a field that none ever has.
type UnknownField struct {
	Line, Column int    // in the condition, from 1
	Of           string // what is asked, for people
	Field        string
	Known        []string // the fields that it may have, in order
}

func (e *UnknownField) Error() string {
	return fmt.Sprintf("line %d, column %d: %s has no %q, but %s", e.Line, e.Column, e.Of, e.Field, strings.Join(e.Known, ", "))
}

// ErrValue is that a condition takes a text or a number of the status, or an object, for true or false.
var ErrValue = errors.New("not " + valueFlag)

// checkFields returns an UnknownField where a condition asks the status for what it never has, and ErrValue where it takes
// something else of it for true or false.
func checkFields(checked *cel.Ast, root ast.NavigableExpr) error {
	place := func(e ast.Expr) (line, column int) {
		at := checked.NativeRep().SourceInfo().GetStartLocation(e.ID())
		return at.Line(), at.Column() + 1
	}
	all := ast.MatchDescendants(root, func(ast.NavigableExpr) bool { return true })
	guarded := guardedFields(all)
	for _, e := range all {
		known, field := unknownField(e)
		if known != nil && !guarded[part{known, field}] {
			line, column := place(e)
			return &UnknownField{Line: line, Column: column, Of: known.name, Field: field, Known: slices.Sorted(maps.Keys(known.fields))}
		}
	}
	for _, e := range append(ast.MatchDescendants(root, isFlag), root) {
		if is := shapeOf(e); is != nil && is.value != valueFlag {
			line, column := place(e)
			return fmt.Errorf("line %d, column %d: it is %s, and %w", line, column, describeShape(is), ErrValue)
		}
	}
	return nil
}

// part is a field of an object of the status.
type part struct {
	of    *shape
	field string
}

// unknownField returns the object that an expression asks for a field that it never has, and the field; nil: it asks for none.
func unknownField(e ast.Expr) (*shape, string) {
	of, field, named := partOf(e)
	if known := shapeOf(of); named && known != nil && known.fields != nil && known.fields[field] == nil {
		return known, field
	}
	return nil, ""
}

// guardedFields returns the unknown fields of nodes, addons and the like that a condition asks for with has() or .? somewhere. Such
// a condition is written for a field that may not be there, as one of another version of the agent, and has an answer without it.
// The parts of the status itself are always known.
func guardedFields(all []ast.NavigableExpr) map[part]bool {
	out := map[part]bool{}
	for _, e := range all {
		if known, field := unknownField(e); known != nil && known != statusShape && isGuarded(e) {
			out[part{known, field}] = true
		}
	}
	return out
}

// isGuarded reports whether an expression has an answer for a field that is not there: that of has(), and an optional value of .?
// and of what follows it.
func isGuarded(e ast.Expr) bool {
	for ; e != nil; e, _, _ = partOf(e) {
		switch e.Kind() {
		case ast.SelectKind:
			if e.AsSelect().IsTestOnly() {
				return true
			}
		case ast.CallKind:
			if name := e.AsCall().FunctionName(); name == operators.OptIndex || name == operators.OptSelect {
				return true
			}
		}
	}
	return false
}

// describeShape is what a part of the status is, for people.
func describeShape(s *shape) string {
	switch {
	case s.value != "":
		return s.value
	case s.each != nil:
		return "a map by name"
	}
	return "an object"
}

// partOf is the expression of which another one is a part, and the field that it is: by its name, or by a name that is written there.
// It is named where that is known before it is evaluated. of is nil for what is no part of anything.
func partOf(e ast.Expr) (of ast.Expr, field string, named bool) {
	switch e.Kind() {
	case ast.SelectKind:
		return e.AsSelect().Operand(), e.AsSelect().FieldName(), true
	case ast.CallKind:
		call := e.AsCall()
		switch args := call.Args(); call.FunctionName() {
		case operators.Index, operators.OptIndex, operators.OptSelect:
			if args[1].Kind() == ast.LiteralKind {
				field, named = args[1].AsLiteral().Value().(string)
			}
			return args[0], field, named
		}
	}
	return nil, "", false
}

// shapeOf is the shape of what an expression is; nil: it is no part of the status, or which one is not known before it is evaluated.
func shapeOf(e ast.Expr) *shape {
	if e == nil {
		return nil
	}
	if e.Kind() == ast.IdentKind {
		if nav, ok := e.(ast.NavigableExpr); ok && e.AsIdent() == "status" && !isHidden(nav) {
			return statusShape
		}
		return nil
	}
	of, field, named := partOf(e)
	whole := shapeOf(of)
	switch {
	case whole == nil:
		return nil
	case e.Kind() == ast.SelectKind && e.AsSelect().IsTestOnly(): // has(), of whatever
		return flagValue
	case whole.each != nil:
		return whole.each
	case named:
		return whole.fields[field]
	}
	return nil
}

// isHidden reports whether an expression is in a loop whose variable hides the status.
func isHidden(e ast.NavigableExpr) bool {
	for up, more := e.Parent(); more; up, more = up.Parent() {
		if up.Kind() == ast.ComprehensionKind && up.AsComprehension().IterVar() == "status" {
			return true
		}
	}
	return false
}

// isFlag reports whether an expression is where only true or false may be: what others are joined with, and so each predicate of a loop.
func isFlag(e ast.NavigableExpr) bool {
	up, more := e.Parent()
	if !more || up.Kind() != ast.CallKind {
		return false
	}
	switch call := up.AsCall(); call.FunctionName() {
	case operators.LogicalAnd, operators.LogicalOr, operators.LogicalNot:
		return true
	case operators.Conditional:
		return call.Args()[0].ID() == e.ID()
	}
	return false
}
