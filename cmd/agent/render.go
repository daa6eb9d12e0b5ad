package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/repo/validation"
	"github.com/talos-agent/talos-agent/internal/terminal"
)

func newRender(env *environment) *cobra.Command {
	var f validation.Config
	cmd := &cobra.Command{
		Use:   "render [CLUSTER [NODE]]",
		Short: "Show what the nodes and addons of a cluster would be given",
		Long: `Show what would be applied: of each node its VM, as the planner compares it, the
labels, taints and annotations of its Node object and its machine config, and of
the cluster its addons in the order in which they are installed, with their
charts, merged values and what they ask of their namespaces. It is a stream of
YAML documents, each after a comment that names it.

The daemon is asked, for the revision in force; or, with --dir, a directory is
rendered without one. Without the age key the secrets are throw-away ones then,
and what the config of the host adds, such as registry mirrors, is not in it.

Secrets are hidden: <secret hmac:1a2b3c4d> stands for one, the same for the same
secret of a cluster, wherever it is rendered. --show-secrets shows them; the
daemon shows them to root only.`,
		Example: `  talos-agent render dev dev-cp-1
  talos-agent render --dir . --age-key age.key dev`,
		Args:              cobra.MaximumNArgs(2),
		ValidArgsFunction: completeClusterNode,
	}
	output := outputFlag(cmd)
	dir := cmd.Flags().String("dir", "", "render this directory, without a daemon")
	completeFlag(cmd, "dir", directoryFlag)
	addCheckoutFlags(cmd, &f)
	show := cmd.Flags().Bool("show-secrets", false, "show secrets instead of digests")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		p, err := newPrinter(env.stdout, *output)
		if err != nil {
			return err
		}
		node := ""
		if len(args) == 2 {
			node = args[1]
		}
		var r cluster.Rendering
		if *dir == "" {
			r, err = askRendering(cmd, args, node, *show)
		} else {
			if len(args) > 0 {
				f.Cluster = args[0]
			}
			r, err = renderDirectory(cmd.Context(), env, p, *dir, f, node, *show)
		}
		if err != nil {
			return err
		}
		if p.IsJSON() {
			return p.PrintJSON("Rendering", r)
		}
		return p.PrintRendering(r)
	}
	return cmd
}

// askRendering has the daemon render.
func askRendering(cmd *cobra.Command, args []string, node string, showSecrets bool) (cluster.Rendering, error) {
	if err := refuseCheckoutFlags(cmd); err != nil {
		return cluster.Rendering{}, err
	}
	c := newClient(cmd)
	name, err := chooseCluster(cmd.Context(), c, args)
	if err != nil {
		return cluster.Rendering{}, err
	}
	return c.Render(cmd.Context(), name, node, showSecrets)
}

// renderDirectory renders a directory, or prints what is wrong with it.
func renderDirectory(ctx context.Context, env *environment, p terminal.Printer, dir string, f validation.Config, node string, showSecrets bool) (cluster.Rendering, error) {
	r, found, err := validation.Render(ctx, dir, f, node, showSecrets, time.Now())
	switch {
	case err != nil:
		return r, err
	case !found.Valid && p.IsJSON():
		return r, errors.Join(p.PrintJSON("Validation", found), errSilent(exitFailed))
	case !found.Valid:
		printProblems(p, found, dir, false)
		return r, errSilent(exitFailed)
	}
	for _, note := range r.Notes {
		_, _ = fmt.Fprintf(env.stderr, "talos-agent: render: %s\n", note)
	}
	return r, nil
}

// refuseCheckoutFlags refuses the flags that are for a directory where the daemon is
// asked, which has keys and a policy of its own.
func refuseCheckoutFlags(cmd *cobra.Command) error {
	var err error
	cmd.Flags().Visit(func(flag *pflag.Flag) {
		switch flag.Name {
		case "path", "age-key", "policy", "owner":
			err = &fault.Usage{Err: errors.New("render: --" + flag.Name + " is for --dir: the daemon has its own")}
		}
	})
	return err
}

// completeClusterNode completes a cluster, and then a node of it.
func completeClusterNode(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if dir, err := cmd.Flags().GetString("dir"); err == nil && dir != "" && len(args) == 0 {
		return folderNames(cmd, []string{dir}, typed)
	}
	if len(args) == 1 {
		return nodeNames(cmd, args), cobra.ShellCompDirectiveNoFileComp
	}
	return clusterNames(cmd, args, typed)
}

func newDiff(env *environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "diff [CLUSTER [NODE]]",
		Short: "Show how a cluster differs from what its nodes and addons would be given",
		Long: `Show how a cluster differs from what render shows of the revision in force: each
field of a VM and of a Node object with what it has and wants, the machine config
that runs as a unified diff, and addons with their versions, values and missing
objects. VMs, machine configs and releases are looked at now. Comments, the order
of keys and secrets are not in it: digests stand for secrets on both sides.

It compares as the planner does, and changes nothing; what will be done about a
difference, and when, plan shows. What cannot be seen is "unknown", with why.

Exit codes: 0 no difference; 10 there are differences; 1 there are none, and
something is unknown. As for plan it is 10, because 2 is wrong usage.`,
		Example: `  talos-agent diff dev
  talos-agent diff dev dev-cp-1`,
		Args:              cobra.MaximumNArgs(2),
		ValidArgsFunction: completeClusterNode,
	}
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		p, err := newPrinter(env.stdout, *output)
		if err != nil {
			return err
		}
		c, node := newClient(cmd), ""
		if len(args) == 2 {
			node = args[1]
		}
		name, err := chooseCluster(cmd.Context(), c, args)
		if err != nil {
			return err
		}
		d, err := c.Diff(cmd.Context(), name, node)
		if err != nil {
			return err
		}
		if !p.IsJSON() {
			p.PrintDifference(d)
		} else if err := p.PrintJSON("Difference", d); err != nil {
			return err
		}
		switch {
		case d.Differs:
			return errSilent(exitChanges)
		case len(d.Unknown) > 0:
			return errSilent(exitFailed)
		}
		return nil
	}
	return cmd
}
