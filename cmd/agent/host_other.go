//go:build !linux

package main

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/talos-agent/talos-agent/internal/api"
	"github.com/talos-agent/talos-agent/internal/fault"
)

// installGit is what next steps begin with where there is no git.
const installGit = "# install git,"

// The commands that work where the daemon does. Here they are there, for people who
// look for them, and end with where to run them.

func newRun(*environment) *cobra.Command           { return newElsewhere("run") }
func newDoctor(*environment) *cobra.Command        { return newElsewhere("doctor") }
func newSupportBundle(*environment) *cobra.Command { return newElsewhere("support-bundle") }
func newLab(*environment) *cobra.Command           { return newElsewhere("lab") }
func newDemo(*environment) *cobra.Command          { return newElsewhere("demo") }

func newInit(env *environment) *cobra.Command {
	cmd := newElsewhere("init")
	cmd.AddCommand(newInitRepo(env))
	return cmd
}

// newElsewhere makes a command of linuxCommands that ends with its hint, however it
// is called.
func newElsewhere(name string) *cobra.Command {
	instead := linuxCommands[name]
	return &cobra.Command{
		Use:                name,
		Short:              instead.short + " (Linux only)",
		Long:               fmt.Sprintf("%s.\n\nLinux only: %s.", instead.short, instead.hint),
		FParseErrWhitelist: cobra.FParseErrWhitelist{UnknownFlags: true},
		Args:               cobra.ArbitraryArgs,
		RunE: func(*cobra.Command, []string) error {
			return fault.WithHint(fmt.Errorf("%s works on Linux only, and this is %s", name, runtime.GOOS), instead.hint)
		},
	}
}

// explainAbsence knows nothing of a daemon: none runs here.
func explainAbsence(err error) error { return err }

// hintFor is what to do about an error, "" if there is none.
func hintFor(err error, elsewhere bool, _ string) string {
	if errors.Is(err, api.ErrNoDaemon) && !elsewhere {
		return "the daemon runs on the Proxmox VE host: run the command there, or forward the socket with `ssh -L` and name it with `--socket`"
	}
	return fault.HintOf(err)
}
