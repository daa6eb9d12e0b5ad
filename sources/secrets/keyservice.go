package secrets

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/getsops/sops/v3/hcvault"

	"github.com/talos-agent/talos-agent/internal/fault"
)

// Transit opens data keys that a transit engine of Vault or OpenBao has wrapped. The host
// decides which server that is, and which of its keys are asked: a file names both, too,
// and anybody may write one.
type Transit interface {
	// Has reports whether a key of an engine is asked.
	Has(engine, name string) bool
	// URL is the address of the server, without a slash at its end.
	URL() string
	// Unwrap opens a data key. An error that is ErrTampered is about what was wrapped;
	// with any other the server could not be asked, or did not do it.
	Unwrap(ctx context.Context, engine, name, wrapped string) ([]byte, error)
}

// With are the same identities with a transit engine, which is asked when none of them
// opens a document.
func (ids *Identities) With(t Transit) *Identities {
	out := *ids
	out.transit = t
	return &out
}

// What a document may ask of a transit engine, whatever it names: so many requests, in so
// much time.
const (
	mostUnwraps   = 8
	transitWithin = 15 * time.Second
)

// opener opens the data key of one document.
type opener struct {
	ids   *Identities
	asked int // requests to the transit engine
}

// unwrapFirst opens a data key with the first of some keys of the transit engine that is
// able to, those of its own server before those that a document has for another one, which
// may have a key of the same name. That none of the ciphertexts is of such a key is an error only
// where the server could be asked about all.
func (o *opener) unwrapFirst(ctx context.Context, keys []*hcvault.MasterKey, size int) ([]byte, *Error) {
	isOurs := func(k *hcvault.MasterKey) bool {
		return strings.TrimSuffix(k.VaultAddress, "/") == o.ids.transit.URL()
	}
	others := slices.DeleteFunc(slices.Clone(keys), isOurs)
	keys = append(slices.DeleteFunc(keys, func(k *hcvault.MasterKey) bool { return !isOurs(k) }), others...)
	var tampered, unavailable *Error
	for _, k := range keys {
		name := k.EnginePath + "/" + k.KeyName + " of " + o.ids.transit.URL()
		if o.asked++; o.asked > mostUnwraps {
			return nil, newError(ErrUnsupported, "have it encrypted to fewer keys of transit engines: sops updatekeys FILE", "has more than %d data keys for %s", mostUnwraps, o.ids.transit.URL())
		}
		key, err := o.ids.transit.Unwrap(ctx, k.EnginePath, k.KeyName, k.EncryptedKey)
		switch {
		case err == nil && len(key) == size:
			return key, nil
		case err == nil:
			return nil, newError(ErrTampered, tamperedHint, "the data key that %s has opened is none: it has %d bytes", name, len(key))
		case errors.Is(err, ErrTampered):
			from := ""
			if !isOurs(k) {
				from = " (the file names " + formatRecipient(k.VaultAddress) + ")"
			}
			tampered = newError(ErrTampered, tamperedHint, "its data key was not made by %s%s: %v", name, from, err)
		default:
			unavailable = newError(ErrUnavailable, fault.HintOf(err), "its data key cannot be opened by %s: %v", name, err)
		}
	}
	if unavailable != nil {
		return nil, unavailable
	}
	return nil, tampered
}
