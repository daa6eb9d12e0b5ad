// Package trial evaluates the conditions of gates in a worker.
//
// The cost of CEL bounds how many steps an evaluation takes, and not what one step does: a text that is replaced within itself
// needs more memory than any host has, and two values whose parts are the same value many times over are compared without an end, which
// no deadline reaches. Conditions are written by whoever may push, so that neither may happen in the daemon.
package trial

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/gate"
	"github.com/talos-agent/talos-agent/internal/worker"
)

// limits bound the evaluation of one condition. What is selected is held as JSON and as values.
var limits = worker.Limits{CPU: 2 * time.Second, Wall: time.Minute, Memory: 384 << 20, Output: 1 << 20}

// Request is a condition and what it is about.
type Request struct {
	Condition string
	Objects   [][]byte // each as JSON
	Status    []byte   // an object in JSON; nil: it is not known
	NoStatus  string   // why
	Now       time.Time
}

// evaluating is the job of a worker.
var evaluating = worker.RegisterTyped("evaluate-gate", func(r Request, _ worker.Ask) (bool, error) { return evaluate(r) })

// Evaluate has a worker evaluate a condition, and returns whether it holds. An error means that it is not known;
// TookTooMuch is for those that come from a limit of the worker, and not from the condition.
func Evaluate(ctx context.Context, on worker.Runner, r Request) (bool, error) {
	return evaluating.Run(ctx, on, limits, r, nil)
}

// TookTooMuch reports whether an evaluation was ended at a limit, or has ended its worker: it would again. Time that passes is
// no such limit: a host that is busy lets whatever runs there wait.
func TookTooMuch(err error) bool {
	exceeded := new(worker.Exceeded)
	return errors.Is(err, worker.ErrCrashed) || errors.As(err, &exceeded) && exceeded.What != worker.Time
}

// evaluate evaluates a condition in this process.
func evaluate(r Request) (bool, error) {
	in := gate.Input{Now: r.Now, NoStatus: r.NoStatus}
	for _, b := range r.Objects {
		object, err := decodeObject(b)
		if err != nil {
			return false, err
		}
		in.Objects = append(in.Objects, object)
	}
	var err error
	if in.Status, err = decodeObject(r.Status); err != nil {
		return false, err
	}
	return gate.Evaluate(context.Background(), r.Condition, in)
}

// decodeObject decodes an object; nil: there is none. Whole numbers are int64, as conditions compare them.
func decodeObject(b []byte) (out map[string]any, err error) {
	if len(b) == 0 {
		return nil, nil
	}
	decoder := json.NewDecoder(strings.NewReader(string(b)))
	decoder.UseNumber()
	if err := decoder.Decode(&out); err != nil {
		return nil, fmt.Errorf("read an object: %w", err)
	}
	for key, value := range out {
		out[key] = convertNumbers(value)
	}
	return out, nil
}

// convertNumbers makes the numbers of a value int64, or float64 where they are not whole.
func convertNumbers(value any) any {
	switch v := value.(type) {
	case json.Number:
		if whole, err := v.Int64(); err == nil {
			return whole
		}
		if f, err := v.Float64(); err == nil {
			return f
		}
		return math.NaN()
	case []any:
		for i := range v {
			v[i] = convertNumbers(v[i])
		}
	case map[string]any:
		for key := range v {
			v[key] = convertNumbers(v[key])
		}
	}
	return value
}
