package daemon

import (
	"context"
	"log/slog"

	"github.com/talos-agent/talos-agent/internal/logging"
)

// reportConfinement logs how well the processes are confined that read what was pushed.
func reportConfinement(ctx context.Context, find func(context.Context) (has, lacks string, err error), log *slog.Logger) {
	switch has, lacks, err := find(ctx); {
	case ctx.Err() != nil:
	case err != nil:
		log.Warn("no process can be begun to read what is pushed, so that nothing new is read", logging.Err, err, logging.Hint, "see how busy the host is, and whether a drop-in of the unit forbids what a worker needs")
	case lacks != "":
		log.Warn("the processes that read what is pushed are confined by their limits, but not by all that there could be", logging.Detail, has, logging.Hint, "kernels of Proxmox VE have "+lacks+"; a drop-in of the unit must not forbid it")
	default:
		log.Info("the processes that read what is pushed are confined", logging.Detail, has)
	}
}
