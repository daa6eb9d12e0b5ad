//go:build linux

package main

import (
	"context"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/talos-agent/talos-agent/examples"
	"github.com/talos-agent/talos-agent/internal/api"
	"github.com/talos-agent/talos-agent/internal/lab/world"
	"github.com/talos-agent/talos-agent/internal/repo/demo"
	"github.com/talos-agent/talos-agent/internal/terminal"
)

func newDemo(env *environment) *cobra.Command {
	c := demo.Config{Out: env.stdout, Destroy: func(ctx context.Context, c *api.Client, p terminal.Printer, name string) error {
		return awaitDestroyed(ctx, c, p, name, 2*time.Minute)
	}}
	var flavour, repo string
	var speed float64
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show the main job on the lab: push, Ready cluster, one worker more, destroy",
		Long: `Show the main job from end to end on this machine: start a simulated Proxmox
VE host, run this program as its daemon, push a repository with git, watch a
cluster come up, push a worker more, and destroy everything again.

With --day-two a larger cluster is labelled, reconfigured, resized, edited and
destroyed by hand, made smaller, and a control plane is replaced; the demo fails
if a machine is switched on that need not be, or a rule of safety is broken.
With --upgrade a larger cluster gets another Talos, two minor versions on, one
node at a time, and then the next Kubernetes.

It needs git. The repository is the example that is part of the program.`,
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.StringVar(&repo, "repo", "", "a directory with the example repository, instead of the program's own")
	flags.StringVar(&flavour, "flavour", "9.2", "version of Proxmox VE to play: 9.2 or 8.4")
	flags.Float64Var(&speed, "speed", 10, "how many times faster than life")
	flags.BoolVar(&c.DayTwo, "day-two", false, "change, heal and shrink a cluster that runs, instead")
	flags.BoolVar(&c.Upgrade, "upgrade", false, "upgrade a cluster that runs, instead")
	flags.BoolVar(&c.Keep, "keep", false, "keep the files of the demo's host")
	cmd.MarkFlagsMutuallyExclusive("day-two", "upgrade")
	completeFlag(cmd, "flavour", completeFlavours)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		program, err := os.Executable()
		if err != nil {
			return err
		}
		c.Program, c.Repository = program, examples.Repository()
		if repo != "" {
			c.Repository = os.DirFS(repo)
		}
		if c.Host, err = labConfig("", world.DefaultPrefix, flavour, speed); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), 10*time.Minute)
		defer cancel()
		return demo.Run(ctx, c)
	}
	return cmd
}
