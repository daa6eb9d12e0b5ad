package sandbox

import (
	"context"

	"github.com/talos-agent/talos-agent/internal/worker"
)

// FindConfinement begins a worker that reports how those are confined that read what was
// pushed: what they have, and what they lack, "" if that is nothing.
func (s *Sandbox) FindConfinement(ctx context.Context) (has, lacks string, err error) {
	c, err := worker.FindConfinement(ctx, s.c.Worker)
	return c.String(), c.Missing(), err
}
