package helm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"syscall"
	"unicode"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Error is what went wrong, in words that hold neither values of an addon nor
// the query of a URL.
type Error struct {
	message, hint string
	cause         error // for errors.Is; its text is not told
}

// Error implements error.
func (e *Error) Error() string { return e.message }

// Hint says what to do about it, "" when there is nothing to do but wait.
func (e *Error) Hint() string { return e.hint }

// Unwrap gives the cause to errors.Is and errors.As.
func (e *Error) Unwrap() error { return e.cause }

// fault is an error that somebody must do something about.
func fault(hint, format string, args ...any) *Error {
	return &Error{message: fmt.Sprintf(format, args...), hint: hint}
}

// within says what was being done when err happened, and keeps its hint and
// its cause.
func within(what string, err error) error {
	e := &Error{message: what + ": " + err.Error(), cause: err}
	if h := (interface{ Hint() string })(nil); errors.As(err, &h) {
		e.hint = h.Hint()
	}
	return e
}

// reason is the text of a connection's error, in the words of people and
// without the URL it is about: after a redirect that has a signature in it.
func reason(err error) string {
	var timeout net.Error
	var name *net.DNSError
	var status apierrors.APIStatus
	switch {
	case errors.As(err, &status) && (apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err)):
		// No rule keeps system:masters from reading: who is refused was taken
		// for somebody else.
		return "it does not accept the agent's certificate: " + oneLine(status.Status().Message)
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nothing listens there"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "there is no way to it"
	case errors.As(err, &name):
		return "its name cannot be resolved: " + oneLine(name.Err)
	case errors.Is(err, context.Canceled):
		return "it was given up"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "it does not answer in time"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET):
		return "the connection broke"
	}
	var u *url.Error
	for errors.As(err, &u) {
		err = u.Err
	}
	return oneLine(err.Error())
}

// oneLine makes a stranger's text fit to be shown: printable, on one line, at
// most 400 bytes.
func oneLine(s string) string {
	s = strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) || unicode.IsSpace(r) {
			return r
		}
		return -1
	}, s)), " ")
	const most = 400
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}
