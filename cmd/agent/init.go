//go:build linux

package main

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/talos-agent/talos-agent/internal/dialog"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/probe"
	"github.com/talos-agent/talos-agent/internal/host/setup"
	"github.com/talos-agent/talos-agent/internal/host/setup/account"
	"github.com/talos-agent/talos-agent/internal/host/setup/wizard"
	"github.com/talos-agent/talos-agent/internal/repo/tokens"
	"github.com/talos-agent/talos-agent/internal/terminal"
)

func newInit(env *environment) *cobra.Command { return newInitWith(env, probe.RunProgram) }

func newInitWith(env *environment, run probe.Runner) *cobra.Command {
	var f wizard.Flags
	var root, output string
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Set up this Proxmox VE host for the agent, or take that back (root)",
		Long: `Set up this Proxmox VE host for the agent: in Proxmox VE a pool, roles, a user
and a token that can do what the agent does in that pool only; keys and tokens
where systemd hands them to the daemon; config and policy. On a terminal it
asks what it cannot know; in scripts flags set it, and --yes agrees to the rest.

In a cluster of Proxmox VE every host that has an agent is set up by itself: user
and roles are there for all of them, and each has a token with the host's name.

What an earlier run was given holds until a flag changes it. What may be left
out is taken back with none: --forge none, --mirror-factory none.

It shows every step before it takes it, and --dry-run does nothing else. Steps
that are done are not done again: a second run finishes what was interrupted, or
finds nothing to do. A file that people have changed is not replaced without
--force. What it did is recorded in /etc/talos-agent/init.json, which --undo
reads to know what to take back.

No secret is printed: the token's goes from Proxmox VE into its file.`,
		Example: `  talos-agent init
  talos-agent init --dry-run --repository ssh://git@git.example.org/infra.git
  talos-agent init --yes --bridge vmbr1 --repository ssh://git@git.example.org/infra.git --known-hosts-file known_hosts --start
  talos-agent init --undo`,
		Args: knownCommand,
	}
	declareInitFlags(cmd, &f)
	flags := cmd.Flags()
	flags.StringVarP(&output, "output", "o", "text", "with --dry-run: how to print, text or json")
	flags.StringVar(&root, "root", "", "a folder that holds the host, in the place of /")
	cobra.CheckErr(flags.MarkHidden("root")) // the flag is declared above
	completeFlag(cmd, "output", cobra.FixedCompletions([]cobra.Completion{"text", "json"}, cobra.ShellCompDirectiveNoFileComp))
	cmd.AddCommand(newInitRepo(env), newInitAccount(env, run, account.CCM), newInitAccount(env, run, account.CSI))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		p, err := newPrinter(env.stdout, output)
		if err != nil {
			return err
		}
		if p.IsJSON() && !f.DryRun {
			return &fault.Usage{Err: errors.New("init: --output json goes with --dry-run")}
		}
		host := probe.Host{Root: root, Run: watchRuns(terminal.NewLiveLine(env.stderr), run)}
		if root != "" {
			if host.Root, err = filepath.Abs(root); err != nil {
				return err
			}
		}
		plan, err := wizard.Run(cmd.Context(), wizard.Config{
			Host: host, In: env.stdin, Out: terminal.NewCleaner(env.stdout), Err: env.stderr, Quiet: p.IsJSON(), Flags: f, Given: cmd.Flags().Changed,
		})
		if err == nil && p.IsJSON() {
			err = p.PrintJSON("InitPlan", wizard.ViewPlan(plan))
		}
		return err
	}
	return cmd
}

