package secrets

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"filippo.io/age"
	"filippo.io/age/armor"
	"github.com/getsops/sops/v3"
	"github.com/getsops/sops/v3/aes"
	sopsage "github.com/getsops/sops/v3/age"
	"github.com/getsops/sops/v3/config"
	"github.com/getsops/sops/v3/stores/yaml"
)

// dataKeySize is the size of the key that a document's values are encrypted
// with, in bytes.
const dataKeySize = 32

// Decrypt opens one SOPS-encrypted YAML document and returns it in clear, as
// YAML for a program to read: without metadata and comments, every text in
// double quotes. Name is used in errors only. The types of values survive;
// the spelling of numbers may not (1.50 becomes 1.5).
//
// Errors are *Error of kind ErrPlaintext, ErrNoKey, ErrTampered,
// ErrUnsupported or ErrMalformed, or the context's.
func Decrypt(ctx context.Context, name string, file []byte, ids *Identities) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("decrypt %s: %w", name, err)
	}
	if ids == nil || len(ids.ids) == 0 {
		return nil, newError(ErrNoKey, keysHint, "there is no age key to decrypt with").in(name)
	}
	tree, bad := loadTree(file)
	if bad != nil {
		return nil, bad.in(name)
	}
	key, bad := dataKey(tree.Metadata, ids)
	if bad != nil {
		return nil, bad.in(name)
	}
	if bad := openTree(tree, key); bad != nil {
		return nil, bad.in(name)
	}
	plain, bad := emitTree(tree.Branches[0])
	if bad != nil {
		return nil, bad.in(name)
	}
	return plain, nil
}

func newStore() *yaml.Store { return yaml.NewStore(&config.YAMLStoreConfig{Indent: 2}) }

// loadTree parses an encrypted document and refuses all but the plain case: every
// value encrypted, every value authenticated, one group of keys.
func loadTree(file []byte) (*sops.Tree, *Error) {
	root, bad := parseDocument(file)
	if bad != nil {
		return nil, bad
	}
	if findMetadata(root) == nil {
		return nil, newError(ErrPlaintext, "encrypt it with: sops encrypt --in-place FILE; if it was ever pushed like this, make new secrets, for these are public", "is not encrypted")
	}
	if bad := checkEncrypted(root); bad != nil {
		return nil, bad
	}
	tree, err := newStore().LoadEncryptedFile(file)
	if err != nil {
		// The text may quote the metadata, in which nothing is secret, but
		// also anything an attacker likes.
		return nil, newError(ErrMalformed, "restore the sops section from an earlier commit, or encrypt the file again", "its sops section cannot be read")
	}
	m := tree.Metadata
	switch {
	case !cipherText.MatchString(m.MessageAuthenticationCode):
		return nil, newError(ErrTampered, tamperedHint, "its authentication code is missing or was changed")
	case m.MACOnlyEncrypted:
		return nil, newError(ErrUnsupported, "remove mac_only_encrypted from .sops.yaml and encrypt the file again", "is encrypted with mac_only_encrypted, which leaves part of it unauthenticated")
	case m.EncryptedCommentRegex != "" || m.UnencryptedCommentRegex != "":
		return nil, newError(ErrUnsupported, "remove the comment_regex setting from .sops.yaml and encrypt the file again", "chooses by comments what is encrypted")
	case len(m.KeyGroups) != 1:
		return nil, newError(ErrUnsupported, "use one key group; each of its keys opens the file", "its key is split over %d key groups", len(m.KeyGroups))
	}
	for i := range tree.Branches {
		tree.Branches[i] = withoutComments(tree.Branches[i])
	}
	return &tree, nil
}

// withoutComments drops comments: they are not authenticated, and sops logs
// those it cannot decrypt.
func withoutComments(b sops.TreeBranch) sops.TreeBranch {
	out := make(sops.TreeBranch, 0, len(b))
	for _, item := range b {
		if _, comment := item.Key.(sops.Comment); !comment {
			out = append(out, sops.TreeItem{Key: item.Key, Value: valueWithoutComments(item.Value)})
		}
	}
	return out
}

func valueWithoutComments(v any) any {
	switch v := v.(type) {
	case sops.TreeBranch:
		return withoutComments(v)
	case []any:
		out := make([]any, 0, len(v))
		for _, item := range v {
			if _, comment := item.(sops.Comment); !comment {
				out = append(out, valueWithoutComments(item))
			}
		}
		return out
	}
	return v
}

