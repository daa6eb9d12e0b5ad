// Package drain is how far Talos' own drain of a node is: which pods it asks to go, and for how
// long it waits.
//
// It must not know where pods are kept, and what is done to them.
package drain

import (
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// What Talos' own drain of a node waits for: the Node to be cordoned, a budget, and pods to end.
// Source: talos v1.13.9, CordonAndDrainNode and pkg/kubernetes.
const (
	cordonPatience = time.Minute
	pause          = 5 * time.Second
	look           = 3 * time.Second
	patience       = 5 * time.Minute
	endPatience    = time.Minute // of one pod

	// Grace is the grace of the pods that are evicted, in seconds.
	Grace = 60
)

// Drain is one drain of a node. It lists the pods of the node once: what comes later is
// not its own.
type Drain struct {
	since   time.Time
	evicted map[string]time.Time // when each of the pods was, by uid; zero: not yet. nil: none was listed
}

// New begins a drain.
func New(now time.Time) *Drain { return &Drain{since: now} }

// HasPods reports whether the pods of the node were listed.
func (d *Drain) HasPods() bool { return d.evicted != nil }

// ListPods keeps the pods that are to go.
func (d *Drain) ListPods(now time.Time, uids []string) {
	d.since, d.evicted = now, map[string]time.Time{}
	for _, uid := range uids {
		d.evicted[uid] = time.Time{}
	}
}

// Look returns which pods are to be asked to go now, and how long to wait for the rest; 0: it
// is over. up reports whether an API answers: without one what is asked fails, and is not
// asked again. stays reports whether a pod is still there.
func (d *Drain) Look(now time.Time, up bool, stays func(uid string) bool) (evict []string, wait time.Duration) {
	switch took := now.Sub(d.since); {
	case d.HasPods() && took >= patience, !d.HasPods() && took >= cordonPatience:
		return nil, 0
	case !d.HasPods():
		return nil, pause
	}
	for _, uid := range slices.Sorted(maps.Keys(d.evicted)) {
		switch at := d.evicted[uid]; {
		case up && !stays(uid), !up && at.IsZero(), !at.IsZero() && now.Sub(at) >= endPatience:
			delete(d.evicted, uid)
		case at.IsZero():
			evict = append(evict, uid)
		default:
			wait = look
		}
	}
	return evict, wait
}

// NoteEviction takes in what became of asking a pod to go, and returns how long to wait for it.
func (d *Drain) NoteEviction(now time.Time, uid string, err error) (wait time.Duration) {
	switch {
	case err == nil:
		d.evicted[uid] = now
		return look
	case apierrors.IsTooManyRequests(err):
		return pause
	}
	delete(d.evicted, uid)
	return 0
}
