package snapshot

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"testing"

	"pgregory.net/rapid"
)

// counting counts the reads of each chunk.
type counting struct {
	io.ReaderAt
	reads map[int64]int
}

func (c counting) ReadAt(b []byte, at int64) (int, error) {
	c.reads[at/chunkSize]++
	return c.ReaderAt.ReadAt(b, at)
}

// numbered is so many bytes, of which each place has another neighbourhood.
func numbered(size int) []byte {
	var out []byte
	for sum := sha256.Sum256(nil); len(out) < size; sum = sha256.Sum256(sum[:]) {
		out = append(out, sum[:]...)
	}
	return out[:size]
}

// TestCached: what is read is what is there, at its end too, however many chunks it has.
func TestCached(t *testing.T) {
	all := numbered((mostKept + 3) * chunkSize)
	rapid.Check(t, func(t *rapid.T) {
		b := all[:len(all)-rapid.IntRange(0, 2*chunkSize).Draw(t, "shorter")]
		c := newCached(bytes.NewReader(b), int64(len(b)))
		for range rapid.IntRange(1, 20).Draw(t, "reads") {
			at := rapid.IntRange(0, len(b)+10).Draw(t, "at")
			got := make([]byte, rapid.IntRange(0, 3*chunkSize).Draw(t, "size"))
			want := b[min(at, len(b)):min(at+len(got), len(b))]
			if n, err := c.ReadAt(got, int64(at)); !bytes.Equal(got[:n], want) || (err == io.EOF) != (n < len(got)) || err != nil && err != io.EOF {
				t.Fatalf("%d of %d bytes at %d, want %d: %v", n, len(got), at, len(want), err)
			}
		}
	})
}

// TestCachedForgets: chunks are read once while they are kept, and the one that was not
// read for longest makes room.
func TestCachedForgets(t *testing.T) {
	b := numbered((mostKept + 1) * chunkSize)
	r := counting{bytes.NewReader(b), map[int64]int{}}
	c := newCached(r, int64(len(b)))
	read := func(number int64) {
		t.Helper()
		var got [10]byte
		if _, err := c.ReadAt(got[:], number*chunkSize+5); err != nil || !bytes.Equal(got[:], b[number*chunkSize+5:][:10]) {
			t.Fatalf("chunk %d: %v", number, err)
		}
	}
	for number := range int64(mostKept) {
		read(number)
	}
	read(0)
	read(mostKept) // in the place of 1
	read(0)
	read(1)
	for number, want := range map[int64]int{0: 1, 1: 2, 3: 1, mostKept: 1} {
		if r.reads[number] != want {
			t.Errorf("chunk %d was read %d times, want %d", number, r.reads[number], want)
		}
	}
	if len(c.kept) != mostKept || c.used.Len() != mostKept {
		t.Errorf("%d and %d are kept", len(c.kept), c.used.Len())
	}
}

// TestCachedFails: a chunk that could not be read is not kept.
func TestCachedFails(t *testing.T) {
	b, broken := numbered(2*chunkSize), errors.New("input/output error")
	c := newCached(failing{bytes.NewReader(b), chunkSize, broken}, int64(len(b)))
	for range 2 {
		if _, err := c.ReadAt(make([]byte, 10), chunkSize); !errors.Is(err, broken) {
			t.Error(err)
		}
	}
	c = newCached(bytes.NewReader(b[:chunkSize+1]), int64(len(b)))
	if _, err := c.ReadAt(make([]byte, 10), chunkSize); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
}
