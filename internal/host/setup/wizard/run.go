package wizard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"

	"golang.org/x/term"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/dialog"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/host/probe"
	"github.com/talos-agent/talos-agent/internal/host/setup"
	"github.com/talos-agent/talos-agent/sources/git"
)

// Config is what one run of init needs from outside.
type Config struct {
	Host     probe.Host
	In       io.Reader // of the person, or whatever is in the person's place
	Out, Err io.Writer
	Quiet    bool // nothing but questions is printed: the plan is for a program
	Flags    Flags
	Given    func(name string) bool // whether a flag was
}

// session is one run of init.
type session struct {
	Config
	target target
	dialog *dialog.Dialog // nil: nobody is there to ask
	facts  setup.Facts
	record setup.Record
	wishes setup.Wishes
	files  setup.Given
	// newDirectory is the directory to follow, which is not there yet; "": it is.
	newDirectory string
	// scanned is what the ssh server of the repository shows, to be compared.
	scanned *hostKeys
}

// Run sets the host up, or takes that back. With the flag of a dry run it
// returns the plan and changes nothing.
func Run(ctx context.Context, c Config) (setup.Plan, error) {
	i := &session{Config: c, target: target{c.Host}}
	if err := i.Host.Verify(); err != nil {
		return setup.Plan{}, err
	}
	var err error
	if i.dialog, err = i.openDialog(ctx); err != nil {
		return setup.Plan{}, err
	}
	if !i.Flags.DryRun {
		unlock, err := i.target.lock()
		if err != nil {
			return setup.Plan{}, err
		}
		defer unlock()
	}
	if i.record, err = i.target.readRecord(); err != nil {
		return setup.Plan{}, err
	}
	i.printf("looking at the host\n")
	if i.facts, err = i.Host.ReadFacts(ctx); err != nil {
		return setup.Plan{}, fmt.Errorf("look at the host: %w", err)
	}
	if i.Flags.Undo {
		return i.undo(ctx)
	}
	i.printf("Proxmox VE %s on %s\n", i.facts.Version, i.facts.Host)
	if err := i.decideWishes(ctx); err != nil {
		return setup.Plan{}, err
	}
	plan, err := i.makePlan()
	if err != nil {
		return setup.Plan{}, err
	}
	if i.Flags.DryRun {
		i.showPlan(plan)
		return plan, nil
	}
	return plan, i.apply(ctx, plan)
}

// printf prints for people.
func (i *session) printf(format string, args ...any) {
	if !i.Quiet {
		_, _ = fmt.Fprintf(i.Out, format, args...)
	}
}

// openDialog returns who is asked: the person at the terminal, or nobody. What a
// program reads holds no questions.
func (i *session) openDialog(ctx context.Context) (*dialog.Dialog, error) {
	in, ok := i.In.(*os.File)
	terminal := ok && term.IsTerminal(int(in.Fd()))
	switch {
	case i.Flags.Yes || i.Flags.DryRun && (!terminal || i.Quiet):
		return nil, nil
	case !terminal:
		return nil, &fault.Usage{Err: fault.WithHint(errors.New("init: there is no terminal to ask on"), "use --yes, and flags for what has no default; --dry-run shows the steps")}
	}
	return dialog.Open(ctx, i.In, i.Out), nil
}

// setupOptions are what the person at the terminal, or the flags, allow.
func (i *session) setupOptions() setup.Options {
	return setup.Options{Force: i.Flags.Force, RotateToken: i.Flags.Rotate, Start: i.Flags.Start, NewDirectory: i.newDirectory}
}

// makePlan makes the plan, once everything is known to be right.
func (i *session) makePlan() (setup.Plan, error) {
	problems := setup.Check(i.facts, i.wishes, i.record, i.files, i.setupOptions())
	if !problems.HasErrors() { // what is wrong with a wish would be reported twice
		problems = append(problems, i.checkConfig()...)
	}
	problems = append(problems, i.checkHostKeys()...)
	if problems.HasErrors() {
		return setup.Plan{}, fmt.Errorf("this host cannot be set up so:\n%w", problems)
	}
	for _, warning := range problems {
		_, _ = fmt.Fprintf(i.Err, "%s\n", warning)
	}
	plan := setup.Make(i.facts, i.wishes, i.files, i.record, i.setupOptions())
	if len(plan.Conflicts) == 0 {
		return plan, nil
	}
	for _, c := range plan.Conflicts {
		i.showConflict(c)
	}
	if i.dialog == nil || i.Flags.DryRun {
		return setup.Plan{}, fault.WithHint(fmt.Errorf("%s: somebody else wrote or changed it, and nothing was changed", nameConflicts(plan)),
			"use --force to replace it, or the flags that lead to what it contains")
	}
	if ok, err := i.dialog.Confirm("Replace "+nameConflicts(plan)+"?", false); err != nil || !ok {
		return setup.Plan{}, errors.Join(err, errors.New("nothing was changed"))
	}
	options := i.setupOptions()
	options.Force = true
	return setup.Make(i.facts, i.wishes, i.files, i.record, options), nil
}

