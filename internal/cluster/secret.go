package cluster

import (
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/pattern"
)

// Redacted is what a Secret prints as, whatever the verb, encoder or handler.
const Redacted = "[redacted]"

// ShortestFound is the length from which on a secret is looked for inside of texts: a
// shorter one stands in half of all words.
const ShortestFound = 4

// Secret carries bytes that must never reach a log, a status, an error or a
// file by accident. The only way to the bytes is Reveal, so that a reader of
// the code can find every place where a secret leaves its wrapping.
//
// The zero Secret is empty. A Secret is immutable once made: NewSecret copies.
type Secret struct{ b []byte }

// NewSecret wraps a copy of b.
func NewSecret(b []byte) Secret { return Secret{b: append([]byte(nil), b...)} }

// SecretString wraps s.
func SecretString(s string) Secret { return Secret{b: []byte(s)} }

// Reveal returns a copy of the wrapped bytes.
func (s Secret) Reveal() []byte { return append([]byte(nil), s.b...) }

// RevealString returns the wrapped bytes as a string.
func (s Secret) RevealString() string { return string(s.b) }

// Equal reports whether both wrap the same bytes.
func (s Secret) Equal(o Secret) bool { return subtle.ConstantTimeCompare(s.b, o.b) == 1 }

// IsZero reports whether nothing is wrapped.
func (s Secret) IsZero() bool { return len(s.b) == 0 }

// String implements fmt.Stringer without revealing anything, not even a length.
func (s Secret) String() string { return Redacted }

// GoString implements fmt.GoStringer for %#v.
func (s Secret) GoString() string { return Redacted }

// Format implements fmt.Formatter, so that %x, %q and %d on a Secret, or on a
// struct that holds one, reveal nothing either.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(Redacted)) }

// LogValue implements slog.LogValuer.
func (s Secret) LogValue() slog.Value { return slog.StringValue(Redacted) }

// MarshalText implements encoding.TextMarshaler, and with it JSON and YAML
// encoders and map keys.
func (s Secret) MarshalText() ([]byte, error) { return []byte(Redacted), nil }

// MarshalJSON implements json.Marshaler.
func (s Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + Redacted + `"`), nil }

// MarshalBinary refuses, so that gob and friends cannot carry a secret away.
func (s Secret) MarshalBinary() ([]byte, error) {
	return nil, errors.New("a secret cannot be encoded")
}

// Access opens a cluster: client certificates minted in memory from the
// secrets bundle. It is empty when there is no bundle.
type Access struct {
	Talos Credentials
	Kube  Credentials
}

// Credentials is a client certificate and the authority that signed the
// server's, all PEM.
type Credentials struct {
	CA, Cert, Key Secret
	NotAfter      time.Time
	// Seal authenticates what the agent notes in the system itself. Only who has the key
	// of the authority can make it, and it stays as long as the authority.
	Seal Secret
}

// TokenID names an API token of Proxmox VE, user@realm!name: whose it is, and
// which of the user's it is. It is no secret.
type TokenID string

// NewTokenID names a token of a user.
func NewTokenID(user, name string) TokenID { return TokenID(user + "!" + name) }

// User is the user a token belongs to, user@realm.
func (t TokenID) User() string {
	user, _, _ := strings.Cut(string(t), "!")
	return user
}

// Name is a token's name among those of its user.
func (t TokenID) Name() string {
	_, name, _ := strings.Cut(string(t), "!")
	return name
}

// Token is an API token of Proxmox VE.
type Token struct {
	ID     TokenID
	Secret Secret
}

// tokenForm is what pveum prints, and what the API takes.
var tokenForm = pattern.New(`^[^\s:/@!=]+@[A-Za-z][A-Za-z0-9._-]+![A-Za-z][A-Za-z0-9._-]*=[!-~]+$`)

// ParseToken reads the line by which a token is stored and sent,
// user@realm!name=secret. It reports whether the line has that form.
func ParseToken(line Secret) (Token, bool) {
	if !tokenForm.Match(line.b) {
		return Token{}, false
	}
	id, secret, _ := strings.Cut(string(line.b), "=")
	return Token{ID: TokenID(id), Secret: SecretString(secret)}, true
}

// Line is the line that ParseToken reads.
func (t Token) Line() Secret { return SecretString(string(t.ID) + "=" + t.Secret.RevealString()) }
