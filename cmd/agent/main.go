// Command talos-agent makes and keeps Talos Linux clusters on a Proxmox VE
// host as a Git repository describes them: the daemon, and the commands that
// people use to look at it and to direct it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/talos-agent/talos-agent/internal/api"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/host/setup"
	"github.com/talos-agent/talos-agent/internal/terminal"
)

func main() { os.Exit(run(osEnvironment(), os.Args[1:])) }

// run is the whole program, for main and for tests.
func run(env *environment, args []string) int {
	clean := terminal.NewCleaner(env.stderr) // errors repeat what others sent
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	// A second signal ends the program at once.
	context.AfterFunc(ctx, stop)
	root := newRoot(env)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	code, elsewhere := exitCode(err), root.PersistentFlags().Changed("socket")
	// The config of a daemon elsewhere is not known.
	if errors.Is(err, api.ErrDown) && !elsewhere {
		err = explainAbsence(err)
	}
	if err != nil && err.Error() != "" {
		_, _ = fmt.Fprintf(clean, "talos-agent: %s\n", strings.TrimSpace(err.Error()))
		if hint := hintFor(err, elsewhere, setup.ConfigFile); hint != "" {
			_, _ = fmt.Fprintf(clean, "  -> %s\n", hint)
		}
	}
	return code
}

// newRoot lists the commands, one file each.
func newRoot(env *environment) *cobra.Command {
	root := &cobra.Command{
		Use:   "talos-agent",
		Short: "GitOps for Talos Linux clusters on a Proxmox VE host",
		Long: `talos-agent runs on a Proxmox VE host, follows a Git repository and makes the
VMs, Talos nodes, Kubernetes clusters and addons on the host match it.

Exit codes: 0 done and as it should be; 1 it failed, or the inventory is
invalid; 2 wrong usage; 3 status: not Ready, but working on it; 4 status:
stalled, blocked or not seen; 5 the daemon cannot be reached; 6 validate: valid,
and secrets are missing; 7 import: written, and not valid yet; 10 plan, diff:
there are changes; 11 plan: there are destructive ones.`,
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          knownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cmd.Help()
		},
	}
	root.SetVersionTemplate("talos-agent {{.Version}}\n")
	root.SetIn(env.stdin)
	root.SetOut(env.stdout)
	root.SetErr(env.stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &fault.Usage{Err: fmt.Errorf("%s%w; see `%s --help`", nameInError(cmd), explainValue(err), cmd.CommandPath())}
	})
	root.PersistentFlags().String("socket", config.DefaultSocket, "unix socket of the daemon")
	root.AddGroup(&cobra.Group{ID: "daemon", Title: "The daemon:"}, &cobra.Group{ID: "look", Title: "Inspect:"},
		&cobra.Group{ID: "direct", Title: "Control (root):"}, &cobra.Group{ID: "repo", Title: "The repository, without a daemon:"})
	add := func(group string, cmds ...*cobra.Command) {
		for _, c := range cmds {
			c.GroupID = group
			usageArgs(c)
			root.AddCommand(c)
		}
	}
	add("daemon", newInit(env), newRun(env), newVersion(env))
	add("look", newStatus(env), newPlan(env), newRender(env), newDiff(env), newDoctor(env), newEvents(env), newHistory(env))
	add("direct", newReconcile(env), newSuspend(env), newResume(env), newAccept(env), newApprove(env), newUpgrade(env), newRollback(env), newForget(env), newDestroy(env), newConsole(env), newSupportBundle(env), newSnapshot(env), newKubeconfig(env), newTalosconfig(env))
	add("repo", newValidate(env), newSchema(env), newImport(env), newSecrets(env), newRehearse(env), newLab(env), newDemo(env))
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	for _, c := range root.Commands() {
		switch c.Name() {
		case "completion":
			c.Args, c.RunE = knownCommand, missingCommand
			usageArgs(c)
		case "help":
			c.Args = knownTopic
		}
	}
	return root
}

// knownTopic refuses help about what no command is called.
func knownTopic(cmd *cobra.Command, args []string) error {
	about, rest, err := cmd.Root().Find(args)
	if err != nil || len(rest) > 0 && about.HasSubCommands() {
		return knownCommand(about, rest)
	}
	return nil
}

// values are what the flags of a type take.
var values = map[string]string{
	"int":      "write a whole number",
	"intSlice": "write whole numbers, with commas between them",
	"duration": "write a duration, like 15m",
	"bool":     "write true or false",
}

// explainValue puts the error of a flag whose value cannot be read into words that are
// not those of Go's parser.
func explainValue(err error) error {
	if wrong, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		if write := values[wrong.GetFlag().Value.Type()]; write != "" {
			return fmt.Errorf("--%s %q: %s", wrong.GetFlag().Name, wrong.GetValue(), write)
		}
	}
	return err
}

// usageArgs makes a wrong number of arguments a wrong usage, here and below, and
// keeps the shell from offering files where none are meant.
func usageArgs(c *cobra.Command) {
	if c.ValidArgsFunction == nil && c.ValidArgs == nil {
		c.ValidArgsFunction = cobra.NoFileCompletions
	}
	if check := c.Args; check != nil {
		c.Args = func(cmd *cobra.Command, args []string) error {
			err := check(cmd, args)
			if _, usage := errors.AsType[*fault.Usage](err); usage {
				return err
			}
			if err != nil {
				use := strings.TrimSuffix(cmd.UseLine(), " [flags]")
				return &fault.Usage{Err: fmt.Errorf("%s%w; write `%s`, and see `%s --help`", nameInError(cmd), err, use, cmd.CommandPath())}
			}
			return nil
		}
	}
	for _, sub := range c.Commands() {
		usageArgs(sub)
	}
}

var errStopped = errors.New("stopped by a signal")

// linuxCommands are the commands that work where the daemon does, on Linux: what they
// do, and what a person does on another system instead.
var linuxCommands = map[string]struct{ short, hint string }{
	"run":            {"Run the daemon", onTheHost},
	"init":           {"Set up this Proxmox VE host for the agent, or take that back (root)", onTheHost + "; `talos-agent init repo` works here"},
	"doctor":         {"Check whether everything is there that the agent needs, with a hint for what is not", "run it on the Proxmox VE host, as root"},
	"support-bundle": {"Write a file with everything a maintainer needs, and no secret (root)", "run it on the Proxmox VE host, as root"},
	"lab":            {"Run a simulated Proxmox VE host on loopback, to try the agent on", "`talos-agent rehearse DIR` brings a repository up on a simulated host here; the lab is for a daemon, which runs on Linux"},
	"demo":           {"Show the main job on the lab: push, Ready cluster, one worker more, destroy", "`talos-agent rehearse DIR` brings a repository up on a simulated host here; the demo starts the daemon, which runs on Linux"},
}

const onTheHost = "install the package on the Proxmox VE host, and run it there as root"
