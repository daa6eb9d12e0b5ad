package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/host/probe"
	"github.com/talos-agent/talos-agent/internal/host/setup"
	"github.com/talos-agent/talos-agent/internal/terminal"
	"github.com/talos-agent/talos-agent/sources/git"
)

// initFlags are what init is told on its command line.
type initFlags struct {
	pool, images, vmids        string
	bridges, datastores        []string
	nodes, cores               int
	ram, disk                  string
	repository, directory      string
	branch, folder             string
	forge, forgeURL, forgeRepo string
	proxmoxURL, fingerprint    string
	mirrorFactory              string
	mirrorCharts               map[string]string
	noImport                   bool

	ageKeyFile, sshKeyFile, gitTokenFile, forgeTokenFile string
	knownHostsFile, caFile                               string
	knownHosts                                           []string

	yes, dryRun, undo, leaveVMs, force, rotate, start bool
	root, output                                      string
}

func newInit(env *environment) *cobra.Command { return newInitWith(env, probe.RunProgram) }

func newInitWith(env *environment, run probe.Runner) *cobra.Command {
	var f initFlags
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Set up this Proxmox VE host for the agent, or take that back (root)",
		Long: `Set up this Proxmox VE host for the agent: in Proxmox VE a pool, roles, a user
and a token that can do what the agent does in that pool only; keys and tokens
where systemd hands them to the daemon; config and policy. On a terminal it
asks what it cannot know; in scripts flags say it, and --yes agrees to the rest.

In a cluster of Proxmox VE every host that has an agent is set up by itself: user
and roles are there for all of them, and each has a token with the host's name.

What an earlier run was told holds until a flag says otherwise. What may be left
out is taken back with none: --forge none, --mirror-factory none.

It shows every step before it takes it, and --dry-run does nothing else. Steps
that are done are not done again: a second run finishes what was cut off, or
finds nothing to do. A file that people have changed is not replaced unless
that is said. What it did it remembers in /etc/talos-agent/init.json, where
--undo looks what to take back.

No secret is printed: the token's goes from Proxmox VE into its file.`,
		Example: `  talos-agent init
  talos-agent init --dry-run --repository ssh://git@git.example.org/infra.git
  talos-agent init --yes --bridge vmbr1 --repository ssh://git@git.example.org/infra.git --known-hosts-file known_hosts --start
  talos-agent init --undo`,
		Args: knownCommand,
	}
	f.declare(cmd)
	cmd.AddCommand(newInitRepo(env))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return runInit(cmd.Context(), env, cmd, f, run)
	}
	return cmd
}

