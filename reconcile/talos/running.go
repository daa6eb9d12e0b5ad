package talos

import (
	"context"
	"errors"
	"fmt"

	"github.com/siderolabs/talos/pkg/machinery/resources/config"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// RunningConfig reads the config that the machine of a node runs, now. Before that it is
// proven on the same connection that the machine is the node's. Nothing of it is kept; no
// error quotes it.
func (f *Fleet) RunningConfig(ctx context.Context, d cluster.Desired, n cluster.Node) (running cluster.Secret, err error) {
	ctx, leave, err := f.enter(ctx)
	if err != nil {
		return cluster.Secret{}, fmt.Errorf("read config of %s: %w", n.Name, err)
	}
	defer leave()
	k, err := parseKeys(d.Access.Talos)
	if err == nil && k.none() {
		err = errors.New("there are no keys to ask it with")
	}
	if err == nil {
		err = f.lookOwn(ctx, n, k, func(l *link) error {
			read, err := l.readConfig(ctx, config.ActiveID)
			if err != nil {
				return worded{err}
			}
			running = cluster.NewSecret(read.text)
			return nil
		})
	}
	if err != nil {
		return cluster.Secret{}, fmt.Errorf("read config of %s (%s): %w", n.Name, n.IP, err)
	}
	return running, nil
}
