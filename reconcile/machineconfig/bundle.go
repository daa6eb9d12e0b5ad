package machineconfig

import (
	"bytes"
	"crypto"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"go.yaml.in/yaml/v4"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
)

// skew is how far certificates are backdated: the clock of a fresh VM may run
// behind the host's until it has found a time server, and the host's own may be
// hours ahead until it has (a hardware clock in local time).
const skew = 24 * time.Hour

// NewBundle makes the secrets bundle of a new cluster, as YAML in the shape of
// `talosctl gen secrets`, keys in the same order. The authorities in it are
// valid for ten years from now, less the day by which everything is backdated. It takes half a second, most of it for one RSA key.
func NewBundle(contract string, now time.Time) ([]byte, error) {
	c, err := config.ParseContractFromVersion(contract)
	if err != nil {
		return nil, fmt.Errorf("make secrets bundle: %w", err)
	}
	return newBundle(c, now)
}

// PlaceholderBundle makes a bundle to try a configuration with while the real
// one cannot be read, in about a millisecond. Its keys are random and belong to
// no cluster: what is rendered with it must never reach a machine.
func PlaceholderBundle(contract string, now time.Time) (cluster.Secret, error) {
	c, err := config.ParseContractFromVersion(contract)
	if err != nil {
		return cluster.Secret{}, fmt.Errorf("make placeholder for the secrets bundle: %w", err)
	}
	b, err := newBundle(c, now, secrets.WithECDSAServiceAccountKey())
	if err != nil {
		return cluster.Secret{}, err
	}
	return cluster.NewSecret(b), nil
}

func newBundle(c *config.VersionContract, now time.Time, opts ...secrets.Option) ([]byte, error) {
	b, err := secrets.NewBundle(secrets.NewFixedClock(now.Add(-skew)), c, opts...)
	if err != nil {
		return nil, fmt.Errorf("make secrets bundle: %w", err)
	}
	out, err := yaml.Marshal(b)
	if err != nil {
		return nil, fmt.Errorf("encode secrets bundle: %w", err)
	}
	return out, nil
}

// Bundle is a secrets bundle that was parsed and checked, once for everything
// that is made from it. It is as secret as its text.
type Bundle struct {
	text     cluster.Secret
	contract string
	parsed   *secrets.Bundle
}

// OpenBundle parses a secrets bundle and checks that it is complete and whole:
// every key is there, every certificate can be read and belongs to its private
// key. The error names each key that is missing or broken, as it is written in
// the file, and nothing of its content. The contract is the cluster's.
func OpenBundle(text cluster.Secret, contract string) (*Bundle, error) {
	parsed, err := readBundle(text)
	if err != nil {
		return nil, err
	}
	c, err := config.ParseContractFromVersion(contract)
	if err != nil {
		return nil, fmt.Errorf("check secrets bundle: %w", err)
	}
	if err := checkBundle(parsed, c); err != nil {
		return nil, err
	}
	return &Bundle{text, contract, parsed}, nil
}

// isOf reports whether the bundle was opened from this text for this contract.
func (b *Bundle) isOf(text cluster.Secret, contract string) bool {
	return b != nil && b.contract == contract && b.text.Equal(text)
}

func checkBundle(b *secrets.Bundle, c *config.VersionContract) error {
	var bad []string
	text := func(key, value string) {
		if strings.TrimSpace(value) == "" {
			bad = append(bad, key+" is missing")
		}
	}
	pair := func(key string, p *x509.PEMEncodedCertificateAndKey) {
		if p == nil || len(p.Crt) == 0 || len(p.Key) == 0 {
			bad = append(bad, key+" is missing")
		} else if what := checkAuthority(p); what != "" {
			bad = append(bad, key+" "+what)
		}
	}
	text("cluster.id", b.Cluster.ID)
	text("cluster.secret", b.Cluster.Secret)
	text("secrets.bootstraptoken", b.Secrets.BootstrapToken)
	if id, secret, ok := strings.Cut(b.Secrets.BootstrapToken, "."); b.Secrets.BootstrapToken != "" && (!ok || len(id) != 6 || len(secret) != 16) {
		bad = append(bad, "secrets.bootstraptoken is not of the form 6 letters, a dot, 16 letters")
	}
	text("secrets.secretboxencryptionsecret", b.Secrets.SecretboxEncryptionSecret)
	text("trustdinfo.token", b.TrustdInfo.Token)
	pair("certs.etcd", b.Certs.Etcd)
	pair("certs.k8s", b.Certs.K8s)
	pair("certs.k8saggregator", b.Certs.K8sAggregator)
	if sa := b.Certs.K8sServiceAccount; sa == nil || len(sa.Key) == 0 {
		bad = append(bad, "certs.k8sserviceaccount is missing")
	} else if _, err := sa.GetKey(); err != nil {
		bad = append(bad, "certs.k8sserviceaccount holds no private key that can be read")
	}
	pair("certs.os", b.Certs.OS)

	switch {
	case len(bad) > 0:
		return &fault.Error{Op: "secrets bundle: " + strings.Join(bad, "; "),
			Hint: "bring along the whole file that `talosctl gen secrets` wrote, or the one this cluster was made with"}
	case b.Secrets.AESCBCEncryptionSecret != "":
		// The generator writes an AES-CBC key wrongly from contract 1.14 on and
		// not at all before it, which would make the secrets in etcd unreadable.
		return &fault.Error{Op: "secrets bundle: secrets.aescbcencryptionsecret is of clusters made before Talos 1.3, which are not managed",
			Hint: "move the cluster's etcd encryption to secretbox first"}
	}
	// Whatever a later version of the library asks for besides. Its words may
	// hold what it found, so they stay here.
	if b.Validate(c) != nil {
		return &fault.Error{Op: "secrets bundle: it does not fit contract " + c.String(), Hint: "compare it with a fresh `talosctl gen secrets`"}
	}
	return nil
}