// declare declares the flags.
func (f *initFlags) declare(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.pool, "pool", "", "the resource pool of the agent's VMs (default talos, or talos-HOST where that is another host's)")
	flags.StringVar(&f.vmids, "vmids", "", "the VMIDs that nodes may have, like 400-599 (default: 200 free ones)")
	flags.StringSliceVar(&f.bridges, "bridge", nil, "bridges that nodes may be attached to (default: the first on which this host has an address)")
	flags.StringSliceVar(&f.datastores, "datastore", nil, "storages for disks (default: the first with thin volumes)")
	flags.StringVar(&f.images, "image-datastore", "", "the storage that Talos images are uploaded to (default local)")
	flags.BoolVar(&f.noImport, "no-import", false, "do not give that storage the content type import where it lacks it")
	flags.IntVar(&f.nodes, "limit-nodes", 0, "the most nodes of all clusters (default: no limit)")
	flags.IntVar(&f.cores, "limit-cores", 0, "the most cores of all nodes (default: no limit)")
	flags.StringVar(&f.ram, "limit-ram", "", "the most memory of all nodes, like 64GiB (default: no limit)")
	flags.StringVar(&f.disk, "limit-disk", "", "the most disk space of all nodes, like 1TiB (default: no limit)")

	flags.StringVar(&f.repository, "repository", "", "the address of the Git repository to follow")
	flags.StringVar(&f.directory, "directory", "", "a directory of this host, in the place of a repository")
	flags.StringVar(&f.branch, "branch", "", "the branch to follow (default main)")
	flags.StringVar(&f.folder, "path", "", "the folder of the repository that holds the clusters' folders (default inventory)")
	flags.StringArrayVar(&f.knownHosts, "known-host", nil, "a line of known_hosts for the ssh server, compared with what its owner publishes; may be given several times")
	flags.StringVar(&f.knownHostsFile, "known-hosts-file", "", "file with such lines")
	flags.StringVar(&f.sshKeyFile, "ssh-key", "", "file with the deploy key (default: one that is there, or a new one)")
	flags.StringVar(&f.gitTokenFile, "git-token-file", "", "file with a token that reads an https repository")
	flags.StringVar(&f.ageKeyFile, "age-key", "", "file with the age key that opens the secrets (default: one that is there, or a new one)")
	flags.StringVar(&f.forge, "forge", "", "the kind of forge for commit statuses: github, gitlab, gitea or none (default none)")
	flags.StringVar(&f.forgeURL, "forge-url", "", "its address, where it is not github.com or gitlab.com")
	flags.StringVar(&f.forgeRepo, "forge-repository", "", "the repository there, like org/infra")
	flags.StringVar(&f.forgeTokenFile, "forge-token-file", "", "file with a token that may set commit statuses")

	flags.StringVar(&f.proxmoxURL, "proxmox-url", "", "where the API answers (default https://127.0.0.1:8006)")
	flags.StringVar(&f.fingerprint, "fingerprint", "", "the SHA-256 fingerprint of its certificate, in the place of an authority")
	flags.StringVar(&f.caFile, "ca-file", "", "file with authorities (PEM) to trust besides the system's")
	flags.StringVar(&f.mirrorFactory, "mirror-factory", "", "asked instead of the image factory")
	flags.StringToStringVar(&f.mirrorCharts, "mirror-charts", nil, "FROM=TO: asked instead of a chart repository or registry")
	charts := flags.Lookup("mirror-charts")
	charts.Value = mapping{charts.Value, &f.mirrorCharts}

	flags.BoolVar(&f.yes, "yes", false, "agree to everything that would be asked")
	flags.BoolVar(&f.dryRun, "dry-run", false, "show the steps and change nothing")
	flags.BoolVar(&f.start, "start", false, "enable the agent and start it")
	flags.BoolVar(&f.force, "force", false, "replace files that people have changed")
	flags.BoolVar(&f.rotate, "rotate-token", false, "make a new token in the place of this host's that is there; other hosts keep theirs")
	flags.BoolVar(&f.undo, "undo", false, "take back what init made, and say what stays")
	flags.BoolVar(&f.leaveVMs, "leave-vms", false, "with --undo: even while there are VMs in the pool, which go on running")
	flags.StringVarP(&f.output, "output", "o", "text", "with --dry-run: how to print, text or json")
	flags.StringVar(&f.root, "root", "", "a folder that holds the host, in the place of /")
	cobra.CheckErr(flags.MarkHidden("root")) // the flag is declared above
	complete(cmd, "output", cobra.FixedCompletions([]cobra.Completion{"text", "json"}, cobra.ShellCompDirectiveNoFileComp))
	complete(cmd, "forge", cobra.FixedCompletions([]cobra.Completion{"github", "gitlab", "gitea", none}, cobra.ShellCompDirectiveNoFileComp))
}

// initRun is one run of init.
type initRun struct {
	env    *environment
	host   target
	flags  initFlags
	given  func(name string) bool // whether a flag was
	asks   *asker                 // nil: nobody is there to ask
	facts  setup.Facts
	record setup.Record
	wishes setup.Wishes
	files  setup.Given
	// scanned is what the ssh server of the repository shows, to be compared.
	scanned *hostKeys
}

