package retention

import (
	"fmt"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
)

const (
	// freshFor is how old a verified snapshot may be that something stands on that cannot be undone.
	freshFor = time.Hour
	// readWithin is how long those may be read that were there when the agent started. It gives up after ten minutes.
	readWithin = 15 * time.Minute
	// seeWithin is how long the store may not be seen for once.
	seeWithin = 2 * time.Minute
)

// AwaitStore waits until it can be seen which snapshots a cluster has, and is known whether the newest
// is whole.
func AwaitStore(name string, s cluster.EtcdSnapshots) cluster.Wait {
	if s.Verified.Why == "" {
		return cluster.Wait{Subject: name, Reason: cluster.SnapshotsUnknown, Within: readWithin,
			Message: "waits until the newest snapshots of etcd are read to their end, which the agent does after each start"}
	}
	return cluster.Wait{Subject: name, Reason: cluster.SnapshotsUnknown, Within: seeWithin,
		Message: "cannot see the snapshots of etcd" + text.Colon(s.Verified.Why), Hint: "see `snapshots` in config.yaml, and whether its directory can be read"}
}

// FindLack returns what something waits for that must not begin without a verified snapshot of etcd younger than
// freshFor, and whether one is to be taken; nil: there is one, or this host takes none.
func FindLack(name string, s cluster.EtcdSnapshots, now time.Time) (w *cluster.Wait, take bool) {
	age := now.Sub(s.Verified.Value) // of one from before the clock was set back it is negative
	switch {
	case !s.Enabled || s.Verified.Known && age >= 0 && age < freshFor:
		return nil, false
	case !s.Verified.Known:
		w := AwaitStore(name, s)
		return &w, false
	}
	newest := "there is none"
	if !s.Verified.Value.IsZero() {
		newest = "the newest is of " + text.Moment(s.Verified.Value)
	}
	return &cluster.Wait{Subject: name, Reason: cluster.WaitingForSnapshot, Within: time.Hour,
		Message: fmt.Sprintf("waits for a verified snapshot of etcd that is younger than %v; %s", text.Duration(freshFor), newest),
		Hint:    "see why none can be taken; to go on without: `snapshots: {disabled: true}` in config.yaml of the host"}, true
}