// checkAuthority reports what is wrong with a certificate and its key, in words
// that reveal neither, or "".
func checkAuthority(p *x509.PEMEncodedCertificateAndKey) string {
	if len(p.Crt) > maxPEM || len(p.Key) > maxPEM {
		return "is larger than 16 KiB"
	}
	crt, err := p.GetCert()
	if err != nil {
		return "holds no certificate that can be read"
	}
	key, err := p.GetKey()
	if err != nil {
		return "holds no private key that can be read"
	}
	if !crt.IsCA {
		return "is not the certificate of an authority"
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return "holds no private key that can sign"
	}
	public, ok := signer.Public().(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !public.Equal(crt.PublicKey) {
		return "has a certificate and a key that do not belong together"
	}
	return ""
}

// maxPEM bounds a certificate and a key, in bytes: an RSA key of 4,096 bits has 3,300, and the
// time it takes to sign grows with the cube of its size.
const maxPEM = 16 << 10

// Fingerprint identifies a secrets bundle without revealing anything of it: two
// files with the same content, however written, have the same fingerprint, and
// any other key, token or certificate has another. A bundle that was in use
// once must never be replaced, so this is what the agent remembers of it.
func (b *Bundle) Fingerprint() (string, error) {
	canonical, err := yaml.Marshal(b.parsed)
	if err != nil {
		return "", fmt.Errorf("encode secrets bundle: %w", err)
	}
	sum := sha256.Sum256(append([]byte("talos-agent secrets bundle\n"), canonical...))
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}

// ClusterID is the id that Talos has for the cluster.
func (b *Bundle) ClusterID() string { return b.parsed.Cluster.ID }

// EncryptionKeys identifies the key that Kubernetes encrypts Secrets with in etcd, without
// revealing anything of it: with another one the Secrets of a snapshot of etcd cannot be read.
// It is the key's whatever else the bundle has.
func (b *Bundle) EncryptionKeys() string {
	sum := sha256.Sum256([]byte("talos-agent encryption keys\nsecretbox " + b.parsed.Secrets.SecretboxEncryptionSecret))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Authorities returns how long the authorities of the bundle are valid.
func (b *Bundle) Authorities() ([]cluster.Certificate, error) {
	certs := b.parsed.Certs
	var out []cluster.Certificate
	for _, a := range []struct {
		name string
		pair *x509.PEMEncodedCertificateAndKey
	}{
		{"talos ca", certs.OS}, {"kubernetes ca", certs.K8s}, {"kubernetes aggregator ca", certs.K8sAggregator}, {"etcd ca", certs.Etcd},
	} {
		if a.pair == nil {
			return nil, fmt.Errorf("secrets bundle: there is no %s", a.name)
		}
		crt, err := a.pair.GetCert()
		if err != nil {
			return nil, fmt.Errorf("secrets bundle: the %s cannot be read", a.name)
		}
		out = append(out, cluster.Certificate{Name: a.name, NotBefore: crt.NotBefore, NotAfter: crt.NotAfter})
	}
	return out, nil
}

// readBundle decodes a bundle. All its sections are there afterwards, though
// perhaps empty. Its errors never carry the decoder's words, which quote what
// they stumble over.
func readBundle(bundle cluster.Secret) (*secrets.Bundle, error) {
	if bundle.IsZero() {
		return nil, &fault.Error{Op: "secrets bundle: there is none", Hint: "make one with `talos-agent secrets new`"}
	}
	b := &secrets.Bundle{Clock: secrets.NewClock()}
	dec := yaml.NewDecoder(bytes.NewReader(bundle.Reveal()))
	dec.KnownFields(true)
	if err := dec.Decode(b); err != nil {
		return nil, &fault.Error{Op: "secrets bundle: it is not of the shape that `talosctl gen secrets` writes",
			Hint: "it has the sections cluster, secrets, trustdinfo and certs, with certificates and keys in base64, and nothing else"}
	}
	if b.Cluster == nil {
		b.Cluster = &secrets.Cluster{}
	}
	if b.Secrets == nil {
		b.Secrets = &secrets.Secrets{}
	}
	if b.TrustdInfo == nil {
		b.TrustdInfo = &secrets.TrustdInfo{}
	}
	if b.Certs == nil {
		b.Certs = &secrets.Certs{}
	}
	return b, nil
}
