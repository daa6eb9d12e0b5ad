//go:build linux

package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/talos-agent/talos-agent/internal/daemon/support"
	"github.com/talos-agent/talos-agent/internal/host/doctor"
	"github.com/talos-agent/talos-agent/internal/host/probe"
	"github.com/talos-agent/talos-agent/internal/host/setup"
	"github.com/talos-agent/talos-agent/internal/terminal"
	"github.com/talos-agent/talos-agent/internal/text"
)

func newDoctor(env *environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check whether everything is there that the agent needs, with a hint for what is not",
		Long: `Check every prerequisite of the agent: the API of Proxmox VE and its
certificate, the token's privileges, storages and bridges, addresses, clocks,
the repository, the forge, the sources of images and charts, the modes of files.
Nothing is changed. Each problem is printed with a hint; what could not be checked
is printed with the reason.

The daemon checks with its own credentials, and this command checks the host
itself, which takes root. Where no daemon runs, the command does its part, with
the credentials of its config and of /etc/credstore.

Exit codes: 0 nothing has failed; 1 something has; 2 wrong usage.`,
		Args: cobra.NoArgs,
	}
	output := outputFlag(cmd)
	config := cmd.Flags().String("config", setup.ConfigFile, "the host's config file")
	root := cmd.Flags().String("root", "", "a folder that holds the host, in the place of /")
	cobra.CheckErr(cmd.Flags().MarkHidden("root")) // the flag is declared above
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		p, err := newPrinter(env.stdout, *output)
		if err != nil {
			return err
		}
		socket := ""
		if cmd.Flags().Changed("socket") {
			if socket, err = cmd.Flags().GetString("socket"); err != nil {
				return err
			}
		}
		host := probe.Host{Root: *root}
		if *root != "" && !cmd.Flags().Changed("config") {
			*config = host.Path(setup.ConfigFile)
		}
		line := terminal.NewLiveLine(env.stderr)
		showLine(line, "looking around; what does not answer is waited for, up to two minutes")
		host.Run = watchRuns(line, probe.RunProgram)
		report, err := support.Inspect(cmd.Context(), *config, socket, host)
		line.Clear()
		if cmd.Context().Err() != nil {
			return errStopped
		}
		if err != nil {
			return err
		}
		if p.IsJSON() {
			err = p.PrintJSON("Doctor", report)
		} else {
			printReport(p, report)
		}
		if err == nil && report.Summary.Fail > 0 {
			err = errSilent(exitFailed)
		}
		return err
	}
	return cmd
}

// showLine shows a person at a terminal that something is under way.
func showLine(line *terminal.LiveLine, words string) {
	line.Set(func(columns int) string { return text.Cut(words, columns-1) })
}

// watchRuns shows a person at a terminal which programs of the host are waited for.
func watchRuns(line *terminal.LiveLine, run probe.Runner) probe.Runner {
	return probe.Watch(run, func(words string) { showLine(line, words) })
}

// printReport prints the checks by their groups.
func printReport(p terminal.Printer, r doctor.Report) {
	group := ""
	for _, c := range r.Checks {
		if k := doctor.KindOf(c.Name); k.Group != group {
			if group != "" {
				p.Printf("\n")
			}
			group = k.Group
			p.Printf("%s\n", group)
		}
		subject := c.Subject
		if subject != "" {
			subject += ": "
		}
		p.Printf("  %s %-12s %s%s\n", paintLevel(p, c.Level), c.Name, subject, text.OneLine(c.Message))
		if c.Hint != "" && c.Level != doctor.Pass {
			p.Printf("                       -> %s\n", text.OneLine(c.Hint))
		}
	}
	s := r.Summary
	p.Printf("\n%d passed, %d warned, %d failed, %d skipped\n", s.Pass, s.Warn, s.Fail, s.Skipped)
}

// paintLevel is a level in a column.
func paintLevel(p terminal.Printer, l doctor.Level) string {
	colour := map[doctor.Level]terminal.Colour{doctor.Pass: terminal.Green, doctor.Warn: terminal.Yellow, doctor.Fail: terminal.Red, doctor.Skipped: terminal.Faint}[l]
	return p.Paint(string(l), colour) + strings.Repeat(" ", max(0, 7-len(l)))
}
