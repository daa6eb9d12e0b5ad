package daemon

import (
	"context"
	"errors"
	"log/slog"
	"os"

	"github.com/talos-agent/talos-agent/internal/daemon/agent"
	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/host/doctor"
	"github.com/talos-agent/talos-agent/internal/host/state"
)

// Examine looks as a daemon with these settings would, without being one: nothing
// is started, and what is written lies in a folder that is removed.
func Examine(ctx context.Context, s config.Settings) (exam doctor.Examination, err error) {
	dir, err := os.MkdirTemp("", "talos-agent-doctor-")
	if err != nil {
		return exam, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	s.CacheDir = dir
	c, err := wireAgent(s, state.Dir{Path: dir}, "", slog.New(slog.DiscardHandler))
	if err != nil {
		return exam, err
	}
	c.InPlace = true
	a, err := agent.New(c)
	if err != nil {
		return exam, errors.Join(err, c.Store.Close())
	}
	defer a.Stop()
	return a.Examine(ctx, true)
}