func runInit(ctx context.Context, env *environment, cmd *cobra.Command, f initFlags, run probe.Runner) error {
	p, err := newPrinter(env.stdout, f.output)
	if err != nil {
		return err
	}
	if p.IsJSON() && !f.dryRun {
		return &usageError{errors.New("init: --output json goes with --dry-run")}
	}
	if f.root != "" {
		if f.root, err = filepath.Abs(f.root); err != nil {
			return err
		}
	}
	i := &initRun{env: env, host: target{probe.Host{Root: f.root, Run: run}}, flags: f, given: cmd.Flags().Changed}
	if err := i.host.Verify(); err != nil {
		return err
	}
	if i.asks, err = i.whoAnswers(ctx); err != nil {
		return err
	}
	if !f.dryRun {
		unlock, err := i.host.lock()
		if err != nil {
			return err
		}
		defer unlock()
	}
	if i.record, err = i.host.readRecord(); err != nil {
		return err
	}
	if !p.IsJSON() {
		p.Printf("looking at the host\n")
	}
	if i.facts, err = i.host.ReadFacts(ctx); err != nil {
		return fmt.Errorf("look at the host: %w", err)
	}
	if f.undo {
		return i.undo(ctx, p)
	}
	if !p.IsJSON() {
		p.Printf("Proxmox VE %s on %s\n", i.facts.Version, i.facts.Host)
	}
	if err := i.decideWishes(ctx); err != nil {
		return err
	}
	plan, err := i.plan(p)
	if err != nil {
		return err
	}
	if f.dryRun {
		return showPlan(p, plan)
	}
	return i.apply(ctx, p, plan)
}

// probe.resolveNeighbour returns who is asked: the person at the terminal, or nobody. What a
// program reads holds no questions.
func (i *initRun) whoAnswers(ctx context.Context) (*asker, error) {
	in, ok := i.env.stdin.(*os.File)
	terminal := ok && term.IsTerminal(int(in.Fd()))
	switch {
	case i.flags.yes || i.flags.dryRun && (!terminal || i.flags.output == "json"):
		return nil, nil
	case !terminal:
		return nil, &usageError{fault.WithHint(errors.New("init: nobody is there to ask"), "say --yes, and with flags what has no default; --dry-run shows the steps")}
	}
	return newAsker(ctx, i.env), nil
}

// options are what the person at the terminal, or the flags, allow.
func (i *initRun) options() setup.Options {
	return setup.Options{Force: i.flags.force, RotateToken: i.flags.rotate, Start: i.flags.start}
}

// plan makes the plan, once everything is known to be right.
func (i *initRun) plan(p terminal.Printer) (setup.Plan, error) {
	problems := setup.Check(i.facts, i.wishes, i.record, i.files, i.options())
	if !problems.HasErrors() { // what is wrong with a wish would be told twice
		problems = append(problems, i.wouldLoad()...)
	}
	problems = append(problems, i.wouldTrust()...)
	if problems.HasErrors() {
		return setup.Plan{}, fmt.Errorf("this host cannot be set up so:\n%w", problems)
	}
	for _, warning := range problems {
		_, _ = fmt.Fprintf(i.env.stderr, "%s\n", warning)
	}
	plan := setup.Make(i.facts, i.wishes, i.files, i.record, i.options())
	if len(plan.Conflicts) == 0 {
		return plan, nil
	}
	for _, c := range plan.Conflicts {
		showConflict(p, c)
	}
	if i.asks == nil || i.flags.dryRun {
		return setup.Plan{}, fault.WithHint(fmt.Errorf("%s: somebody else wrote or changed it, and nothing was changed", conflictNames(plan)),
			"say --force to replace it, or the flags that lead to what it says")
	}
	if ok, err := i.asks.yes("Replace "+conflictNames(plan)+"?", false); err != nil || !ok {
		return setup.Plan{}, errors.Join(err, errors.New("nothing was changed"))
	}
	options := i.options()
	options.Force = true
	return setup.Make(i.facts, i.wishes, i.files, i.record, options), nil
}

func conflictNames(plan setup.Plan) string {
	var names []string
	for _, c := range plan.Conflicts {
		names = append(names, c.Path)
	}
	return strings.Join(names, ", ")
}

// wouldLoad holds the config and the policy that would be written against the
// daemon's own rules, as far as that goes before their files are there.
func (i *initRun) wouldLoad() cluster.Problems {
	const yet = " (as it would be written)"
	_, problems := config.ParsePolicy(setup.PolicyFile+yet, setup.Policy(i.files.Policy, i.wishes))
	problems = append(problems, config.Check(setup.ConfigFile+yet, setup.Config(i.files.Config, i.wishes))...)
	return problems
}

