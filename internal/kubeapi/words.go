package kubeapi

import (
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/talos-agent/talos-agent/internal/text"
)

// mostWords is how much of a server's message is repeated, in bytes.
const mostWords = 300

// Sanitize makes a server's words fit for a line of a log.
func Sanitize(words string) string { return text.Sanitize(words, mostWords) }

// Reason is the text of an error of a request, in the words of people.
func Reason(err error) string {
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	var remote *net.OpError
	var status apierrors.APIStatus
	switch {
	case errors.As(err, &status) && (apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err)):
		// No rule keeps system:masters from reading: who is refused was taken
		// for somebody else.
		return "it does not accept the agent's certificate: " + Sanitize(status.Status().Message)
	case errors.As(err, &status):
		return "it answers: " + Sanitize(status.Status().Message)
	case errors.As(err, &unknown):
		return "who answers there has a certificate of another cluster"
	case errors.As(err, &name), errors.As(err, &invalid) && (invalid.Reason != x509.Expired || invalid.Cert == nil):
		return "its certificate is not good: " + Sanitize(err.Error())
	case errors.As(err, &remote) && remote.Op == "remote error" && !strings.Contains(err.Error(), text.Expired):
		return "it does not accept the agent's certificate: " + Sanitize(remote.Err.Error())
	}
	return text.Reason(err, mostWords)
}

// Once is a transport for what is watched. client-go tries the same server
// again, for up to a minute, after the errors it knows of a connection that
// broke; behind Once they have no such name, and whoever looks decides whom to
// ask next.
func Once(next http.RoundTripper) http.RoundTripper { return once{next} }

type once struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (o once) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := o.next.RoundTrip(r)
	if err != nil {
		return nil, InWords(err)
	}
	return resp, nil
}

// InWords is an error of which nothing but the Reason is left: whoever would
// try again because of its kind does not.
func InWords(err error) error { return errors.New(Reason(err)) }
