package secrets

import (
	"strings"

	"filippo.io/age"
	"filippo.io/age/agessh"
)

// Recipient is a public key that files of age are encrypted to.
type Recipient struct {
	key    age.Recipient
	public string
}

// ParseRecipient reads age1..., age1pq1..., or an ssh public key of type ed25519 or rsa,
// whose comment is dropped. The error is an *Error of kind ErrKeys.
func ParseRecipient(s string) (Recipient, error) {
	s = strings.TrimSpace(s)
	if bad := checkRecipient(s); bad != nil {
		return Recipient{}, bad
	}
	r := Recipient{public: withoutSSHComment(s)}
	var err error
	switch {
	case strings.HasPrefix(s, "age1pq1"):
		r.key, err = age.ParseHybridRecipient(s)
	case strings.HasPrefix(s, "age1"):
		r.key, err = age.ParseX25519Recipient(s)
	default:
		r.key, err = agessh.ParseRecipient(s)
	}
	return r, err
}

// String is how the key is written.
func (r Recipient) String() string { return r.public }

// Wrap implements age.Recipient.
func (r Recipient) Wrap(fileKey []byte) ([]*age.Stanza, error) { return r.key.Wrap(fileKey) }

// WrapWithLabels implements age.RecipientWithLabels: a post-quantum key beside another
// kind is refused, which would open the file to who can break that.
func (r Recipient) WrapWithLabels(fileKey []byte) ([]*age.Stanza, []string, error) {
	if labelled, ok := r.key.(age.RecipientWithLabels); ok {
		return labelled.WrapWithLabels(fileKey)
	}
	stanzas, err := r.key.Wrap(fileKey)
	return stanzas, nil, err
}
