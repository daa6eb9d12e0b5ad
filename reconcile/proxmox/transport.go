package proxmox

import (
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/pveconf"
)

const (
	// idleAfter closes connections before pveproxy does (after 5 s), so that a
	// write is not sent into a connection that is just being closed.
	idleAfter = 4 * time.Second
	// largest is the largest answer that is read. The list of 10,000 VMs has 5
	// MiB.
	largest = 64 << 20
	// largestRefusal is how much of the body of a refusal is read.
	largestRefusal = 64 << 10
)

// checker turns every answer that is not a success into an *Error. go-proxmox
// takes some of them for success, and throws away the reason of others.
type checker struct {
	next  http.RoundTripper
	token cluster.TokenID
	pool  string
}

// RoundTrip implements http.RoundTripper.
func (t *checker) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.next.RoundTrip(r)
	if err != nil {
		return nil, explainTLS(err)
	}
	if resp.StatusCode >= 200 && resp.StatusCode < 300 {
		if kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type")); err == nil && kind == "text/html" {
			return nil, errors.Join(fault.WithHint(errNotAPI, "url in the host config must lead to pveproxy itself, such as https://127.0.0.1:8006; a proxy or a page to sign in at answers in its place"), resp.Body.Close())
		}
		resp.Body = &limited{ReadCloser: resp.Body, left: largest}
		return resp, nil
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, largestRefusal))
	if err = errors.Join(err, resp.Body.Close()); err != nil && len(body) == 0 && resp.ContentLength > 0 {
		return nil, fmt.Errorf("read the refusal (%s): %w", resp.Status, err)
	}
	e := &Error{
		Method: r.Method, Path: strings.TrimPrefix(r.URL.Path, apiPath), Status: resp.StatusCode,
		Reason: sanitize(reasonOf(resp)), token: t.token, pool: t.pool,
	}
	var refusal struct {
		Message pveconf.Scalar
		Errors  map[string]pveconf.Scalar
	}
	// Some refusals have an empty body; the reason phrase is all there is then.
	if json.Unmarshal(body, &refusal) == nil {
		if e.Reason == "" {
			e.Reason = sanitize(string(refusal.Message))
		}
		for k, v := range refusal.Errors {
			if e.Params == nil {
				e.Params = map[string]string{}
			}
			e.Params[k] = sanitize(string(v))
		}
	}
	return nil, e
}

// errNotAPI is an answer that Proxmox VE's API never gives.
var errNotAPI = errors.New("the answer is a web page, and not that of Proxmox VE's API")

// reasonOf is the reason phrase of a status line.
func reasonOf(r *http.Response) string {
	_, reason, _ := strings.Cut(r.Status, " ")
	if reason == fmt.Sprintf("status code %d", r.StatusCode) {
		return "" // what net/http writes where there is none
	}
	return reason
}

// sanitize makes foreign words fit for a line of a log.
func sanitize(s string) string { return text.Sanitize(s, 500) }

// limited is a body that may not be endless.
type limited struct {
	io.ReadCloser
	left int64
}

// Read implements io.Reader.
func (l *limited) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, fmt.Errorf("the answer is larger than %d MiB", largest>>20)
	}
	n, err := l.ReadCloser.Read(p[:min(int64(len(p)), l.left)])
	l.left -= int64(n)
	return n, err
}

// explainTLS gives a hint to the errors of an untrusted certificate.
func explainTLS(err error) error {
	var pin *pinError
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	var record tls.RecordHeaderError
	switch {
	case errors.As(err, &pin):
		return fault.WithHint(untrusted{err}, "if the certificate was renewed, take its fingerprint anew: `openssl x509 -noout -fingerprint -sha256 -in /etc/pve/local/pve-ssl.pem` (pveproxy-ssl.pem where there is one)")
	case errors.As(err, &unknown):
		return fault.WithHint(untrusted{err}, "the agent trusts a copy of /etc/pve/pve-root-ca.pem, which `talos-agent init` makes: run it again; or set ca_file to a copy that the agent can read, or fingerprint to the certificate's own")
	case errors.As(err, &host):
		return fault.WithHint(untrusted{err}, "use a name in url that the certificate has, or set fingerprint")
	case errors.As(err, &invalid):
		return fault.WithHint(untrusted{err}, "renew the certificate: `pvecm updatecerts --force` on the host, then restart pveproxy; and check both clocks")
	case errors.As(err, &record):
		return fault.WithHint(untrusted{err}, "is the url right? Proxmox VE speaks https on port 8006")
	}
	return err
}

// isUntrusted reports whether an error is about a certificate: asking again will
// not help.
func isUntrusted(err error) bool {
	_, is := errors.AsType[untrusted](err)
	return is
}

// untrusted is what is wrong with a certificate.
type untrusted struct{ error }

// Unwrap returns the cause.
func (e untrusted) Unwrap() error { return e.error }

// pinError is a certificate that is not the pinned one.
type pinError struct{ want, have string }

// Error implements error.
func (e *pinError) Error() string {
	return fmt.Sprintf("the server's certificate has fingerprint %s, and %s is pinned", e.have, e.want)
}

// tlsConfig trusts a fingerprint alone, else an authority, else those of the
// system.
func tlsConfig(c Config) (*tls.Config, error) {
	t := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.Fingerprint != "" {
		pin, err := hex.DecodeString(strings.ReplaceAll(c.Fingerprint, ":", ""))
		if err != nil || len(pin) != sha256.Size {
			return nil, fault.Errorf("write the SHA-256 of the certificate, 64 hex digits with or without colons, as `openssl x509 -fingerprint -sha256` prints it",
				"proxmox fingerprint: %q is not a SHA-256", c.Fingerprint)
		}
		// The pinned certificate is trusted by itself, whoever signed it and
		// whatever name it has.
		t.InsecureSkipVerify = true
		t.VerifyConnection = func(s tls.ConnectionState) error {
			have := sha256.Sum256(s.PeerCertificates[0].Raw)
			if subtle.ConstantTimeCompare(have[:], pin) != 1 {
				return &pinError{want: hex.EncodeToString(pin), have: hex.EncodeToString(have[:])}
			}
			return nil
		}
		return t, nil
	}
	if len(c.CA) > 0 {
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(c.CA) {
			return nil, fault.Errorf("on a Proxmox VE host it is /etc/pve/pve-root-ca.pem", "proxmox ca_file: it holds no PEM certificate")
		}
	}
	return t, nil
}

// certificate remembers how long a server's certificate is good for.
type certificate struct {
	atomic.Pointer[cluster.Certificate]
}

// note has every handshake that succeeds leave its certificate here.
func (c *certificate) note(t *tls.Config) {
	verify := t.VerifyConnection
	t.VerifyConnection = func(s tls.ConnectionState) error {
		if verify != nil {
			if err := verify(s); err != nil {
				return err
			}
		}
		leaf := s.PeerCertificates[0]
		c.Store(&cluster.Certificate{Name: "proxmox", NotBefore: leaf.NotBefore, NotAfter: leaf.NotAfter})
		return nil
	}
}
