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
		Args: cobra.RangeArgs(1, 2), ValidArgsFunction: clusterOrNodeNames,
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

func newForget(env *environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "forget [CLUSTER] NODE",
		Short: "Take a node's machine for lost, after showing what that means and asking",
		Long: `Take the machine of a node for lost: it does not come back. What follows is shown
first: what becomes of etcd, of its VM, and every step. Then the node's name is asked
for.

Its member leaves etcd, its Node object and its VM are deleted, and a node that the
inventory has gets a new machine. No window, approval, budget or switch holds that up.
Where its VM cannot be seen, because the host is down, it is deleted when it can, and
the rest goes before it: be sure then that the machine is off.

A machine that answers is refused, and so is one of which that is not known: take
the node out of nodes.yaml, or give it another ` + "`replace`" + ` token. If it answers
before its VM is deleted, or a day later, nothing more is deleted.`,
		Args: cobra.RangeArgs(1, 2), ValidArgsFunction: clusterOrNodeNames,
	}
	confirm := cmd.Flags().String("confirm", "", "the node's name, instead of typing it")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, c, node := cmd.Context(), newClient(cmd), args[len(args)-1]
		name, err := chooseCluster(ctx, c, args[:len(args)-1])
		if err != nil {
			return err
		}
		p, err := newPrinter(env.stdout, "text")
		if err != nil {
			return err
		}
		f, err := c.ForecastForget(ctx, name, node)
		if err != nil {
			return err
		}
		p.PrintForecast(f)
		if err := confirmName(env, "forget", "node", node, *confirm); err != nil {
			return err
		}
		if err := c.Forget(ctx, name, node, f.Unfenced); err != nil {
			return err
		}
		p.Printf("%s is taken for lost; `talos-agent status %s` shows what is done\n", node, name)
		return nil
	}
	return cmd
}
