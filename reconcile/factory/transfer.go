package factory

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/internal/retry"
)

// How often a connection that broke is made again: as long as bytes come, and a few
// times more.
const (
	mostConnections = 30
	mostFruitless   = 3
	connectAgain    = time.Second
)

// overlap is how much of what has come is asked for once more. Where it is not the
// same, the factory has built another image meanwhile.
const overlap = 64 << 10

// transfer is an image on its way, over several connections where one breaks.
type transfer struct {
	f        *Factory
	img      cluster.Image
	what     string
	progress func(done, total int64)

	file        *os.File // nil: nothing has come yet
	hash        hash.Hash
	done, total int64 // of the total 0: unknown
	build       build // what has come is of it
}

// build holds the validators of an answer, by which two builds of an image differ. A
// factory need not send any: what overlaps is compared as well.
type build struct{ tag, modified string }

func readBuild(h http.Header) build {
	return build{tag: h.Get("ETag"), modified: h.Get("Last-Modified")}
}

// condition is the value of If-Range: the part is sent only if it is of this build,
// otherwise the whole. A weak tag is not allowed there.
func (b build) condition() string {
	if b.tag != "" && !strings.HasPrefix(b.tag, "W/") {
		return b.tag
	}
	return b.modified
}

// differs reports whether another answer is of another build. A part need not repeat
// everything, and the time may differ between two servers.
func (b build) differs(other build) bool {
	if b.tag != "" && other.tag != "" {
		return b.tag != other.tag
	}
	return b.modified != "" && other.modified != "" && b.modified != other.modified
}

// interrupted is the error of a connection that broke after some of the image had come.
type interrupted struct{ error }

func (i interrupted) Unwrap() error { return i.error }

// run receives the image.
func (t *transfer) run(ctx context.Context) (note, error) {
	for connections, fruitless := 1, 0; ; connections++ {
		before := t.done
		err := t.receive(ctx)
		if err == nil {
			return t.inspect()
		}
		var broken interrupted
		if !errors.As(err, &broken) || ctx.Err() != nil {
			return note{}, err
		}
		if fruitless++; t.done > before {
			fruitless = 0
		}
		if t.total == 0 || connections == mostConnections || fruitless == mostFruitless {
			return note{}, broken.error
		}
		t.f.log.Debug("the connection to the factory broke; the download goes on where it ended", logging.Image, t.img.Name, logging.Err, broken.error)
		if err := retry.Sleep(ctx, connectAgain); err != nil {
			return note{}, fmt.Errorf("%s: %w", t.what, err)
		}
	}
}

// receive asks for what is missing and takes it in. It returns an interrupted where another
// connection may bring the rest.
func (t *transfer) receive(parent context.Context) error {
	ctx, w := watchProgress(parent, buildWithin)
	defer w.stop()
	resp, err := t.ask(ctx)
	if err != nil {
		return t.broken(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }()
	w.alive(stallAfter)
	body, err := t.judge(ctx, resp)
	if err != nil {
		return err
	}
	buf := make([]byte, 256<<10)
	for err == nil && t.done <= mostBytes {
		var n int
		n, err = body.Read(buf)
		if _, err := t.file.Write(buf[:n]); errors.Is(err, syscall.ENOSPC) {
			return t.f.full(t.what)
		} else if err != nil {
			return fmt.Errorf("%s: %w", t.what, err)
		}
		t.hash.Write(buf[:n])
		t.done += int64(n)
		w.alive(stallAfter)
		t.progress(t.done, t.total)
	}
	switch {
	case err == nil:
		return newError("look at what the factory sends for this schematic", "%s: more than %d MiB came, which no Talos image has", t.what, int64(mostBytes)>>20)
	case errors.Is(err, io.EOF) && (t.total == 0 || t.done == t.total):
		return nil // that was all
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return interrupted{newTransient(io.ErrUnexpectedEOF, "it is tried again from the beginning", "%s: the connection ended after %d of %d bytes", t.what, t.done, t.total)}
	}
	return t.broken(ctx, err)
}

// ask requests what is missing, and a little before it.
func (t *transfer) ask(ctx context.Context) (*http.Response, error) {
	address := t.f.url.JoinPath("image", t.img.Schematic, t.img.Version, t.img.Asset()).String()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	if t.done > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", t.start()))
		if is := t.build.condition(); is != "" {
			req.Header.Set("If-Range", is)
		}
	}
	t.progress(t.done, t.total)
	return t.f.client.Do(req)
}

// start is the first byte that is asked for.
func (t *transfer) start() int64 { return max(0, t.done-overlap) }

