package sources

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Watch calls onChange, one call at a time, after something in the directory or
// below it has changed, until the context ends; then it returns nil. Changes that
// come close together are reported once. Links below the directory are not
// followed; one on the way to it that leads elsewhere is. Of .git only the folder
// itself is watched, which is where a commit or a checkout shows.
//
// It returns an error when the directory cannot be watched, or is deleted.
func Watch(ctx context.Context, dir string, onChange func()) error {
	// Editors and git write many files in a row.
	return watching{quiet: 200 * time.Millisecond, unrest: 2 * time.Second, look: 2 * time.Second}.run(ctx, dir, onChange)
}

// watching is how changes become calls: a change is reported once nothing has
// happened for the quiet time, but not later than the time of unrest after it.
// No event reports that a link on the way to the directory leads elsewhere: that
// is checked now and then.
type watching struct{ quiet, unrest, look time.Duration }

func (c watching) run(ctx context.Context, dir string, onChange func()) error {
	for moved := false; ; {
		var err error
		if moved, err = c.one(ctx, dir, moved, onChange); err != nil || !moved {
			return err
		}
	}
}

// one watches the directory that is there now, until the context ends, there is
// another one at the same path, or a folder in it has moved.
func (c watching) one(ctx context.Context, path string, news bool, onChange func()) (moved bool, err error) {
	is, err := os.Stat(path)
	if err != nil {
		return false, fmt.Errorf("watch: %w", err)
	}
	look := time.NewTicker(c.look)
	defer look.Stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- c.tree(ctx, path, news, onChange) }()
	elsewhere := func() bool {
		now, err := os.Stat(path)
		return err == nil && !os.SameFile(is, now)
	}
	for {
		select {
		case err := <-ended:
			// The old directory may go as soon as there is another.
			if errors.Is(err, errMoved) || errors.Is(err, fs.ErrNotExist) && elsewhere() {
				return true, nil
			}
			return moved, err
		case <-look.C:
			if elsewhere() {
				moved = true
				cancel() // what has happened just then is reported above
			}
		}
	}
}

// errMoved ends the watch of a directory in which a folder has moved: what the
// library watches in that one bears names of before, under which nothing new is
// found, and it releases the folder itself some time after the new name is
// reported.
var errMoved = errors.New("a folder has moved")

// tree watches a directory and what is below it. With news there is a change to
// be reported once the next one cannot be missed.
func (c watching) tree(ctx context.Context, dir string, news bool, onChange func()) error {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w", dir, err)
	}
	defer w.Close()
	if err := watchTree(w, dir); err != nil {
		return err
	}
	timer := time.NewTimer(c.quiet)
	var first time.Time // of the changes that are not reported yet
	if news {
		first = time.Now()
	} else {
		timer.Stop()
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
			first = time.Time{}
			onChange()
			continue
		case e := <-w.Events:
			if change, err := handleEvent(w, dir, e); err != nil {
				return err
			} else if !change {
				continue
			}
		case err := <-w.Errors:
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				return fmt.Errorf("watch %s: %w", dir, err)
			}
			// Events were lost, and folders may be new: look at everything.
			if err := watchTree(w, dir); err != nil {
				return err
			}
		}
		if first.IsZero() {
			first = time.Now()
		}
		timer.Reset(min(c.quiet, max(0, c.unrest-time.Since(first))))
	}
}

// handleEvent follows folders that come, and reports whether an event is a change to be
// reported. It fails when the root goes, and when a folder moves.
func handleEvent(w *fsnotify.Watcher, root string, e fsnotify.Event) (change bool, err error) {
	switch {
	case (e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename)) && e.Name == root:
		return false, fmt.Errorf("watch %s: the directory is gone: %w", root, fs.ErrNotExist)
	case e.Has(fsnotify.Rename) && slices.Contains(w.WatchList(), e.Name):
		return false, errMoved
	case e.Has(fsnotify.Create):
		if err := watchTree(w, e.Name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
	}
	return !isNoise(e), nil
}

// isNoise reports what happens to a file without changing it: locks of git,
// which come and go around every change, and attributes.
func isNoise(e fsnotify.Event) bool {
	return e.Op == fsnotify.Chmod || strings.HasSuffix(e.Name, ".lock") && filepath.Base(filepath.Dir(e.Name)) == ".git"
}

// watchTree adds a folder and everything below it. What is no folder is left
// alone: its folder's watch covers it.
func watchTree(w *fsnotify.Watcher, root string) error {
	return filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist) && p != root:
			return nil // deleted again already
		case err != nil:
			return fmt.Errorf("watch %s: %w", p, err)
		case !d.IsDir():
			return nil
		}
		if err := w.Add(p); err != nil {
			if errors.Is(err, fs.ErrNotExist) && p != root {
				return fs.SkipDir
			}
			return fmt.Errorf("watch %s: %w", p, err)
		}
		if d.Name() == ".git" {
			return fs.SkipDir
		}
		return nil
	})
}
