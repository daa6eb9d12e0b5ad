// Package text puts text on one line that a person understands. Which function
// depends on who wrote it: OneLine for text of ours, which is trusted and kept
// whole; Sanitize for what another system sent, which may hold anything and be of
// any length; Reason for the error of a connection.
//
// It is separate because every adapter needs it and none may know another. It
// knows neither the other system nor the subject, and looks for no secrets:
// whoever has some removes them first.
package text

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"
)

// OneLine is text of ours on one line: its words, with one space between them.
func OneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// Sanitize is another system's text on one line. What is no character, or cannot
// be seen and may move a terminal's cursor or turn the direction of writing,
// counts as the space between words. Of a text of more than most bytes only the
// beginning is kept, and it is marked.
func Sanitize(text string, most int) string {
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r) || r == utf8.RuneError
	}), " ")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "..."
	}
	return text
}

// Expired is what the error of a connection contains when the other side refused a
// certificate for its dates. Go has one alert for too late and too early, and no
// type for it.
const Expired = "tls: expired certificate"

// Reason says why a connection has no answer, about the one who was asked as
// "it". An error that it does not know speaks for itself, in at most so many
// bytes, but without the URL that it is about: after a redirect that may have a
// signature in it.
func Reason(err error, most int) string {
	var name *net.DNSError
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nothing listens there"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "there is no way to it"
	case errors.As(err, &name) && !name.Timeout():
		return "its name cannot be resolved: " + Sanitize(name.Err, most)
	case errors.Is(err, context.Canceled):
		return "it was not waited for"
	case describeKnown(err) != "":
		return describeKnown(err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET):
		return "the connection broke"
	}
	var u *url.Error
	for errors.As(err, &u) {
		err = u.Err
	}
	return Sanitize(err.Error(), most)
}

// Plain is an error in the words of people, where its own are those of Go's library:
// of a time that is over, a certificate, an answer that is no JSON, too many open
// files. Any other error is returned as it is. They are about who was asked, as "it".
func Plain(err error) error {
	if words := describeKnown(err); words != "" {
		return plain{words, err}
	}
	return err
}

// plain is an error with other words.
type plain struct {
	words string
	error
}

func (p plain) Error() string { return p.words }
func (p plain) Unwrap() error { return p.error }

// mostName is how long the name of a host can be.
const mostName = 253

// describeKnown is the words of Plain; "" for an error that it does not know.
func describeKnown(err error) string {
	if err == nil {
		return ""
	}
	var name *net.DNSError
	var timeout net.Error
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	var syntax *json.SyntaxError
	var form *json.UnmarshalTypeError
	switch {
	case errors.As(err, &name) && name.Timeout(): // of the name server, before any of who was asked
		return "the name " + Sanitize(name.Name, mostName) + " was not resolved in time"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "it does not answer in time"
	case strings.Contains(err.Error(), Expired):
		return "it takes the agent's certificate for expired or not yet valid; compare the clocks of this host and of it"
	case errors.As(err, &unknown):
		return "its certificate is signed by an authority that is not trusted here"
	case errors.As(err, &host):
		return "its certificate is not for " + host.Host
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired && invalid.Cert != nil:
		return fmt.Sprintf("its certificate is good from %s to %s only; compare the clocks of this host and of it",
			invalid.Cert.NotBefore.UTC().Format(time.RFC3339), invalid.Cert.NotAfter.UTC().Format(time.RFC3339))
	case errors.As(err, &syntax):
		return "its answer is not JSON"
	case errors.As(err, &form):
		return "its answer is not of the expected form"
	case errors.Is(err, syscall.EMFILE):
		return "the agent has too many files open"
	case errors.Is(err, syscall.ENFILE):
		return "this host has too many files open"
	}
	return ""
}
