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
	"github.com/getsops/sops/v3/hcvault"
	"github.com/getsops/sops/v3/shamir"
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
// Errors are *Error of kind ErrPlaintext, ErrNoKey, ErrUnavailable, ErrTampered,
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
	within, cancel := context.WithTimeout(ctx, transitWithin)
	defer cancel()
	key, bad := dataKey(within, tree.Metadata, ids)
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
// value encrypted, and every value authenticated.
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
	case len(m.KeyGroups) == 0 || len(m.KeyGroups) > maxGroups:
		return nil, newError(ErrMalformed, "restore the sops section from an earlier commit, or encrypt the file again", "its sops section has %d key groups", len(m.KeyGroups))
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

// maxGroups is how many parts a key can be split into (sops: shamir.Split).
const maxGroups = 255

// dataKey opens the data key. One that is split over several key groups is put together
// from the parts of as many groups as it takes, of which one key each must be ours.
func dataKey(ctx context.Context, m sops.Metadata, ids *Identities) ([]byte, *Error) {
	o := &opener{ids: ids}
	if len(m.KeyGroups) == 1 {
		return o.openGroup(ctx, m.KeyGroups[0], dataKeySize)
	}
	needed := m.ShamirThreshold
	if needed == 0 { // sops: all of them
		needed = len(m.KeyGroups)
	}
	needed = max(needed, fewestParts)
	var parts [][]byte
	var unavailable *Error
	for _, group := range m.KeyGroups {
		part, bad := o.openGroup(ctx, group, dataKeySize+shareSize)
		switch {
		case bad == nil:
			parts = append(parts, part)
		case errors.Is(bad, ErrUnavailable): // others may be enough
			unavailable = bad
		case !errors.Is(bad, ErrNoKey):
			return nil, bad
		}
		if len(parts) == needed {
			return joinParts(parts)
		}
	}
	if unavailable != nil {
		return nil, unavailable
	}
	return nil, newError(ErrNoKey, "use one key group, each of whose keys opens the file by itself; or have the agent's key in as many groups as shamir_threshold demands, and run: sops updatekeys FILE",
		"its key is split over %d key groups, of which it takes %d to open it, and the agent's key opens %d", len(m.KeyGroups), needed, len(parts))
}

const (
	// fewestParts is the least that a key is split for (sops: shamir.Split).
	fewestParts = 2
	// shareSize is how much longer a part is than the key, in bytes: its coordinate.
	shareSize = 1
)

// joinParts puts a data key together.
func joinParts(parts [][]byte) ([]byte, *Error) {
	key, err := shamir.Combine(parts)
	if err != nil || len(key) != dataKeySize {
		return nil, newError(ErrTampered, tamperedHint, "the parts of the data key in its key groups do not fit together")
	}
	return key, nil
}

// openGroup opens what a group of keys holds, with the first of its age recipients
// that an identity fits, or else with a transit engine that the host's config names.
// sops' own key sources are not asked: without an identity they turn to the
// environment, to programs and to home directories.
func (o *opener) openGroup(ctx context.Context, group sops.KeyGroup, size int) ([]byte, *Error) {
	ids := o.ids
	var recipients, others []string
	var wrapped []*hcvault.MasterKey
	ours := false
	for _, k := range group {
		mk, ok := k.(*sopsage.MasterKey)
		if !ok {
			if k, ok := k.(*hcvault.MasterKey); ok && ids.transit != nil && ids.transit.Has(k.EnginePath, k.KeyName) {
				wrapped = append(wrapped, k)
				continue
			}
			others = append(others, k.TypeToIdentifier())
			continue
		}
		recipients = append(recipients, formatRecipient(mk.Recipient))
		ours = ours || slices.Contains(ids.public, withoutSSHComment(mk.Recipient))
		key, err := unwrapKey(mk.EncryptedKey, size, ids.ids)
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
	if len(wrapped) > 0 {
		return o.unwrapFirst(ctx, wrapped, size)
	}
	to := "to " + strings.Join(recipients, ", ")
	if len(recipients) == 0 {
		to = "to no age key"
	}
	if others = slices.Compact(slices.Sorted(slices.Values(others))); len(others) > 0 {
		to += " (and " + strings.Join(others, ", ") + " keys, which are not used)"
	}
	hint := "give the agent the key of one of these recipients, or add its own to .sops.yaml and run: sops updatekeys FILE"
	if slices.Contains(others, hcvault.KeyTypeIdentifier) {
		hint += "; a key of Vault or OpenBao is asked for where `vault.keys` of the host's config lists it"
	}
	return nil, newError(ErrNoKey, hint,
		"is encrypted %s; the agent's key is %s", to, strings.Join(ids.public, ", "))
}

// withoutSSHComment drops what follows the key itself.
func withoutSSHComment(recipient string) string {
	if f := strings.Fields(recipient); len(f) > 2 && strings.HasPrefix(recipient, "ssh-") {
		return f[0] + " " + f[1]
	}
	return recipient
}

func unwrapKey(enc string, size int, ids []age.Identity) ([]byte, error) {
	r, err := age.Decrypt(armor.NewReader(strings.NewReader(enc)), ids...)
	if err != nil {
		return nil, err
	}
	key, err := io.ReadAll(io.LimitReader(r, int64(size)+1))
	if err == nil && len(key) != size {
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
