package machineconfig

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	stdx509 "crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/golden"
)

// bundleMap is the test bundle as a tree, to break.
func bundleMap(t testing.TB) map[string]map[string]any {
	t.Helper()
	var m map[string]map[string]any
	if err := yaml.Unmarshal(bundle(t).Reveal(), &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func bundleFrom(t testing.TB, m any) cluster.Secret {
	t.Helper()
	b, err := yaml.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return cluster.NewSecret(b)
}

// The keys of a new bundle, in their order: what `talosctl gen secrets` writes.
func TestNewBundle(t *testing.T) {
	b, err := NewBundle("v1.13", testNow)
	if err != nil {
		t.Fatal(err)
	}
	keys := regexp.MustCompile(`(?m): .*$|^ +crt|^ +key`).ReplaceAllStringFunc(string(b), func(s string) string {
		if strings.HasPrefix(s, ":") {
			return ":"
		}
		return s
	})
	golden.Check(t, filepath.Join("testdata", "bundle-keys.txt"), []byte(keys))
	if _, err := OpenBundle(cluster.NewSecret(b), "v1.13"); err != nil {
		t.Error(err)
	}
	authorities, err := open(t, cluster.NewSecret(b)).Authorities()
	if err != nil || len(authorities) != 4 {
		t.Errorf("authorities %v, %v", authorities, err)
	}
	for _, a := range authorities {
		if years := a.NotAfter.Sub(testNow).Hours() / 24 / 365; a.NotBefore.After(testNow) || years < 9.9 || years > 10.1 || a.Name == "" {
			t.Errorf("%+v", a)
		}
	}
	s := snapshot(t, "v1.13")
	s.Bundle = cluster.NewSecret(b)
	mustRender(t, s)

	one, err1 := PlaceholderBundle("v1.13", testNow)
	two, err2 := PlaceholderBundle("v1.13", testNow)
	if err1 != nil || err2 != nil || one.RevealString() == two.RevealString() {
		t.Errorf("two placeholders are the same (%v, %v)", err1, err2)
	}
	if _, err := NewBundle("latest", testNow); err == nil {
		t.Error("a bundle for no contract was made")
	}
	if _, err := PlaceholderBundle("latest", testNow); err == nil {
		t.Error("a placeholder for no contract was made")
	}
}

func TestOpenBundle(t *testing.T) {
	anotherKey := func() string {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		der, err := stdx509.MarshalECPrivateKey(k)
		if err != nil {
			t.Fatal(err)
		}
		return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}))
	}()
	canary := base64.StdEncoding.EncodeToString([]byte("canary"))
	for name, c := range map[string]struct {
		change func(m map[string]map[string]any)
		want   string // "" : fine
	}{
		"whole":          {func(m map[string]map[string]any) {}, ""},
		"no cluster":     {func(m map[string]map[string]any) { delete(m, "cluster") }, "cluster.id is missing; cluster.secret is missing"},
		"no secrets":     {func(m map[string]map[string]any) { delete(m, "secrets") }, "secrets.bootstraptoken is missing; secrets.secretboxencryptionsecret is missing"},
		"no trustdinfo":  {func(m map[string]map[string]any) { delete(m, "trustdinfo") }, "trustdinfo.token is missing"},
		"no certs":       {func(m map[string]map[string]any) { delete(m, "certs") }, "certs.etcd is missing; certs.k8s is missing; certs.k8saggregator is missing; certs.k8sserviceaccount is missing; certs.os is missing"},
		"no os":          {func(m map[string]map[string]any) { delete(m["certs"], "os") }, "certs.os is missing"},
		"blank token":    {func(m map[string]map[string]any) { m["trustdinfo"]["token"] = " " }, "trustdinfo.token is missing"},
		"odd token":      {func(m map[string]map[string]any) { m["secrets"]["bootstraptoken"] = "canary" }, "secrets.bootstraptoken is not of the form 6 letters, a dot, 16 letters"},
		"no certificate": {func(m map[string]map[string]any) { m["certs"]["etcd"].(map[string]any)["crt"] = canary }, "certs.etcd holds no certificate that can be read"},
		"no key":         {func(m map[string]map[string]any) { m["certs"]["etcd"].(map[string]any)["key"] = canary }, "certs.etcd holds no private key that can be read"},
		"no service key": {func(m map[string]map[string]any) { m["certs"]["k8sserviceaccount"].(map[string]any)["key"] = canary }, "certs.k8sserviceaccount holds no private key that can be read"},
		"another's key":  {func(m map[string]map[string]any) { m["certs"]["k8s"].(map[string]any)["key"] = anotherKey }, "certs.k8s has a certificate and a key that do not belong together"},
		"large key": {func(m map[string]map[string]any) {
			m["certs"]["os"].(map[string]any)["key"] = base64.StdEncoding.EncodeToString(make([]byte, maxPEM+1))
		}, "certs.os is larger than 16 KiB"},
		"no base64":      {func(m map[string]map[string]any) { m["certs"]["k8s"].(map[string]any)["key"] = "canary-canary" }, "it is not of the shape that `talosctl gen secrets` writes"},
		"unknown key":    {func(m map[string]map[string]any) { m["cluster"]["canary"] = "canary" }, "it is not of the shape that `talosctl gen secrets` writes"},
		"another shape":  {func(m map[string]map[string]any) { m["canary"] = nil }, "it is not of the shape that `talosctl gen secrets` writes"},
		"old encryption": {func(m map[string]map[string]any) { m["secrets"]["aescbcencryptionsecret"] = "canary" }, "secrets.aescbcencryptionsecret is of clusters made before Talos 1.3, which are not managed"},
		"only the old one": {func(m map[string]map[string]any) {
			m["secrets"]["aescbcencryptionsecret"] = "canary"
			delete(m["secrets"], "secretboxencryptionsecret")
		}, "secrets.secretboxencryptionsecret is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			m := bundleMap(t)
			c.change(m)
			_, err := OpenBundle(bundleFrom(t, m), "v1.13")
			if c.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if err == nil || err.Error() != "secrets bundle: "+c.want {
				t.Fatalf("got %v, want %s", err, c.want)
			}
			if strings.Contains(err.Error(), "canary") || fault.HintOf(err) == "" {
				t.Errorf("%v (hint %q)", err, fault.HintOf(err))
			}
			s := snapshot(t, "v1.13")
			s.Bundle = bundleFrom(t, m)
			var r Renderer
			configs, ps := r.Render(s, testSchematic)
			if want := "inventory/dev/secrets.sops.yaml: secrets bundle: " + c.want + " (" + fault.HintOf(err) + ")"; configs != nil || ps.Error() != want {
				t.Errorf("rendering reports:\n%v\nwant:\n%s", ps, want)
			}
		})
	}
	for _, text := range []string{"", "canary", "- canary", "cluster: {id: [canary", "\x00"} {
		if _, err := OpenBundle(cluster.SecretString(text), "v1.13"); err == nil || fault.HintOf(err) == "" || strings.Contains(err.Error(), "canary") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := OpenBundle(bundle(t), "latest"); err == nil {
		t.Error("a bundle was checked for no contract")
	}
}

