package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/talos-agent/talos-agent/internal/api"
	"github.com/talos-agent/talos-agent/internal/cluster"
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
now and then, and of those that reboot to run another Talos, unless somebody else
does: "talos-agent status" shows the end of it.`,
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

func newUpgrade(env *environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "upgrade [CLUSTER]",
		Short: "Show how far an upgrade is, and what holds it; have it go on now, or despite a node",
		Long: `Show the versions that are left on the way to those of the inventory, how many
nodes have the next, and what holds it. What is upgraded is asked for in the
repository: talos_version and kubernetes_version in cluster.yaml.

With --now the upgrade of the present commit goes on outside of its window, and
without a soak, and what has failed of it is tried again. With --despite it does
not wait for a node that is not Ready, or whose VM Proxmox VE has locked, runs a
task on or has an HA request for; that one is upgraded when it is Ready and free.
The next hop waits for it. Both hold until the upgrade has ended, or another
commit changes the cluster's files, or --cancel withdraws them, and what else the
present commit changes waits for the window as before.

Neither passes a gate or a switch (apply or upgrade: off or approve), takes down
more nodes than may be unavailable, or a control plane that etcd needs.`,
		Example: `  talos-agent upgrade dev
  talos-agent upgrade dev --output json
  sudo talos-agent upgrade dev --now --despite wk-2
  sudo talos-agent upgrade dev --cancel`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: clusterNames,
	}
	var order cluster.UpgradeOrder
	cmd.Flags().BoolVar(&order.Now, "now", false, "go on outside of the window, and without a soak")
	cmd.Flags().StringArrayVar(&order.Despite, "despite", nil, "do not wait for this node while it is not Ready, or its VM is in use; may be given several times")
	cancel := cmd.Flags().Bool("cancel", false, "withdraw what was ordered with --now and --despite")
	output := outputFlag(cmd)
	completeFlag(cmd, "despite", func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return nodeNames(cmd, args), cobra.ShellCompDirectiveNoFileComp
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		p, err := newPrinter(env.stdout, *output)
		if err != nil {
			return err
		}
		shows := order.IsZero() && !*cancel
		switch {
		case *cancel && !order.IsZero():
			return &fault.Usage{Err: errors.New("upgrade: --cancel withdraws what --now and --despite order, and goes with neither")}
		case p.IsJSON() && !shows:
			return &fault.Usage{Err: errors.New("upgrade: --output json shows an upgrade, and goes with none of --now, --despite and --cancel")}
		}
		c := newClient(cmd)
		name, err := chooseCluster(cmd.Context(), c, args)
		if err != nil {
			return err
		}
		before, err := c.Status(cmd.Context(), name)
		if err != nil {
			return err
		}
		if shows && p.IsJSON() {
			return p.PrintJSON("Upgrade", terminal.UpgradeOf(before))
		}
		if shows {
			p.PrintUpgrade(terminal.UpgradeOf(before))
			return nil
		}
		slices.Sort(order.Despite)
		order.By = nameUser()
		if err := c.Upgrade(cmd.Context(), name, api.UpgradeRequest{UpgradeOrder: order, Cancel: *cancel}); err != nil {
			return err
		}
		if *cancel {
			_, _ = fmt.Fprintf(env.stdout, "%s: the order is withdrawn; what was begun ends, and the rest waits as before it\n", name)
			return nil
		}
		p.PrintOrder(before, order)
		return nil
	}
	return cmd
}

// nameUser is who has typed a command, as far as that is known.
func nameUser() string { return cmp.Or(os.Getenv("SUDO_USER"), os.Getenv("USER"), "root") }

func newRollback(env *environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rollback [CLUSTER] NODE",
		Short: "Have a node boot the Talos that it ran before its upgrade",
		Long: `Have a node boot the Talos that it ran before the last upgrade, which its disk still
has: where the new one runs, and something does not work with it.

The node is drained, rebooted, and put back into service. It is not upgraded again,
and neither is any other node, until another commit changes the cluster's files: one that sets
talos_version back has the others follow it, and any other upgrades the node again.
No window, approval or switch holds that up. Only a control plane that etcd needs is
not taken down, and with a Ready node no more than may be unavailable.

Refused are a machine that does not answer, and a control plane whose older etcd
could not read what the newer one has written, or Kubernetes that does not run on the
Talos of before.

With --cancel the order is withdrawn, as long as the machine was not asked: the node is
put back into service as it is.`,
		Example: `  sudo talos-agent rollback wk-2
  sudo talos-agent rollback wk-2 --cancel`,
		Args: cobra.RangeArgs(1, 2), ValidArgsFunction: clusterOrNodeNames,
	}
	cancel := cmd.Flags().Bool("cancel", false, "withdraw that, as long as its machine was not asked")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, c, node := cmd.Context(), newClient(cmd), args[len(args)-1]
		name, err := chooseCluster(ctx, c, args[:len(args)-1])
		if err != nil {
			return err
		}
		if err := c.RollBack(ctx, name, node, api.RollbackRequest{By: nameUser(), Cancel: *cancel}); err != nil {
			return err
		}
		if *cancel {
			_, _ = fmt.Fprintf(env.stdout, "%s does not go back; `talos-agent status %s` shows when it is in service\n", node, name)
			return nil
		}
		_, _ = fmt.Fprintf(env.stdout, "%s goes back to the Talos that it ran before; `talos-agent status %s` shows how far it is\n", node, name)
		return nil
	}
	return cmd
}