// judge looks at an answer, and returns its body at the first byte that is missing.
func (t *transfer) judge(ctx context.Context, resp *http.Response) (io.Reader, error) {
	switch {
	case t.done > 0 && resp.StatusCode == http.StatusPartialContent:
		return t.resume(ctx, resp)
	case t.done > 0 && resp.StatusCode == http.StatusRequestedRangeNotSatisfiable:
		return nil, t.startOver("the factory's image has another size now")
	case resp.StatusCode != http.StatusOK:
		body, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
		if err != nil {
			return nil, t.broken(ctx, err)
		}
		refusal := readRefusal(t.what, resp.StatusCode, body)
		if t.done > 0 && refusal.Transient() {
			return nil, interrupted{refusal}
		}
		return nil, refusal
	}
	return t.begin(ctx, resp)
}

// begin looks at the answer that has the whole image. Where some has come before, the
// factory sends no parts, or has another build: that makes room for this one.
func (t *transfer) begin(ctx context.Context, resp *http.Response) (io.Reader, error) {
	if t.file != nil {
		if err := t.empty(); err != nil {
			return nil, err
		}
	}
	t.build = readBuild(resp.Header)
	t.total = max(resp.ContentLength, 0)
	if t.total > mostBytes {
		return nil, newError("look at what the factory sends for this schematic", "%s: the factory wants to send %d MiB, which no Talos image has", t.what, t.total>>20)
	}
	if err := t.f.checkSpace(t.what, t.total); err != nil {
		return nil, err
	}
	mark, after := markOf(t.img)
	in := bufio.NewReaderSize(resp.Body, after+descriptorSize)
	if head, err := in.Peek(after + len(mark)); err != nil && !errors.Is(err, io.EOF) {
		return nil, t.broken(ctx, err)
	} else if len(head) < after+len(mark) || string(head[after:]) != mark {
		return nil, t.f.notAnImage(t.what, in)
	}
	if t.file == nil {
		var err error
		if t.file, err = t.f.create(t.img.Name); err != nil {
			return nil, fmt.Errorf("%s: %w", t.what, err)
		}
	}
	return in, nil
}

// resume checks that what comes continues what has come.
func (t *transfer) resume(ctx context.Context, resp *http.Response) (io.Reader, error) {
	start := t.start()
	if t.build.differs(readBuild(resp.Header)) {
		return nil, t.startOver("the factory has built another image meanwhile")
	}
	if want := fmt.Sprintf("bytes %d-%d/%d", start, t.total-1, t.total); resp.Header.Get("Content-Range") != want {
		return nil, t.startOver("the factory sends another part than the missing one")
	}
	have, again := make([]byte, t.done-start), make([]byte, t.done-start)
	if _, err := t.file.ReadAt(have, start); err != nil {
		return nil, fmt.Errorf("%s: %w", t.what, err)
	}
	if _, err := io.ReadFull(resp.Body, again); err != nil {
		return nil, t.broken(ctx, err)
	}
	if !bytes.Equal(have, again) {
		return nil, t.startOver("the factory has built another image meanwhile")
	}
	return resp.Body, nil
}

// startOver drops what has come, so that the next connection brings all of it.
func (t *transfer) startOver(why string) error {
	if err := t.empty(); err != nil {
		return err
	}
	return interrupted{newTransient(nil, "it is tried again from the beginning", "%s: %s", t.what, why)}
}

// empty drops what has come.
func (t *transfer) empty() error {
	t.done = 0
	t.hash.Reset()
	_, err := t.file.Seek(0, io.SeekStart)
	if err = errors.Join(err, t.file.Truncate(0)); err != nil {
		return fmt.Errorf("%s: %w", t.what, err)
	}
	return nil
}

// broken is an error of the connection: an interrupted where some of the image has
// come, even if it was dropped since.
func (t *transfer) broken(ctx context.Context, err error) error {
	err = t.f.broken(ctx, t.img, err)
	if t.file != nil {
		return interrupted{err}
	}
	return err
}

// inspect looks at whether what came is an image, and all of it.
func (t *transfer) inspect() (note, error) {
	if err := checkWhole(t.img, t.file, t.done); err != nil {
		return note{}, newTransient(nil, t.f.inTheWay(), "%s: what came is no whole Talos image: %v", t.what, err)
	}
	info, err := t.file.Stat()
	if err != nil {
		return note{}, fmt.Errorf("%s: %w", t.what, err)
	}
	return note{Schematic: t.img.Schematic, SHA256: hex.EncodeToString(t.hash.Sum(nil)), Bytes: t.done, Modified: info.ModTime(), Downloaded: true}, nil
}

// discard removes what has come, because of err.
func (t *transfer) discard(err error) error {
	if t.file == nil {
		return err
	}
	return discardFile(t.file, err)
}
