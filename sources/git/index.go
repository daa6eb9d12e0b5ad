package git

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/idxfile"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"

	"github.com/talos-agent/talos-agent/internal/worker"
)

// indexLimits bound the worker that reads a pack, beside what Limits lets it unpack to: an object
// is held with its base and what is made of both.
var indexLimits = worker.Limits{CPU: 2 * time.Minute, Memory: 384 << 20, Output: 64 << 20, First: true}

// examinePack has a worker measure and index a pack. Whoever pushes decides what is in it, and
// go-git's parser takes as much memory as it declares, and as much stack as its chains of
// differences are long.
func examinePack(ctx context.Context, on worker.Runner, pack io.ReaderAt, l Limits) (plumbing.Hash, []byte, error) {
	answer := worker.AnswerTo(func(ctx context.Context, offset int64) ([]byte, error) {
		b := make([]byte, packChunk)
		n, err := pack.ReadAt(b, offset)
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return b[:n], errors.Join(err, ctx.Err())
	})
	bounds := indexLimits
	bounds.Wall = l.Timeout
	got, err := indexingPack.Run(ctx, on, bounds, l, answer)
	var exceeded *worker.Exceeded
	switch {
	case errors.As(err, &exceeded) && exceeded.What != worker.Time, errors.Is(err, worker.ErrCrashed):
		return plumbing.ZeroHash, nil, newError(ErrLimit, tooBig, nil, "read pack: %s", err) // it would again
	case err != nil:
		return plumbing.ZeroHash, nil, fmt.Errorf("read pack: %w", err)
	case got.Limit != "":
		return plumbing.ZeroHash, nil, newError(ErrLimit, tooBig, nil, "%s", got.Limit)
	case got.Wrong != "":
		return plumbing.ZeroHash, nil, errors.New(got.Wrong)
	}
	return got.Name, got.Index, nil
}

// indexingPack is the job of a worker.
var indexingPack = worker.RegisterTyped("index-pack", func(l Limits, ask worker.Ask) (indexedPack, error) {
	pack := &askedPack{ask: ask, chunks: map[int64][]byte{}}
	name, index, err := measureAndIndex(pack, l)
	switch {
	case pack.failed != nil:
		return indexedPack{}, pack.failed
	case errors.Is(err, ErrLimit):
		return indexedPack{Limit: err.Error()}, nil
	case err != nil:
		return indexedPack{Wrong: err.Error()}, nil
	}
	return indexedPack{Name: name, Index: index}, nil
})

// indexedPack is the result: the pack's name and its index as a file, or what is wrong with it.
type indexedPack struct {
	Name         plumbing.Hash
	Index        []byte
	Limit, Wrong string
}

// measureAndIndex reads a pack twice: what it unpacks to is known before anything is.
func measureAndIndex(pack io.ReadSeeker, l Limits) (name plumbing.Hash, index []byte, err error) {
	if err := checkPack(pack, l); err != nil {
		return name, nil, err
	}
	if _, err := pack.Seek(0, io.SeekStart); err != nil {
		return name, nil, err
	}
	w := new(idxfile.Writer)
	p, err := packfile.NewParser(packfile.NewScanner(pack), w)
	if err != nil {
		return name, nil, fmt.Errorf("index pack: %w", err)
	}
	if name, err = p.Parse(); err != nil {
		return name, nil, fmt.Errorf("index pack: %w", err)
	}
	made, err := w.Index()
	if err != nil {
		return name, nil, fmt.Errorf("index pack: %w", err)
	}
	var b bytes.Buffer
	_, err = idxfile.NewEncoder(&b).Encode(made)
	return name, b.Bytes(), err
}

// A pack is sent to the worker in pieces, of which it keeps some: the parser goes back to what
// others are differences from.
const (
	packChunk  = 256 << 10
	keptChunks = 64
)

// askedPack is a pack that a worker has its parent read.
type askedPack struct {
	ask    worker.Ask
	at     int64
	chunks map[int64][]byte // by their number
	order  []int64          // of chunks, the oldest first
	failed error
}

// Read implements io.Reader.
func (p *askedPack) Read(b []byte) (int, error) {
	number := p.at / packChunk
	chunk, known := p.chunks[number]
	if !known {
		var err error
		if chunk, err = worker.AskFor[[]byte](p.ask, number*packChunk); err != nil {
			p.failed = err
			return 0, err
		}
		if len(p.order) == keptChunks {
			delete(p.chunks, p.order[0])
			p.order = p.order[1:]
		}
		p.chunks[number], p.order = chunk, append(p.order, number)
	}
	from := p.at - number*packChunk
	if from >= int64(len(chunk)) {
		return 0, io.EOF
	}
	n := copy(b, chunk[from:])
	p.at += int64(n)
	return n, nil
}

// Seek implements io.Seeker.
func (p *askedPack) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekStart:
		p.at = offset
	case io.SeekCurrent:
		p.at += offset
	default:
		return 0, errors.New("the end of a pack is not known")
	}
	if p.at < 0 {
		p.at = 0
		return 0, errors.New("a place before the pack")
	}
	return p.at, nil
}
