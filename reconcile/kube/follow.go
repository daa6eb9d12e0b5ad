package kube

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"reflect"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/talos-agent/talos-agent/internal/kubeapi"
)

// follower keeps what is known of the objects of one kind up to date, by a watch
// through one kube-apiserver. It ends by itself when that one is lost; whoever
// needs the objects then begins another.
type follower[V any] struct {
	kind[V]
	server netip.Addr
	change func() // something about an object changed, or the watch was lost
	cancel context.CancelFunc

	mu       sync.Mutex
	moved    chan struct{} // closed and replaced whenever the fields below change
	listed   bool
	watching bool
	lost     error // why the watch ended
	whole    bool  // they were listed and watched at the same time, once
	missed   bool  // somebody gave up waiting
	seen     map[string]V
	shared   map[string]V // copy of seen that was handed out, nil after a change
}

// kind is which objects are followed, and what is kept of one.
type kind[V any] struct {
	name    string // "nodes"
	example any
	client  listWatcher
	// read returns an object's name and what is asked about it, trim the object
	// without all else: it is what a list keeps in memory while it comes in.
	read func(any) (name string, v V, err error)
	trim func(any) any
	// drop is called with the names of objects that are deleted; it may be nil.
	drop func(name string)
}

// listWatcher lists and watches the objects of one kind.
type listWatcher interface {
	list(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// follow begins to follow objects until ctx ends, cancel is called, or the server
// is lost. run must be started by the caller.
func follow[V any](ctx context.Context, k kind[V], server netip.Addr, change func()) (f *follower[V], run func()) {
	// What client-go reports about a watch that broke is reported by us.
	ctx, cancel := context.WithCancel(klog.NewContext(ctx, logr.Discard()))
	f = &follower[V]{kind: k, server: server, change: change, cancel: cancel, moved: make(chan struct{}), seen: map[string]V{}}
	return f, func() { f.run(ctx) }
}

// run keeps the objects up to date until the server is lost.
func (f *follower[V]) run(ctx context.Context) {
	defer f.cancel()
	reflector := cache.NewReflectorWithOptions(&cache.ListWatch{ListWithContextFunc: f.client.list, WatchFuncWithContext: f.watch},
		f.example, f, cache.ReflectorOptions{Name: f.name})
	for {
		began := time.Now()
		round, end := context.WithTimeout(ctx, kubeapi.ListAgain)
		err := reflector.ListAndWatchWithContext(round)
		again := round.Err() != nil
		end()
		switch {
		case ctx.Err() != nil:
			err = ctx.Err()
		case again:
			continue
		case err == nil && time.Since(began) < time.Second:
			err = errors.New("its watches end at once")
		case err == nil:
			// The history it watched was thrown away: list again.
			continue
		}
		f.update(func() bool { f.lost, f.watching = err, false; return ctx.Err() == nil })
		return
	}
}

// watch begins one watch request. A server that is too busy would make the
// reflector try it for ever, so that its answer is disguised.
func (f *follower[V]) watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	f.update(func() bool { f.watching = false; return false })
	stream, err := f.client.watch(ctx, o)
	if apierrors.IsTooManyRequests(err) {
		return nil, kubeapi.InWords(err)
	}
	if err != nil {
		return nil, err
	}
	f.update(func() bool { f.watching = true; return false })
	return stream, nil
}

// wait returns the objects as soon as they are listed and watched. The map is
// shared and read-only.
func (f *follower[V]) wait(ctx context.Context) (map[string]V, error) {
	for {
		f.mu.Lock()
		moved := f.moved
		switch {
		case f.lost != nil:
			defer f.mu.Unlock()
			return nil, f.lost
		case f.listed && f.watching:
			defer f.mu.Unlock()
			if f.shared == nil {
				f.shared = make(map[string]V, len(f.seen))
				maps.Copy(f.shared, f.seen)
			}
			return f.shared, nil
		}
		f.mu.Unlock()
		select {
		case <-moved:
		case <-ctx.Done():
			f.mu.Lock()
			f.missed = true
			f.mu.Unlock()
			return nil, errors.New("it has not listed its " + f.name + " in time")
		}
	}
}

// settle returns when what is seen is as is wants it, the watch has ended, or ctx has.
func (f *follower[V]) settle(ctx context.Context, is func(seen map[string]V) bool) {
	for {
		f.mu.Lock()
		moved, done := f.moved, f.lost != nil || is(f.seen)
		f.mu.Unlock()
		if done {
			return
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return
		}
	}
}

// over reports whether the watch has ended.
func (f *follower[V]) over() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lost != nil
}

// update changes the fields and wakes who waits. It notifies when what is known
// of the objects changed, unless whoever began the watch still waits for it: who
// waits needs no notice, and a watch that is refused would call for the next
// one without end.
func (f *follower[V]) update(alter func() (changed bool)) {
	f.mu.Lock()
	notify := f.whole || f.missed
	changed := alter()
	f.whole = f.whole || f.listed && f.watching
	if changed {
		f.shared = nil
	}
	close(f.moved)
	f.moved = make(chan struct{})
	f.mu.Unlock()
	if changed && notify {
		f.change()
	}
}

// Add implements cache.ReflectorStore.
func (f *follower[V]) Add(obj any) error { return f.Update(obj) }

// Update implements cache.ReflectorStore. Most updates are heartbeats that
// change nothing anybody asks about.
func (f *follower[V]) Update(obj any) error {
	name, v, err := f.read(obj)
	if err != nil {
		return err
	}
	f.mu.Lock()
	have, there := f.seen[name]
	f.mu.Unlock()
	if !there || !reflect.DeepEqual(have, v) {
		f.update(func() bool { f.seen[name] = v; return true })
	}
	return nil
}

// Delete implements cache.ReflectorStore.
func (f *follower[V]) Delete(obj any) error {
	name, _, err := f.read(obj)
	if err != nil {
		return err
	}
	f.update(func() bool { delete(f.seen, name); return true })
	if f.drop != nil {
		f.drop(name)
	}
	return nil
}

// Replace implements cache.ReflectorStore.
func (f *follower[V]) Replace(list []any, _ string) error {
	seen := make(map[string]V, len(list))
	for _, obj := range list {
		name, v, err := f.read(obj)
		if err != nil {
			return err
		}
		seen[name] = v
	}
	var before map[string]V
	f.update(func() bool { before, f.seen, f.listed = f.seen, seen, true; return true })
	for name := range before {
		if _, there := seen[name]; !there && f.drop != nil {
			f.drop(name)
		}
	}
	return nil
}

// Resync implements cache.ReflectorStore.
func (f *follower[V]) Resync() error { return nil }

// Transformer implements cache.TransformingStore.
func (f *follower[V]) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) { return f.trim(obj), nil }
}
