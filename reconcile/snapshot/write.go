package snapshot

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"syscall"

	"filippo.io/age"

	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/snapshot/retention"
)

// Write stores a snapshot that from sends, which must end when the context does. It
// becomes visible under its name when it was verified, encrypted, made durable and read
// back. Before, and after any error or crash, the directory has what it had, and at most
// the whole file besides.
//
// What is at its begin is known when its end has come. So it is first stored encrypted to
// a key that is in memory only, verified there, and then written with its header: there
// must be room for it twice.
func (s *Store) Write(ctx context.Context, from Source, stream io.Reader) (_ Entry, err error) {
	from.At = from.At.UTC().Truncate(1e9)
	file := from.Name.String()
	if _, ours := ParseName(file); !ours {
		return Entry{}, fmt.Errorf("%s is no name of a snapshot", text.Sanitize(file, 100))
	}
	if len(s.c.Recipients) == 0 {
		return Entry{}, errors.New("there is no recipient to encrypt snapshots to")
	}
	release, err := s.c.Directory.Lock()
	if err != nil {
		return Entry{}, err
	}
	defer func() { err = errors.Join(err, release()) }()
	if err := s.removeLeftovers(); err != nil {
		return Entry{}, fmt.Errorf("remove what an earlier one left: %w", err)
	}
	e, err := s.write(ctx, from, stream)
	if err != nil {
		return Entry{}, errors.Join(explainFull(err), s.removeLeftovers())
	}
	return e, nil
}

// explainFull gives a full disk a hint.
func explainFull(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fault.WithHint(err, "make room in the directory of snapshots, for twice the size of etcd's database, or name another one")
	}
	return err
}

// removeLeftovers removes what a process has left that ended while it wrote.
func (s *Store) removeLeftovers() error {
	files, err := s.c.Directory.List()
	if err != nil {
		return err
	}
	for _, file := range files {
		if isPart(file) {
			if err := s.c.Directory.Remove(file); err != nil {
				return err
			}
		}
	}
	return nil
}

// write does what Write promises, but for the lock and what is left after an error.
func (s *Store) write(ctx context.Context, from Source, stream io.Reader) (Entry, error) {
	key, err := age.GenerateX25519Identity()
	if err != nil {
		return Entry{}, err
	}
	staged, err := s.stage(ctx, key.Recipient(), stream)
	if err != nil {
		return Entry{}, err
	}
	part := newPart()
	sum, size, h, err := s.encryptStaged(ctx, staged, key, part, from)
	if err != nil {
		return Entry{}, err
	}
	if err := s.c.Directory.Remove(staged); err != nil {
		return Entry{}, err
	}
	e := Entry{Name: from.Name, File: from.Name.String(), Size: size, Header: &h, State: retention.Unverified}
	if err := s.readBack(ctx, part, sum, &e); err != nil {
		return Entry{}, fmt.Errorf("read back what was written: %w", err)
	}
	if err := s.c.Directory.Rename(part, e.File); err != nil {
		return Entry{}, err
	}
	if err := s.c.Directory.Sync(); err != nil {
		return Entry{}, err
	}
	s.remember(e)
	return e, nil
}

// newPart is a name for a file that is not complete.
func newPart() string { return partPrefix + rand.Text() + PartSuffix }

// stage stores what a stream sends, encrypted to a key, and verifies its SHA-256. It
// returns the name of the file.
func (s *Store) stage(ctx context.Context, to age.Recipient, stream io.Reader) (string, error) {
	part, t := newPart(), newTrailer()
	return part, s.create(part, func(w io.Writer) error {
		encrypted, err := age.Encrypt(w, to)
		if err != nil {
			return err
		}
		n, err := copyUntil(ctx, io.MultiWriter(t, encrypted), io.LimitReader(received{stream}, s.c.Most+1))
		switch {
		case err != nil:
			return err
		case n > s.c.Most:
			return fmt.Errorf("the snapshot has more than %s", text.GiB(s.c.Most))
		}
		return errors.Join(t.check(), encrypted.Close())
	})
}

// received marks the errors of a stream, for a write may fail as well.
type received struct{ io.Reader }

func (r received) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		err = fmt.Errorf("receive the snapshot: %w", err)
	}
	return n, err
}

// create writes a file and makes it durable. Nothing is left open.
func (s *Store) create(name string, write func(io.Writer) error) error {
	f, err := s.c.Directory.Create(name)
	if err != nil {
		return err
	}
	if err = write(f); err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// encryptStaged writes the file as it is to be, out of one that was staged. It returns the
// SHA-256 and the size of what was written.
func (s *Store) encryptStaged(ctx context.Context, staged string, key age.Identity, part string, from Source) (sum []byte, size int64, h Header, err error) {
	f, err := s.c.Directory.Open(staged)
	if err != nil {
		return nil, 0, h, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	content, length, err := age.DecryptReaderAt(f, f.Size(), key)
	if err != nil {
		return nil, 0, h, fmt.Errorf("read back what was received: %w", err)
	}
	h = Header{Source: from}
	if h.Database, err = readDatabase(ctx, newCached(content, length), length); err != nil {
		return nil, 0, h, err
	}
	for _, r := range s.c.Recipients {
		h.Recipients = append(h.Recipients, r.String())
	}
	head, err := encodeHead(h)
	if err != nil {
		return nil, 0, h, err
	}
	written := &counted{sum: sha256.New()}
	err = s.create(part, func(w io.Writer) error {
		w = io.MultiWriter(w, written)
		if _, err := w.Write(head); err != nil {
			return err
		}
		encrypted, err := age.Encrypt(w, asAge(s.c.Recipients)...)
		if err != nil {
			return err
		}
		digest := sha256.Sum256(head)
		if _, err := encrypted.Write(digest[:]); err != nil {
			return err
		}
		if _, err := copyUntil(ctx, encrypted, io.NewSectionReader(content, 0, length)); err != nil {
			return err
		}
		return encrypted.Close()
	})
	return written.sum.Sum(nil), written.size, h, err
}

func asAge(all []Recipient) (out []age.Recipient) {
	for _, r := range all {
		out = append(out, r)
	}
	return out
}

// counted is the SHA-256 and the size of what is written to it.
type counted struct {
	sum  hash.Hash
	size int64
}

func (c *counted) Write(b []byte) (int, error) {
	c.size += int64(len(b))
	return c.sum.Write(b)
}

// readBack reads a file that was written: its bytes are those that were written, and with
// a key its content is verified once more, as any later reader does.
func (s *Store) readBack(ctx context.Context, part string, sum []byte, e *Entry) (err error) {
	f, err := s.c.Directory.Open(part)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	e.Changed = f.Changed()
	read := sha256.New()
	if _, err := copyUntil(ctx, read, io.NewSectionReader(f, 0, f.Size())); err != nil {
		return err
	}
	if !bytes.Equal(read.Sum(nil), sum) {
		return fmt.Errorf("%w: the storage returns %d bytes that are not the %d bytes that were written", ErrDamaged, f.Size(), e.Size)
	}
	if s.c.Keys == nil {
		return nil
	}
	o, err := Open(f, f.Size(), s.c.Keys)
	if err != nil {
		return err
	}
	if err := o.Verify(ctx); err != nil {
		return err
	}
	e.State = retention.Verified
	return nil
}
