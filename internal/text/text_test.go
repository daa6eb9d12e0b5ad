package text

import (
	"context"
	"crypto/tls"
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
	"testing"
	"time"
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
		{&url.Error{Op: "Get", URL: "https://example.org", Err: &net.OpError{Op: "dial", Err: &net.DNSError{Err: "i/o timeout", Name: "example.org", IsTimeout: true}}}, "the name example.org was not resolved in time"},
		{fmt.Errorf("ask: %w", context.Canceled), "it was not waited for"},
		{context.DeadlineExceeded, "it does not answer in time"},
		{&net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}, "it does not answer in time"},
		{io.ErrUnexpectedEOF, "the connection broke"},
		{x509.UnknownAuthorityError{}, "its certificate is signed by an authority that is not trusted here"},
		{&tls.CertificateVerificationError{Err: x509.HostnameError{Host: "git.example.org", Certificate: &x509.Certificate{}}}, "its certificate is not for git.example.org"},
		{x509.CertificateInvalidError{Reason: x509.Expired, Cert: &x509.Certificate{NotAfter: time.Unix(0, 0)}}, "its certificate is good from 0001-01-01T00:00:00Z to 1970-01-01T00:00:00Z only; compare the clocks of this host and of it"},
		{errors.New("remote error: tls: expired certificate"), "it takes the agent's certificate for expired or not yet valid; compare the clocks of this host and of it"},
		{json.Unmarshal([]byte("<html>"), new(int)), "its answer is not JSON"},
		{json.Unmarshal([]byte(`"x"`), new(int)), "its answer is not of the expected form"},
		{os.NewSyscallError("open", syscall.EMFILE), "the agent has too many files open"},
		{&net.OpError{Op: "read", Err: syscall.ECONNRESET}, "the connection broke"},
		{&url.Error{Op: "Get", URL: "https://example.org/?signature=x", Err: errors.New("odd\nthing")}, "odd thing"},
		{&url.Error{URL: "https://a.b/?x=1", Err: &url.Error{URL: "https://a.b/?x=2", Err: errors.New("quite a long story")}}, "quite a long..."},
	} {
		if got := Reason(c.err, 12); got != c.want {
			t.Errorf("%v: %q, want %q", c.err, got, c.want)
		}
	}
}

// TestPlain: the words are others, and the cause stays.
func TestPlain(t *testing.T) {
	err := Plain(&url.Error{Op: "Get", URL: "https://example.org", Err: context.DeadlineExceeded})
	if err.Error() != "it does not answer in time" || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	// The name server is silent, and not who was to be asked.
	name := &net.DNSError{Err: "i/o timeout", Name: "example.org", IsTimeout: true}
	if err := Plain(&net.OpError{Op: "dial", Err: name}); err.Error() != "the name example.org was not resolved in time" || !errors.Is(err, name) {
		t.Errorf("%v", err)
	}
	unknown := &net.DNSError{Err: "no such host", Name: "example.org", IsNotFound: true}
	if err := Plain(unknown); err != error(unknown) {
		t.Errorf("%v", err)
	}
	for _, err := range []error{nil, io.EOF, syscall.ECONNREFUSED} {
		if got := Plain(err); got != err {
			t.Errorf("%v became %v", err, got)
		}
	}
}
