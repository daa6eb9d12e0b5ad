package talos

import (
	"context"

	"github.com/siderolabs/talos/pkg/machinery/resources/config"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// RunningConfig reads the config that the machine of a node runs, now. Before that it is
// proven on the same connection that the machine is the node's. Nothing of it is kept; no
// error quotes it.
func (f *Fleet) RunningConfig(ctx context.Context, d cluster.Desired, n cluster.Node) (running cluster.Secret, err error) {
	err = f.act(ctx, "read config of", n, func(ctx context.Context) error {
		return f.askOwn(ctx, d, n, func(l *link, _ keys) error {
			read, err := l.readConfig(ctx, config.ActiveID)
			if err != nil {
				return worded{err}
			}
			running = cluster.NewSecret(read.text)
			return nil
		})
	})
	return running, err
}
