package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/talos-agent/talos-agent/internal/daemon/support"
	"github.com/talos-agent/talos-agent/internal/host/doctor"
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
	config := cmd.Flags().String("config", defaultConfig, "the host's config file")
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
		done := showPatience(env)
		report, err := support.Inspect(cmd.Context(), *config, socket)
		done()
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

// showPatience shows a person at a terminal that something is under way; what it
// returns takes the words away again.
func showPatience(env *environment) func() {
	f, ok := env.stderr.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return func() {}
	}
	_, _ = fmt.Fprint(f, "looking around; what does not answer is waited for, up to a minute ...")
	return func() { _, _ = fmt.Fprint(f, "\r\x1b[K") }
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