// open opens a bundle that is good; read takes one as it is, unchecked.
func open(t testing.TB, text cluster.Secret) *Bundle {
	t.Helper()
	b, err := OpenBundle(text, "v1.13")
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func read(t *testing.T, text cluster.Secret) *Bundle {
	t.Helper()
	parsed, err := readBundle(text)
	if err != nil {
		t.Fatal(err)
	}
	return &Bundle{text, "v1.13", parsed}
}

// TestABundleIsParsedOnce: what renders and what mints credentials share one, until
// the text or the contract is another.
func TestABundleIsParsedOnce(t *testing.T) {
	var r Renderer
	snap := cluster.Snapshot{Bundle: bundle(t), Spec: cluster.Spec{ID: "x", Versions: cluster.Versions{Contract: "v1.13"}}}
	first, err := r.OpenBundle(snap)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := r.OpenBundle(snap); err != nil || again != first {
		t.Errorf("the same bundle was parsed again (%v)", err)
	}
	snap.Bundle = bundleFrom(t, bundleMap(t)) // in another spelling
	if other, err := r.OpenBundle(snap); err != nil || other == first {
		t.Errorf("another text was not parsed (%v)", err)
	}
	snap.Bundle = cluster.Secret{}
	if _, err := r.OpenBundle(snap); err == nil {
		t.Error("no bundle was opened")
	}
}

// TestEncryptionKeys: the fingerprint is that of the key, and of nothing else.
func TestEncryptionKeys(t *testing.T) {
	want := read(t, bundle(t)).EncryptionKeys()
	if !strings.HasPrefix(want, "sha256:") {
		t.Error(want)
	}
	for what, same := range map[string]bool{"token": true, "secretboxencryptionsecret": false} {
		m := bundleMap(t)
		if what == "token" {
			m["trustdinfo"]["token"] = "abcdef.0123456789abcdef"
		} else {
			m["secrets"][what] = "other"
		}
		if got := read(t, bundleFrom(t, m)).EncryptionKeys(); (got == want) != same {
			t.Errorf("with another %s: %s, was %s", what, got, want)
		}
	}
}

func TestFingerprint(t *testing.T) {
	want, err := read(t, bundle(t)).Fingerprint()
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`^sha256:[0-9a-f]{64}$`).MatchString(want) {
		t.Errorf("fingerprint is %s", want)
	}
	// The tree is written with its keys in another order.
	if got, err := read(t, bundleFrom(t, bundleMap(t))).Fingerprint(); err != nil || got != want {
		t.Errorf("in another spelling it is %s (%v)", got, err)
	}
	for _, change := range []func(m map[string]map[string]any){
		func(m map[string]map[string]any) { m["cluster"]["id"] = "other" },
		func(m map[string]map[string]any) { m["secrets"]["secretboxencryptionsecret"] = "other" },
		func(m map[string]map[string]any) { m["secrets"]["bootstraptoken"] = "other" },
		func(m map[string]map[string]any) { m["trustdinfo"]["token"] = "other" },
		func(m map[string]map[string]any) { m["certs"]["os"] = m["certs"]["etcd"] },
	} {
		m := bundleMap(t)
		change(m)
		if got, err := read(t, bundleFrom(t, m)).Fingerprint(); err != nil || got == want {
			t.Errorf("another bundle has the same fingerprint (%v)", err)
		}
	}
	if _, err := OpenBundle(cluster.Secret{}, "v1.13"); err == nil {
		t.Error("no bundle was opened")
	}
}

