package snapshots

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/reconcile/snapshot"
	"github.com/talos-agent/talos-agent/reconcile/snapshot/retention"
)

// readWithin bounds for how long a cluster's snapshots are read after a start, while it is unknown whether they are whole. A
// snapshot of 8 GiB takes about a minute on a disk that nobody else reads.
const readWithin = 10 * time.Minute

// lineage distinguishes the snapshots of a cluster from those of one that had its name before. The zero
// value has none.
type lineage struct {
	bundle  string    // the fingerprint of its secrets
	founded time.Time // when its etcd was
}

func lineageOf(d cluster.Desired, facts cluster.Facts) lineage {
	in, founded := facts.Intent(cluster.IntendBootstrap)
	if !founded {
		return lineage{}
	}
	return lineage{bundle: d.Fingerprint, founded: in.At}
}

// has reports whether a snapshot is of the cluster, by its header. One that somebody has added by
// hand names no secrets, and is as old as its file was then: it is none of these.
func (l lineage) has(e snapshot.Entry) bool {
	return e.Header != nil && e.Header.Bundle != "" && e.Header.Bundle == l.bundle && !e.At.Before(l.founded)
}

// readBack has the newest snapshots read to their end, until one of them is whole, that are newer
// than all of which this process knows that: after a start those that are there. That an earlier
// process has read them is noted nowhere, for a file may have changed since. It goes on in the background, once for each file.
func (k *Keeper) readBack(s *snapshot.Store, all []snapshot.Entry, of lineage) {
	var files []snapshot.Entry
	for _, e := range all { // the newest first
		if e.State == retention.Verified {
			break
		}
		if tried := k.states[e.File]; !tried.isOf(e) && e.State == retention.Unverified && of.has(e) {
			files, k.states[e.File] = append(files, e), known{retention.Unverified, e.Size, e.Changed}
		}
	}
	if len(files) == 0 {
		return
	}
	ctx, cancel := k.begin()
	r := &reading{cancel}
	k.readings[r] = true
	k.wg.Go(func() {
		defer cancel()
		defer k.endReading(r)
		k.readNewest(ctx, s, files, of)
	})
}

// reading is that some snapshots of a cluster are read to their end, or wait for that.
type reading struct{ cancel context.CancelFunc }

var errReadSlowly = fmt.Errorf("they were not read to their end in %v", readWithin)

// readNewest reads snapshots to their end until one is whole. One cluster's are read at a time, and each has its own time.
func (k *Keeper) readNewest(ctx context.Context, s *snapshot.Store, files []snapshot.Entry, of lineage) {
	select {
	case k.reads <- struct{}{}:
		defer func() { <-k.reads }()
	case <-ctx.Done():
		return
	}
	ctx, cancel := context.WithTimeoutCause(ctx, readWithin, errReadSlowly)
	defer cancel()
	for _, e := range files {
		read, err := await(ctx, k, 0, func() (snapshot.Entry, error) { return s.Verify(ctx, e) })
		switch {
		case errors.Is(err, errReadSlowly):
			k.c.Log.Warn("cannot read the snapshots of etcd that are there", logging.Cluster, k.cluster, logging.Detail, e.File, logging.Err, err, logging.Hint, "see whether the directory of snapshots is slow; until the next one is taken none counts as verified")
			return
		case err != nil: // it is of no use any longer
			return
		case read.Problem != "":
			k.warn(read)
		}
		if k.learn(read, of) {
			return
		}
	}
}

// learn takes in what reading a snapshot has shown, and reports whether it is a whole one.
func (k *Keeper) learn(read snapshot.Entry, of lineage) bool {
	k.looking.Lock()
	defer k.looking.Unlock()
	if read.State == retention.Verified && !of.has(read) { // its header is proved only now
		return false
	}
	k.states[read.File] = known{read.State, read.Size, read.Changed}
	return read.State == retention.Verified
}

// endReading has the folder looked at again.
func (k *Keeper) endReading(r *reading) {
	k.looking.Lock()
	k.at = time.Time{}
	delete(k.readings, r)
	k.looking.Unlock()
	k.onRead()
}

// stopReadingBack has nothing read any longer of what was there before.
func (k *Keeper) stopReadingBack() {
	k.looking.Lock()
	defer k.looking.Unlock()
	for r := range k.readings {
		r.cancel()
	}
}

// warn logs that a snapshot is of no use.
func (k *Keeper) warn(e snapshot.Entry) {
	k.c.Log.Warn("a snapshot of etcd cannot be used", logging.Cluster, k.cluster, logging.Detail, e.File, logging.Err, e.Problem)
}