// declareInitFlags declares the flags that describe what is wanted, and how.
func declareInitFlags(cmd *cobra.Command, f *wizard.Flags) {
	flags := cmd.Flags()
	flags.StringVar(&f.Pool, "pool", "", "the resource pool of the agent's VMs (default talos, or talos-HOST where that is another host's)")
	flags.StringVar(&f.VMIDs, "vmids", "", "the VMIDs that nodes may have, like 400-599 (default: 200 free ones)")
	flags.StringSliceVar(&f.Bridges, "bridge", nil, "bridges that nodes may be attached to (default: the first on which this host has an address)")
	flags.StringSliceVar(&f.Datastores, "datastore", nil, "storages for disks (default: the first with thin volumes)")
	flags.StringVar(&f.Images, "image-datastore", "", "the storage that Talos images are uploaded to (default local)")
	flags.BoolVar(&f.NoImport, "no-import", false, "do not give that storage the content type import where it lacks it")
	flags.IntVar(&f.Nodes, "limit-nodes", 0, "the most nodes of all clusters (default: no limit)")
	flags.IntVar(&f.Cores, "limit-cores", 0, "the most cores of all nodes (default: no limit)")
	flags.StringVar(&f.RAM, "limit-ram", "", "the most memory of all nodes, like 64GiB (default: no limit)")
	flags.StringVar(&f.Disk, "limit-disk", "", "the most disk space of all nodes, like 1TiB (default: no limit)")

	flags.StringVar(&f.Repository, "repository", "", "the address of the Git repository to follow")
	flags.StringVar(&f.Directory, "directory", "", "a directory of this host, in the place of a repository")
	flags.StringVar(&f.Branch, "branch", "", "the branch to follow (default main)")
	flags.StringVar(&f.Folder, "path", "", "the folder of the repository that holds the clusters' folders (default inventory)")
	flags.StringArrayVar(&f.KnownHosts, "known-host", nil, "a line of known_hosts for the ssh server, compared with what its owner publishes; may be given several times")
	flags.StringVar(&f.KnownHostsFile, "known-hosts-file", "", "file with such lines")
	flags.StringVar(&f.SSHKeyFile, "ssh-key", "", "file with the deploy key (default: one that is there, or a new one)")
	flags.StringVar(&f.GitTokenFile, "git-token-file", "", "file with a token that reads an https repository")
	flags.StringVar(&f.AgeKeyFile, "age-key", "", "file with the age key that opens the secrets (default: one that is there, or a new one)")
	flags.StringVar(&f.Forge, "forge", "", "the kind of forge for commit statuses: github, gitlab, gitea or none (default none)")
	flags.StringVar(&f.ForgeURL, "forge-url", "", "its address, where it is not github.com or gitlab.com")
	flags.StringVar(&f.ForgeRepo, "forge-repository", "", "the repository there, like org/infra")
	flags.StringVar(&f.ForgeTokenFile, "forge-token-file", "", "file with a token that may set commit statuses")

	flags.StringVar(&f.ProxmoxURL, "proxmox-url", "", "where the API answers (default https://127.0.0.1:8006)")
	flags.StringVar(&f.Fingerprint, "fingerprint", "", "the SHA-256 fingerprint of its certificate, in the place of an authority")
	flags.StringVar(&f.CAFile, "ca-file", "", "file with authorities (PEM) to trust besides the system's")
	flags.StringVar(&f.MirrorFactory, "mirror-factory", "", "asked instead of the image factory")
	flags.StringToStringVar(&f.MirrorCharts, "mirror-charts", nil, "FROM=TO: asked instead of a chart repository or registry")
	charts := flags.Lookup("mirror-charts")
	charts.Value = mapping{charts.Value, &f.MirrorCharts}

	flags.BoolVar(&f.Yes, "yes", false, "agree to everything that would be asked")
	flags.BoolVar(&f.DryRun, "dry-run", false, "show the steps and change nothing")
	flags.BoolVar(&f.Start, "start", false, "enable the agent and start it")
	flags.BoolVar(&f.Force, "force", false, "replace files that people have changed")
	flags.BoolVar(&f.Rotate, "rotate-token", false, "make a new token in the place of this host's that is there; other hosts keep theirs")
	flags.BoolVar(&f.Undo, "undo", false, "take back what init made, and show what stays")
	flags.BoolVar(&f.LeaveVMs, "leave-vms", false, "with --undo: even while there are VMs in the pool, which go on running")
	completeFlag(cmd, "forge", cobra.FixedCompletions([]cobra.Completion{"github", "gitlab", "gitea", wizard.None}, cobra.ShellCompDirectiveNoFileComp))
}

