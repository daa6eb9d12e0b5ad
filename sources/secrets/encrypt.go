package secrets

import (
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/getsops/sops/v3"
	"github.com/getsops/sops/v3/aes"
	sopsage "github.com/getsops/sops/v3/age"
)

// sopsVersion is written into new documents, as sops does: the version of the
// library.
const sopsVersion = "3.13.3"

// Encrypt makes a SOPS document of a YAML mapping, readable with the private
// half of any one of the recipients and with every sops from 3.7 on. Every
// value is encrypted, comments too; keys stay readable.
//
// Errors are *Error of kind ErrKeys for the recipients, and ErrMalformed or
// ErrUnsupported for the document.
func Encrypt(plain []byte, recipients []string) ([]byte, error) {
	if len(recipients) == 0 {
		return nil, newError(ErrKeys, recipientsHint, "there are no recipients to encrypt to")
	}
	for _, r := range recipients {
		if bad := checkRecipient(r); bad != nil {
			return nil, bad
		}
	}
	root, bad := parseDocument(plain)
	if bad != nil {
		return nil, bad
	}
	if findMetadata(root) != nil {
		return nil, newError(ErrUnsupported, "", "the document has a key %q: it is encrypted already", metadataKey)
	}
	branches, err := newStore().LoadPlainFile(plain)
	if err != nil {
		return nil, newError(ErrMalformed, "", "the document cannot be read as YAML")
	}
	key := make([]byte, dataKeySize)
	if _, err := rand.Read(key); err != nil {
		return nil, fmt.Errorf("make data key: %w", err)
	}
	var group sops.KeyGroup
	for _, r := range slices.Compact(slices.Sorted(slices.Values(recipients))) {
		mk := &sopsage.MasterKey{Recipient: r}
		if err := mk.Encrypt(key); err != nil {
			return nil, newError(ErrKeys, "", "encrypt data key to %s: %v", formatRecipient(r), err)
		}
		group = append(group, mk)
	}
	tree := sops.Tree{Branches: branches, Metadata: sops.Metadata{
		KeyGroups:         []sops.KeyGroup{group},
		UnencryptedSuffix: sops.DefaultUnencryptedSuffix,
		Version:           sopsVersion,
		LastModified:      time.Now().UTC(),
	}}
	cipher := aes.NewCipher()
	mac, err := tree.Encrypt(key, cipher)
	if err != nil {
		return nil, newError(ErrMalformed, "", "a value cannot be encrypted")
	}
	m := &tree.Metadata
	if m.MessageAuthenticationCode, err = cipher.Encrypt(mac, key, m.LastModified.Format(time.RFC3339)); err != nil {
		return nil, fmt.Errorf("encrypt authentication code: %w", err)
	}
	out, err := newStore().EmitEncryptedFile(tree)
	if err != nil {
		return nil, fmt.Errorf("write encrypted document: %w", err)
	}
	return out, checkMade(out)
}

// checkMade looks at a new document the way Decrypt will. sops leaves keys
// that end in _unencrypted in clear.
func checkMade(out []byte) error {
	root, bad := parseDocument(out)
	if bad == nil {
		bad = checkEncrypted(root)
	}
	if bad == nil {
		return nil
	}
	if strings.Contains(bad.fault.Op, sops.DefaultUnencryptedSuffix) {
		bad.fault.Hint = "rename the key: sops leaves keys that end in " + sops.DefaultUnencryptedSuffix + " in clear"
	}
	return bad
}
