package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/talos-agent/talos-agent/internal/api"
	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/support"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/terminal"
)

func newEvents(env *environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "events [CLUSTER]",
		Short: "Show what happened lately, and what happens",
		Long: `Show the events of the agent's log, oldest first: what was done, what failed and
why, which nodes changed. It is the journal's story, for those who may read over
the socket, and survives a restart of the daemon; the journal reaches further
back. Without --since the last 50 events are shown.

With --follow it goes on until it is stopped, also while the daemon restarts.`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: clusterNames,
	}
	output := outputFlag(cmd)
	follow := cmd.Flags().BoolP("follow", "f", false, "go on with what happens")
	since := cmd.Flags().String("since", "", "from then on: a time in RFC 3339, or how long ago (2h, 30m)")
	node := cmd.Flags().String("node", "", "of this node only")
	completeFlag(cmd, "node", func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return nodeNames(cmd, args), cobra.ShellCompDirectiveNoFileComp
	})
	last := cmd.Flags().Int("last", 0, "at most so many, the newest (default 50 without --since)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		p, err := newPrinter(env.stdout, *output)
		if err != nil {
			return err
		}
		q := cluster.EventQuery{Node: *node, Last: *last}
		if len(args) > 0 {
			q.Cluster = args[0]
		}
		if *last < 0 {
			return &fault.Usage{Err: fmt.Errorf("--last %d: write a number of events", *last)}
		}
		if q.Since, err = sinceFlag(*since, time.Now()); err != nil {
			return err
		}
		if *last == 0 && *since == "" {
			q.Last = 50
		}
		c := newClient(cmd)
		if err := checkEventNames(cmd.Context(), c, q); err != nil {
			return err
		}
		if *follow {
			return followEvents(cmd, p, c, q)
		}
		all, err := c.Events(cmd.Context(), q)
		if err != nil {
			return err
		}
		if p.IsJSON() {
			return p.PrintJSON("EventList", all)
		}
		if len(all) == 0 {
			p.Printf("no events\n")
		}
		for _, e := range all {
			p.PrintEvent(e)
		}
		return nil
	}
	return cmd
}

// checkEventNames refuses a cluster or a node that neither the daemon nor its log
// knows: of one that was removed the events are still there. What the daemon cannot
// answer yet is no reason to refuse.
func checkEventNames(ctx context.Context, c *api.Client, q cluster.EventQuery) error {
	if q.Cluster == "" && q.Node == "" {
		return nil
	}
	all, err := c.StatusAll(ctx)
	if err != nil || len(all) == 0 {
		return nil
	}
	var clusters, nodes []string
	for _, s := range all {
		clusters = append(clusters, s.Cluster)
		for _, n := range s.Nodes {
			if q.Cluster == "" || q.Cluster == s.Cluster {
				nodes = append(nodes, n.Name)
			}
		}
	}
	logged := func(q cluster.EventQuery) (bool, error) {
		found, err := c.Events(ctx, q)
		// Events of the agent itself belong to every cluster.
		return slices.ContainsFunc(found, func(e cluster.Event) bool { return e.Cluster != "" }), err
	}
	if q.Cluster != "" && !slices.Contains(clusters, q.Cluster) {
		if known, err := logged(cluster.EventQuery{Cluster: q.Cluster}); err != nil || known {
			return err
		}
		_, err := c.Status(ctx, q.Cluster)
		return err
	}
	if q.Node == "" || len(nodes) == 0 || slices.Contains(nodes, q.Node) {
		return nil
	}
	if known, err := logged(cluster.EventQuery{Cluster: q.Cluster, Node: q.Node}); err != nil || known {
		return err
	}
	return fault.WithHint(fmt.Errorf("no node %q is known, and no event is about one", q.Node), "nodes are "+strings.Join(nodes, ", "))
}

// sinceFlag reads a time, or how long ago it was.
func sinceFlag(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return now.Add(-ago), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, &fault.Usage{Err: fmt.Errorf("--since %q: write how long ago (2h, 30m), or a time like 2026-03-01T10:00:00Z", text)}
	}
	return at, nil
}

// followEvents goes on with what happens. A daemon that comes back goes on
// where the one before ended.
func followEvents(cmd *cobra.Command, p terminal.Printer, c *api.Client, q cluster.EventQuery) error {
	ctx := cmd.Context()
	away := func(err error) error {
		switch {
		case p.IsJSON():
		case err != nil:
			p.Printf("%s %v\n", terminal.FormatTime(time.Now()), err)
		default:
			p.Printf("%s the daemon is back\n", terminal.FormatTime(time.Now()))
		}
		return nil
	}
	err := support.AskAgain(ctx, away, func(asked func()) error {
		return c.Follow(ctx, q, asked, func(e cluster.Event) error {
			q.After, q.Last = e.Seq, 0
			if p.IsJSON() {
				return p.PrintJSONLine("Event", e)
			}
			p.PrintEvent(e)
			return nil
		})
	})
	if ctx.Err() != nil {
		return nil
	}
	return err
}
