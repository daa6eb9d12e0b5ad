package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/ProtonMail/go-crypto/openpgp/clearsign"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
)

// signer signs with an OpenPGP key. Signatures with RSA and Ed25519 are the same
// whenever they are made: they have no salt, and bear the date of the commit.
type signer struct {
	entity *openpgp.Entity
	config *packet.Config
}

// openSigner reads an armored private key.
func openSigner(path, passphrase string, date time.Time) (*signer, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	keys, err := openpgp.ReadArmoredKeyRing(f)
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("read key %s: %w", path, err)
	}
	if len(keys) != 1 || keys[0].PrivateKey == nil {
		return nil, fmt.Errorf("key %s: one private key is required, as gpg --armor --export-secret-keys writes it", path)
	}
	e := keys[0]
	// A signature that is older than its key is refused.
	date = latest(date, e.PrimaryKey.CreationTime)
	for _, sub := range e.Subkeys {
		date = latest(date, sub.PublicKey.CreationTime)
	}
	salted := false
	config := &packet.Config{Time: func() time.Time { return date }, NonDeterministicSignaturesViaNotation: &salted}
	signing, ok := e.SigningKey(date)
	if !ok {
		return nil, fmt.Errorf("key %s: nothing of it may sign on %s", path, date.Format(time.DateOnly))
	}
	if signing.PrivateKey == nil {
		return nil, fmt.Errorf("key %s: the private part that signs is missing", path)
	}
	if signing.PrivateKey.Encrypted {
		if err := signing.PrivateKey.Decrypt([]byte(passphrase)); err != nil {
			return nil, fmt.Errorf("key %s: decrypt it with the passphrase in $%s: %w", path, passphraseVariable, err)
		}
	}
	return &signer{entity: e, config: config}, nil
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// signDetached is an armored signature of a message.
func (s *signer) signDetached(message []byte) ([]byte, error) {
	var b bytes.Buffer
	if err := openpgp.ArmoredDetachSign(&b, s.entity, bytes.NewReader(message), s.config); err != nil {
		return nil, err
	}
	b.WriteByte('\n')
	return b.Bytes(), nil
}

// signInline is a message with its signature around it.
func (s *signer) signInline(message []byte) ([]byte, error) {
	key, ok := s.entity.SigningKey(s.config.Now())
	if !ok {
		return nil, errors.New("the key may not sign")
	}
	var b bytes.Buffer
	w, err := clearsign.Encode(&b, key.PrivateKey, s.config)
	if err != nil {
		return nil, err
	}
	_, err = w.Write(message)
	if err := errors.Join(err, w.Close()); err != nil {
		return nil, err
	}
	b.WriteByte('\n')
	return b.Bytes(), nil
}

// signFile writes an armored signature of a file.
func (s *signer) signFile(path, to string) error {
	message, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	signature, err := s.signDetached(message)
	if err != nil {
		return err
	}
	return os.WriteFile(to, signature, 0o644)
}

// public is the armored public key.
func (s *signer) public() ([]byte, error) {
	var b bytes.Buffer
	w, err := armor.Encode(&b, openpgp.PublicKeyType, nil)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(s.entity.Serialize(w), w.Close()); err != nil {
		return nil, err
	}
	b.WriteByte('\n')
	return b.Bytes(), nil
}
