package secrets

import (
	"bytes"
	"crypto/ed25519"
	"encoding/pem"
	"errors"
	"io"
	"strings"
	"testing"

	"filippo.io/age"
	"golang.org/x/crypto/ssh"
)

// keyPairs are private keys of each kind, and their public halves.
func keyPairs(t *testing.T) map[string]string {
	t.Helper()
	plain, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	hybrid, err := age.GenerateHybridIdentity()
	if err != nil {
		t.Fatal(err)
	}
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	key, err := ssh.NewPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]string{
		plain.Recipient().String():                               plain.String(),
		hybrid.Recipient().String():                              hybrid.String(),
		strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key))): string(pem.EncodeToMemory(block)),
	}
}

// TestFilesOfAge: what is encrypted to a recipient its key opens, and another does not.
func TestFilesOfAge(t *testing.T) {
	pairs := keyPairs(t)
	for public, private := range pairs {
		to, err := ParseRecipient(public + map[bool]string{true: " root@pve1", false: "\n"}[strings.HasPrefix(public, "ssh-")])
		if err != nil {
			t.Fatal(err)
		}
		if to.String() != public {
			t.Errorf("%s is written as %s", public, to)
		}
		var file bytes.Buffer
		w, err := age.Encrypt(&file, to)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, "content"); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		for other, key := range pairs {
			ids, err := ParseIdentities([]byte(key))
			if err != nil {
				t.Fatal(err)
			}
			r, err := age.Decrypt(bytes.NewReader(file.Bytes()), ids)
			if other != public {
				if !errors.Is(err, age.ErrIncorrectIdentity) {
					t.Errorf("a file for %s, with the key of %s: %v", public, other, err)
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if b, err := io.ReadAll(r); err != nil || string(b) != "content" {
				t.Errorf("%s: %q, %v", public, b, err)
			}
			if private != key || ids.Recipients()[0] != public {
				t.Errorf("the key of %s is of %v", public, ids.Recipients())
			}
		}
	}
}

// TestRecipientsThatDoNotMix: a post-quantum key protects nothing beside one that is not.
func TestRecipientsThatDoNotMix(t *testing.T) {
	var all []age.Recipient
	for public := range keyPairs(t) {
		r, err := ParseRecipient(public)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	if _, err := age.Encrypt(io.Discard, all...); err == nil {
		t.Error("they do")
	}
}

func TestNoRecipients(t *testing.T) {
	for _, s := range []string{"", "age1", "AGE-SECRET-KEY-1", "ssh-dss AAAA", "age1yubikey1qwt50d05nh5vutpdzmlg5wn80xq5negm4uj9ghv0snvdd3yysf5yw3rhl3t"} {
		if _, err := ParseRecipient(s); !errors.Is(err, ErrKeys) {
			t.Errorf("%q: %v", s, err)
		}
	}
}
