package main

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
)

// fileWatch tells when one of a few files changes. It watches their folders,
// because editors and package managers replace files.
type fileWatch struct {
	changed chan struct{} // one slot
	w       *fsnotify.Watcher
	log     *slog.Logger
	done    chan struct{}

	mu    sync.Mutex
	files map[string]bool
}

// newFileWatch watches nothing yet; close ends it.
func newFileWatch(log *slog.Logger) (*fileWatch, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch the config: %w", err)
	}
	f := &fileWatch{changed: make(chan struct{}, 1), w: w, log: log, done: make(chan struct{})}
	go f.run()
	return f, nil
}

// look watches these files from now on, and no others.
func (f *fileWatch) look(paths ...string) error {
	files, folders := map[string]bool{}, map[string]bool{}
	var errs []error
	for _, p := range paths {
		abs, err := filepath.Abs(p)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		files[abs], folders[filepath.Dir(abs)] = true, true
	}
	f.mu.Lock()
	f.files = files
	f.mu.Unlock()
	for _, old := range f.w.WatchList() {
		if folders[old] {
			delete(folders, old)
		} else if err := f.w.Remove(old); err != nil && !errors.Is(err, fsnotify.ErrNonExistentWatch) {
			errs = append(errs, err)
		}
	}
	for dir := range folders {
		if err := f.w.Add(dir); err != nil {
			errs = append(errs, fmt.Errorf("watch %s: %w", dir, err))
		}
	}
	return errors.Join(errs...)
}

func (f *fileWatch) close() {
	_ = f.w.Close() // which never fails
	<-f.done
}

func (f *fileWatch) run() {
	defer close(f.done)
	// A file is written in several steps; the last one counts.
	var settle <-chan time.Time
	for {
		select {
		case ev, ok := <-f.w.Events:
			if !ok {
				return
			}
			f.mu.Lock()
			ours := f.files[ev.Name]
			f.mu.Unlock()
			if ours {
				settle = time.After(200 * time.Millisecond)
			}
		case err, ok := <-f.w.Errors:
			if !ok {
				return
			}
			f.log.Debug("watch the config", "err", err)
		case <-settle:
			settle = nil
			select {
			case f.changed <- struct{}{}:
			default:
			}
		}
	}
}
