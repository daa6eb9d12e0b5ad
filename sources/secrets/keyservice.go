package secrets

import (
	"context"
	"errors"
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

// transitWithin bounds what a document asks of a transit engine: it may name as many keys
// as it likes.
const transitWithin = 15 * time.Second

// unwrapFirst opens a data key with the first of some keys of the transit engine that is
// able to. Each is asked once, however often the document has it.
func (ids *Identities) unwrapFirst(ctx context.Context, keys []*hcvault.MasterKey, size int) ([]byte, *Error) {
	var bad *Error
	asked := map[string]bool{}
	for _, k := range keys {
		name := k.EnginePath + "/" + k.KeyName + " of " + ids.transit.URL()
		if asked[name] {
			continue
		}
		asked[name] = true
		key, err := ids.transit.Unwrap(ctx, k.EnginePath, k.KeyName, k.EncryptedKey)
		switch {
		case err == nil && len(key) == size:
			return key, nil
		case err == nil:
			return nil, newError(ErrTampered, tamperedHint, "the data key that %s has opened is none: it has %d bytes", name, len(key))
		case errors.Is(err, ErrTampered):
			from := ""
			if strings.TrimSuffix(k.VaultAddress, "/") != ids.transit.URL() {
				from = " (the file names " + formatRecipient(k.VaultAddress) + ")"
			}
			return nil, newError(ErrTampered, tamperedHint, "its data key was not made by %s%s: %v", name, from, err)
		}
		bad = newError(ErrUnavailable, fault.HintOf(err), "its data key cannot be opened by %s: %v", name, err)
	}
	return nil, bad
}
