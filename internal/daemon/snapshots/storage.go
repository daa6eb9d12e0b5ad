package snapshots

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/reconcile/snapshot"
)

// A storage that hangs, such as a file server that is off, keeps what reads or writes there, and nothing but itself ends
// that: no context, and no signal. Who waits for it is held up by it no longer than it must.

// storageWithin is how long what must end has for its last call of the storage.
const storageWithin = 5 * time.Second

var errHangs = errors.New("the directory of snapshots does not answer")

// guard has something done on the storage, and turns a panic into an error.
func guard[T any](k *Keeper, do func() (T, error)) (out T, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fault.Internal(v)
			k.c.Log.Error("the reading or writing of snapshots of etcd panicked; what it was about is unknown", logging.Cluster, k.cluster, logging.Err, fmt.Sprint(v), logging.Stack, string(debug.Stack()))
		}
	}()
	return do()
}

// await has something done on the storage, and returns what that returns, or when ctx has ended for so long.
func await[T any](ctx context.Context, k *Keeper, longer time.Duration, do func() (T, error)) (T, error) {
	type result struct {
		out T
		err error
	}
	done := make(chan result, 1)
	k.wg.Go(func() {
		out, err := guard(k, do)
		done <- result{out, err}
	})
	select {
	case r := <-done:
		return r.out, r.err
	case <-ctx.Done():
	}
	late := time.NewTimer(longer)
	defer late.Stop()
	select {
	case r := <-done:
		return r.out, r.err
	case <-late.C:
		var none T
		return none, fmt.Errorf("%w: %w", errHangs, context.Cause(ctx))
	}
}

// waitForStorage waits until nothing is read or written, no longer than it must; false: the storage keeps something.
func (a *Archive) waitForStorage() bool {
	ended := make(chan struct{})
	go func() {
		a.wg.Wait()
		close(ended)
	}()
	late := time.NewTimer(storageWithin)
	defer late.Stop()
	select {
	case <-ended:
		return true
	case <-late.C:
		return false
	}
}

// listed is what a list of the folder has shown.
type listed struct {
	store *snapshot.Store
	all   []snapshot.Entry
	err   error
}

// list lists the snapshots of all clusters. While the storage keeps a list, no other one is begun. k.looking is held.
func (k *Keeper) list(ctx context.Context) (*snapshot.Store, []snapshot.Entry, error) {
	if k.listing != nil {
		select {
		case <-k.listing: // what was there then
		default:
			return nil, nil, errHangs
		}
	}
	done := make(chan listed, 1)
	k.listing = done
	k.wg.Go(func() {
		ctx, cancel := k.begin()
		defer cancel()
		l, err := guard(k, func() (l listed, err error) {
			if l.store, err = k.open(); err == nil {
				l.all, err = l.store.List(ctx)
			}
			return l, err
		})
		l.err = err
		done <- l
	})
	select {
	case l := <-done:
		k.listing = nil
		return l.store, l.all, l.err
	case <-ctx.Done():
		return nil, nil, errHangs
	}
}
