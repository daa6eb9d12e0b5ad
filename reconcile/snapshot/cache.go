package snapshot

import (
	"container/list"
	"errors"
	"io"
)

// What is kept of a file that age decrypts: it decrypts a whole chunk for every page of
// the database that is read, and pages of one chunk are rarely read one after another.
const (
	chunkSize = 64 << 10 // of age's STREAM
	mostKept  = 256      // chunks: 16 MiB
)

// cached keeps the chunks of a reader that were read last. It is for one goroutine.
type cached struct {
	r    io.ReaderAt
	size int64
	kept map[int64]*list.Element // of chunk
	used *list.List              // the one that was read last in front
}

type chunk struct {
	number int64
	data   []byte
}

func newCached(r io.ReaderAt, size int64) *cached {
	return &cached{r: r, size: size, kept: map[int64]*list.Element{}, used: list.New()}
}

// ReadAt implements io.ReaderAt.
func (c *cached) ReadAt(b []byte, at int64) (int, error) {
	done := 0
	for done < len(b) && at < c.size {
		data, err := c.read(at / chunkSize)
		if err != nil {
			return done, err
		}
		n := copy(b[done:], data[at%chunkSize:])
		done, at = done+n, at+int64(n)
	}
	if done < len(b) {
		return done, io.EOF
	}
	return done, nil
}

// read returns a chunk that is there.
func (c *cached) read(number int64) ([]byte, error) {
	if e := c.kept[number]; e != nil {
		c.used.MoveToFront(e)
		return e.Value.(*chunk).data, nil
	}
	var next *chunk
	if last := c.used.Back(); c.used.Len() >= mostKept {
		next = c.used.Remove(last).(*chunk)
		delete(c.kept, next.number)
	} else {
		next = &chunk{data: make([]byte, chunkSize)}
	}
	next.number, next.data = number, next.data[:min(chunkSize, c.size-number*chunkSize)]
	if n, err := c.r.ReadAt(next.data, number*chunkSize); n < len(next.data) {
		if err == nil || errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	c.kept[number] = c.used.PushFront(next)
	return next.data, nil
}