// mapping is a flag of pairs that takes none as well.
type mapping struct {
	pflag.Value
	pairs *map[string]string
}

// Set implements pflag.Value.
func (m mapping) Set(s string) error {
	if s == "" || s == wizard.None {
		clear(*m.pairs) // the same map: pairs that come after are laid into it
		return nil
	}
	return m.Value.Set(s)
}

// accountFlags are what init ccm and init csi are given.
type accountFlags struct {
	tokens.Config
	root              string
	yes, dryRun, undo bool
}

// newInitAccount makes init ccm and init csi.
func newInitAccount(env *environment, run probe.Runner, kind account.Kind) *cobra.Command {
	f := accountFlags{Config: tokens.Config{Kind: kind, HostConfig: setup.ConfigFile}}
	where := "sees the VMs of the nodes, in the agent's pool and nowhere else"
	if kind.Storage {
		where = "attaches disks to VMs, in the agent's pool and nowhere else, and makes and deletes\ndisks on the storages that --datastore names"
	}
	cmd := &cobra.Command{
		Use:   kind.Name + " --cluster NAME DIR",
		Short: "Give " + kind.Program + " of a cluster its account in Proxmox VE (root)",
		Long: fmt.Sprintf(`Give %[1]s of a cluster an account in Proxmox VE with its least
privileges: roles, a user and a token of the cluster's own. It
%[2]s.

The token goes into the cluster's secrets in the repository DIR, encrypted to whom
they are encrypted already, as the values %[3]s and
%[4]s; it is never printed. The addon %[5]s is
written beside the others unless there is one, and what cluster.yaml lacks is
printed. Nothing is committed.

A second run changes nothing. Where the secret was lost, --rotate-token makes a new
token in the place of the old one. --undo deletes the account.`, kind.Program, where, kind.IDValue(), kind.SecretValue(), kind.Addon),
		Example: fmt.Sprintf(`  talos-agent init %[1]s --cluster dev infra --dry-run
  talos-agent init %[1]s --cluster dev infra --yes%[2]s
  talos-agent init %[1]s --cluster dev --undo`, kind.Name, map[bool]string{true: " --datastore local-lvm"}[kind.Storage]),
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: completeDirectories,
	}
	f.declare(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case f.Cluster == "":
			return &fault.Usage{Err: fmt.Errorf("init %s: which cluster? use --cluster NAME", kind.Name)}
		case len(args) == 0 && !f.undo:
			return &fault.Usage{Err: fmt.Errorf("init %s: name the directory of the repository, whose secrets take the token", kind.Name)}
		case len(args) == 1:
			f.Dir = args[0]
		}
		f.Host = probe.Host{Run: watchRuns(terminal.NewLiveLine(env.stderr), run)}
		if f.root != "" {
			var err error
			if f.Host.Root, err = filepath.Abs(f.root); err != nil {
				return err
			}
		}
		return makeAccount(cmd, env, f)
	}
	return cmd
}

