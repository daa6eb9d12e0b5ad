//go:build linux

package support

import (
	"cmp"
	"context"

	"github.com/talos-agent/talos-agent/internal/api"
	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/host/doctor"
	"github.com/talos-agent/talos-agent/internal/host/harden"
	"github.com/talos-agent/talos-agent/internal/host/probe"
)

// Inspect looks at everything that the agent needs: over the socket of the daemon,
// which is the config's unless another is given, and at the host.
func Inspect(ctx context.Context, path, socket string, on probe.Host) (doctor.Report, error) {
	// What is read here opens clusters.
	if err := harden.Process(); err != nil {
		return doctor.Report{}, err
	}
	load, store := config.Load, config.CredentialStore
	if on.Root != "" {
		store = on.Path(store)
		load = func(path string) (config.Settings, cluster.Problems) {
			return config.LoadFrom(path, config.FromStore(store))
		}
	}
	s, problems := load(path)
	checks, usable := doctor.JudgeConfig(path, probe.MayRead(path), problems, s.Hidden)
	if socket == "" {
		socket = cmp.Or(s.Socket, config.DefaultSocket)
	}
	exam, more, err := examineAgent(ctx, s, usable, socket)
	if err != nil {
		return doctor.Report{}, err
	}
	checks = append(append(checks, more...), exam.Checks...)
	host := probe.Inspector{ConfigPath: path, Used: s.Used, Store: store, Given: on.Path(probe.UnitCredentials), Host: on}
	if usable {
		host.Settings = s
	}
	return doctor.NewReport(append(checks, host.Inspect(ctx, exam.Wants).Judge()...)), nil
}

// examineAgent has the daemon look, or where there is none looks in its place.
func examineAgent(ctx context.Context, s config.Settings, usable bool, socket string) (doctor.Examination, []doctor.Check, error) {
	check := doctor.Check{Name: "daemon", Subject: socket, Level: doctor.Pass, Message: "answers"}
	exam, err := api.NewClient(socket).Examine(ctx)
	if err == nil || ctx.Err() != nil {
		return exam, []doctor.Check{check}, ctx.Err()
	}
	check.Level, check.Message, check.Hint = doctor.Warn, err.Error(), fault.HintOf(err)
	if !usable {
		check.Message += "; without its config and keys its part cannot be looked at"
		check.Hint = "fix the config first, then start the daemon: `systemctl start talos-agent`"
		return doctor.Examination{}, []doctor.Check{check}, nil
	}
	check.Message += "; what it sees was looked at in its place"
	exam, err = daemon.Examine(ctx, s)
	return exam, []doctor.Check{check}, err
}
