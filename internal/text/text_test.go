package text

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
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestOneLine(t *testing.T) {
	for in, want := range map[string]string{"": "", " two\r\n\twords ": "two words", "as\u202eit\x1bis": "as\u202eit\x1bis"} {
		if got := OneLine(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestSanitize(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", ""},
		{"  two\r\n\twords ", "two words"},
		{"\x1b[31mred\x1b[0m", "[31mred [0m"},
		{"a\u202eb\u200bc\x00d", "a b c d"},
		{"bad \xff byte", "bad byte"},
		{"no\u00a0break", "no break"},
		{"über", "über"},
		{"0123456789ab", "0123456789ab"},
		{"0123456789abc", "0123456789ab..."},
		{"0123456789aü", "0123456789a..."},
	} {
		if got := Sanitize(c.text, 12); got != c.want {
			t.Errorf("%q: %q, want %q", c.text, got, c.want)
		}
	}
}

func FuzzSanitize(f *testing.F) {
	f.Add("two\nwords", 3)
	f.Add("\xff\u202eü", 2)
	f.Fuzz(func(t *testing.T, text string, most int) {
		most = max(0, most%1000)
		got := Sanitize(text, most)
		if len(got) > most+len("...") {
			t.Errorf("%d bytes of at most %d: %q", len(got), most, got)
		}
		if !utf8.ValidString(got) || strings.ContainsFunc(got, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("not fit to be shown: %q", got)
		}
	})
}

func TestReason(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}, "nothing listens there"},
		{&net.OpError{Op: "dial", Err: syscall.EHOSTUNREACH}, "there is no way to it"},
		{syscall.ENETUNREACH, "there is no way to it"},
		{&url.Error{Op: "Get", URL: "https://example.org", Err: &net.DNSError{Err: "no such host", Name: "example.org"}}, "its name cannot be resolved: no such host"},
		{fmt.Errorf("ask: %w", context.Canceled), "it was not waited for"},
		{context.DeadlineExceeded, "it does not answer in time"},
		{&net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}, "it does not answer in time"},
		{io.ErrUnexpectedEOF, "the connection broke"},
		{&net.OpError{Op: "read", Err: syscall.ECONNRESET}, "the connection broke"},
		{&url.Error{Op: "Get", URL: "https://example.org/?signature=x", Err: errors.New("odd\nthing")}, "odd thing"},
		{&url.Error{URL: "https://a.b/?x=1", Err: &url.Error{URL: "https://a.b/?x=2", Err: errors.New("quite a long story")}}, "quite a long..."},
	} {
		if got := Reason(c.err, 12); got != c.want {
			t.Errorf("%v: %q, want %q", c.err, got, c.want)
		}
	}
}
