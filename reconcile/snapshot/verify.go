package snapshot

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"

	"github.com/talos-agent/talos-agent/reconcile/snapshot/database"
)

// trailerSize is what etcd puts at the end of a snapshot: the SHA-256 of all before it.
// The database before it has whole pages of the disk. Source: etcd 3.6.5,
// server/etcdserver/api/v3rpc/maintenance.go, and etcdutl/snapshot/v3_snapshot.go.
const (
	trailerSize = sha256.Size
	sectorSize  = 512
)

// trailer computes the SHA-256 of all that is written to it but its last bytes, which
// are to be that.
type trailer struct {
	sum  hash.Hash
	last []byte
	size int64
}

func newTrailer() *trailer { return &trailer{sum: sha256.New()} }

// Write implements io.Writer. It does not fail.
func (t *trailer) Write(b []byte) (int, error) {
	t.size += int64(len(b))
	t.last = append(t.last, b...)
	if more := len(t.last) - trailerSize; more > 0 {
		_, _ = t.sum.Write(t.last[:more])
		t.last = append(t.last[:0], t.last[more:]...)
	}
	return len(b), nil
}

// check reports whether what was written is a whole snapshot: a machine that recovers
// from another one crashes or begins with half of the data.
func (t *trailer) check() error {
	switch {
	case t.size%sectorSize != trailerSize:
		return fmt.Errorf("%w: it is truncated: a snapshot ends %d bytes after a multiple of %d, and it has %d bytes", ErrDamaged, trailerSize, sectorSize, t.size)
	case t.size == trailerSize:
		return fmt.Errorf("%w: it is empty", ErrDamaged)
	case !bytes.Equal(t.last, t.sum.Sum(nil)):
		return fmt.Errorf("%w: its SHA-256 is not the one at its end: it is truncated, or was changed", ErrDamaged)
	}
	return nil
}

// VerifyPlain verifies a snapshot as a member of etcd sends it, in the first size bytes of
// r: its SHA-256 and its database. Errors are ErrDamaged, of r, or of the context.
func VerifyPlain(ctx context.Context, r io.ReaderAt, size int64) (database.Contents, error) {
	t := newTrailer()
	if _, err := copyUntil(ctx, t, io.NewSectionReader(r, 0, size)); err != nil {
		return database.Contents{}, err
	}
	if err := t.check(); err != nil {
		return database.Contents{}, err
	}
	return readDatabase(ctx, r, size)
}

// readDatabase reads the database of a snapshot whose SHA-256 is right.
func readDatabase(ctx context.Context, r io.ReaderAt, size int64) (database.Contents, error) {
	c, err := database.Read(ctx, r, size-trailerSize)
	if database.IsDamaged(err) {
		err = fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return c, err
}

// copyUntil is io.Copy until the context ends.
func copyUntil(ctx context.Context, to io.Writer, from io.Reader) (int64, error) {
	return io.CopyBuffer(writerOnly{to}, readerUntil{ctx.Err, func() error { return context.Cause(ctx) }, from}, make([]byte, 256<<10))
}

// writerOnly hides what else a writer can do.
type writerOnly struct{ io.Writer }

// readerUntil reads until something has ended.
type readerUntil struct {
	ended, why func() error
	io.Reader
}

func (r readerUntil) Read(b []byte) (int, error) {
	if r.ended() != nil {
		return 0, r.why()
	}
	return r.Reader.Read(b)
}

// watched remembers the last error of a reader: libraries on it report such an error as
// if the bytes were wrong, and it is none of the bytes.
type watched struct {
	io.ReaderAt
	failed *error
}

func watch(r io.ReaderAt) watched { return watched{r, new(error)} }

func (w watched) ReadAt(b []byte, at int64) (int, error) {
	n, err := w.ReaderAt.ReadAt(b, at)
	if err != nil && !errors.Is(err, io.EOF) {
		*w.failed = err
	}
	return n, err
}

// explain is err, unless reading has failed.
func (w watched) explain(err error) error {
	if err != nil && *w.failed != nil {
		return *w.failed
	}
	return err
}
