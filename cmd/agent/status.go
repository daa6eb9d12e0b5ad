package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/talos-agent/talos-agent/internal/api"
	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/usage"
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

With --wait it ends as soon as every cluster is Ready at what is in the
repository now, and until then writes each change to standard error; a cluster
that was pushed a moment ago is waited for, too. A suspended cluster is not waited
for; if it is the one that is asked for, the exit code is 3. With --watch the
status is shown in place until then.

With --usage it shows what of the hosts, their storages and the VMs is in use
besides, as Proxmox VE measures it, and which share of the time tasks of a host
wait for CPU, disks and memory. What is not known is unknown: without Sys.Audit
nothing of a host is, and Proxmox VE 8 measures no waits.

Colours are for terminals; CLICOLOR_FORCE=1 or FORCE_COLOR=1 wants them elsewhere,
as in the log of a CI run, NO_COLOR=1 nowhere.

Of an agent that stands by it shows which one acts, and ends with 0.

Exit codes: 0 every cluster is Ready (or suspended); 3 at least one is not
Ready, but being worked on; 4 at least one is stalled or cannot be seen; 5 the
daemon cannot be reached.`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: clusterNames,
	}
	output := outputFlag(cmd)
	watch := cmd.Flags().BoolP("watch", "w", false, "go on showing how they stand, until stopped")
	wait := cmd.Flags().Duration("wait", 0, "wait so long for Ready at what is in the repository now; 0: do not wait")
	withUsage := cmd.Flags().Bool("usage", false, "show what of the hosts and VMs is in use, too")
	cmd.MarkFlagsMutuallyExclusive("usage", "watch")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		p, err := newPrinter(env.stdout, *output)
		if err != nil {
			return err
		}
		c := newClient(cmd)
		w := &waiting{client: c, args: args, within: *wait, asked: time.Now(), stderr: env.stderr}
		if *watch {
			return watchStatus(cmd.Context(), env, w, p)
		}
		all, err := w.untilReady(cmd.Context())
		if err != nil {
			return err
		}
		late := w.late(all)
		var used []statusWithUsage
		if *withUsage {
			if used, err = readUsage(cmd.Context(), c, all); err != nil {
				return err
			}
		}
		if p.IsJSON() {
			var list any = all
			if *withUsage {
				list = used
			}
			if err := p.PrintJSON("StatusList", list); err != nil {
				return err
			}
			return errors.Join(late, errSilent(worstCode(all)))
		}
		p = p.At(time.Now())
		var problems []string
		if about, err := c.About(cmd.Context()); err == nil {
			problems = about.Problems
			p.PrintProblems(problems)
			if about.StandsBy != "" {
				_, err := fmt.Fprintln(env.stdout, about.StandsBy)
				return err
			}
		}
		printStatuses(p, all, used)
		p.PrintDoctorHint(all, problems)
		return errors.Join(late, errSilent(worstCode(all)))
	}
	return cmd
}

// statusWithUsage is a status with what of the hosts and VMs is in use; nil of a
// cluster that is not managed.
type statusWithUsage struct {
	cluster.Status
	Usage *usage.Report `json:"usage,omitempty"`
}

// readUsage asks what of the hosts and VMs of clusters is in use.
func readUsage(ctx context.Context, c *api.Client, all []cluster.Status) ([]statusWithUsage, error) {
	out := []statusWithUsage{}
	for _, s := range all {
		r, err := c.Usage(ctx, s.Cluster)
		var refused *api.Error
		switch {
		case err == nil:
			out = append(out, statusWithUsage{s, &r})
		case errors.As(err, &refused) && (refused.Status == http.StatusConflict || refused.Status == http.StatusNotFound): // it is not managed, or not any more
			out = append(out, statusWithUsage{Status: s})
		default:
			return nil, err
		}
	}
	return out, nil
}

// printStatuses prints statuses, each with what is in use where that was asked for.
func printStatuses(p terminal.Printer, all []cluster.Status, used []statusWithUsage) {
	if len(used) == 0 {
		p.PrintStatuses(all)
		return
	}
	for i, s := range used {
		if i > 0 {
			p.Printf("\n")
		}
		p.PrintStatus(s.Status)
		if s.Usage != nil {
			p.PrintUsage(*s.Usage)
		}
	}
}

// watchStatus shows the statuses as they change, until it is stopped or what it
// waits for is there: in place on a terminal, one line for each change or one JSON
// value elsewhere.
func watchStatus(ctx context.Context, env *environment, w *waiting, p terminal.Printer) error {
	view := terminal.NewView(p, env.stdout)
	within, answered := ctx, false
	var missing error // why there is nothing to show
	if w.within > 0 {
		all, err := w.read(ctx)
		if answered = err == nil || mayCome(err); answered {
			if missing = err; len(all) == 0 {
				w.show(nil, err) // a view without a screen shows nothing of it
			}
			if err := w.refresh(ctx, all); err != nil {
				return err
			}
		}
		var cancel context.CancelFunc
		within, cancel = context.WithDeadline(ctx, w.asked.Add(w.within))
		defer cancel()
		view = readyView{view, w}
	}
	name := ""
	if len(w.args) > 0 {
		name = w.args[0]
	}
	for {
		all, err := support.Watch(within, w.client, view, name)
		if w.within > 0 && (mayCome(err) || answered && errors.Is(err, api.ErrNoDaemon)) {
			missing = err
			w.show(nil, err)
			if sleepOrStop(within, time.Second) == nil {
				continue
			}
		}
		if err != nil && within.Err() == nil && !errors.Is(err, errReady) {
			return err
		}
		var late error
		if w.within > 0 && ctx.Err() == nil {
			if len(all) == 0 && missing != nil {
				return missing
			}
			late = w.late(all)
			if !p.IsJSON() {
				p.At(time.Now()).PrintStatuses(all) // the screen of its own is closed
			}
		}
		return errors.Join(late, errSilent(worstCode(all)))
	}
}

// errReady ends a view when what it waits for is there.
var errReady = errors.New("ready")

// readyView is a view that ends when everything is Ready.
type readyView struct {
	terminal.View
	w *waiting
}

func (v readyView) Show(all []cluster.Status, changed *cluster.Status, problems []string, away error) error {
	if err := v.View.Show(all, changed, problems, away); err != nil {
		return err
	}
	if away == nil && v.w.isReady(all) {
		return errReady
	}
	return nil
}

// waiting is a question that waits for Ready. An answer from before it does not
// count: what was pushed a moment ago is in the repository, and perhaps not yet in
// the status.
type waiting struct {
	client *api.Client
	args   []string
	within time.Duration // 0: one answer is enough
	asked  time.Time
	stderr io.Writer

	progress terminal.View
	problem  string
}

func (w *waiting) read(ctx context.Context) ([]cluster.Status, error) {
	if len(w.args) == 0 {
		return w.client.StatusAll(ctx)
	}
	s, err := w.client.Status(ctx, w.args[0])
	if err != nil {
		return nil, err
	}
	return []cluster.Status{s}, nil
}

// isStale reports whether a status is older than the question. What is in the
// repository changes nothing of a suspended cluster.
func (w *waiting) isStale(s cluster.Status) bool {
	return s.Condition != cluster.Suspended && s.Fetched.Before(w.asked)
}

func (w *waiting) isReady(all []cluster.Status) bool {
	return worstCode(all) == exitOK && !slices.ContainsFunc(all, w.isStale)
}

// mayCome reports whether an error is over when the daemon has read the repository.
func mayCome(err error) bool {
	var e *api.Error
	return errors.As(err, &e) && (e.Reason == cluster.Starting || e.Reason == cluster.ClusterUnknown)
}

// refresh has the repository read now, for everything where no cluster is known yet.
// Others than root wait until it is time to: they may not ask for it, and of a cluster
// that cannot be managed its status shows why.
func (w *waiting) refresh(ctx context.Context, all []cluster.Status) error {
	names := slices.Clone(w.args)
	if len(names) == 0 {
		for _, s := range all {
			names = append(names, s.Cluster)
		}
	}
	if len(names) == 0 {
		return dropRefusal(w.client.ReconcileAll(ctx))
	}
	for _, name := range names {
		if err := dropRefusal(w.client.Reconcile(ctx, name)); err != nil {
			return err
		}
	}
	return nil
}

// dropRefusal is an error of the way to the daemon; what the daemon answers is none.
func dropRefusal(err error) error {
	var e *api.Error
	if errors.As(err, &e) {
		return nil
	}
	return err
}

// untilReady asks how the clusters stand, and goes on asking until all are Ready
// or the time is over.
func (w *waiting) untilReady(ctx context.Context) ([]cluster.Status, error) {
	all, err := w.read(ctx)
	if w.within == 0 || err != nil && !mayCome(err) {
		return all, err
	}
	if err := w.refresh(ctx, all); err != nil {
		return all, err
	}
	for err != nil || !w.isReady(all) {
		if time.Since(w.asked) >= w.within {
			return all, err
		}
		w.show(all, err)
		if err := sleepOrStop(ctx, min(time.Second, w.within)); err != nil {
			return all, err
		}
		// It was there: it is restarted, perhaps.
		if all, err = w.read(ctx); err != nil && !mayCome(err) && !errors.Is(err, api.ErrNoDaemon) {
			return all, err
		}
	}
	if w.progress != nil {
		w.show(all, nil)
	}
	return all, nil
}

// show writes what has changed since it was called last.
func (w *waiting) show(all []cluster.Status, err error) {
	if w.progress == nil {
		w.progress = terminal.NewLineView(terminal.NewPlain(w.stderr))
	}
	problem := ""
	switch {
	case err != nil:
		problem = err.Error()
	case len(all) == 0:
		problem = "no cluster has been read from the repository yet"
	}
	if problem != "" && problem != w.problem {
		terminal.NewPlain(w.stderr).Printf("waiting: %s\n", problem)
	}
	w.problem = problem
	for i := range all {
		_ = w.progress.Show(all, &all[i], nil, nil) // lines, whose writer reports no errors
	}
}

// late is the error of an answer that is Ready and older than the question, or of a
// cluster that was asked for and does not become Ready.
func (w *waiting) late(all []cluster.Status) error {
	if w.within > 0 && len(w.args) > 0 && len(all) == 1 && all[0].Condition == cluster.Suspended {
		return &exitError{code: exitReconciling, err: fault.WithHint(fmt.Errorf("%s is suspended, and was not waited for", all[0].Cluster),
			fmt.Sprintf("`talos-agent resume %s`, as root, applies what is in the repository", all[0].Cluster))}
	}
	i := slices.IndexFunc(all, w.isStale)
	if i < 0 || w.within == 0 || worstCode(all) != exitOK {
		return nil
	}
	return &exitError{code: exitReconciling, err: fault.WithHint(fmt.Errorf("%s: the repository was not read within %v: what was pushed lately may be missing", all[i].Cluster, w.within),
		"wait longer than repository.interval of the config, or ask as root")}
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
