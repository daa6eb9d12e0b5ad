package world

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"testing"
	"testing/synctest"
	"time"
)

// TestCertificatesAreGoodAtOnce, also of the day that most years lack.
func TestCertificatesAreGoodAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(time.Date(2000, time.February, 29, 12, 0, 0, 0, time.UTC)))
		p, err := NewPKI(pkix.Name{CommonName: "test"})
		if err != nil {
			t.Fatal(err)
		}
		made, err := p.Server("pve.lab")
		if err != nil {
			t.Fatal(err)
		}
		cert, err := x509.ParseCertificate(made.Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := cert.Verify(x509.VerifyOptions{DNSName: "pve.lab", Roots: p.Pool(), CurrentTime: time.Now()}); err != nil {
			t.Error(err)
		}
	})
}