// TestSealOfNotes: what authenticates notes stays as long as its authority.
func TestSealOfNotes(t *testing.T) {
	at := func(b cluster.Secret, now time.Time) cluster.Access {
		access, err := read(t, b).Credentials(now, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return access
	}
	b := bundle(t)
	one, later := at(b, testNow), at(b, testNow.Add(24*time.Hour))
	if one.Kube.Seal.IsZero() || !one.Kube.Seal.Equal(later.Kube.Seal) {
		t.Error("another one with every certificate")
	}
	if one.Kube.Seal.Equal(one.Talos.Seal) {
		t.Error("the same of another authority")
	}
}

func TestCredentials(t *testing.T) {
	ttl := 24 * time.Hour
	access, err := read(t, bundle(t)).Credentials(testNow, ttl)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		cluster.Credentials
		organization, commonName string
	}{
		"talos": {access.Talos, "os:admin", ""},
		"kube":  {access.Kube, "system:masters", "admin"},
	} {
		block, _ := pem.Decode(c.Cert.Reveal())
		crt, err := stdx509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(crt.Subject.Organization, ","); got != c.organization || crt.Subject.CommonName != c.commonName {
			t.Errorf("%s: subject is %v", name, crt.Subject)
		}
		roots := stdx509.NewCertPool()
		roots.AppendCertsFromPEM(c.CA.Reveal())
		for _, at := range []struct {
			when time.Time
			good bool
		}{{testNow, true}, {testNow.Add(-23 * time.Hour), true}, {testNow.Add(-25 * time.Hour), false}, {testNow.Add(ttl - time.Second), true}, {testNow.Add(ttl + time.Second), false}} {
			_, err := crt.Verify(stdx509.VerifyOptions{Roots: roots, CurrentTime: at.when, KeyUsages: []stdx509.ExtKeyUsage{stdx509.ExtKeyUsageClientAuth}})
			if (err == nil) != at.good {
				t.Errorf("%s at %v: %v", name, at.when.Sub(testNow), err)
			}
		}
		if _, err := crt.Verify(stdx509.VerifyOptions{Roots: roots, CurrentTime: testNow, KeyUsages: []stdx509.ExtKeyUsage{stdx509.ExtKeyUsageServerAuth}}); err == nil {
			t.Errorf("%s: the certificate serves", name)
		}
		if !c.NotAfter.Equal(testNow.Add(ttl)) || !crt.NotAfter.Equal(c.NotAfter) {
			t.Errorf("%s: valid until %v, reported as %v", name, crt.NotAfter, c.NotAfter)
		}
		if name == "talos" && crt.PublicKeyAlgorithm != stdx509.Ed25519 {
			t.Errorf("talos: the key is %v", crt.PublicKeyAlgorithm)
		}
	}
	var private ed25519.PrivateKey
	if block, _ := pem.Decode(access.Talos.Key.Reveal()); block == nil {
		t.Error("the Talos key is no PEM")
	} else if k, err := stdx509.ParsePKCS8PrivateKey(block.Bytes); err != nil {
		t.Error(err)
	} else if private, _ = k.(ed25519.PrivateKey); private == nil {
		t.Errorf("the Talos key is a %T", k)
	}
}

