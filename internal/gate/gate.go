// Package gate compiles and evaluates conditions that people write in CEL (https://cel.dev) about a cluster:
// whether its storage has all its copies, or a Job of theirs has succeeded.
//
// The package is pure: what a condition is about it is handed as values.
package gate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/ext"

	"github.com/talos-agent/talos-agent/internal/text"
)

// What one evaluation may take: a condition is written by whoever may push, and runs in the agent.
const (
	mostCost  = 10_000_000 // in CEL's own unit, about one for each step
	checkEach = 1000       // iterations of a loop between two looks at the context
)

// Input is what a condition is about.
type Input struct {
	// Objects are the Kubernetes objects that it selects, as in their JSON; numbers are int64 or float64.
	Objects []map[string]any
	// Status is what the agent knows of the cluster; nil: that is not known, and NoStatus is why, if that is.
	Status   map[string]any
	NoStatus string
	Now      time.Time
}

// environment has the variables and functions of conditions.
var environment = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(
		cel.Variable("objects", cel.ListType(cel.MapType(cel.StringType, cel.DynType))),
		cel.Variable("status", cel.MapType(cel.StringType, cel.DynType)),
		cel.Variable("now", cel.TimestampType),
		cel.OptionalTypes(),
		ext.Strings(), ext.Sets(),
	)
})

// ErrConstant is that a condition is not about anything.
var ErrConstant = errors.New("it is a constant, about nothing of the cluster")

// Check returns what is wrong with a condition, in one line with its place; nil: nothing that can be known before
// it is evaluated. It is an UnknownField where the condition asks the status for what it never has, and ErrConstant where it is
// true or false and no more. It is ErrValue where something else of the status stands in the place of true or false.
func Check(condition string) error {
	checked, err := parse(condition)
	if err != nil {
		return err
	}
	root := ast.NavigateAST(checked.NativeRep())
	if root.Kind() == ast.LiteralKind {
		return fmt.Errorf("%w: always %v", ErrConstant, root.AsLiteral().Value())
	}
	if err := checkFields(checked, root); err != nil {
		return err
	}
	_, err = compile(condition)
	return err
}

// AsksObjects reports whether a condition is about the objects that are selected; false for one that is wrong.
func AsksObjects(condition string) bool {
	env, err := environment()
	if err != nil {
		return false
	}
	parsed, issues := env.Compile(condition)
	if issues.Err() != nil {
		return false
	}
	names := ast.MatchDescendants(ast.NavigateAST(parsed.NativeRep()), func(e ast.NavigableExpr) bool { return e.Kind() == ast.IdentKind && e.AsIdent() == "objects" })
	return len(names) > 0
}

// parse reads a condition and checks its types.
func parse(condition string) (*cel.Ast, error) {
	env, err := environment()
	if err != nil {
		return nil, fmt.Errorf("prepare CEL: %w", err)
	}
	checked, issues := env.Compile(condition)
	if issues != nil && len(issues.Errors()) > 0 {
		first := issues.Errors()[0]
		return nil, fmt.Errorf("line %d, column %d: %s", first.Location.Line(), first.Location.Column()+1, strings.TrimSuffix(text.OneLine(first.Message), " (in container '')"))
	}
	if out := checked.OutputType(); !out.IsExactType(cel.BoolType) && !out.IsExactType(cel.DynType) {
		return nil, fmt.Errorf("it is of type %s, and not true or false", out)
	}
	return checked, nil
}

// compile compiles a condition to what it is evaluated by.
func compile(condition string) (cel.Program, error) {
	env, err := environment()
	if err != nil {
		return nil, fmt.Errorf("prepare CEL: %w", err)
	}
	checked, err := parse(condition)
	if err != nil {
		return nil, err
	}
	program, err := env.Program(checked, cel.CostLimit(mostCost), cel.InterruptCheckFrequency(checkEach))
	if err != nil {
		return nil, fmt.Errorf("prepare it: %w", err)
	}
	return program, nil
}

// Evaluate returns whether a condition holds. An error means that it is not known: a field is not there, or it
// takes too much to find out.
func Evaluate(ctx context.Context, condition string, in Input) (bool, error) {
	program, err := compile(condition)
	if err != nil {
		return false, err
	}
	out, _, err := program.ContextEval(ctx, map[string]any{"objects": in.Objects, "status": in.readStatus, "now": in.Now})
	switch {
	case ctx.Err() != nil:
		return false, context.Cause(ctx)
	case err != nil:
		return false, err
	}
	holds, ok := out.Value().(bool)
	if !ok {
		return false, errors.New("it is neither true nor false")
	}
	return holds, nil
}

// readStatus is the status, for a condition that asks for it.
func (in Input) readStatus() any {
	switch {
	case in.Status != nil:
		return in.Status
	case in.NoStatus != "":
		return types.NewErr("the status of the cluster is not known: %s", in.NoStatus)
	}
	return types.NewErr("the status of the cluster is not known")
}
