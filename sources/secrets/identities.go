package secrets

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"filippo.io/age"
	"filippo.io/age/agessh"
	"golang.org/x/crypto/ssh"
)

// maxKeys bounds what is read as identities, in bytes.
const maxKeys = 64 << 10

// Identities are private keys that open documents, and who else is asked to. However
// they are printed or encoded, nothing of them shows.
type Identities struct {
	ids     []age.Identity
	public  []string
	transit Transit // nil: none
}

const redacted = "[redacted]"

// Format implements fmt.Formatter for every verb, and for structs that hold
// Identities.
func (Identities) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(redacted)) }

// LogValue implements slog.LogValuer.
func (Identities) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText implements encoding.TextMarshaler.
func (Identities) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// MarshalJSON implements json.Marshaler.
func (Identities) MarshalJSON() ([]byte, error) { return json.Marshal(redacted) }

// Recipients gives the public halves, which may be printed, in the order of
// the identities: age1..., age1pq1..., or an ssh public key without comment.
func (ids *Identities) Recipients() []string { return append([]string(nil), ids.public...) }

const keysHint = "give the file that age-keygen wrote, or an ssh private key (ed25519 or rsa) without passphrase"

// ParseIdentities reads the lines of an age key file: AGE-SECRET-KEY-1 and
// AGE-SECRET-KEY-PQ-1 keys, comments and empty lines. PEM blocks between them
// are ssh private keys. Anything else, and a file without a key, is refused
// with an *Error of kind ErrKeys; age plugins are programs and are not run.
func ParseIdentities(keys []byte) (*Identities, error) {
	if len(keys) > maxKeys {
		return nil, newError(ErrKeys, keysHint, "age key file is longer than %d bytes", maxKeys)
	}
	ids := &Identities{}
	for n := 1; len(keys) > 0; n++ {
		if bytes.HasPrefix(keys, []byte("-----BEGIN ")) {
			block, rest := pem.Decode(keys)
			if block == nil {
				return nil, newError(ErrKeys, keysHint, "age key file, line %d: the PEM block has no end", n)
			}
			whole := keys[:len(keys)-len(rest)]
			if err := ids.addSSH(block.Type, whole, n); err != nil {
				return nil, err
			}
			n += bytes.Count(whole, []byte("\n")) - 1
			keys = rest
			continue
		}
		line, rest, _ := bytes.Cut(keys, []byte("\n"))
		if err := ids.addAge(string(bytes.TrimSpace(line)), n); err != nil {
			return nil, err
		}
		keys = rest
	}
	if len(ids.ids) == 0 {
		return nil, newError(ErrKeys, keysHint, "age key file holds no key")
	}
	return ids, nil
}

// addAge reads one line. Errors name the line and never quote it.
func (ids *Identities) addAge(line string, n int) error {
	refuse := func(format string, args ...any) error {
		return newError(ErrKeys, keysHint, "age key file, line %d: %s", n, fmt.Sprintf(format, args...))
	}
	switch {
	case line == "", strings.HasPrefix(line, "#"):
		return nil
	case strings.HasPrefix(line, "AGE-SECRET-KEY-PQ-1"):
		id, err := age.ParseHybridIdentity(line)
		if err != nil {
			return refuse("is no valid post-quantum key")
		}
		ids.add(id, id.Recipient().String())
	case strings.HasPrefix(line, "AGE-SECRET-KEY-1"):
		id, err := age.ParseX25519Identity(line)
		if err != nil {
			return refuse("is no valid key")
		}
		ids.add(id, id.Recipient().String())
	case strings.HasPrefix(line, "AGE-PLUGIN-"):
		return refuse("needs an age plugin, which is a program; none is run")
	case strings.HasPrefix(line, "age-encryption.org/"):
		return refuse("the file is protected by a passphrase, which a daemon cannot be asked for")
	case strings.HasPrefix(line, "age1"), strings.HasPrefix(line, "ssh-"):
		return refuse("is a public key, not the private one")
	default:
		return refuse("is no age key")
	}
	return nil
}

func (ids *Identities) addSSH(kind string, block []byte, n int) error {
	refuse := func(text string) error {
		return newError(ErrKeys, keysHint, "age key file, line %d: %s", n, text)
	}
	if kind == "AGE ENCRYPTED FILE" {
		return refuse("the file is protected by a passphrase, which a daemon cannot be asked for")
	}
	id, err := agessh.ParseIdentity(block)
	var locked *ssh.PassphraseMissingError
	if errors.As(err, &locked) {
		return refuse("the ssh key is protected by a passphrase, which a daemon cannot be asked for")
	}
	if err != nil {
		return refuse("is no ssh key of type ed25519 or rsa")
	}
	signer, err := ssh.ParsePrivateKey(block)
	if err != nil {
		return refuse("is no ssh key of type ed25519 or rsa")
	}
	ids.add(id, strings.TrimSpace(string(ssh.MarshalAuthorizedKey(signer.PublicKey()))))
	return nil
}

func (ids *Identities) add(id age.Identity, public string) {
	ids.ids, ids.public = append(ids.ids, id), append(ids.public, public)
}

// checkRecipient reports what is wrong with a public key, if anything is. Only
// keys that can be used without a program pass.
func checkRecipient(s string) *Error {
	const hint = "use age1..., age1pq1..., ssh-ed25519 or ssh-rsa public keys"
	var err error
	switch {
	case strings.HasPrefix(s, "age1pq1"):
		_, err = age.ParseHybridRecipient(s)
	case strings.HasPrefix(s, "age1") && strings.Count(s, "1") > 1:
		return newError(ErrKeys, hint, "recipient %s needs an age plugin, which is a program; none is run", formatRecipient(s))
	case strings.HasPrefix(s, "age1"):
		_, err = age.ParseX25519Recipient(s)
	case strings.HasPrefix(s, "ssh-ed25519 "), strings.HasPrefix(s, "ssh-rsa "):
		_, err = agessh.ParseRecipient(s)
	case strings.HasPrefix(s, "AGE-"):
		return newError(ErrKeys, hint, "a recipient is a private key; take its public half, and make a new key if the private one was published")
	default:
		err = errors.New("of no known kind")
	}
	if err != nil {
		return newError(ErrKeys, hint, "recipient %s is no age or ssh public key", formatRecipient(s))
	}
	return nil
}

// formatRecipient returns a recipient fit for a line of text: as it is when it is
// printable, cut when it is long.
func formatRecipient(s string) string {
	const most = 80
	if r := []rune(s); len(r) > most {
		s = string(r[:most]) + "..."
	}
	if q := fmt.Sprintf("%q", s); len(q) != len(s)+2 {
		return q
	}
	return s
}

// Unwrap implements age.Identity, so that the keys open any file of age, without being
// handed out.
func (ids *Identities) Unwrap(stanzas []*age.Stanza) ([]byte, error) {
	for _, id := range ids.ids {
		key, err := id.Unwrap(stanzas)
		if !errors.Is(err, age.ErrIncorrectIdentity) {
			return key, err
		}
	}
	return nil, age.ErrIncorrectIdentity
}
