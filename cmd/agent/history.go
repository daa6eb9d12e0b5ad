package main

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/history"
	"github.com/talos-agent/talos-agent/internal/text"
)

func newHistory(env *environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "history [CLUSTER] [RUN]",
		Short: "Show what was done to a cluster, run by run",
		Long: `Show the runs of a cluster, newest first. A run begins when the cluster leaves
rest (a new revision, drift, a command) and ends when it is Ready, Stalled or
Suspended again. With the number of a run it is shown in full: what was foretold
when it began, what was done and how long it took, what failed, and what it
waited for longest.

The history is for people: the agent itself never reads it. How much is kept is
said by history.keep in the host's config.`,
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
				return &usageError{fmt.Errorf("%q is not the number of a run; `talos-agent history %s` lists them", args[1], args[0])}
			}
		}
		c := client(cmd)
		name, err := one(cmd.Context(), c, args)
		if err != nil {
			return err
		}
		if number != 0 {
			run, err := c.Run(cmd.Context(), name, number)
			if err != nil {
				return err
			}
			if p.json {
				return p.jsonOut("Run", run)
			}
			p.run(run)
			return nil
		}
		runs, err := c.History(cmd.Context(), name)
		if err != nil {
			return err
		}
		if p.json {
			return p.jsonOut("RunList", runs)
		}
		p.runs(name, runs)
		return nil
	}
	return cmd
}

// runs prints a list of runs.
func (p printer) runs(name string, runs []cluster.Run) {
	if len(runs) == 0 {
		p.printf("%s: nothing was done yet, as far as is known\n", name)
		return
	}
	rows := [][]string{{"RUN", "BEGAN", "TOOK", "RESULT", "REVISION", "CAUSE"}}
	for _, r := range runs {
		rows = append(rows, []string{strconv.Itoa(r.Number), p.moment(r.Began), p.took(r), p.result(r), orDash(r.Revision.Short()), cut(causeOf(r), 70)})
	}
	p.rows(rows)
}

// causeOf is why a run began; of a new revision with what its author says of it.
func causeOf(r cluster.Run) string {
	if r.Subject != "" && r.Cause == history.NewRevision {
		return r.Cause + ": " + r.Subject
	}
	return r.Cause
}

// took is how long a run took, or has taken so far.
func (p printer) took(r cluster.Run) string {
	if r.Ended.IsZero() {
		return shortDuration(p.now.Sub(r.Began))
	}
	return shortDuration(r.Ended.Sub(r.Began))
}

// exactDuration is a duration for comparing short ones.
func exactDuration(ms int64) string {
	if ms < 10_000 {
		return fmt.Sprintf("%.1fs", float64(ms)/1000)
	}
	return shortDuration(time.Duration(ms) * time.Millisecond)
}

func (p printer) result(r cluster.Run) string {
	if r.Result == "" {
		return "goes on"
	}
	return string(r.Result)
}

// run prints one run in full.
func (p printer) run(r cluster.Run) {
	p.printf("%s run %d: %s\n", r.Cluster, r.Number, text.OneLine(causeOf(r)))
	p.printf("  revision %s\n  began %s, ", orDash(r.Revision.Short()), p.moment(r.Began))
	if r.Ended.IsZero() {
		p.printf("goes on for %s\n", p.took(r))
	} else {
		p.printf("ended %s after %s: %s\n", p.moment(r.Ended), p.took(r), p.result(r))
	}
	if r.Message != "" {
		p.printf("  %s\n", text.OneLine(r.Message))
	}
	if r.Hint != "" {
		p.printf("  -> %s\n", text.OneLine(r.Hint))
	}
	if len(r.Plan) > 0 {
		p.printf("\n  FORETOLD\n")
		for i, s := range r.Plan {
			p.printf("  %3d. %s\n", i+1, s.Text)
		}
		p.more(r.PlanMore)
	}
	if len(r.Actions) > 0 {
		rows := [][]string{{"AFTER", "TOOK", "DONE"}}
		for _, d := range r.Actions {
			text := d.Text
			if d.Error != "" {
				text = "FAILED " + cut(text+": "+d.Error, 150)
			}
			rows = append(rows, []string{shortDuration(d.Began.Sub(r.Began)), exactDuration(d.DurationMS), text})
		}
		p.table(rows)
		p.more(r.ActionsMore)
	}
	if len(r.Waits) > 0 {
		rows := [][]string{{"WAITED", "FOR"}}
		for _, w := range r.Waits {
			rows = append(rows, []string{exactDuration(w.DurationMS), cut(w.Subject+": "+w.Reason, 110)})
		}
		p.table(rows)
	}
}

func (p printer) more(n int) {
	if n > 0 {
		p.printf("  ... and %d more\n", n)
	}
}