func nameConflicts(plan setup.Plan) string {
	var names []string
	for _, c := range plan.Conflicts {
		names = append(names, c.Path)
	}
	return strings.Join(names, ", ")
}

// checkConfig holds the config and the policy that would be written against the
// daemon's own rules, as far as that goes before their files are there.
func (i *session) checkConfig() cluster.Problems {
	const yet = " (as it would be written)"
	_, problems := config.ParsePolicy(setup.PolicyFile+yet, setup.Policy(i.files.Policy, i.wishes))
	problems = append(problems, config.Check(setup.ConfigFile+yet, setup.Config(i.files.Config, i.wishes))...)
	return problems
}

// checkHostKeys holds the host keys against the address of the repository.
func (i *session) checkHostKeys() cluster.Problems {
	keys := i.files.KnownHosts
	if keys == nil {
		keys = i.facts.Files[setup.KnownHostsFile].Data
	}
	if !i.wishes.Repository.SSH() || keys == nil {
		return nil // Check reports what is missing
	}
	if err := git.CheckKnownHosts(i.wishes.Repository.URL, keys); err != nil {
		return cluster.Problems{{Severity: cluster.Error, Field: "--known-hosts-file", Message: strings.TrimPrefix(err.Error(), "known_hosts_file: "), Hint: fault.HintOf(err)}}
	}
	return nil
}

// apply carries a plan out and shows what is next.
func (i *session) apply(ctx context.Context, plan setup.Plan) error {
	if i.dialog == nil || len(plan.Steps) == 0 { // else they are shown with the steps
		for _, n := range plan.Notes {
			i.printf("note: %s\n", n)
		}
	}
	record := i.record.Begun(i.wishes, plan)
	if len(plan.Steps) == 0 {
		if !reflect.DeepEqual(record, i.record) { // it was lost, or a flag set what is so already
			if err := i.target.writeRecord(record); err != nil {
				return err
			}
		}
		i.printf("nothing to do: this host is set up\n")
		return i.showNext()
	}
	if i.dialog != nil {
		i.showPlan(plan)
		if ok, err := i.dialog.Confirm("Do this?", true); err != nil || !ok {
			return errors.Join(err, errors.New("nothing was changed"))
		}
	}
	// What is started is started with a config that is known to be good.
	steps, last := plan.Steps, []setup.Step(nil)
	if n := len(steps); steps[n-1].Run != nil {
		steps, last = steps[:n-1], steps[n-1:]
	}
	report := func(s setup.Step) { i.printf("done: %s\n", s.What) }
	record, err := i.target.executeSteps(ctx, steps, record, report)
	if err != nil {
		return fault.WithHint(err, "run init again when it is fixed: it goes on where it stopped")
	}
	if err := i.checkWritten(); err != nil {
		return err
	}
	if _, err := i.target.executeSteps(ctx, last, record, report); err != nil {
		return fault.WithHint(err, "journalctl -u talos-agent shows why")
	}
	return i.showNext()
}

// checkWritten has the daemon's own loader read what was written.
func (i *session) checkWritten() error {
	settings, problems := config.LoadFrom(i.Host.Path(setup.ConfigFile), config.FromStore(i.Host.Path(setup.CredentialDir)))
	if problems = settings.WithoutHidden(problems); problems.HasErrors() {
		return fmt.Errorf("the files are written, and the agent cannot work with them:\n%w", problems)
	}
	return nil
}

// undo takes back what init made.
func (i *session) undo(ctx context.Context) (setup.Plan, error) {
	plan, problems := setup.Undo(i.facts, i.record, i.Flags.LeaveVMs)
	if problems.HasErrors() {
		return plan, fmt.Errorf("nothing was undone:\n%w", problems)
	}
	if i.Flags.DryRun {
		i.showPlan(plan)
		return plan, nil
	}
	if i.dialog != nil {
		i.showPlan(plan)
		if ok, err := i.dialog.Confirm("Do this?", false); err != nil || !ok {
			return plan, errors.Join(err, errors.New("nothing was changed"))
		}
	}
	if len(plan.Steps) > 0 {
		if _, err := i.target.executeSteps(ctx, plan.Steps, i.record, func(s setup.Step) { i.printf("done: %s\n", s.What) }); err != nil {
			return plan, fault.WithHint(err, "run it again when it is fixed: it goes on where it stopped")
		}
	}
	for _, n := range plan.Notes {
		i.printf("%s\n", n)
	}
	if err := i.target.removeRecord(); err != nil {
		return plan, err
	}
	i.printf("init is undone\n")
	return plan, nil
}
