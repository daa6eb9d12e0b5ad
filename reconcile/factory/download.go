package factory

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"os"
	"sync/atomic"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/logging"
)

// reserve is what a download leaves free on the disk of the cache.
const reserve = 256 << 20

// Download brings an image into the cache, whole and verified, and returns what
// it is. An image that somebody put there is taken as it is. Otherwise it comes
// from the factory, which may need minutes to build it.
//
// progress, which may be nil, gets how many bytes of how many have come; the
// total is 0 while it is not known. A connection that breaks is made again, and the
// download goes on where it ended; one that is given up begins again.
// Several calls for one image become one download.
//
// The error states, in words and by Error.Transient, what to do about it.
func (f *Factory) Download(ctx context.Context, img cluster.Image, progress func(done, total int64)) (cluster.ImagePin, error) {
	if err := checkName(img); err != nil {
		return cluster.ImagePin{}, fmt.Errorf("download: %w", err)
	}
	if progress == nil {
		progress = func(int64, int64) {}
	}
	release, err := f.reserveName(ctx, img.Name)
	if err != nil {
		return cluster.ImagePin{}, fmt.Errorf("download image %s: %w", img.Name, err)
	}
	defer release()

	switch info, err := os.Lstat(f.path(img.Name)); {
	case err == nil:
		n := f.note(img.Name)
		switch {
		case n.of(info) && n.Schematic == img.Schematic && !n.Changed:
			return n.pin(), nil
		case n.Downloaded:
			f.log.Warn("an image in the cache was changed since it was downloaded; it is downloaded again", logging.Detail, img.Name, logging.Image, img.Name)
		default:
			f.log.Info("an image was put into the cache; it is used", logging.Detail, img.Name, logging.Image, img.Name)
			n, err := f.inspect(img)
			if err != nil {
				return cluster.ImagePin{}, err
			}
			return n.pin(), f.remember(img.Name, n)
		}
	case !errors.Is(err, os.ErrNotExist):
		return cluster.ImagePin{}, fmt.Errorf("look for image in the cache: %w", err)
	}

	n, err := f.fetch(ctx, img, progress)
	if errors.Is(err, ErrUnknownSchematic) {
		f.mu.Lock()
		maps.DeleteFunc(f.ids, func(_, id string) bool { return id == img.Schematic })
		f.mu.Unlock()
	}
	if err != nil {
		return cluster.ImagePin{}, err
	}
	return n.pin(), nil
}

// reserveName waits until no one else downloads an image of that name.
func (f *Factory) reserveName(ctx context.Context, name string) (release func(), err error) {
	for {
		f.mu.Lock()
		other, taken := f.busy[name]
		if !taken {
			mine := make(chan struct{})
			f.busy[name] = mine
			f.mu.Unlock()
			return func() {
				f.mu.Lock()
				delete(f.busy, name)
				f.mu.Unlock()
				close(mine)
			}, nil
		}
		f.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// fetch brings an image from the factory into the cache.
func (f *Factory) fetch(ctx context.Context, img cluster.Image, progress func(done, total int64)) (note, error) {
	t := &transfer{f: f, img: img, what: "download image " + img.Name, progress: progress, hash: sha256.New()}
	if err := f.makeDir(); err != nil {
		return note{}, fmt.Errorf("%s: %w", t.what, err)
	}
	n, err := t.run(ctx)
	if err != nil {
		return note{}, t.discard(err)
	}
	// The note comes first: without its image it has no meaning, while an image
	// without its note is somebody else's.
	if err := f.remember(img.Name, n); err != nil {
		return note{}, t.discard(err)
	}
	if err := f.keep(t.file, f.path(img.Name)); err != nil {
		return note{}, fmt.Errorf("%s: %w", t.what, err)
	}
	return n, nil
}

// checkSpace looks whether so many bytes fit into the cache.
func (f *Factory) checkSpace(what string, bytes int64) error {
	free, err := f.free(f.dir)
	if err != nil {
		return fmt.Errorf("%s: ask for free space in %s: %w", what, f.dir, err)
	}
	if free < bytes+reserve {
		return f.full(fmt.Sprintf("%s: it needs %d MiB and %d MiB should stay free, but %d MiB are", what, bytes>>20, reserve>>20, free>>20))
	}
	return nil
}

func (f *Factory) full(what string) *Error {
	return newError("make room on that disk, or set cache_dir to a directory on another one", "%s: the disk of %s is full", what, f.dir)
}

// notAnImage describes an answer that does not begin like an image.
func (f *Factory) notAnImage(what string, in *bufio.Reader) error {
	begin, err := in.Peek(80)
	words := sanitize(string(begin))
	switch {
	case len(begin) == 0 && err != nil:
		words = "it is empty"
	default:
		words = fmt.Sprintf("it begins with %q", words)
	}
	return newTransient(nil, f.inTheWay(), "%s: the answer is not an image of Talos: %s", what, words)
}

// broken is an error of the connection, named by what broke it.
func (f *Factory) broken(ctx context.Context, img cluster.Image, err error) error {
	what := "download image " + img.Name
	var s silence
	switch {
	case errors.As(context.Cause(ctx), &s):
		return newTransient(s, "the factory may still be building the image; it is asked again", "%s: nothing came from %s for %s", what, f.url.Host, time.Duration(s))
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w", what, context.Cause(ctx))
	default:
		e := f.unreachable(what, err)
		e.hint += "; without a way, put the image into " + f.dir + " under this name"
		return e
	}
}

// silence is the cause of a context that ended because nothing came for so
// long.
type silence time.Duration

func (s silence) Error() string { return "nothing came for " + time.Duration(s).String() }

// watcher ends a context when nothing came in time.
type watcher struct {
	cancel context.CancelCauseFunc
	within atomic.Int64
	timer  *time.Timer
}

// watchProgress makes a context that ends after so long, unless alive is called before.
func watchProgress(ctx context.Context, within time.Duration) (context.Context, *watcher) {
	ctx, cancel := context.WithCancelCause(ctx)
	w := &watcher{cancel: cancel}
	w.within.Store(int64(within))
	w.timer = time.AfterFunc(within, func() { cancel(silence(w.within.Load())) })
	return ctx, w
}

// alive gives the other side so long again.
func (w *watcher) alive(within time.Duration) {
	w.within.Store(int64(within))
	w.timer.Reset(within)
}

func (w *watcher) stop() {
	w.timer.Stop()
	w.cancel(nil)
}
