package main

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/dialog"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/setup"
	"github.com/talos-agent/talos-agent/internal/repo/creation"
	"github.com/talos-agent/talos-agent/internal/repo/scaffold"
)

// repoFlags are what init repo is given.
type repoFlags struct {
	config, root               string
	network, gateway, vip      string
	first                      string
	wishes                     scaffold.Wishes
	yes, noGit                 bool
	recipients, ci             []string
	nameservers, timeServers   []string
	controlPlanes, workerCount int
}

func newInitRepo(env *environment) *cobra.Command {
	var f repoFlags
	cmd := &cobra.Command{
		Use:   "repo DIR",
		Short: "Make a repository to start from, or a cluster more in one",
		Long: `Make a repository with one cluster in it, ready to be pushed: its inventory, who
can read its secrets, the secrets themselves, encrypted, Cilium as an addon, a
check for the forge's CI, and a page that explains how to go on. Nothing that is
there is overwritten; in a repository that exists a cluster is added.

On the host of the agent it takes from its config, its policy and Proxmox VE
what the cluster must fit: bridge and network, storage, VMIDs that are free, the
age key's recipient. Elsewhere flags set it. On a terminal it asks for what it
cannot know, and shows what it would take.`,
		Example: `  talos-agent init repo infra
  talos-agent init repo infra --yes --cluster dev --control-planes 3 --workers 3 --vip 10.10.0.5
  talos-agent init repo infra --yes --host pve1 --bridge vmbr1 --network 10.10.0.0/24 --gateway 10.10.0.1 --recipient age1...`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeDirectories,
	}
	f.declare(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return makeRepository(cmd, env, f, args[0])
	}
	return cmd
}

// declare declares the flags.
func (f *repoFlags) declare(cmd *cobra.Command) {
	flags, w := cmd.Flags(), &f.wishes
	flags.StringVar(&w.Cluster, "cluster", "", "the name of the cluster (default dev)")
	flags.StringVar(&w.Folder, "path", "", "the folder of the repository that holds the clusters' folders (default: the config's, else inventory)")
	flags.StringVar(&w.Host, "host", "", "the Proxmox VE machine for its VMs (default: this one)")
	flags.StringVar(&w.Bridge, "bridge", "", "the bridge for its VMs (default: the policy's first)")
	flags.StringVar(&w.Datastore, "datastore", "", "the storage for disks (default: the policy's with the most room)")
	flags.StringVar(&w.Images, "image-datastore", "", "the storage for Talos images, where it is not the config's")
	flags.StringVar(&f.network, "network", "", "the network of the bridge, like 10.10.0.0/24 (default: that of the host's address on the bridge)")
	flags.StringVar(&f.gateway, "gateway", "", "the router of the nodes (default on the host: its own, if it is in that network, else the host)")
	flags.StringVar(&f.first, "first-address", "", "the address of the first control plane (default: the eleventh of the network); workers begin at the next ten")
	flags.StringVar(&f.vip, "vip", "", "an address that moves between the control planes, needed with more than one")
	flags.StringSliceVar(&f.nameservers, "nameserver", nil, "DNS servers of the nodes (default: Talos' own)")
	flags.StringSliceVar(&f.timeServers, "time-server", nil, "time servers of the nodes (default: Talos' own)")
	flags.IntVar(&f.controlPlanes, "control-planes", 1, "how many control planes")
	flags.IntVar(&f.workerCount, "workers", 2, "how many workers")
	flags.StringVar(&w.CNI, "cni", "", "the container network: cilium or flannel (default cilium)")
	flags.StringSliceVar(&f.recipients, "recipient", nil, "age recipients that can read the secrets; the host's must be among them (default: the host's)")
	flags.StringSliceVar(&f.ci, "ci", nil, "CI checks: github, gitlab, gitea, or none (default: the config's forge, else all)")
	flags.StringVar(&f.config, "config", setup.ConfigFile, "the host's config file")
	flags.BoolVar(&f.yes, "yes", false, "ask nothing")
	flags.BoolVar(&f.noGit, "no-git", false, "do not make it a Git repository")
	flags.StringVar(&f.root, "root", "", "a folder that holds the host, in the place of /")
	cobra.CheckErr(flags.MarkHidden("root")) // the flag is declared above
	completeFlag(cmd, "cni", cobra.FixedCompletions([]cobra.Completion{"cilium", "flannel"}, cobra.ShellCompDirectiveNoFileComp))
	completeFlag(cmd, "ci", cobra.FixedCompletions([]cobra.Completion{"github", "gitlab", "gitea", "none"}, cobra.ShellCompDirectiveNoFileComp))
}

