package main

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/internal/repo/rehearsal"
	"github.com/talos-agent/talos-agent/internal/terminal"
)

func newRehearse(env *environment) *cobra.Command {
	var f rehearsal.Config
	var limit time.Duration
	cmd := &cobra.Command{
		Use:   "rehearse DIR",
		Short: "Bring the repository's clusters up on a simulated host, in seconds",
		Long: `Rehearse a repository: run the agent, as it is, against a simulated Proxmox
VE host with simulated Talos machines, until the clusters are Ready or it is
clear why they do not become so. With --from, bring up that directory first (the
state before a change) and then change to DIR, which shows what the change does.

Nothing real is touched and nothing is fetched: charts are stand-ins of the same
name and version, and without the age key the secrets are throw-away ones. Windows
of the clusters and of the policy count as open.

Exit codes: 0 every cluster became Ready; 1 not; 2 wrong usage.`,
		Example: `  talos-agent rehearse .
  talos-agent rehearse . --from ../main --cluster dev --policy policy.yaml`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeDirectories,
	}
	output := outputFlag(cmd)
	addValidationFlags(cmd, &f.Validation)
	flags := cmd.Flags()
	flags.StringVar(&f.From, "from", "", "directory with the state before the change")
	flags.Float64Var(&f.Speed, "speed", 50, "how many times faster than life")
	flags.DurationVar(&limit, "timeout", 5*time.Minute, "give up after this time")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		p, err := newPrinter(env.stdout, *output)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), limit)
		defer cancel()
		return runRehearsal(ctx, p, f, args[0])
	}
	return cmd
}

// runRehearsal rehearses a directory, and prints how it went.
func runRehearsal(ctx context.Context, p terminal.Printer, c rehearsal.Config, dir string) error {
	if !p.IsJSON() {
		c.Log = logging.New(logging.Config{Output: terminal.NewCleaner(indent{p})})
		c.OnBegin = func(what string) { p.Printf("== %s\n", what) }
		c.OnEnd = func(all []cluster.Status, late bool) { printRehearsed(p.At(time.Now()), all, late) }
	}
	out, err := rehearsal.Run(ctx, dir, c)
	var invalid *rehearsal.InvalidError
	switch {
	case errors.As(err, &invalid) && p.IsJSON():
		return errors.Join(p.PrintJSON("Validation", invalid.Found), errSilent(exitFailed))
	case errors.As(err, &invalid):
		// An invalid repository is printed the way validate prints it.
		printProblems(p, invalid.Found, invalid.Dir, false)
		printClusters(p, invalid.Found, false)
		return errSilent(exitFailed)
	case err != nil:
		return err
	case p.IsJSON():
		if err := p.PrintJSON("Rehearsal", out); err != nil {
			return err
		}
	}
	if !out.Ready {
		return errSilent(exitFailed)
	}
	return nil
}

func printRehearsed(p terminal.Printer, all []cluster.Status, late bool) {
	for _, s := range all {
		p.Printf("\n")
		p.PrintStatus(s)
	}
	if late {
		p.Printf("\ngave up: not every cluster became Ready in time\n")
	}
	p.Printf("\n")
}

// indent sets the agent's own lines apart.
type indent struct{ p terminal.Printer }

func (i indent) Write(b []byte) (int, error) {
	i.p.Printf("  %s", b)
	return len(b), nil
}
