//go:build linux

package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/talos-agent/talos-agent/internal/daemon"
	"github.com/talos-agent/talos-agent/internal/daemon/eventlog"
	"github.com/talos-agent/talos-agent/internal/host/setup"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/internal/terminal"
)

func newRun(env *environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the daemon",
		Long: `Run the daemon: follow the repository and make the host match it, until
stopped. It speaks to systemd (readiness, one-line status, watchdog) and to the
journal. SIGHUP, or a change of the config, the policy or any file that the
config names, reloads all of them. What cannot be loaded leaves in force what
was loaded before; only a policy that cannot be loaded leaves nothing allowed.
` + "`talos-agent status`" + ` shows the problem until it is fixed.`,
		Args: cobra.NoArgs,
	}
	path := cmd.Flags().String("config", setup.ConfigFile, "the host's config file")
	verbose := cmd.Flags().BoolP("verbose", "v", false, "log what is decided as well as what is done")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		w, ok := env.stderr.(*os.File)
		if !ok {
			w = os.Stderr
		}
		events := eventlog.NewEvents()
		log := logging.New(logging.Config{Output: terminal.NewCleaner(w), Journal: logging.Journal(), Verbose: *verbose, Observe: events.Add})
		return daemon.Run(cmd.Context(), daemon.Config{Path: *path, Version: version, Log: log, Events: events, OwnLog: logging.WithoutObserver(log)})
	}
	return cmd
}