// makeRepository is init repo.
func makeRepository(cmd *cobra.Command, env *environment, f repoFlags, dir string) error {
	w, err := f.readWishes()
	if err != nil {
		return err
	}
	out := env.stdout
	c := creation.Config{Dir: dir, HostConfig: f.config, Root: f.root, Given: cmd.Flags().Changed, Wishes: w, NoGit: f.noGit,
		Warn: func(err error) {
			printLine(out, "warning: Proxmox VE cannot be asked, so that VMIDs are taken for free: %v", err)
			if hint := fault.HintOf(err); hint != "" {
				printLine(out, "  -> %s", hint)
			}
		}}
	if !f.yes && isTerminal(env.stdin) {
		c.Ask = func() creation.Asker {
			printLine(out, "Enter takes what is in brackets.\n")
			return dialog.Open(cmd.Context(), env.stdin, env.stdout).Ask
		}
	}
	made, err := creation.Make(cmd.Context(), c)
	for _, path := range made.Kept {
		printLine(out, "kept   %s, which is there", path)
	}
	for _, path := range made.Written {
		printLine(out, "wrote  %s", path)
	}
	for _, p := range made.Problems {
		if p.Severity == cluster.Error {
			printLine(out, "%s", p)
		}
	}
	if err != nil {
		return err
	}
	printNextSteps(out, made, f.noGit)
	return nil
}

func printLine(w io.Writer, format string, args ...any) {
	_, _ = fmt.Fprintf(w, format+"\n", args...)
}

// isTerminal reports whether somebody can type.
func isTerminal(r io.Reader) bool {
	f, ok := r.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// readWishes reads what the flags ask for.
func (f *repoFlags) readWishes() (scaffold.Wishes, error) {
	w := f.wishes
	w.ControlPlanes, w.Workers, w.Recipients, w.CI, w.Version = f.controlPlanes, f.workerCount, f.recipients, f.ci, version
	w.Nameservers, w.TimeServers = f.nameservers, f.timeServers
	for _, a := range []struct {
		flag, text string
		into       *netip.Addr
	}{{"gateway", f.gateway, &w.Gateway}, {"vip", f.vip, &w.VIP}, {"first-address", f.first, &w.First}} {
		if a.text == "" {
			continue
		}
		ip, err := netip.ParseAddr(a.text)
		if err != nil || !ip.Is4() {
			return w, &fault.Usage{Err: fmt.Errorf("--%s %q: write an IPv4 address", a.flag, a.text)}
		}
		*a.into = ip
	}
	if f.network != "" {
		p, err := netip.ParsePrefix(f.network)
		if err != nil {
			return w, &fault.Usage{Err: fmt.Errorf("--network %q: write a network, like 10.10.0.0/24", f.network)}
		}
		w.Network = p
	}
	return w, nil
}

// listUnreleased lists the files that were written for CI without a version to get.
func listUnreleased(made creation.Repository) []string {
	var out []string
	for _, file := range made.Wishes.WithoutRelease() {
		if file = filepath.Join(made.Dir, file); slices.Contains(made.Written, file) {
			out = append(out, file)
		}
	}
	return out
}

// printNextSteps prints who cannot read the secrets, and how to go on.
func printNextSteps(out io.Writer, made creation.Repository, noGit bool) {
	w := made.Wishes
	for _, u := range made.Unreadable {
		printLine(out, "warning: %s", u)
		printLine(out, "  -> write it there behind the others, with a comma between them, and run, with a key that is there: %s", made.UpdateKeys)
	}
	printLine(out, "Next:")
	printLine(out, "  talos-agent rehearse %s --cluster %s%s   # brings it up on a simulated host", made.Dir, w.Cluster, w.PathFlag())
	if unreleased := listUnreleased(made); len(unreleased) > 0 {
		printLine(out, "  write the version of a release into %s   # this talos-agent is none", strings.Join(unreleased, ", "))
	}
	switch {
	case made.Followed:
		printLine(out, "  sudo talos-agent plan %s            # what the agent, which follows %s, does with it", w.Cluster, made.Follows)
		printLine(out, "  talos-agent status %s --wait 15m    # until it is Ready", w.Cluster)
	case made.Follows != "":
		printLine(out, "  cp -r %s/. %s/   # which the agent follows", made.Dir, made.Follows)
		printLine(out, "  talos-agent status --watch   # from then on it works")
	case !noGit:
		if !made.HasGit {
			printLine(out, "  %s or copy the folder to where git is, and go on there", installGit)
			printLine(out, "  git init --initial-branch=%s %s", w.Branch, made.Dir)
		}
		printLine(out, "  cd %s && git add --all && git commit -m \"Describe the cluster %s\"", made.Dir, w.Cluster)
		if !made.HasOrigin {
			printLine(out, "  git remote add origin %s", cmp.Or(w.Remote, "URL"))
		}
		printLine(out, "  git push -u origin HEAD:%s   # with a key of your own: the agent's only reads", w.Branch)
		printLine(out, "  talos-agent status --watch   # on the host of the agent: from then on it works")
	}
	if len(made.Readers) == 1 {
		printLine(out, "\nOnly the key of %s opens the secrets of %s. Whoever loses it has lost them:", made.Readers[0], w.Cluster)
		printLine(out, "keep a copy of it elsewhere, or let a second key open them. Write its recipient into")
		printLine(out, "%s behind the first, with a comma between them, and run", made.Rules)
		printLine(out, "  %s", made.UpdateKeys)
		printLine(out, "A new repository has both from the beginning with --recipient, once for each.")
	}
}
