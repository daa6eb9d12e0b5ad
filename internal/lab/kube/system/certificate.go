package system

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"time"

	"github.com/talos-agent/talos-agent/internal/lab/kube/rules"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// ServerCertificate makes the certificate of a kube-apiserver, signed by the cluster's CA, valid for a
// year.
func ServerCertificate(cp world.ControlPlane, now time.Time) (tls.Certificate, error) {
	ca, err := tls.X509KeyPair(cp.CACert, cp.CAKey)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("read Kubernetes CA: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: "kube-apiserver", Organization: []string{"kube-master"}},
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.AddDate(1, 0, 0),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames: []string{
			"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost", cp.Node,
		},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), cp.Address.AsSlice()},
	}
	for _, addr := range []netip.Addr{cp.VIP, rules.NthAddr(rules.FirstRange(cp.ServiceCIDR), 1)} {
		if addr.IsValid() {
			tmpl.IPAddresses = append(tmpl.IPAddresses, addr.AsSlice())
		}
	}
	for _, san := range cp.SANs {
		if ip := net.ParseIP(san); ip != nil {
			tmpl.IPAddresses = append(tmpl.IPAddresses, ip)
		} else {
			tmpl.DNSNames = append(tmpl.DNSNames, san)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, ca.Leaf, &key.PublicKey, ca.PrivateKey)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("sign certificate of kube-apiserver: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
