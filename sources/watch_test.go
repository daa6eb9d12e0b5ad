package sources

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
)

// deadline is how long a test waits for what must happen; it only bounds a
// failure.
const deadline = 2 * time.Minute

// brisk watches as Watch does, but does not let the tests wait.
var brisk = watching{quiet: 20 * time.Millisecond, unrest: 200 * time.Millisecond, look: 20 * time.Millisecond}

// watch starts watching a directory and returns the changes it reports.
func watch(t *testing.T, dir string) (changes chan struct{}, done chan error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	changes, done = make(chan struct{}, 100), make(chan error, 1)
	go func() { done <- brisk.run(ctx, dir, func() { changes <- struct{}{} }) }()
	t.Cleanup(func() {
		cancel()
		select {
		case <-done:
		case <-time.After(deadline):
			t.Error("the watch goes on without its context")
		}
	})
	// The watch is on when it reports a change; until then one is made again and
	// again.
	probe := filepath.Join(dir, "probe")
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for limit := time.After(deadline); ; {
		write(t, probe, time.Now().String())
		select {
		case <-changes:
			drain(changes)
			return changes, done
		case <-tick.C:
		case <-limit:
			t.Fatal("no change is reported")
		}
	}
}

// drain waits until the changes that were made so far are reported.
func drain(changes chan struct{}) {
	for {
		select {
		case <-changes:
		case <-time.After(3 * brisk.quiet):
			return
		}
	}
}

func expect(t *testing.T, changes chan struct{}, what string) {
	t.Helper()
	select {
	case <-changes:
		drain(changes)
	case <-time.After(deadline):
		t.Fatalf("nothing reported of %s", what)
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestWatch(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "inventory/dev/nodes.yaml"), "a")
	write(t, filepath.Join(dir, ".git/objects/x"), "a")
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	changes, _ := watch(t, link)

	write(t, filepath.Join(dir, "inventory/dev/nodes.yaml"), "b")
	expect(t, changes, "a file that changed")

	write(t, filepath.Join(dir, "inventory/new/deep/er/cluster.yaml"), "a")
	expect(t, changes, "a new folder")
	write(t, filepath.Join(dir, "inventory/new/deep/er/cluster.yaml"), "b")
	expect(t, changes, "a file in a new folder")

	if err := os.Rename(filepath.Join(dir, "inventory/new"), filepath.Join(dir, "inventory/old")); err != nil {
		t.Fatal(err)
	}
	expect(t, changes, "a folder that moved")
	write(t, filepath.Join(dir, "inventory/old/deep/er/cluster.yaml"), "c")
	expect(t, changes, "a file in a folder that moved")

	write(t, filepath.Join(dir, ".git/HEAD"), "ref")
	expect(t, changes, "a checkout")

	if err := os.RemoveAll(filepath.Join(dir, "inventory/old")); err != nil {
		t.Fatal(err)
	}
	expect(t, changes, "a folder that went")
}

// TestWatchAFolderThatMoved: it is watched under its new name, time and again, and
// so are the folders that come below it.
func TestWatchAFolderThatMoved(t *testing.T) {
	dir := t.TempDir()
	name := func(i int) string { return filepath.Join(dir, fmt.Sprint("folder", i)) }
	write(t, filepath.Join(name(0), "below/a"), "a")
	changes, _ := watch(t, dir)
	for i := range 10 {
		if err := os.Rename(name(i), name(i+1)); err != nil {
			t.Fatal(err)
		}
		expect(t, changes, "a folder that moved")
		write(t, filepath.Join(name(i+1), "a"), fmt.Sprint(i))
		expect(t, changes, "a file in it")
		below := filepath.Join(name(i+1), "below", fmt.Sprint(i))
		if err := os.Mkdir(below, 0o755); err != nil {
			t.Fatal(err)
		}
		expect(t, changes, "a folder below it")
		write(t, filepath.Join(below, "a"), "a")
		expect(t, changes, "a file in the folder below it")
	}
}

