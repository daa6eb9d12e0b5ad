package snapshot

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"filippo.io/age"

	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/text"
)

// IsEncrypted reports whether a file is one of this package's, of whatever version.
func IsEncrypted(r io.ReaderAt) (bool, error) {
	b := make([]byte, len(magic))
	n, err := r.ReadAt(b, 0)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return string(b[:n]) == magic, err
}

// Opened is a file whose header was authenticated by its content. It is for one goroutine.
type Opened struct {
	Header  Header
	file    watched
	content *io.SectionReader // the snapshot as it came
}

// Keys are private keys, and how their public halves are written.
type Keys interface {
	age.Identity
	Recipients() []string
}

// Open opens a file of some size with the first of the keys that fits; nil: there are
// none. Errors are ErrNoKey, ErrDamaged, or of r.
func Open(r io.ReaderAt, size int64, keys Keys) (*Opened, error) {
	file := watch(r)
	h, head, err := readHead(file, size)
	if err != nil {
		return nil, file.explain(err)
	}
	if keys == nil {
		return nil, refuseKeys(h, nil)
	}
	begin := int64(len(head))
	content, length, err := age.DecryptReaderAt(io.NewSectionReader(file, begin, size-begin), size-begin, keys)
	_, none := errors.AsType[*age.NoIdentityMatchError](err)
	switch {
	case none:
		return nil, refuseKeys(h, keys.Recipients())
	case err != nil:
		return nil, file.explain(fmt.Errorf("%w: %s", ErrDamaged, text.Sanitize(err.Error(), 200)))
	case length < digestSize:
		return nil, fmt.Errorf("%w: it has no content", ErrDamaged)
	}
	digest := make([]byte, digestSize)
	if n, err := content.ReadAt(digest, 0); n < len(digest) {
		return nil, file.explain(fmt.Errorf("%w: %s", ErrDamaged, text.Sanitize(fmt.Sprint(err), 200)))
	}
	if want := sha256.Sum256(head); !bytes.Equal(digest, want[:]) {
		return nil, fmt.Errorf("%w: its header was changed", ErrDamaged)
	}
	return &Opened{h, file, io.NewSectionReader(newCached(content, length), digestSize, length-digestSize)}, nil
}

// refuseKeys is the error of a file that no key opens.
func refuseKeys(h Header, public []string) error {
	for _, ours := range public {
		if slices.Contains(h.Recipients, ours) {
			return fmt.Errorf("%w: by its header it is encrypted to %s, and the key of that does not open it", ErrDamaged, ours)
		}
	}
	return fault.WithHint(ErrNoKey, "give the private key of one of its recipients: "+text.Sanitize(strings.Join(h.Recipients, ", "), 500))
}

// Verify reads all of it: that nothing of it was changed, that it is what a member of etcd
// sent, and that its database holds what the header has.
func (o *Opened) Verify(ctx context.Context) error { return o.Copy(ctx, io.Discard) }

// Copy verifies it, and writes the snapshot as it came: what `talosctl bootstrap
// --recover-from` takes. What was written is of use only without an error.
func (o *Opened) Copy(ctx context.Context, to io.Writer) error {
	t := newTrailer()
	content := watch(o.content)
	if _, err := copyUntil(ctx, io.MultiWriter(t, to), io.NewSectionReader(content, 0, o.content.Size())); err != nil {
		if *content.failed != nil && *o.file.failed == nil {
			return fmt.Errorf("%w: %s", ErrDamaged, text.Sanitize(err.Error(), 200))
		}
		return o.file.explain(err)
	}
	if err := t.check(); err != nil {
		return err
	}
	found, err := readDatabase(ctx, o.content, o.content.Size())
	if err != nil {
		return o.file.explain(err)
	}
	if !reflect.DeepEqual(found, o.Header.Database) {
		return fmt.Errorf("%w: its header has the revision %d and the hash %s, and its database %d and %s", ErrDamaged,
			o.Header.Database.Revision, text.Sanitize(o.Header.Database.Hash, 20), found.Revision, found.Hash)
	}
	return nil
}

// Extract verifies it, and stores the snapshot as it came in a directory: in clear, for
// its owner alone. A file of that name is not replaced, and appears when it is whole.
func (o *Opened) Extract(ctx context.Context, to Directory, name string) error {
	part := name + PartSuffix // for people to see, should the process end
	f, err := to.Create(part)
	if err != nil {
		return err // also where there is one: it may be of another process
	}
	if err = o.Copy(ctx, f); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = to.Rename(part, name)
	}
	if err != nil {
		return errors.Join(explainFull(err), to.Remove(part))
	}
	return to.Sync()
}
