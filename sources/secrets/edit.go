package secrets

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/getsops/sops/v3"
	"github.com/getsops/sops/v3/aes"
)

// valuesKey is the mapping that SetValues writes into.
const valuesKey = "values"

// SetValues sets texts under values in an encrypted document, as `sops edit` would:
// with the data key that the document has, so that whoever could read it still can,
// and with the settings of its sops section. What is not changed keeps its
// ciphertext, comments keep their places. Name is used in errors only.
//
// The document is proven to be what was encrypted before anything is changed.
// Errors are those of Decrypt.
func SetValues(ctx context.Context, name string, file []byte, ids *Identities, values map[string]string) ([]byte, error) {
	plain, err := Decrypt(ctx, name, file, ids)
	if err != nil {
		return nil, err
	}
	clear(plain)
	out, bad := setValues(ctx, file, ids, values)
	if bad == nil {
		bad = checkMadeDocument(out)
	}
	if bad != nil {
		return nil, bad.in(name)
	}
	return out, nil
}

// setValues edits a document that Decrypt has opened. That has dropped the comments,
// so that it is read once more.
func setValues(ctx context.Context, file []byte, ids *Identities, values map[string]string) ([]byte, *Error) {
	tree, err := newStore().LoadEncryptedFile(file)
	if err != nil || len(tree.Branches) != 1 {
		return nil, newError(ErrMalformed, "", "cannot be read as one document")
	}
	key, bad := dataKey(ctx, tree.Metadata, ids)
	if bad != nil {
		return nil, bad
	}
	defer clear(key)
	// One cipher for both directions: it remembers with what a value was encrypted, and
	// encrypts one that is the same in the same way.
	cipher := aes.NewCipher()
	if _, err := tree.Decrypt(key, cipher); err != nil {
		return nil, newError(ErrTampered, tamperedHint, "a value was changed, moved or replaced after encryption")
	}
	if tree.Branches[0], bad = withValues(tree.Branches[0], values); bad != nil {
		return nil, bad
	}
	m := &tree.Metadata
	m.LastModified = time.Now().UTC()
	mac, err := tree.Encrypt(key, cipher)
	if err == nil {
		m.MessageAuthenticationCode, err = cipher.Encrypt(mac, key, m.LastModified.Format(time.RFC3339))
	}
	if err != nil {
		return nil, newError(ErrMalformed, "", "a value cannot be encrypted")
	}
	out, err := newStore().EmitEncryptedFile(tree)
	if err != nil {
		return nil, newError(ErrMalformed, "", "cannot be written as YAML")
	}
	return out, nil
}

// withValues returns a document with texts under values, the new ones last and in the
// order of their names.
func withValues(doc sops.TreeBranch, values map[string]string) (sops.TreeBranch, *Error) {
	at := slices.IndexFunc(doc, func(item sops.TreeItem) bool { return item.Key == valuesKey })
	if at < 0 {
		at = len(doc)
		doc = append(doc, sops.TreeItem{Key: valuesKey})
	}
	var branch sops.TreeBranch
	switch have := doc[at].Value.(type) {
	case nil:
	case sops.TreeBranch:
		branch = have
	default:
		return nil, newError(ErrMalformed, "write lines of the form name: text below it, with: sops edit FILE", "%s is not a mapping", valuesKey)
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		i := slices.IndexFunc(branch, func(item sops.TreeItem) bool { return item.Key == name })
		if i < 0 {
			branch = append(branch, sops.TreeItem{Key: name, Value: values[name]})
			continue
		}
		branch[i].Value = values[name]
	}
	doc[at].Value = branch
	return doc, nil
}

// checkMadeDocument looks at a document the way Decrypt will.
func checkMadeDocument(out []byte) *Error {
	root, bad := parseDocument(out)
	if bad == nil {
		bad = checkEncrypted(root)
	}
	if bad != nil {
		return newError(ErrUnsupported, "set the values with: sops edit FILE", "cannot be edited here: %s", fmt.Sprint(bad))
	}
	return nil
}
