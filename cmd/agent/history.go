package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/talos-agent/talos-agent/internal/fault"
)

func newHistory(env *environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "history [CLUSTER] [RUN]",
		Short: "Show what was done to a cluster, run by run",
		Long: `Show the runs of a cluster, newest first. A run begins when the cluster leaves
rest (a new revision, drift, a command) and ends when it is Ready, Stalled or
Suspended again. With the number of a run it is shown in full: what was planned
when it began, what was done and how long it took, what failed, and what it
waited for longest.

The history is for people: the agent itself never reads it. How much is kept is
set by history.keep in the host's config.`,
		Args: cobra.MaximumNArgs(2),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return clusterNames(cmd, args, typed)
		},
	}
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		p, err := newPrinter(env.stdout, *output)
		if err != nil {
			return err
		}
		number := 0
		// The only cluster there is needs no name: `history 3`.
		if n := len(args); n > 0 {
			if i, err := strconv.Atoi(args[n-1]); err == nil {
				number, args = i, args[:n-1]
			} else if n == 2 {
				return &fault.Usage{Err: fmt.Errorf("%q is not the number of a run; `talos-agent history %s` lists them", args[1], args[0])}
			}
		}
		c := newClient(cmd)
		name, err := chooseCluster(cmd.Context(), c, args)
		if err != nil {
			return err
		}
		if number != 0 {
			run, err := c.Run(cmd.Context(), name, number)
			if err != nil {
				return err
			}
			if p.IsJSON() {
				return p.PrintJSON("Run", run)
			}
			p.PrintRun(run)
			return nil
		}
		runs, err := c.History(cmd.Context(), name)
		if err != nil {
			return err
		}
		if p.IsJSON() {
			return p.PrintJSON("RunList", runs)
		}
		p.PrintRuns(name, runs)
		return nil
	}
	return cmd
}