// TestWatchLeavesGitAlone: what git does inside itself is no change.
func TestWatchLeavesGitAlone(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, ".git/objects/x"), "a")
	w, err := fsnotify.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Close() }()
	if err := watchTree(w, dir); err != nil {
		t.Fatal(err)
	}
	lock, head := filepath.Join(dir, ".git/index.lock"), filepath.Join(dir, ".git/HEAD")
	write(t, filepath.Join(dir, ".git/objects/y"), "b")
	write(t, lock, "b")
	if err := os.Remove(lock); err != nil {
		t.Fatal(err)
	}
	write(t, head, "ref") // is reported, and comes last
	for limit := time.After(deadline); ; {
		select {
		case e := <-w.Events:
			change, err := handleEvent(w, dir, e)
			if err != nil || change != (e.Name == head) {
				t.Errorf("%s: a change is %v, %v", e, change, err)
			}
			if e.Name == head {
				return
			}
		case err := <-w.Errors:
			t.Fatal(err)
		case <-limit:
			t.Fatal("nothing reported of a checkout")
		}
	}
}

// TestWatchALinkThatLeadsElsewhere: who publishes by turning a link is followed.
func TestWatchALinkThatLeadsElsewhere(t *testing.T) {
	one, two, link := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(one, link); err != nil {
		t.Fatal(err)
	}
	changes, _ := watch(t, link)
	if err := os.Symlink(two, link+".new"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(link+".new", link); err != nil {
		t.Fatal(err)
	}
	expect(t, changes, "a link that leads elsewhere")
	write(t, filepath.Join(two, "inventory/dev/nodes.yaml"), "a")
	expect(t, changes, "a file where it leads")
}

// TestWatchUnrest: a file that never rests does not keep its changes back.
func TestWatchUnrest(t *testing.T) {
	dir := t.TempDir()
	changes, _ := watch(t, dir)
	tick := time.NewTicker(brisk.quiet / 4)
	defer tick.Stop()
	for limit := time.After(deadline); ; {
		select {
		case <-tick.C:
			write(t, filepath.Join(dir, "busy"), time.Now().String())
		case <-changes:
			return
		case <-limit:
			t.Fatal("nothing reported while a file changes all the time")
		}
	}
}

func TestWatchDeleted(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gone")
	if err := Watch(t.Context(), dir, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory that is not there: %v", err)
	}
	write(t, filepath.Join(dir, "x"), "a")
	_, done := watch(t, dir)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("after the directory went: %v", err)
		}
		done <- err // for the cleanup
	case <-time.After(deadline):
		t.Fatal("the directory went unnoticed")
	}
}

// TestWatchWhereTwoThingsMove: a folder that moves just when a link on the way to
// the directory is turned to another is no reason to watch no more.
func TestWatchWhereTwoThingsMove(t *testing.T) {
	dir := t.TempDir()
	for i := range 200 {
		in := func(name string) string { return filepath.Join(dir, fmt.Sprint(i), name) }
		write(t, in("old/folder/a"), "a")
		write(t, in("new/a"), "a")
		there, ended := make(chan struct{}), make(chan error, 1)
		if err := errors.Join(os.Symlink("old", in("link")), os.Symlink("new", in("next"))); err != nil {
			t.Fatal(err)
		}
		go func() {
			hasty := watching{quiet: time.Nanosecond, unrest: time.Nanosecond, look: time.Nanosecond}
			moved, err := hasty.one(t.Context(), in("link"), true, sync.OnceFunc(func() { close(there) }))
			if err == nil && !moved {
				err = errors.New("nothing has moved")
			}
			ended <- err
		}()
		<-there
		if err := errors.Join(os.Rename(in("old/folder"), in("old/moved")), os.Rename(in("next"), in("link"))); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	}
}

// TestWatchWhereTheOldGoes: a directory that is deleted once the link leads to
// another is no reason to watch no more.
func TestWatchWhereTheOldGoes(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	write(t, in("old/a"), "a")
	write(t, in("new/a"), "a")
	if err := errors.Join(os.Symlink("old", in("link")), os.Symlink("new", in("next"))); err != nil {
		t.Fatal(err)
	}
	changes, ended := watch(t, in("link"))
	if err := errors.Join(os.Rename(in("next"), in("link")), os.RemoveAll(in("old"))); err != nil {
		t.Fatal(err)
	}
	expect(t, changes, "another directory")
	write(t, in("new/a"), "b")
	select {
	case <-changes:
	case err := <-ended:
		t.Error(err)
		ended <- err
	case <-time.After(deadline):
		t.Error("nothing reported of a file in it")
	}
}
