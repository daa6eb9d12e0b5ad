package access

import (
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"sync"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/constants"
)

// Authority is a certificate authority with its key.
type Authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// ParseAuthority reads a CA from PEM.
func ParseAuthority(crt, key []byte) (Authority, error) {
	pair, err := tls.X509KeyPair(crt, key)
	if err != nil {
		return Authority{}, fmt.Errorf("read certificate authority: %w", err)
	}
	signer, ok := pair.PrivateKey.(crypto.Signer)
	if !ok {
		return Authority{}, fmt.Errorf("read certificate authority: a %T cannot sign", pair.PrivateKey)
	}
	return Authority{cert: pair.Leaf, key: signer}, nil
}

// leaf is a certificate that is renewed before it ends, as Talos does with the
// certificates of its API, which live for a day.
type leaf struct {
	now   func() time.Time
	issue func() (tls.Certificate, error)

	mu    sync.Mutex
	cert  tls.Certificate
	until time.Time
}

const leafLife = 24 * time.Hour

// getCertificate returns a certificate that is valid for half a day at least.
func (l *leaf) getCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.now().After(l.until) {
		cert, err := l.issue()
		if err != nil {
			return nil, err
		}
		l.cert, l.until = cert, l.now().Add(leafLife/2)
	}
	return &l.cert, nil
}

// MaintenanceTLS is what a machine without a config shows: a certificate that
// proves nothing, signed by an authority without a name that nobody knows. No
// certificate is asked of the client.
func MaintenanceTLS(now func() time.Time, hostname string, ip net.IP) *tls.Config {
	l := &leaf{now: now, issue: func() (tls.Certificate, error) {
		_, key, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			return tls.Certificate{}, fmt.Errorf("make maintenance authority: %w", err)
		}
		return Authority{cert: &x509.Certificate{}, key: key}.
			issueServer(now(), constants.MaintenanceServiceCommonName, []string{hostname}, []net.IP{ip, net.IPv4(127, 0, 0, 1), net.IPv6loopback})
	}}
	return &tls.Config{MinVersion: tls.VersionTLS13, GetCertificate: l.getCertificate}
}

// NodeTLS is what a configured machine shows and asks for: certificates of its
// cluster on both sides.
func NodeTLS(now func() time.Time, ca Authority, hostname string, names []string, ips []net.IP, accepted [][]byte) *tls.Config {
	clients := x509.NewCertPool()
	for _, crt := range accepted {
		clients.AppendCertsFromPEM(crt)
	}
	l := &leaf{now: now, issue: func() (tls.Certificate, error) { return ca.issueServer(now(), hostname, names, ips) }}
	return &tls.Config{
		MinVersion:     tls.VersionTLS13,
		GetCertificate: l.getCertificate,
		ClientAuth:     tls.RequireAndVerifyClientCert,
		ClientCAs:      clients,
		Time:           now,
	}
}

// issueServer issues an ED25519 server certificate.
func (a Authority) issueServer(now time.Time, commonName string, names []string, ips []net.IP) (tls.Certificate, error) {
	return a.signCertificate(now, &x509.Certificate{
		Subject:     pkix.Name{CommonName: commonName},
		DNSNames:    names,
		IPAddresses: ips,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		NotAfter:    now.Add(leafLife),
	})
}

// IssueClient issues an ED25519 client certificate.
func (a Authority) IssueClient(now time.Time, commonName string, organizations []string, life time.Duration) (crt, key []byte, err error) {
	pair, err := a.signCertificate(now, &x509.Certificate{
		Subject:     pkix.Name{CommonName: commonName, Organization: organizations},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		NotAfter:    now.Add(life),
	})
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		return nil, nil, fmt.Errorf("encode client key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

func (a Authority) signCertificate(now time.Time, tmpl *x509.Certificate) (tls.Certificate, error) {
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make key for %s: %w", tmpl.Subject.CommonName, err)
	}
	tmpl.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make serial number for %s: %w", tmpl.Subject.CommonName, err)
	}
	tmpl.NotBefore = now.Add(-10 * time.Second)
	tmpl.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, public, a.key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("sign certificate for %s: %w", tmpl.Subject.CommonName, err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// HashCertificate is the hex SHA-256 of the first certificate's DER in a PEM, ""
// when there is none.
func HashCertificate(crt []byte) string {
	block, _ := pem.Decode(crt)
	if block == nil {
		return ""
	}
	sum := sha256.Sum256(block.Bytes)
	return hex.EncodeToString(sum[:])
}
