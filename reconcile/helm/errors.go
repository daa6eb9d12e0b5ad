package helm

import (
	"errors"
	"fmt"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/internal/worker"
)

// Error is what went wrong, in words that hold neither values of an addon nor
// the query of a URL.
type Error struct {
	message, hint string
	cause         error // for errors.Is; its text is not shown
}

// Error implements error.
func (e *Error) Error() string { return e.message }

// Unwrap gives the hint and the cause to errors.Is and errors.As.
func (e *Error) Unwrap() error { return &fault.Error{Op: e.message, Err: e.cause, Hint: e.hint} }

// newError is an error that somebody must do something about.
func newError(hint, format string, args ...any) *Error {
	return &Error{message: fmt.Sprintf(format, args...), hint: hint}
}

// wrapError adds what was being done when err happened, and keeps its hint and
// its cause.
func wrapError(what string, err error) error {
	return &Error{message: what + ": " + err.Error(), hint: fault.HintOf(err), cause: err}
}

// mostWords is how much of a foreign text is repeated, in bytes.
const mostWords = 400

// sanitize makes a foreign text fit to be shown.
func sanitize(s string) string { return text.Sanitize(s, mostWords) }

// describeError returns the text of the error of a connection to where charts come
// from.
func describeError(err error) string { return text.Reason(err, mostWords) }

// explainWorker is the error of a chart that was read or rendered, with a hint where it
// took too much.
func explainWorker(what string, c cluster.Chart, err error) error {
	exceeded := (*worker.Exceeded)(nil)
	if !errors.As(err, &exceeded) {
		return err
	}
	return newError(fmt.Sprintf("use another version of the chart, or less of it: no chart gets more; it is tried again after %s, or when chart or values change", worker.ExcessFor),
		"%s chart %s: %v", what, c.Ref(), exceeded)
}