func TestCredentialsEndWithTheirAuthority(t *testing.T) {
	b, err := PlaceholderBundle("v1.13", testNow)
	if err != nil {
		t.Fatal(err)
	}
	access, err := read(t, b).Credentials(testNow, 100*365*24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if want := testNow.Add(87600*time.Hour - skew); !access.Talos.NotAfter.Equal(want) || !access.Kube.NotAfter.Equal(want) {
		t.Errorf("valid until %v and %v, want %v", access.Talos.NotAfter, access.Kube.NotAfter, want)
	}
	_, err = read(t, b).Credentials(testNow.AddDate(11, 0, 0), time.Hour)
	if err == nil || !strings.Contains(err.Error(), "ran out on") || fault.HintOf(err) == "" {
		t.Errorf("with an authority that ran out: %v", err)
	}
	m := bundleMap(t)
	delete(m["certs"], "k8s")
	if _, err := read(t, bundleFrom(t, m)).Credentials(testNow, time.Hour); err == nil {
		t.Error("credentials without an authority")
	}
	if _, err := OpenBundle(cluster.Secret{}, "v1.13"); err == nil || fault.HintOf(err) == "" {
		t.Errorf("credentials without a bundle: %v", err)
	}
}

func FuzzBundle(f *testing.F) {
	f.Add(bundle(f).Reveal())
	f.Add([]byte("cluster: {id: x}"))
	f.Add([]byte("certs: {os: {crt: AAAA, key: AAAA}}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		opened, err := OpenBundle(cluster.NewSecret(b), "v1.13")
		if err != nil && fault.HintOf(err) == "" {
			t.Errorf("no hint: %v", err)
		}
		if err != nil {
			return
		}
		if _, err := opened.Fingerprint(); err != nil {
			t.Errorf("a good bundle has no fingerprint: %v", err)
		}
	})
}
