package git

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/go-git/go-billy/v5"
	"github.com/go-git/go-billy/v5/util"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"

	"github.com/talos-agent/talos-agent/internal/worker"
)

const (
	packDir     = "objects/pack"
	packPartial = packDir + "/incoming" // a pack that is not whole yet
)

const tooBig = "keep the inventory in a repository of its own, without large files in its history"

// importPack takes a pack from the network into the store: it is received
// whole, measured, indexed, and only then given a name under which objects are
// looked for. A failure at any point leaves the store as it was.
func importPack(ctx context.Context, on worker.Runner, fs billy.Filesystem, from io.Reader, l Limits) (err error) {
	if err := fs.MkdirAll(packDir, 0o700); err != nil {
		return err
	}
	f, err := fs.OpenFile(packPartial, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(), fs.Remove(packPartial))
		}
	}()
	n, err := io.Copy(f, io.LimitReader(from, l.Pack+1))
	if err != nil {
		return fmt.Errorf("receive pack: %w", err)
	}
	if n > l.Pack {
		return newError(ErrLimit, tooBig, nil, "receive pack: more than %d MiB", l.Pack>>20)
	}
	name, index, err := examinePack(ctx, on, f, l)
	if err != nil {
		return err
	}
	// The index goes first: go-git lists packs by their .pack file.
	base := packDir + "/pack-" + name.String()
	if err := util.WriteFile(fs, base+".idx", index, 0o600); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return fs.Rename(packPartial, base+".pack")
}

// checkPack reads a pack once and adds up what it would unpack to, from the
// sizes its objects and deltas declare; the reader that unpacks it later holds
// each object to the size declared. It runs before go-git's parser, which
// allocates as much as the pack declares.
func checkPack(r io.Reader, l Limits) error {
	s := packfile.NewScanner(r)
	_, objects, err := s.Header()
	if err != nil {
		return fmt.Errorf("read pack header: %w", err)
	}
	if int64(objects) > l.Objects {
		return newError(ErrLimit, tooBig, nil, "read pack: %d objects, the limit is %d", objects, l.Objects)
	}
	var sum int64
	for range objects {
		h, err := s.NextObjectHeader()
		if err != nil {
			return fmt.Errorf("read pack: %w", err)
		}
		size := h.Length
		if h.Type.IsDelta() && size <= l.Object {
			if size, err = deltaTarget(s); err != nil {
				return fmt.Errorf("read pack at %d: %w", h.Offset, err)
			}
		}
		if size < 0 || size > l.Object {
			return newError(ErrLimit, tooBig, nil, "read pack: an object unpacks to more than %d MiB", l.Object>>20)
		}
		if sum += size; sum > l.Unpacked {
			return newError(ErrLimit, tooBig, nil, "read pack: its objects unpack to more than %d MiB", l.Unpacked>>20)
		}
	}
	if _, err := s.Checksum(); err != nil {
		return fmt.Errorf("read pack: %w", err)
	}
	return nil
}

// deltaTarget reads the delta that the scanner stands at and gives the size of
// the object it makes, which is the second number in it.
func deltaTarget(s *packfile.Scanner) (int64, error) {
	r, err := s.ReadObject()
	if err != nil {
		return 0, err
	}
	br := bufio.NewReaderSize(r, 64)
	if _, err := sizeVarint(br); err != nil {
		return 0, errors.Join(err, r.Close())
	}
	target, err := sizeVarint(br)
	if err != nil {
		return 0, errors.Join(err, r.Close())
	}
	// To its end, or the scanner would not stand at the next object.
	_, err = io.Copy(io.Discard, br)
	return target, errors.Join(err, r.Close())
}

// sizeVarint reads a little-endian base-128 number, the form in which a delta
// states its sizes.
func sizeVarint(r io.ByteReader) (int64, error) {
	var n int64
	for shift := 0; shift < 56; shift += 7 {
		b, err := r.ReadByte()
		if err != nil {
			return 0, fmt.Errorf("read delta size: %w", err)
		}
		n |= int64(b&0x7f) << shift
		if b&0x80 == 0 {
			return n, nil
		}
	}
	return 0, errors.New("read delta size: number too large")
}
