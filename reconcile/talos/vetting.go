package talos

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/constants"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// standing is what the certificate of a machine states. The zero standing
// states nothing.
type standing int

const (
	// unclaimed: the certificate of the maintenance mode, which proves nothing
	// (Talos 1.13.9: self-signed, without an issuer, valid for a day).
	unclaimed standing = iota + 1
	// proven: signed by the cluster's own authority, for this address.
	proven
)

// keys open a cluster. The zero keys open nothing.
type keys struct {
	from        cluster.Credentials
	authorities []*x509.Certificate
	roots       *x509.CertPool
	pair        *tls.Certificate
}

// parseKeys reads the cluster's credentials. Empty ones are zero keys. The
// errors reveal nothing of what is in them.
func parseKeys(c cluster.Credentials) (keys, error) {
	if c.CA.IsZero() && c.Cert.IsZero() && c.Key.IsZero() {
		return keys{from: c}, nil
	}
	pair, err := tls.X509KeyPair(c.Cert.Reveal(), c.Key.Reveal())
	if err != nil {
		return keys{from: c}, errors.New("read the cluster's credentials: the Talos client certificate and its key do not go together")
	}
	k := keys{from: c, roots: x509.NewCertPool(), pair: &pair}
	for rest := c.CA.Reveal(); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		ca, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return keys{from: c}, errors.New("read the cluster's credentials: the Talos authority is not a certificate")
		}
		k.roots.AddCert(ca)
		k.authorities = append(k.authorities, ca)
	}
	if len(k.authorities) == 0 {
		return keys{from: c}, errors.New("read the cluster's credentials: the Talos authority holds no PEM certificate")
	}
	return k, nil
}

func (k keys) none() bool { return k.pair == nil }

// equalSecrets reports whether two sets of credentials are the same, byte by byte.
func equalSecrets(a, b cluster.Secret) bool { return a.RevealString() == b.RevealString() }

// vetting looks at the certificate of whoever answers, in the middle of the
// handshake: before the client's own certificate could be sent.
type vetting struct {
	keys    keys
	address netip.Addr

	standing standing
	verdict  *unreached // why the handshake was broken off
}

// config is for one handshake. The library's own verification is off, because a
// machine in maintenance mode has nothing to verify; verify takes its place and
// lets no one else pass.
func (v *vetting) config() *tls.Config {
	return &tls.Config{
		MinVersion:           tls.VersionTLS13,
		NextProtos:           []string{"h2"},
		InsecureSkipVerify:   true,
		VerifyConnection:     v.verify,
		GetClientCertificate: v.certificate,
	}
}

// certificate is asked for after verify: only the cluster's own machines get
// to see the client's certificate.
func (v *vetting) certificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	if v.standing == proven {
		return v.keys.pair, nil
	}
	return &tls.Certificate{}, nil
}

func (v *vetting) verify(cs tls.ConnectionState) error {
	if len(cs.PeerCertificates) == 0 {
		return v.reject(cluster.Unexpected, "it shows no certificate, so it is not Talos", nil)
	}
	leaf := cs.PeerCertificates[0]
	var err error
	if !v.keys.none() {
		between := x509.NewCertPool()
		for _, c := range cs.PeerCertificates[1:] {
			between.AddCert(c)
		}
		if _, err = leaf.Verify(x509.VerifyOptions{Roots: v.keys.roots, Intermediates: between, DNSName: v.address.String()}); err == nil {
			v.standing = proven
			return nil
		}
	}
	switch {
	case leaf.Subject.CommonName == constants.MaintenanceServiceCommonName:
		v.standing = unclaimed
		return nil
	case v.keys.none():
		return v.reject(cluster.ReachUnknown, "it has a config already, and there are no keys to ask it with", nil)
	case v.signed(leaf) && isForOthers(err) && describeAddresses(leaf) != "":
		return v.reject(cluster.ReachUnknown, fmt.Sprintf("%s of this cluster answers there: its certificate is for %s, not for %s", nodeIn(leaf), describeAddresses(leaf), v.address), nil)
	case v.signed(leaf):
		// Ours by its signature, and still not to be trusted.
		return v.reject(cluster.ReachUnknown, "its certificate is signed by this cluster's authority, but not to be trusted", dropTimes(leaf, err))
	case v.namesake(leaf):
		return v.reject(cluster.Unexpected, "it belongs to another Talos cluster", errOtherSigner)
	default:
		return v.reject(cluster.Unexpected, "its certificate is neither this cluster's nor that of a Talos machine in maintenance mode", nil)
	}
}

// errOtherSigner: it may be a machine of ours, whose authority somebody has rotated.
var errOtherSigner = errors.New("its certificate is signed by another authority")

// isForOthers reports whether a certificate is good, but for other addresses.
func isForOthers(err error) bool {
	var host x509.HostnameError
	return errors.As(err, &host)
}

// nodeIn is the name of the node that a certificate of Talos' API was made for.
func nodeIn(leaf *x509.Certificate) string {
	return sanitize(cmp.Or(leaf.Subject.CommonName, strings.Join(leaf.DNSNames, ", "), "another node"))
}

// describeAddresses lists the addresses in a certificate.
func describeAddresses(leaf *x509.Certificate) string {
	var out []string
	for _, ip := range leaf.IPAddresses {
		if !ip.IsLoopback() {
			out = append(out, ip.String())
		}
	}
	return strings.Join(out, ", ")
}

// dropTimes replaces an error that contains the time, so that the same state is
// always reported in the same words.
func dropTimes(leaf *x509.Certificate, err error) error {
	var invalid x509.CertificateInvalidError
	if !errors.As(err, &invalid) || invalid.Reason != x509.Expired {
		return err
	}
	return fmt.Errorf("it is good from %s to %s only; compare the clocks of host and machine",
		leaf.NotBefore.UTC().Format(time.RFC3339), leaf.NotAfter.UTC().Format(time.RFC3339))
}

// signed reports whether a certificate carries the signature of the cluster's
// authority, whatever else is wrong with it.
func (v *vetting) signed(leaf *x509.Certificate) bool {
	for _, ca := range v.keys.authorities {
		if leaf.CheckSignatureFrom(ca) == nil {
			return true
		}
	}
	return false
}

// namesake reports whether a certificate names an authority that is called
// like ours: every Talos cluster's is.
func (v *vetting) namesake(leaf *x509.Certificate) bool {
	for _, ca := range v.keys.authorities {
		if bytes.Equal(ca.RawSubject, leaf.RawIssuer) {
			return true
		}
	}
	return false
}

func (v *vetting) reject(r cluster.Reach, why string, err error) error {
	v.verdict = &unreached{r, why, err}
	return v.verdict
}

// refused is what a handshake that failed makes of the machine.
func (v *vetting) refused(addr string, err error) error {
	var record tls.RecordHeaderError
	switch {
	case v.verdict != nil:
		return v.verdict
	case errors.As(err, &record):
		return &unreached{cluster.Unexpected, "who answers at " + addr + " does not speak TLS, so it is not Talos", nil}
	case isSilence(err):
		// Talos closes connections in the middle while it starts and stops.
		return &unreached{cluster.Silent, addr + " accepts connections and then does not answer", err}
	default:
		return &unreached{cluster.ReachUnknown, "the TLS handshake with " + addr + " fails", err}
	}
}
