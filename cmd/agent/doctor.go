package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/talos-agent/talos-agent/internal/api"
	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/host/doctor"
	"github.com/talos-agent/talos-agent/internal/text"
)

func newDoctor(env *environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look whether everything is there that the agent needs, and tell the cure",
		Long: `Look at every prerequisite of the agent: the API of Proxmox VE and its
certificate, the token's privileges, storages and bridges, addresses, clocks,
the repository, the forge, the sources of images and charts, the modes of files.
Nothing is changed. What is wrong is told with its cure; what could not be looked
at is told with the reason.

The daemon looks with its own credentials, and this command at the host itself,
which takes root. Where no daemon runs, the command does the daemon's part, with
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
		done := patience(env)
		report, err := visit(cmd.Context(), *config, socket)
		done()
		if cmd.Context().Err() != nil {
			return errStopped
		}
		if err != nil {
			return err
		}
		if p.json {
			err = p.jsonOut("Doctor", report)
		} else {
			p.report(report)
		}
		if err == nil && report.Summary.Fail > 0 {
			err = errSilent(exitFailed)
		}
		return err
	}
	return cmd
}

// patience tells a person at a terminal that something is under way; what it
// returns takes the words away again.
func patience(env *environment) func() {
	f, ok := env.stderr.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return func() {}
	}
	_, _ = fmt.Fprint(f, "looking around; what does not answer is waited for, up to a minute ...")
	return func() { _, _ = fmt.Fprint(f, "\r\x1b[K") }
}

// visit looks at everything: over the socket of the daemon, which is the
// config's unless another is given, and at the host.
func visit(ctx context.Context, path, socket string) (doctor.Report, error) {
	// What is read here opens clusters.
	if err := daemon.Harden(); err != nil {
		return doctor.Report{}, err
	}
	s, problems := config.Load(path)
	checks, usable := configChecks(path, problems, s.Hidden)
	if socket == "" {
		socket = cmp.Or(s.Socket, config.DefaultSocket)
	}
	exam, more, err := examination(ctx, s, usable, socket)
	if err != nil {
		return doctor.Report{}, err
	}
	checks = append(append(checks, more...), exam.Checks...)
	host := hostView{config: path, used: s.Used, store: config.CredentialStore, given: handedOver, pve: pveHost{run: execute}}
	return doctor.NewReport(append(checks, host.see(ctx, exam.Wants).Judge()...)), nil
}

// configChecks judges the config by what loading it came to. What this user may
// not read was not looked at, the hidden fields' credentials among it.
func configChecks(path string, problems cluster.Problems, hidden []string) ([]doctor.Check, bool) {
	if !mayRead(path) {
		return []doctor.Check{{Name: "config", Subject: path, Level: doctor.Skipped, Message: "this user may not read it", Hint: "run it with sudo"}}, false
	}
	var checks []doctor.Check
	for _, p := range problems {
		c := doctor.Check{Name: "config", Level: doctor.Fail, Hint: p.Hint}
		switch p.Severity {
		case cluster.Warning:
			c.Level = doctor.Warn
		case cluster.Note:
			continue
		}
		if slices.Contains(hidden, p.Field) {
			c.Level = doctor.Skipped
		}
		p.Hint, p.Severity = "", cluster.Error
		c.Message = p.String()
		checks = append(checks, c)
	}
	if len(checks) == 0 {
		checks = []doctor.Check{{Name: "config", Subject: path, Level: doctor.Pass, Message: "config and policy are loaded, and every file they name"}}
	}
	return checks, !problems.HasErrors()
}

// examination has the daemon look, or where there is none looks in its place.
func examination(ctx context.Context, s config.Settings, usable bool, socket string) (doctor.Examination, []doctor.Check, error) {
	check := doctor.Check{Name: "daemon", Subject: socket, Level: doctor.Pass, Message: "answers"}
	exam, err := api.NewClient(socket).Examine(ctx)
	if err == nil || ctx.Err() != nil {
		return exam, []doctor.Check{check}, ctx.Err()
	}
	check.Level, check.Message, check.Hint = doctor.Warn, err.Error(), fault.HintOf(err)
	if !usable {
		check.Message += "; without its config and keys its part cannot be looked at"
		check.Hint = "mend the config first, and start the daemon then: `systemctl start talos-agent`"
		return doctor.Examination{}, []doctor.Check{check}, nil
	}
	check.Message += "; what it sees was looked at in its place"
	exam, err = daemon.Examine(ctx, s)
	return exam, []doctor.Check{check}, err
}

// report prints the checks by their groups.
func (p printer) report(r doctor.Report) {
	group := ""
	for _, c := range r.Checks {
		if k := doctor.KindOf(c.Name); k.Group != group {
			if group != "" {
				p.printf("\n")
			}
			group = k.Group
			p.printf("%s\n", group)
		}
		subject := c.Subject
		if subject != "" {
			subject += ": "
		}
		p.printf("  %s %-12s %s%s\n", p.level(c.Level), c.Name, subject, text.OneLine(c.Message))
		if c.Hint != "" && c.Level != doctor.Pass {
			p.printf("                       -> %s\n", text.OneLine(c.Hint))
		}
	}
	s := r.Summary
	p.printf("\n%d passed, %d warned, %d failed, %d skipped\n", s.Pass, s.Warn, s.Fail, s.Skipped)
}

// level is a level in a column.
func (p printer) level(l doctor.Level) string {
	colour := map[doctor.Level]string{doctor.Pass: "32", doctor.Warn: "33", doctor.Fail: "31", doctor.Skipped: "2"}[l]
	return p.paint(string(l), colour) + strings.Repeat(" ", max(0, 7-len(l)))
}

// pointAtDoctor ends a status in which something is off.
func (p printer) pointAtDoctor(all []cluster.Status, trouble []string) {
	off := len(trouble) > 0
	for _, s := range all {
		off = off || s.Condition == cluster.Stalled || s.Condition == cluster.Blind
	}
	if off {
		p.printf("\n`sudo talos-agent doctor` looks for the cause\n")
	}
}
