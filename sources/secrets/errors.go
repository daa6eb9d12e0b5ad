package secrets

import (
	"errors"
	"fmt"

	"github.com/talos-agent/talos-agent/internal/fault"
)

// What is wrong with a document. Test with errors.Is; where a person can do
// something about it, the error has a Hint.
var (
	// ErrPlaintext: the document, or a value in it, is not encrypted.
	ErrPlaintext = errors.New("not encrypted")
	// ErrNoKey: none of the identities is among the document's recipients.
	ErrNoKey = errors.New("no matching key")
	// ErrUnavailable: the document may be opened by a key of a server, which could not be
	// asked. It is not about the document.
	ErrUnavailable = errors.New("key service unavailable")
	// ErrTampered: the document is not what its writer encrypted.
	ErrTampered = errors.New("failed authentication")
	// ErrUnsupported: the document or rule asks for what is not done here.
	ErrUnsupported = errors.New("not supported")
	// ErrMalformed: the document is not the YAML that it should be.
	ErrMalformed = errors.New("malformed")
	// ErrKeys: the identities or recipients themselves cannot be used.
	ErrKeys = errors.New("unusable keys")
)

// Error is what is wrong and what to do about it.
type Error struct {
	// Kind is one of the sentinels of this package.
	Kind error
	// Document is the name of the file; empty for identities and recipients.
	Document string
	fault    fault.Error
}

// Error implements error.
func (e *Error) Error() string {
	if e.Document == "" {
		return e.fault.Error()
	}
	return e.Document + ": " + e.fault.Error()
}

// Unwrap gives the kind and the hint.
func (e *Error) Unwrap() []error { return []error{e.Kind, &e.fault} }

func newError(kind error, hint, format string, args ...any) *Error {
	return &Error{Kind: kind, fault: fault.Error{Op: fmt.Sprintf(format, args...), Hint: hint}}
}

// in names the document that an error is about.
func (e *Error) in(document string) *Error {
	if e != nil {
		e.Document = document
	}
	return e
}
