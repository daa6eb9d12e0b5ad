package creation

import (
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

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/repo/scaffold"
	"github.com/talos-agent/talos-agent/internal/repo/sealed"
	"github.com/talos-agent/talos-agent/internal/repo/validation"
	"github.com/talos-agent/talos-agent/sources"
	"github.com/talos-agent/talos-agent/sources/inventory"
)

// Config describes what is made, and where.
type Config struct {
	Dir        string // the repository's
	HostConfig string // the config of this host's agent, where there is one
	Root       string // a folder that holds the host, in the place of /; "": none
	Wishes     scaffold.Wishes
	NoGit      bool // do not make it a Git repository
	// Given reports whether a flag of the command was given: it is not asked for.
	Given func(flag string) bool
	// Ask begins to ask a person; nil: there is none.
	Ask func() Asker
	// Warn gets why Proxmox VE cannot be asked.
	Warn func(error)
}

// Asker asks a person for a value; an empty answer takes the usual one. An answer
// that check complains of is asked for again.
type Asker func(question, usual string, check func(string) error) (string, error)

// Repository is what was made.
type Repository struct {
	Dir           string
	Wishes        scaffold.Wishes
	Kept, Written []string         // files that were there, and new ones
	Problems      cluster.Problems // of the cluster on this host
	HasGit        bool             // it is a Git repository
	HasOrigin     bool             // which has a remote
	Follows       string           // the directory that the agent of this host follows; "": none
	Followed      bool             // the repository is that directory
	Readers       []string         // the recipients that the secrets were encrypted to
	Rules         string           // the .sops.yaml that names them
	UpdateKeys    string           // the command that encrypts them to whom the rules name
	Unreadable    []string         // who was meant to read the secrets, and cannot
}

// run is one run of Make.
type run struct {
	c      Config
	host   *hostKnowledge // nil: there is no config here
	wishes scaffold.Wishes
	made   Repository
}

// Make makes a repository, or a cluster more in one. With an error it returns
// what was written before.
func Make(ctx context.Context, c Config) (Repository, error) {
	r := &run{c: c, wishes: c.Wishes, made: Repository{Dir: c.Dir}}
	err := r.make(ctx)
	r.made.Wishes = r.wishes
	return r.made, err
}

