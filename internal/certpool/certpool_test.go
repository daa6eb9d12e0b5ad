package certpool

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"testing"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// TestAuthorities: the given authorities come to those of the system, and none is
// taken for one.
func TestAuthorities(t *testing.T) {
	system, err := x509.SystemCertPool()
	if err != nil {
		t.Fatal(err)
	}
	own, err := world.NewPKI(pkix.Name{CommonName: "own"})
	if err != nil {
		t.Fatal(err)
	}
	all := system.Clone()
	all.AppendCertsFromPEM(own.PEM)
	for name, c := range map[string]struct {
		pem  []byte
		want *x509.CertPool
		ok   bool
	}{
		"none":         {nil, system, true},
		"one":          {own.PEM, all, true},
		"no authority": {[]byte("x"), system, false},
	} {
		if got, ok := Authorities(c.pem); ok != c.ok || !got.Equal(c.want) {
			t.Errorf("%s: ok is %v, and the pool another: %v", name, ok, !got.Equal(c.want))
		}
	}
	if all.Equal(system) {
		t.Error("the test proves nothing: the pools cannot be distinguished")
	}
}