// wouldTrust holds the host keys against the address of the repository.
func (i *initRun) wouldTrust() cluster.Problems {
	keys := i.files.KnownHosts
	if keys == nil {
		keys = i.facts.Files[setup.KnownHostsFile].Data
	}
	if !i.wishes.Repository.SSH() || keys == nil {
		return nil // Check says what is missing
	}
	if err := git.CheckKnownHosts(i.wishes.Repository.URL, keys); err != nil {
		return cluster.Problems{{Severity: cluster.Error, Field: "--known-hosts-file", Message: strings.TrimPrefix(err.Error(), "known_hosts_file: "), Hint: fault.HintOf(err)}}
	}
	return nil
}

// apply carries a plan out and says what is next.
func (i *initRun) apply(ctx context.Context, p terminal.Printer, plan setup.Plan) error {
	if i.asks == nil || len(plan.Steps) == 0 { // else they are shown with the steps
		for _, n := range plan.Notes {
			p.Printf("note: %s\n", n)
		}
	}
	record := i.record.Begun(i.wishes, plan)
	if len(plan.Steps) == 0 {
		if !reflect.DeepEqual(record, i.record) { // it was lost, or a flag said what is so already
			if err := i.host.writeRecord(record); err != nil {
				return err
			}
		}
		p.Printf("nothing to do: this host is set up\n")
		return i.next(p)
	}
	if i.asks != nil {
		if err := showPlan(p, plan); err != nil {
			return err
		}
		if ok, err := i.asks.yes("Do this?", true); err != nil || !ok {
			return errors.Join(err, errors.New("nothing was changed"))
		}
	}
	// What is started is started with a config that is known to be good.
	steps, last := plan.Steps, []setup.Step(nil)
	if n := len(steps); steps[n-1].Run != nil {
		steps, last = steps[:n-1], steps[n-1:]
	}
	tell := func(s setup.Step) { p.Printf("done: %s\n", s.What) }
	record, err := i.host.carryOut(ctx, steps, record, tell)
	if err != nil {
		return fault.WithHint(err, "run init again when it is mended: it goes on where it stopped")
	}
	if err := i.loads(); err != nil {
		return err
	}
	if _, err := i.host.carryOut(ctx, last, record, tell); err != nil {
		return fault.WithHint(err, "journalctl -u talos-agent says why")
	}
	return i.next(p)
}

// loads has the daemon's own loader read what was written.
func (i *initRun) loads() error {
	settings, problems := config.LoadFrom(i.host.Path(setup.ConfigFile), config.FromStore(i.host.Path(setup.CredentialDir)))
	if problems = settings.WithoutHidden(problems); problems.HasErrors() {
		return fmt.Errorf("the files are written, and the agent cannot work with them:\n%w", problems)
	}
	return nil
}

// undo takes back what init made.
func (i *initRun) undo(ctx context.Context, p terminal.Printer) error {
	plan, problems := setup.Undo(i.facts, i.record, i.flags.leaveVMs)
	if problems.HasErrors() {
		return fmt.Errorf("nothing was undone:\n%w", problems)
	}
	if i.flags.dryRun {
		return showPlan(p, plan)
	}
	if i.asks != nil {
		if err := showPlan(p, plan); err != nil {
			return err
		}
		if ok, err := i.asks.yes("Do this?", false); err != nil || !ok {
			return errors.Join(err, errors.New("nothing was changed"))
		}
	}
	if len(plan.Steps) > 0 {
		if _, err := i.host.carryOut(ctx, plan.Steps, i.record, func(s setup.Step) { p.Printf("done: %s\n", s.What) }); err != nil {
			return fault.WithHint(err, "run it again when it is mended: it goes on where it stopped")
		}
	}
	for _, n := range plan.Notes {
		p.Printf("%s\n", n)
	}
	if err := i.host.forget(); err != nil {
		return err
	}
	p.Printf("init is undone\n")
	return nil
}