// declare declares the flags.
func (f *accountFlags) declare(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.Cluster, "cluster", "", "the cluster, by the name of its folder (required)")
	flags.StringVar(&f.Folder, "path", "", "the folder of the repository that holds the clusters' folders (default: the config's)")
	flags.StringVar(&f.AgeKey, "age-key", "", "file with the age key that opens the cluster's secrets (default: the agent's)")
	flags.StringVar(&f.URL, "url", "", "where pods reach the API of Proxmox VE (default: this host's address on the bridge of the nodes)")
	flags.StringVar(&f.Region, "region", "", "the region of the nodes (default: the one in their labels, else "+tokens.DefaultRegion+")")
	if f.Kind.Storage {
		flags.StringSliceVar(&f.Datastores, "datastore", nil, "storages for the volumes (required)")
	}
	flags.BoolVar(&f.Rotate, "rotate-token", false, "make a new token in the place of the one that is there")
	flags.BoolVar(&f.undo, "undo", false, "delete the account")
	flags.BoolVar(&f.dryRun, "dry-run", false, "show the steps and change nothing")
	flags.BoolVar(&f.yes, "yes", false, "ask nothing")
	flags.StringVar(&f.HostConfig, "config", setup.ConfigFile, "the host's config file")
	flags.StringVar(&f.root, "root", "", "a folder that holds the host, in the place of /")
	cobra.CheckErr(flags.MarkHidden("root")) // the flag is declared above
	completeFlag(cmd, "cluster", folderNames)
}

// makeAccount is init ccm and init csi.
func makeAccount(cmd *cobra.Command, env *environment, f accountFlags) error {
	ctx, out := cmd.Context(), env.stdout
	if !f.dryRun {
		if err := f.Host.Verify(); err != nil {
			return err
		}
		unlock, err := wizard.Lock(f.Host)
		if err != nil {
			return err
		}
		defer unlock()
	}
	var a *tokens.Account
	var plan account.Plan
	var err error
	if f.undo {
		plan, err = tokens.LookUndo(ctx, f.Config)
	} else if a, err = tokens.Look(ctx, f.Config); err == nil {
		plan = a.Plan
	}
	if err != nil {
		return err
	}
	steps := plan.Steps
	if plan.Token != nil {
		steps = append(steps[:len(steps):len(steps)], *plan.Token)
	}
	for _, s := range steps {
		printLine(out, "  %s\n    %s", s.What, s.Shown())
	}
	if f.dryRun {
		return nil
	}
	if len(steps) > 0 && !f.yes {
		if !isTerminal(env.stdin) {
			return &fault.Usage{Err: fault.WithHint(errors.New("there is no terminal to ask on"), "use --yes; --dry-run shows the steps")}
		}
		if ok, err := dialog.Open(ctx, env.stdin, out).Confirm("Do this?", !f.undo); err != nil || !ok {
			return errors.Join(err, errors.New("nothing was changed"))
		}
	}
	report := func(s setup.Step) { printLine(out, "done: %s", s.What) }
	if f.undo {
		return printUndone(env, f, len(steps), tokens.ExecuteSteps(ctx, f.Host, steps, report))
	}
	made, err := a.Apply(ctx, report)
	for _, file := range made.Written {
		printLine(out, "wrote  %s", file)
	}
	if err == nil {
		printAccount(env, f, made, len(steps))
	}
	return err
}

// printUndone prints what is left when an account is deleted.
func printUndone(env *environment, f accountFlags, steps int, err error) error {
	if err != nil {
		return err
	}
	if steps == 0 {
		printLine(env.stdout, "nothing to do: there is no such account")
		return nil
	}
	printLine(env.stdout, "The values %s and %s of the cluster's secrets are of no use any more: remove them with sops, and the addon %s from cluster.yaml.",
		f.Kind.IDValue(), f.Kind.SecretValue(), f.Kind.Addon)
	return nil
}

// printAccount prints what a person has to do.
func printAccount(env *environment, f accountFlags, made tokens.Made, steps int) {
	out := env.stdout
	if steps == 0 && len(made.Written) == 0 && len(made.Lines) == 0 {
		printLine(out, "nothing to do: the account is there, and the repository has what it needs")
		return
	}
	printLine(out, "Next:")
	if len(made.Lines) > 0 {
		printLine(out, "  in cluster.yaml of %s add to what is there:", f.Cluster)
		for _, line := range made.Lines {
			printLine(out, "    %s", line)
		}
	}
	printLine(out, "  talos-agent validate %s --cluster %s --age-key FILE", f.Dir, f.Cluster)
	printLine(out, "  then commit and push")
}
