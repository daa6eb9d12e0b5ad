package kube

import (
	"context"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/kubeapi"
	"github.com/talos-agent/talos-agent/reconcile/kube/releases"
)

// releasesWithin is how long one look may read releases of Helm. What it has not read the next one reads.
const releasesWithin = 5 * time.Second

// releaseAPIs are the deprecated APIs of the releases of Helm, as they were read last.
type releaseAPIs struct {
	asked  time.Time
	conn   *kubeapi.Connection // that they were read over
	seen   cluster.Seen[[]cluster.ReleaseAPI]
	reader releases.Reader
}

// look returns them. They are read again as often as the deprecated APIs in use.
func (r *releaseAPIs) look(ctx context.Context, conn *kubeapi.Connection, server string) cluster.Seen[[]cluster.ReleaseAPI] {
	now, holds := time.Now(), readyFor
	if r.seen.Known {
		holds = metricsFor
	}
	if r.conn == conn && now.Sub(r.asked) < holds {
		return r.seen
	}
	ctx, cancel := context.WithTimeout(ctx, releasesWithin)
	defer cancel()
	r.asked, r.conn = now, conn
	if all, err := r.reader.Read(ctx, server, conn); err != nil {
		r.seen = cluster.Unseen[[]cluster.ReleaseAPI](err.Error())
	} else {
		r.seen = cluster.Saw(all)
	}
	return r.seen
}