// dataKey opens the data key with the first of the document's age recipients
// that an identity fits. sops' own key sources are not asked: without an
// identity they turn to the environment, to programs and to home directories.
func dataKey(m sops.Metadata, ids *Identities) ([]byte, *Error) {
	var recipients, others []string
	ours := false
	for _, k := range m.KeyGroups[0] {
		mk, ok := k.(*sopsage.MasterKey)
		if !ok {
			others = append(others, k.TypeToIdentifier())
			continue
		}
		recipients = append(recipients, formatRecipient(mk.Recipient))
		ours = ours || slices.Contains(ids.public, withoutSSHComment(mk.Recipient))
		key, err := unwrapKey(mk.EncryptedKey, ids.ids)
		var none *age.NoIdentityMatchError
		switch {
		case err == nil:
			return key, nil
		case !errors.As(err, &none):
			return nil, newError(ErrTampered, tamperedHint, "the data key for recipient %s is damaged", formatRecipient(mk.Recipient))
		}
	}
	if ours {
		return nil, newError(ErrTampered, tamperedHint, "names our key as recipient, but its data key was encrypted for another")
	}
	to := "to " + strings.Join(recipients, ", ")
	if len(recipients) == 0 {
		to = "to no age key"
	}
	if others = slices.Compact(slices.Sorted(slices.Values(others))); len(others) > 0 {
		to += " (and " + strings.Join(others, ", ") + " keys, which are not used)"
	}
	return nil, newError(ErrNoKey, "give the agent the key of one of these recipients, or add its own to .sops.yaml and run: sops updatekeys FILE",
		"is encrypted %s; the agent's key is %s", to, strings.Join(ids.public, ", "))
}

// withoutSSHComment drops what follows the key itself.
func withoutSSHComment(recipient string) string {
	if f := strings.Fields(recipient); len(f) > 2 && strings.HasPrefix(recipient, "ssh-") {
		return f[0] + " " + f[1]
	}
	return recipient
}

func unwrapKey(enc string, ids []age.Identity) ([]byte, error) {
	r, err := age.Decrypt(armor.NewReader(strings.NewReader(enc)), ids...)
	if err != nil {
		return nil, err
	}
	key, err := io.ReadAll(io.LimitReader(r, dataKeySize+1))
	if err == nil && len(key) != dataKeySize {
		err = errors.New("wrong size")
	}
	return key, err
}

const tamperedHint = "somebody edited the file without sops, or a merge mixed two versions: restore it from an earlier commit and change it with: sops edit FILE"

// openTree decrypts the tree in place and proves that it is what was encrypted.
// None of sops' own errors is passed on; see the package comment.
func openTree(tree *sops.Tree, key []byte) *Error {
	cipher := aes.NewCipher()
	computed, err := tree.Decrypt(key, cipher)
	if err != nil {
		return newError(ErrTampered, tamperedHint, "a value was changed, moved or replaced after encryption")
	}
	m := tree.Metadata
	mac, err := cipher.Decrypt(m.MessageAuthenticationCode, key, m.LastModified.Format(time.RFC3339))
	if err != nil {
		return newError(ErrTampered, tamperedHint, "its authentication code (mac, lastmodified) was changed")
	}
	if mac, ok := mac.(string); !ok || mac == "" || mac != computed {
		return newError(ErrTampered, tamperedHint, "its authentication code does not match: values were added, removed or reordered after encryption")
	}
	for i, b := range tree.Branches {
		if bad := checkOpened(b, nil); bad != nil {
			return bad
		}
		// In a list an encrypted comment stands as a value until it is opened.
		tree.Branches[i] = withoutComments(b)
	}
	return nil
}

// checkOpened refuses values that sops passed over.
func checkOpened(v any, at path) *Error {
	switch v := v.(type) {
	case sops.TreeBranch:
		for _, item := range v {
			if bad := checkOpened(item.Value, at.key(fmt.Sprint(item.Key))); bad != nil {
				return bad
			}
		}
	case []any:
		for i, item := range v {
			if bad := checkOpened(item, at.index(i)); bad != nil {
				return bad
			}
		}
	case string:
		if cipherText.MatchString(v) {
			return newError(ErrUnsupported, clearHint, "%s is encrypted, but the file's own settings say that it is not", at)
		}
	}
	return nil
}
