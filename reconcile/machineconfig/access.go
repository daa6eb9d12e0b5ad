package machineconfig

import (
	"crypto/hmac"
	"crypto/sha256"
	stdx509 "crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	"github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"go.yaml.in/yaml/v4"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
)

// Credentials mints what opens a cluster: a client
// certificate for the Talos API with the role os:admin, and one for Kubernetes
// in the group system:masters, which no RBAC rule can lock out. Both are valid
// from a day before now until ttl after it, but never longer than the
// authority that signed them.
//
// The error carries a hint when an authority has run out.
func (b *Bundle) Credentials(now time.Time, ttl time.Duration) (cluster.Access, error) {
	var access cluster.Access
	var err error
	if access.Talos, err = mintCredentials(b.parsed.Certs.OS, now, ttl, x509.Organization(string(role.Admin))); err != nil {
		return cluster.Access{}, fmt.Errorf("mint Talos client certificate: %w", err)
	}
	access.Kube, err = mintCredentials(b.parsed.Certs.K8s, now, ttl,
		x509.Organization(constants.KubernetesAdminCertOrganization), x509.CommonName(constants.KubernetesAdminCertCommonName))
	if err != nil {
		return cluster.Access{}, fmt.Errorf("mint Kubernetes client certificate: %w", err)
	}
	return access, nil
}

func mintCredentials(authority *x509.PEMEncodedCertificateAndKey, now time.Time, ttl time.Duration, who ...x509.Option) (cluster.Credentials, error) {
	if authority == nil {
		return cluster.Credentials{}, errors.New("the secrets bundle has no authority for it")
	}
	ca, err := x509.NewCertificateAuthorityFromCertificateAndKey(authority)
	if err != nil {
		return cluster.Credentials{}, errors.New("the authority's certificate and key cannot be read")
	}
	until := now.Add(ttl)
	if until.After(ca.Crt.NotAfter) {
		until = ca.Crt.NotAfter
	}
	if !until.After(now) {
		return cluster.Credentials{}, &fault.Error{Op: "the authority ran out on " + ca.Crt.NotAfter.UTC().Format(time.DateOnly),
			Hint: "check the host's clock; an authority lives for ten years and must be rotated (talosctl rotate-ca) before they are over"}
	}
	pair, err := x509.NewKeyPair(ca, append([]x509.Option{
		x509.NotBefore(now.Add(-skew)),
		x509.NotAfter(until),
		x509.KeyUsage(stdx509.KeyUsageDigitalSignature),
		x509.ExtKeyUsage([]stdx509.ExtKeyUsage{stdx509.ExtKeyUsageClientAuth}),
	}, who...)...)
	if err != nil {
		return cluster.Credentials{}, fmt.Errorf("sign: %w", err)
	}
	return cluster.Credentials{
		CA:       cluster.NewSecret(authority.Crt),
		Cert:     cluster.NewSecret(pair.CrtPEM),
		Key:      cluster.NewSecret(pair.KeyPEM),
		NotAfter: until,
		Seal:     makeSeal(authority.Key),
	}, nil
}

// makeSeal derives the key of notes from that of an authority, which no worker has.
func makeSeal(authority []byte) cluster.Secret {
	h := hmac.New(sha256.New, authority)
	h.Write([]byte("talos-agent: notes, 1"))
	return cluster.NewSecret(h.Sum(nil))
}

// Talosconfig writes the file that lets a person use talosctl. Its endpoints
// are the control planes' own addresses: the virtual IP depends on etcd, so it
// is away when talosctl is needed most.
func Talosconfig(spec cluster.Spec, access cluster.Access) ([]byte, error) {
	type talosContext struct {
		Endpoints []string `yaml:"endpoints"`
		CA        string   `yaml:"ca"`
		Cert      string   `yaml:"crt"`
		Key       string   `yaml:"key"`
	}
	c := talosContext{CA: base64Of(access.Talos.CA), Cert: base64Of(access.Talos.Cert), Key: base64Of(access.Talos.Key)}
	for _, n := range spec.ControlPlanes() {
		c.Endpoints = append(c.Endpoints, n.IP.String())
	}
	return encodeFile("talosconfig", struct {
		Context  string                  `yaml:"context"`
		Contexts map[string]talosContext `yaml:"contexts"`
	}{spec.Name, map[string]talosContext{spec.Name: c}})
}

// Kubeconfig writes the file that lets a person use kubectl against a server,
// https://host:port of the Kubernetes API.
func Kubeconfig(spec cluster.Spec, access cluster.Access, server string) ([]byte, error) {
	user := constants.KubernetesAdminCertCommonName + "@" + spec.Name
	k := access.Kube
	return encodeFile("kubeconfig", map[string]any{
		"apiVersion": "v1",
		"kind":       "Config",
		"clusters": []any{map[string]any{"name": spec.Name, "cluster": map[string]any{
			"server": server, "certificate-authority-data": base64Of(k.CA)}}},
		"users": []any{map[string]any{"name": user, "user": map[string]any{
			"client-certificate-data": base64Of(k.Cert), "client-key-data": base64Of(k.Key)}}},
		"contexts": []any{map[string]any{"name": user, "context": map[string]any{
			"cluster": spec.Name, "user": user, "namespace": "default"}}},
		"current-context": user,
	})
}

func base64Of(s cluster.Secret) string { return base64.StdEncoding.EncodeToString(s.Reveal()) }

func encodeFile(what string, v any) ([]byte, error) {
	b, err := yaml.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", what, err)
	}
	return b, nil
}
