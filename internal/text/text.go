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
	"errors"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"syscall"
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

// Reason says why a connection has no answer, about the one who was asked as
// "it". An error that it does not know speaks for itself, in at most so many
// bytes, but without the URL that it is about: after a redirect that may have a
// signature in it.
func Reason(err error, most int) string {
	var timeout net.Error
	var name *net.DNSError
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nothing listens there"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "there is no way to it"
	case errors.As(err, &name):
		return "its name cannot be resolved: " + Sanitize(name.Err, most)
	case errors.Is(err, context.Canceled):
		return "it was not waited for"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "it does not answer in time"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET):
		return "the connection broke"
	}
	var u *url.Error
	for errors.As(err, &u) {
		err = u.Err
	}
	return Sanitize(err.Error(), most)
}
