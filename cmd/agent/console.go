package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/talos-agent/talos-agent/internal/api"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/terminal"
)

func newConsole(env *environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "console [CLUSTER] NODE",
		Short: "Show what a node's VM prints on its serial port, until stopped",
		Long: `Show what a node's VM prints on its serial port, as it comes, until stopped with
Ctrl-C. Nothing can be typed. A serial port has one reader: who comes second sees
nothing until the first has left. Proxmox VE's own, "qm terminal VMID", ends with
Ctrl-O.

Of machines that do not come up in time the agent reads the console by itself
now and then: "talos-agent status" shows the end of it.`,
		Args: cobra.RangeArgs(1, 2),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
			clusters, directive := clusterNames(cmd, args, typed)
			return append(clusters, nodeNames(cmd, args)...), directive
		},
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, c, node := cmd.Context(), newClient(cmd), args[len(args)-1]
		name, err := chooseCluster(ctx, c, args[:len(args)-1])
		if err != nil {
			return err
		}
		asked := func() {
			_, _ = fmt.Fprintf(env.stderr, "the console of %s; Ctrl-C ends it\n", node)
		}
		err = c.Console(ctx, name, node, asked, func(text string) error {
			_, err := terminal.NewCleaner(env.stdout).Write([]byte(strings.ReplaceAll(text, "\r", "")))
			return err
		})
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, api.ErrEnded):
			return fault.WithHint(fmt.Errorf("the console of %s has ended", node), "`talos-agent events` shows why, unless the daemon was stopped")
		}
		return err
	}
	return cmd
}
