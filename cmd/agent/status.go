package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/talos-agent/talos-agent/internal/api"
	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/support"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/terminal"
)

func newStatus(env *environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status [CLUSTER]",
		Short: "Show how the clusters stand, and what each node waits for",
		Long: `Show how the clusters stand: condition, revision and message, every node with
its phase and what it waits for, addons, running actions with their progress,
and the last passes that did something.

With --watch it goes on until it is stopped, also while the daemon restarts: in
place on a terminal; elsewhere a line for each change, or with --output json a
value for each change on a line of its own, a StatusGone for a cluster that is
no longer managed. Its exit code is for the last status it
received.

Exit codes: 0 every cluster is Ready (or suspended); 3 at least one is not
Ready, but being worked on; 4 at least one is stalled or cannot be seen; 5 the
daemon cannot be reached.`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: clusterNames,
	}
	output := outputFlag(cmd)
	watch := cmd.Flags().BoolP("watch", "w", false, "go on showing how they stand, until stopped")
	wait := cmd.Flags().Duration("wait", 0, "wait so long for Ready at what is in the repository now; 0: do not wait")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		p, err := newPrinter(env.stdout, *output)
		if err != nil {
			return err
		}
		c := newClient(cmd)
		if *watch {
			if *wait > 0 {
				return &fault.Usage{Err: errors.New("status: --watch and --wait do not go together")}
			}
			return watchStatus(cmd.Context(), env, c, p, args)
		}
		all, late, err := awaitReady(cmd.Context(), c, args, *wait)
		if err != nil {
			return err
		}
		if p.IsJSON() {
			if err := p.PrintJSON("StatusList", all); err != nil {
				return err
			}
			return errors.Join(late, errSilent(worstCode(all)))
		}
		p = p.At(time.Now())
		var problems []string
		if about, err := c.About(cmd.Context()); err == nil {
			problems = about.Problems
			p.PrintProblems(problems)
		}
		p.PrintStatuses(all)
		p.PrintDoctorHint(all, problems)
		return errors.Join(late, errSilent(worstCode(all)))
	}
	return cmd
}

// watchStatus shows the statuses as they change, until it is stopped: in place
// on a terminal, one line for each change or one JSON value elsewhere.
func watchStatus(ctx context.Context, env *environment, c *api.Client, p terminal.Printer, args []string) error {
	name := ""
	if len(args) > 0 {
		name = args[0]
	}
	all, err := support.Watch(ctx, c, terminal.NewView(p, env.stdout), name)
	if err != nil && ctx.Err() == nil {
		return err
	}
	return errSilent(worstCode(all))
}

// awaitReady asks how the clusters stand, and goes on asking until all are Ready
// or the time is over. An answer from before the question does not count: what
// was pushed a moment ago is in the repository, and perhaps not yet in the
// status. late reports that nothing newer came.
func awaitReady(ctx context.Context, c *api.Client, args []string, within time.Duration) (all []cluster.Status, late, err error) {
	asked := time.Now()
	all, err = readStatuses(ctx, c, args)
	if err != nil || within == 0 {
		return all, nil, err
	}
	for _, s := range all {
		// Root need not wait until it is time to look at the repository. Others may
		// not ask for it, and of a cluster that cannot be managed its status
		// shows why.
		var e *api.Error
		if err := c.Reconcile(ctx, s.Cluster); err != nil && !errors.As(err, &e) {
			return all, nil, err
		}
	}
	stale := func(s cluster.Status) bool { return s.Fetched.Before(asked) }
	for worstCode(all) != exitOK || slices.ContainsFunc(all, stale) {
		if time.Since(asked) >= within {
			break
		}
		if err := sleepOrStop(ctx, min(time.Second, within)); err != nil {
			return all, nil, err
		}
		if all, err = readStatuses(ctx, c, args); err != nil {
			return all, nil, err
		}
	}
	if i := slices.IndexFunc(all, stale); i >= 0 && worstCode(all) == exitOK {
		late = &exitError{code: exitReconciling, err: fault.WithHint(fmt.Errorf("%s: the repository was not read within %v: what was pushed lately may be missing", all[i].Cluster, within),
			"wait longer than repository.interval of the config, or ask as root")}
	}
	return all, late, nil
}

func readStatuses(ctx context.Context, c *api.Client, args []string) ([]cluster.Status, error) {
	if len(args) == 0 {
		return c.StatusAll(ctx)
	}
	s, err := c.Status(ctx, args[0])
	return []cluster.Status{s}, err
}

// worstCode is the exit code for the worst of the conditions.
func worstCode(all []cluster.Status) int {
	code := exitOK
	for _, s := range all {
		switch s.Condition {
		case cluster.Ready, cluster.Suspended:
		case cluster.Reconciling:
			code = max(code, exitReconciling)
		default:
			code = max(code, exitStalled)
		}
	}
	if len(all) == 0 {
		return exitReconciling
	}
	return code
}