func (r *run) make(ctx context.Context) error {
	var err error
	if r.host, err = r.learn(ctx); err != nil {
		return err
	}
	if r.host != nil {
		defer r.host.close()
	}
	if err := r.compareFollowed(); err != nil {
		return err
	}
	if err := r.addSchemas(); err != nil {
		return err
	}
	r.complete()
	if err := r.ask(); err != nil {
		return err
	}
	r.wishes = r.wishes.WithDefaults()
	if err := checkFolder(r.wishes.Folder); err != nil {
		return &fault.Usage{Err: fmt.Errorf("--path: %w", err)}
	}
	if wrong := r.wishes.Check(); len(wrong) > 0 {
		var errs []error
		for _, w := range wrong {
			errs = append(errs, w)
		}
		return &fault.Usage{Err: errors.Join(errs...)}
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
	if r.made.Written, err = r.write(ctx, files); err != nil {
		r.made.Written = nil // they are removed again
		return err
	}
	return r.finish(ctx)
}

// checkFolder complains of what is no folder of a repository, or one that the config
// of the host could not name.
func checkFolder(s string) error {
	if err := config.CheckText("folder", scaffold.Folder)(s); err != nil {
		return err
	}
	_, err := sources.New(sources.Config{Path: s})
	return err
}

// complete fills in what flags and host leave open.
func (r *run) complete() {
	if r.host != nil {
		r.wishes = r.host.fill(r.wishes)
	}
	switch {
	case slices.Equal(r.wishes.CI, []string{"none"}):
		r.wishes.CI = nil
	case len(r.wishes.CI) == 0 && r.wishes.Followed == "":
		r.wishes.CI = []string{"github", "gitlab", "gitea"}
	}
}

// compareFollowed finds out whether the repository is the directory that the agent
// of this host follows, if it follows one.
func (r *run) compareFollowed() error {
	if r.host == nil || r.host.settings.Directory() == "" {
		return nil
	}
	r.made.Follows = r.host.settings.Directory()
	dir, err := filepath.Abs(r.c.Dir)
	if err != nil {
		return err
	}
	here, err := os.Stat(dir)
	there, err2 := os.Stat(r.made.Follows)
	if dir == filepath.Clean(r.made.Follows) || err == nil && err2 == nil && os.SameFile(here, there) {
		r.wishes.Followed, r.made.Followed = r.made.Follows, true
	}
	return nil
}

// addSchemas adds the schemas that editors check the inventory by.
func (r *run) addSchemas() (err error) {
	r.wishes.Schemas = map[string][]byte{}
	for _, name := range inventory.SchemaNames() {
		if r.wishes.Schemas[name], err = inventory.Schema(name); err != nil {
			return err
		}
	}
	return nil
}

// ask asks the person at the terminal for what no flag sets.
func (r *run) ask() error {
	if r.c.Ask == nil {
		return nil
	}
	ask, w := r.c.Ask(), &r.wishes
	text := func(flag, question, usual string, take func(string) error) error {
		if r.c.Given(flag) {
			return nil
		}
		_, err := ask(question, usual, func(s string) error {
			if err := take(s); err != nil {
				return err
			}
			return r.checkAnswer(flag)
		})
		return err
	}
	network := ""
	if w.Network.IsValid() {
		network = w.Network.Masked().String()
	}
	d := w.WithDefaults()
	for _, q := range []func() error{
		func() error { return text("cluster", "Name of the cluster", d.Cluster, parseWord(&w.Cluster)) },
		func() error { return text("host", "Proxmox VE machine for its VMs", w.Host, parseWord(&w.Host)) },
		func() error { return text("bridge", "Bridge for its VMs", w.Bridge, parseWord(&w.Bridge)) },
		func() error { return text("datastore", "Storage for disks", d.Datastore, parseWord(&w.Datastore)) },
		func() error { return text("network", "Network of the bridge", network, parseNetwork(&w.Network)) },
		func() error {
			if w.Network.IsValid() && !w.Network.Contains(w.Gateway) && !r.c.Given("gateway") {
				w.Gateway = w.Network.Masked().Addr().Next()
			}
			return text("gateway", "Router of the nodes", formatAddress(w.Gateway), parseAddress(&w.Gateway))
		},
		func() error {
			return text("control-planes", "Control planes", fmt.Sprint(w.ControlPlanes), parseNumber(&w.ControlPlanes))
		},
		func() error { return text("workers", "Workers", fmt.Sprint(w.Workers), parseNumber(&w.Workers)) },
		func() error {
			if w.ControlPlanes == 1 {
				return nil
			}
			return text("vip", "Address that moves between the control planes", formatAddress(w.VIP), parseAddress(&w.VIP))
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

// What parses an answer reports what is wrong with its form; what it means is looked
// at when it stands among the others.

func parseWord(into *string) func(string) error {
	return func(s string) error { *into = s; return notEmpty(s) }
}

func parseNumber(into *int) func(string) error {
	return func(s string) error {
		n, err := strconv.Atoi(s)
		if err != nil {
			return errors.New("write a number")
		}
		*into = n
		return nil
	}
}

func parseAddress(into *netip.Addr) func(string) error {
	return func(s string) (err error) {
		if *into, err = netip.ParseAddr(s); err != nil {
			return errors.New("write an address, like 10.10.0.1")
		}
		return nil
	}
}

func parseNetwork(into *netip.Prefix) func(string) error {
	return func(s string) (err error) {
		if *into, err = netip.ParsePrefix(s); err != nil {
			return errors.New("write a network, like 10.10.0.0/24")
		}
		return nil
	}
}

// formatAddress is an address as it is offered; "" where there is none.
func formatAddress(ip netip.Addr) string {
	if !ip.IsValid() {
		return ""
	}
	return ip.String()
}

// checkAnswer complains of an answer to what a flag would set, so that it is asked
// for again at once. That there is no room for the nodes' addresses is seen when
// they are counted.
func (r *run) checkAnswer(flag string) error {
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
func (r *run) write(ctx context.Context, files map[string]string) (written []string, err error) {
	home := filepath.Join(r.c.Dir, filepath.FromSlash(r.wishes.Folder), r.wishes.Cluster)
	if _, err := os.Lstat(home); err == nil {
		return nil, fault.WithHint(fmt.Errorf("%s exists, and nothing that is there is overwritten", home), "choose another name with --cluster, or another folder")
	}
	parent := filepath.Dir(filepath.Clean(r.c.Dir))
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return nil, err
	}
	stage, err := os.MkdirTemp(parent, ".talos-agent-repo-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(stage)) }()
	f := sealed.Config{Cluster: r.wishes.Cluster, Folder: r.wishes.Folder}
	name, _ := f.Locate(r.c.Dir)
	// Who can read the secrets may stand in a file that is there.
	folder, rules, err := sealed.ReadRules(r.c.Dir, name)
	switch {
	case err == nil:
		delete(files, sealed.RulesFile) // another one is nearer, or it is this
		files[path.Join(folder, sealed.RulesFile)] = string(rules)
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	r.made.Rules = filepath.Join(r.c.Dir, filepath.FromSlash(folder), sealed.RulesFile)
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
	r.made.Readers = recipients
	files[name] = string(encrypted)
	return r.place(files)
}

// place puts the files into the repository: all, or none.
func (r *run) place(files map[string]string) (written []string, err error) {
	defer func() {
		if err != nil {
			for _, path := range written {
				err = errors.Join(err, os.Remove(path))
			}
		}
	}()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		path := filepath.Join(r.c.Dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return written, err
		}
		switch err := sealed.WriteNew(path, []byte(files[name])); {
		case errors.Is(err, fs.ErrExist):
			r.made.Kept = append(r.made.Kept, path)
		case err != nil:
			return written, err
		default:
			written = append(written, path)
		}
	}
	return written, nil
}

// finish makes the folder a Git repository, and checks what is in it.
func (r *run) finish(ctx context.Context) error {
	var err error
	if r.made.HasGit, err = r.initGit(ctx); err != nil {
		return err
	}
	if r.made.HasGit {
		r.made.HasOrigin = exec.CommandContext(ctx, "git", "-C", r.c.Dir, "remote", "get-url", "origin").Run() == nil
	}
	c := validation.Config{Cluster: r.wishes.Cluster, Folder: r.wishes.Folder, Owner: inventory.DefaultOwner}
	if r.host != nil {
		c.Policy, c.Owner = r.host.settings.PolicyPath, r.host.settings.Owner
	}
	v, err := validation.Validate(ctx, r.c.Dir, c, time.Now())
	if err != nil {
		return err
	}
	r.made.Problems = v.Problems
	if !v.Valid {
		return fault.WithHint(errors.New("the cluster is not valid on this host"), "correct the files; `talos-agent validate` checks them")
	}
	_, file := sealed.Config{Cluster: r.wishes.Cluster, Folder: r.wishes.Folder}.Locate(r.c.Dir)
	// The rules are named because sops looks for them from where it is called.
	r.made.UpdateKeys = fmt.Sprintf("sops --config %s updatekeys %s", r.made.Rules, file)
	r.made.Unreadable = r.listUnreadable()
	return nil
}

// listUnreadable describes who was meant to read the secrets and cannot: who can
// is in a .sops.yaml that was there, or in flags that leave the host out.
func (r *run) listUnreadable() (out []string) {
	reads := func(recipient string) bool { return slices.Contains(r.made.Readers, recipient) }
	var own []string // one of them is enough
	if r.host != nil {
		own = r.host.recipients()
	}
	if len(own) > 0 && !slices.ContainsFunc(own, reads) {
		out = append(out, fmt.Sprintf("the agent of this host cannot read the secrets of %s: %s names other keys than its %s", r.wishes.Cluster, r.made.Rules, strings.Join(own, ", ")))
	}
	for _, recipient := range r.wishes.Recipients {
		if !reads(recipient) && !slices.Contains(own, recipient) {
			out = append(out, fmt.Sprintf("%s cannot read the secrets of %s: %s, which was there, does not name it", recipient, r.wishes.Cluster, r.made.Rules))
		}
	}
	return out
}

// initGit makes the folder a Git repository, unless it lies in one, there is no git,
// or nobody wants it. It reports whether it is one.
func (r *run) initGit(ctx context.Context) (bool, error) {
	program, err := exec.LookPath("git")
	if err != nil || r.c.NoGit {
		return false, nil // there is none, or it is not wanted
	}
	if exec.CommandContext(ctx, program, "-C", r.c.Dir, "rev-parse", "--git-dir").Run() == nil {
		return true, nil
	}
	if r.made.Followed {
		return false, nil // its files are what counts
	}
	out, err := exec.CommandContext(ctx, program, "init", "--quiet", "--initial-branch="+r.wishes.Branch, r.c.Dir).CombinedOutput()
	if err != nil {
		return false, fmt.Errorf("git init %s: %w: %s", r.c.Dir, err, strings.TrimSpace(string(out)))
	}
	return true, nil
}

func notEmpty(s string) error {
	if s == "" {
		return errors.New("it is needed")
	}
	return nil
}
