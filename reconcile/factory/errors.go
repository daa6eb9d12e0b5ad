package factory

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/text"
)

// Error is what came between us and the factory, or the cache, in words that
// hold no URL with a query: those may carry a token.
type Error struct {
	message, hint string
	transient     bool
	cause         error // for errors.Is; its text is not shown
}

// Error implements error.
func (e *Error) Error() string { return e.message }

// Transient reports whether the same call may succeed later without anybody
// changing anything: a lost connection, a factory that is busy or broken. What
// is not transient wants a change of the inventory, the config or the host.
func (e *Error) Transient() bool { return e.transient }

// Unwrap gives the hint and the cause to errors.Is and errors.As.
func (e *Error) Unwrap() error { return &fault.Error{Op: e.message, Err: e.cause, Hint: e.hint} }

// ErrUnknownSchematic is the cause of an Error when the factory does not know
// the schematic of an image: it is another factory than the one that was asked
// for the id, or was set up again. Schematic registers it there.
var ErrUnknownSchematic = errors.New("unknown schematic")

// newError is an error that somebody must do something about.
func newError(hint, format string, args ...any) *Error {
	return &Error{message: fmt.Sprintf(format, args...), hint: hint}
}

// newTransient returns an error that time may fix.
func newTransient(cause error, hint, format string, args ...any) *Error {
	return &Error{message: fmt.Sprintf(format, args...), hint: hint, transient: true, cause: cause}
}

// mostWords is how much of a foreign text is repeated, in bytes.
const mostWords = 300

// describeError returns the text of a transport's error, in the words of
// people.
func describeError(err error) string { return text.Reason(err, mostWords) }

// sanitize makes a foreign text fit to be shown.
func sanitize(s string) string { return text.Sanitize(s, mostWords) }

// refusals are the factory's words that have a hint. Source: the Image
// Factory's own messages (internal/profile and its HTTP front end, 2026-08).
var refusals = []struct {
	status      int
	words, hint string
	cause       error
}{
	{400, "official extension", "remove the extension from talos.schematic.extensions, or choose a talos_version that has it; the factory lists them under /version/VERSION/extensions/official", nil},
	{404, "is not available", "choose a talos_version that the factory builds; it lists them under /versions", nil},
	{404, "schematic", "the factory is another one, or was set up anew: the schematic must be registered there again", ErrUnknownSchematic},
}

// readRefusal turns an answer that is not the wanted one into an error with the
// factory's own words.
func readRefusal(what string, status int, body []byte) *Error {
	words := sanitize(string(body))
	if words == "" || strings.HasPrefix(words, "<") {
		words = http.StatusText(status)
	}
	e := &Error{message: fmt.Sprintf("%s: the factory answers %d: %s", what, status, words)}
	switch {
	case status >= 500 || status == http.StatusTooManyRequests || status == http.StatusRequestTimeout:
		e.transient = true
		e.hint = "the factory is in trouble; it is asked again"
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		e.hint = "use a factory that does not ask for credentials"
	default:
		for _, r := range refusals {
			if r.status == status && strings.Contains(words, r.words) {
				e.hint, e.cause = r.hint, r.cause
				break
			}
		}
	}
	return e
}
