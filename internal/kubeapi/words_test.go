package kubeapi

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

func TestReason(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{syscall.ECONNREFUSED, "nothing listens there"},
		{&url.Error{Op: "Get", URL: "https://10.0.0.11:6443/", Err: x509.UnknownAuthorityError{}}, "who answers there has a certificate of another cluster"},
		{x509.CertificateInvalidError{Reason: x509.Expired}, "its certificate is not good: x509: certificate has expired or is not yet valid:"},
		{&net.OpError{Op: "remote error", Err: tls.AlertError(45)}, "it takes the agent's certificate for expired or not yet valid; compare the clocks of this host and of it"},
		{context.DeadlineExceeded, "it does not answer in time"},
		{fmt.Errorf("failed to list *v1.Node: %w", apierrors.NewUnauthorized("Unauthorized")), "it does not accept the agent's certificate: Unauthorized"},
		{apierrors.NewTooManyRequests("come back\x1b[2J later", 1), "it answers: come back [2J later"},
		{&url.Error{Op: "Get", URL: "https://10.0.0.11:6443/?x=secret", Err: errors.New("odd\nthing")}, "odd thing"},
		{InWords(syscall.ECONNREFUSED), "nothing listens there"},
	} {
		if got := Reason(c.err); got != c.want {
			t.Errorf("%v: %q, want %q", c.err, got, c.want)
		}
	}
	if got := Reason(errors.New(strings.Repeat("x", 1000))); len(got) != mostWords+len("...") {
		t.Errorf("%d bytes of a long story are shown", len(got))
	}
}

type refuses struct{}

func (refuses) RoundTrip(*http.Request) (*http.Response, error) { return nil, syscall.ECONNREFUSED }

// TestOnce: what client-go would try again for a minute has lost its name.
func TestOnce(t *testing.T) {
	req, err := http.NewRequest(http.MethodGet, "https://10.0.0.11:6443/", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = (refuses{}).RoundTrip(req); !utilnet.IsConnectionRefused(err) {
		t.Fatalf("client-go does not know %v", err)
	}
	if _, err = Once(refuses{}).RoundTrip(req); err == nil || utilnet.IsConnectionRefused(err) || err.Error() != "nothing listens there" {
		t.Errorf("behind Once: %v", err)
	}
}
