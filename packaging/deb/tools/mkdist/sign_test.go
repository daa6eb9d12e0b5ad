package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
)

// newKey writes a new private key into a file, encrypted if there is a passphrase.
func newKey(t *testing.T, created time.Time, passphrase string) string {
	t.Helper()
	config := &packet.Config{Time: func() time.Time { return created }, Algorithm: packet.PubKeyAlgoEdDSA}
	e, err := openpgp.NewEntity("talos-agent", "test", "talos-agent@example.org", config)
	if err != nil {
		t.Fatal(err)
	}
	if passphrase != "" {
		if err := e.EncryptPrivateKeys([]byte(passphrase), config); err != nil {
			t.Fatal(err)
		}
	}
	var b bytes.Buffer
	w, err := armor.Encode(&b, openpgp.PrivateKeyType, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(e.SerializePrivateWithoutSigning(w, config), w.Close()); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "key.asc")
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func newSigner(t *testing.T) *signer {
	t.Helper()
	s, err := openSigner(newKey(t, day.AddDate(-1, 0, 0), ""), "", day)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// checkSums runs the commands of the documentation that verify a download.
func checkSums(t *testing.T, dir string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-ec", docsBlock(t, "install.md", "TestSums"))
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GNUPGHOME="+t.TempDir(), "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestSums: the list of a release is what sha256sum takes, and its signature what
// gpgv takes; a file that is not as listed and a list that is not as signed are
// refused.
func TestSums(t *testing.T) {
	if _, err := exec.LookPath("gpgv"); err != nil {
		t.Skip("there is no gpgv")
	}
	const name = "talos-agent_1.2.3-1_amd64.deb"
	for change, what := range map[string]string{"": "", name: name + ": FAILED", sumsFile: "BAD signature"} {
		out := t.TempDir()
		s := newSigner(t)
		public, err := s.public()
		if err != nil {
			t.Fatal(err)
		}
		err = errors.Join(os.WriteFile(filepath.Join(out, keyFile), public, 0o600), os.WriteFile(filepath.Join(out, name), []byte("package"), 0o600),
			writeSums(out), s.signFile(filepath.Join(out, sumsFile), filepath.Join(out, sumsFile+".asc")))
		if err != nil {
			t.Fatal(err)
		}
		if change != "" {
			if err := os.WriteFile(filepath.Join(out, change), append(readFile(t, out, change), '\n'), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		printed, err := checkSums(t, out)
		switch {
		case change == "" && (err != nil || !strings.Contains(printed, name+": OK")):
			t.Errorf("%v: %s", err, printed)
		case change != "" && (err == nil || !strings.Contains(printed, what)):
			t.Errorf("with another %s: %v: %s", change, err, printed)
		}
	}
}

// TestSignaturesAreReproducible: whenever they are made, and with whatever key.
func TestSignaturesAreReproducible(t *testing.T) {
	s := newSigner(t)
	for name, sign := range map[string]func([]byte) ([]byte, error){"detached": s.signDetached, "inline": s.signInline} {
		a, err := sign([]byte("message\n"))
		if err != nil {
			t.Fatal(err)
		}
		if b, err := sign([]byte("message\n")); err != nil || !bytes.Equal(a, b) {
			t.Errorf("%s: another signature the second time, %v", name, err)
		}
	}
}

// TestKeys: a key may have a passphrase, and may be newer than the commit.
func TestKeys(t *testing.T) {
	encrypted := newKey(t, day.AddDate(-1, 0, 0), "open sesame")
	if _, err := openSigner(encrypted, "open sesame", day); err != nil {
		t.Error(err)
	}
	for _, passphrase := range []string{"", "open"} {
		if _, err := openSigner(encrypted, passphrase, day); err == nil || !strings.Contains(err.Error(), "$DIST_KEY_PASSPHRASE") {
			t.Errorf("with passphrase %q: %v", passphrase, err)
		}
	}
	newer := day.AddDate(0, 1, 0)
	s, err := openSigner(newKey(t, newer, ""), "", day)
	if err != nil {
		t.Fatal(err)
	}
	if !s.config.Now().Equal(newer) {
		t.Errorf("it signs on %s, and is of %s", s.config.Now(), newer)
	}
	public, err := newSigner(t).public()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "public.asc")
	if err := os.WriteFile(path, public, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openSigner(path, "", day); err == nil || !strings.Contains(err.Error(), "one private key is required") {
		t.Errorf("a public key: %v", err)
	}
}
