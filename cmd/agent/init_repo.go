package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/repo/scaffold"
	"github.com/talos-agent/talos-agent/internal/repo/sealed"
	"github.com/talos-agent/talos-agent/internal/repo/validation"
	"github.com/talos-agent/talos-agent/sources"
	"github.com/talos-agent/talos-agent/sources/inventory"
)

// repoFlags are what init repo is told.
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
check for the forge's CI, and a page that says how to go on. Nothing that is
there is overwritten; in a repository that exists a cluster is added.

On the host of the agent it takes from its config, its policy and Proxmox VE
what the cluster must fit: bridge and network, storage, VMIDs that are free, the
age key's recipient. Elsewhere flags say it. On a terminal it asks for what it
cannot know, and shows what it would take.`,
		Example: `  talos-agent init repo infra
  talos-agent init repo infra --yes --cluster dev --control-planes 3 --workers 3 --vip 10.10.0.5
  talos-agent init repo infra --yes --host pve1 --bridge vmbr1 --network 10.10.0.0/24 --gateway 10.10.0.1 --recipient age1...`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: directories,
	}
	f.declare(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		r := &repoRun{env: env, flags: f, given: cmd.Flags().Changed, dir: args[0]}
		return r.run(cmd.Context())
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
	flags.StringVar(&f.gateway, "gateway", "", "the router of the nodes (default: the host's own, if it is in that network, else the host)")
	flags.StringVar(&f.first, "first-address", "", "the address of the first control plane (default: the eleventh of the network); workers begin at the next ten")
	flags.StringVar(&f.vip, "vip", "", "an address that moves between the control planes, needed with more than one")
	flags.StringSliceVar(&f.nameservers, "nameserver", nil, "DNS servers of the nodes (default: Talos' own)")
	flags.StringSliceVar(&f.timeServers, "time-server", nil, "time servers of the nodes (default: Talos' own)")
	flags.IntVar(&f.controlPlanes, "control-planes", 1, "how many control planes")
	flags.IntVar(&f.workerCount, "workers", 2, "how many workers")
	flags.StringVar(&w.CNI, "cni", "", "the container network: cilium or flannel (default cilium)")
	flags.StringSliceVar(&f.recipients, "recipient", nil, "age recipients that can read the secrets; the host's must be among them (default: the host's)")
	flags.StringSliceVar(&f.ci, "ci", nil, "CI checks: github, gitlab, gitea, or none (default: the config's forge, else all)")
	flags.StringVar(&f.config, "config", defaultConfig, "the host's config file")
	flags.BoolVar(&f.yes, "yes", false, "ask nothing")
	flags.BoolVar(&f.noGit, "no-git", false, "do not make it a Git repository")
	flags.StringVar(&f.root, "root", "", "a folder that holds the host, in the place of /")
	cobra.CheckErr(flags.MarkHidden("root")) // the flag is declared above
	complete(cmd, "cni", cobra.FixedCompletions([]cobra.Completion{"cilium", "flannel"}, cobra.ShellCompDirectiveNoFileComp))
	complete(cmd, "ci", cobra.FixedCompletions([]cobra.Completion{"github", "gitlab", "gitea", "none"}, cobra.ShellCompDirectiveNoFileComp))
}

// repoRun is one run of init repo.
type repoRun struct {
	env   *environment
	flags repoFlags
	given func(name string) bool
	dir   string

	host   *hostKnowledge // nil: there is no config here
	wishes scaffold.Wishes
	// readers are the recipients that the secrets were encrypted to.
	readers []string
	// rules is the .sops.yaml that says who they are.
	rules string
}

func (r *repoRun) say(format string, args ...any) {
	_, _ = fmt.Fprintf(r.env.stdout, format+"\n", args...)
}

func (r *repoRun) run(ctx context.Context) error {
	var err error
	if r.host, err = r.learn(ctx); err != nil {
		return err
	}
	if r.host != nil {
		defer r.host.close()
	}
	if err := r.decide(); err != nil {
		return err
	}
	if err := r.ask(ctx); err != nil {
		return err
	}
	r.wishes = r.wishes.WithDefaults()
	if err := aFolder(r.wishes.Folder); err != nil {
		return &usageError{fmt.Errorf("--path: %w", err)}
	}
	if wrong := r.wishes.Check(); len(wrong) > 0 {
		var errs []error
		for _, w := range wrong {
			errs = append(errs, w)
		}
		return &usageError{errors.Join(errs...)}
	}
	free := func(int) (bool, error) { return true, nil }
	if r.host != nil && r.host.pve != nil {
		free = func(id int) (bool, error) { return r.host.pve.VMIDFree(ctx, id) }
	}
	nodes, err := r.wishes.Nodes(free)
	if err != nil {
		return err
	}
	files, err := scaffold.Files(r.wishes, nodes)
	if err != nil {
		return err
	}
	written, err := r.write(ctx, files)
	if err != nil {
		return err
	}
	return r.finish(ctx, written)
}

// aFolder complains of what is no folder of a repository, or one that the config
// of the host could not name.
func aFolder(s string) error {
	if err := writtenAs("folder", scaffold.Folder)(s); err != nil {
		return err
	}
	_, err := sources.New(sources.Config{Path: s})
	return err
}

// decide lays what flags say over what the host tells.
func (r *repoRun) decide() error {
	f := r.flags
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
			return &usageError{fmt.Errorf("--%s %q: write an IPv4 address", a.flag, a.text)}
		}
		*a.into = ip
	}
	if f.network != "" {
		p, err := netip.ParsePrefix(f.network)
		if err != nil {
			return &usageError{fmt.Errorf("--network %q: write a network, like 10.10.0.0/24", f.network)}
		}
		w.Network = p
	}
	if r.host != nil {
		w = r.host.fill(w)
	}
	switch {
	case slices.Equal(w.CI, []string{"none"}):
		w.CI = nil
	case len(w.CI) == 0:
		w.CI = []string{"github", "gitlab", "gitea"}
	}
	r.wishes = w
	return nil
}

// ask asks the person at the terminal for what no flag says.
func (r *repoRun) ask(ctx context.Context) error {
	in, ok := r.env.stdin.(*os.File)
	if r.flags.yes || !ok || !term.IsTerminal(int(in.Fd())) {
		return nil
	}
	r.say("Enter takes what is in brackets.\n")
	a, w := newAsker(ctx, r.env), &r.wishes
	text := func(flag, question, usual string, take func(string) error) error {
		if r.given(flag) {
			return nil
		}
		_, err := a.word(question, usual, func(s string) error {
			if err := take(s); err != nil {
				return err
			}
			return r.wrongWith(flag)
		})
		return err
	}
	network := ""
	if w.Network.IsValid() {
		network = w.Network.Masked().String()
	}
	d := w.WithDefaults()
	for _, q := range []func() error{
		func() error { return text("cluster", "Name of the cluster", d.Cluster, wordInto(&w.Cluster)) },
		func() error { return text("host", "Proxmox VE machine for its VMs", w.Host, wordInto(&w.Host)) },
		func() error { return text("bridge", "Bridge for its VMs", w.Bridge, wordInto(&w.Bridge)) },
		func() error { return text("datastore", "Storage for disks", d.Datastore, wordInto(&w.Datastore)) },
		func() error { return text("network", "Network of the bridge", network, networkInto(&w.Network)) },
		func() error {
			if w.Network.IsValid() && !w.Network.Contains(w.Gateway) && !r.given("gateway") {
				w.Gateway = w.Network.Masked().Addr().Next()
			}
			return text("gateway", "Router of the nodes", shown(w.Gateway), addressInto(&w.Gateway))
		},
		func() error {
			return text("control-planes", "Control planes", fmt.Sprint(w.ControlPlanes), numberInto(&w.ControlPlanes))
		},
		func() error { return text("workers", "Workers", fmt.Sprint(w.Workers), numberInto(&w.Workers)) },
		func() error {
			if w.ControlPlanes == 1 {
				return nil
			}
			return text("vip", "Address that moves between the control planes", shown(w.VIP), addressInto(&w.VIP))
		},
		func() error {
			if len(w.Recipients) > 0 {
				return nil
			}
			return text("recipient", "Recipient of the host's age key (`talos-agent init` printed it)", "", func(s string) error { w.Recipients = []string{s}; return notEmpty(s) })
		},
	} {
		if err := q(); err != nil {
			return err
		}
	}
	return nil
}

// What takes an answer says what is wrong with its form; what it means is looked
// at when it stands among the others.

func wordInto(into *string) func(string) error {
	return func(s string) error { *into = s; return notEmpty(s) }
}

func numberInto(into *int) func(string) error {
	return func(s string) error {
		n, err := strconv.Atoi(s)
		if err != nil {
			return errors.New("write a number")
		}
		*into = n
		return nil
	}
}

func addressInto(into *netip.Addr) func(string) error {
	return func(s string) (err error) {
		if *into, err = netip.ParseAddr(s); err != nil {
			return errors.New("write an address, like 10.10.0.1")
		}
		return nil
	}
}

func networkInto(into *netip.Prefix) func(string) error {
	return func(s string) (err error) {
		if *into, err = netip.ParsePrefix(s); err != nil {
			return errors.New("write a network, like 10.10.0.0/24")
		}
		return nil
	}
}

// shown is an address as it is offered; "" where there is none.
func shown(ip netip.Addr) string {
	if !ip.IsValid() {
		return ""
	}
	return ip.String()
}

// wrongWith complains of an answer to what a flag would say, so that it is asked
// for again at once. That there is no room for the nodes' addresses is seen when
// they are counted.
func (r *repoRun) wrongWith(flag string) error {
	wrong := r.wishes.WithDefaults().Check()
	i := slices.IndexFunc(wrong, func(w *scaffold.Wrong) bool { return w.Flag == flag })
	if i < 0 && flag == "workers" {
		i = slices.IndexFunc(wrong, func(w *scaffold.Wrong) bool { return w.Flag == "first-address" })
	}
	if i < 0 {
		return nil
	}
	return fmt.Errorf("%s (%s)", wrong[i].Text, wrong[i].Hint)
}

// write makes everything in a folder of its own beside the repository, where it
// is checked, and then puts it into place. It returns what was written. What is
// there already stays: it may be the repository's own.
func (r *repoRun) write(ctx context.Context, files map[string]string) (written []string, err error) {
	home := filepath.Join(r.dir, filepath.FromSlash(r.wishes.Folder), r.wishes.Cluster)
	if _, err := os.Lstat(home); err == nil {
		return nil, fault.WithHint(fmt.Errorf("%s exists, and nothing that is there is overwritten", home), "choose another name with --cluster, or another folder")
	}
	parent := filepath.Dir(filepath.Clean(r.dir))
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return nil, err
	}
	stage, err := os.MkdirTemp(parent, ".talos-agent-repo-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(stage)) }()
	f := sealed.Config{Cluster: r.wishes.Cluster, Folder: r.wishes.Folder}
	name, _ := f.Locate(r.dir)
	// Those who can read the secrets are told by a file that may be there.
	folder, rules, err := sealed.ReadRules(r.dir, name)
	switch {
	case err == nil:
		delete(files, sealed.RulesFile) // another one is nearer, or it is this
		files[path.Join(folder, sealed.RulesFile)] = string(rules)
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	r.rules = filepath.Join(r.dir, filepath.FromSlash(folder), sealed.RulesFile)
	for name, text := range files {
		at := filepath.Join(stage, filepath.FromSlash(name))
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(text), 0o644)); err != nil {
			return nil, err
		}
	}
	encrypted, recipients, err := sealed.Seal(ctx, stage, f, time.Now())
	if err != nil {
		return nil, err
	}
	r.readers = recipients
	files[name] = string(encrypted)
	return r.place(files)
}

// place puts the files into the repository: all, or none.
func (r *repoRun) place(files map[string]string) (written []string, err error) {
	defer func() {
		if err != nil {
			for _, path := range written {
				err = errors.Join(err, os.Remove(path))
			}
		}
	}()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		path := filepath.Join(r.dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return written, err
		}
		switch err := sealed.WriteNew(path, []byte(files[name])); {
		case errors.Is(err, fs.ErrExist):
			r.say("kept   %s, which is there", path)
		case err != nil:
			return written, err
		default:
			written = append(written, path)
		}
	}
	return written, nil
}

// finish makes the folder a Git repository, checks what is in it, and says how
// to go on.
func (r *repoRun) finish(ctx context.Context, written []string) error {
	for _, path := range written {
		r.say("wrote  %s", path)
	}
	git, err := r.git(ctx)
	if err != nil {
		return err
	}
	flags := validation.Config{Cluster: r.wishes.Cluster, Folder: r.wishes.Folder, Owner: inventory.DefaultOwner}
	if r.host != nil {
		flags.Policy, flags.Owner = r.host.settings.PolicyPath, r.host.settings.Owner
	}
	v, err := validation.Validate(ctx, r.dir, flags, time.Now())
	if err != nil {
		return err
	}
	for _, p := range v.Problems {
		if p.Severity == cluster.Error {
			r.say("%s", p)
		}
	}
	if !v.Valid {
		return fault.WithHint(errors.New("the cluster is not valid on this host"), "correct the files; `talos-agent validate` checks them")
	}
	r.warnOfReaders()
	r.say("Next:")
	r.say("  talos-agent rehearse %s --cluster %s%s   # brings it up on a make-believe host", r.dir, r.wishes.Cluster, r.wishes.PathFlag())
	if !r.flags.noGit {
		if !git {
			r.say("  apt install git   # or copy the folder to where git is, and go on there")
			r.say("  git init --initial-branch=%s %s", r.wishes.Branch, r.dir)
		}
		r.say("  cd %s && git add --all && git commit -m \"Describe the cluster %s\"", r.dir, r.wishes.Cluster)
		if !git || exec.CommandContext(ctx, "git", "-C", r.dir, "remote", "get-url", "origin").Run() != nil {
			r.say("  git remote add origin %s", cmp.Or(r.wishes.Remote, "URL"))
		}
		r.say("  git push -u origin HEAD:%s   # with a key of your own: the agent's only reads", r.wishes.Branch)
		r.say("  talos-agent status --watch   # on the host of the agent: from then on it works")
	}
	if len(r.readers) == 1 {
		r.say("\nOnly the key of %s opens the secrets of %s. Whoever loses it has lost them:", r.readers[0], r.wishes.Cluster)
		r.say("keep a copy of it elsewhere, or let a second key open them. Write its recipient into")
		r.say("%s behind the first, with a comma between them, and run", r.rules)
		r.say("  %s", r.updateKeys())
		r.say("A new repository has both from the beginning with --recipient, once for each.")
	}
	return nil
}

// warnOfReaders tells who was meant to read the secrets and cannot: who can is
// said by a .sops.yaml that was there, or by flags that leave the host out.
func (r *repoRun) warnOfReaders() {
	warn := func(format string, args ...any) {
		r.say("warning: "+format, args...)
		r.say("  -> write it there behind the others, with a comma between them, and run, with a key that is there: %s", r.updateKeys())
	}
	reads := func(recipient string) bool { return slices.Contains(r.readers, recipient) }
	var own []string // one of them is enough
	if r.host != nil {
		own = r.host.recipients()
	}
	if len(own) > 0 && !slices.ContainsFunc(own, reads) {
		warn("the agent of this host cannot read the secrets of %s: %s names other keys than its %s", r.wishes.Cluster, r.rules, strings.Join(own, ", "))
	}
	for _, recipient := range r.wishes.Recipients {
		if !reads(recipient) && !slices.Contains(own, recipient) {
			warn("%s cannot read the secrets of %s: %s, which was there, does not name it", recipient, r.wishes.Cluster, r.rules)
		}
	}
}

// updateKeys is the command that encrypts the secrets to whom the rules name. It
// names the rules because sops looks for them from where it is called.
func (r *repoRun) updateKeys() string {
	_, file := sealed.Config{Cluster: r.wishes.Cluster, Folder: r.wishes.Folder}.Locate(r.dir)
	return fmt.Sprintf("sops --config %s updatekeys %s", r.rules, file)
}

// git makes the folder a Git repository, unless it lies in one, there is no git,
// or nobody wants it. It reports whether it is one.
func (r *repoRun) git(ctx context.Context) (bool, error) {
	program, err := exec.LookPath("git")
	if err != nil || r.flags.noGit {
		return false, nil // there is none, or it is not wanted
	}
	if exec.CommandContext(ctx, program, "-C", r.dir, "rev-parse", "--git-dir").Run() == nil {
		return true, nil
	}
	out, err := exec.CommandContext(ctx, program, "init", "--quiet", "--initial-branch="+r.wishes.Branch, r.dir).CombinedOutput()
	if err != nil {
		return false, fmt.Errorf("git init %s: %w: %s", r.dir, err, strings.TrimSpace(string(out)))
	}
	return true, nil
}
