package world

import (
	"crypto/ecdsa"
	"crypto/elliptic"
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
	"time"
)

// PKI is a simulated authority. That of the World signs the certificates of
// Proxmox VE, the factory, the chart repository, the git server and the forge.
// (Talos and Kubernetes bring their own, from the cluster's secrets; where there
// are none, a PKI takes their place.)
type PKI struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	// PEM is the authority's certificate, for a client's ca_file.
	PEM []byte
	// KeyPEM is its key, for who signs by themselves.
	KeyPEM []byte
}

// NewPKI makes an authority.
func NewPKI(subject pkix.Name) (*PKI, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make lab authority: %w", err)
	}
	tmpl := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               subject,
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().AddDate(10, 0, 0),
		IsCA:                  true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("sign lab authority: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	raw, err := keyPEM(key)
	if err != nil {
		return nil, err
	}
	return &PKI{cert: cert, key: key, PEM: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), KeyPEM: raw}, nil
}

// Fingerprint is the SHA-256 of the authority's certificate, in hex.
func (p *PKI) Fingerprint() string {
	sum := sha256.Sum256(p.cert.Raw)
	return hex.EncodeToString(sum[:])
}

// Client makes the certificate of somebody in groups, good for so long, and its
// key.
func (p *PKI) Client(life time.Duration, name string, groups ...string) (cert, key []byte, err error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := p.signCertificate(&x509.Certificate{
		Subject:   pkix.Name{CommonName: name, Organization: groups},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(life),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, k)
	if err != nil {
		return nil, nil, err
	}
	key, err = keyPEM(k)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), key, err
}

// Server makes a server certificate for the given host names and addresses.
func (p *PKI) Server(hosts ...string) (tls.Certificate, error) {
	return p.ServerUntil(time.Now().AddDate(2, 0, 0), hosts...)
}

// ServerUntil makes one that ends at a time, which may have been.
func (p *PKI) ServerUntil(end time.Time, hosts ...string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	tmpl := &x509.Certificate{
		Subject:     pkix.Name{CommonName: hosts[0]},
		NotBefore:   end.AddDate(-2, 0, -1),
		NotAfter:    end,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			tmpl.IPAddresses = append(tmpl.IPAddresses, ip)
		} else {
			tmpl.DNSNames = append(tmpl.DNSNames, h)
		}
	}
	der, err := p.signCertificate(tmpl, key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der, p.cert.Raw}, PrivateKey: key}, nil
}

// signCertificate signs the certificate of a key.
func (p *PKI) signCertificate(tmpl *x509.Certificate, key *ecdsa.PrivateKey) (der []byte, err error) {
	tmpl.SerialNumber = big.NewInt(time.Now().UnixNano())
	tmpl.KeyUsage = x509.KeyUsageDigitalSignature
	if der, err = x509.CreateCertificate(rand.Reader, tmpl, p.cert, &key.PublicKey, p.key); err != nil {
		return nil, fmt.Errorf("sign certificate for %s: %w", tmpl.Subject.CommonName, err)
	}
	return der, nil
}

func keyPEM(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

// Pool trusts the authority.
func (p *PKI) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(p.cert)
	return pool
}
