//go:build linux

package tokens

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/host/probe"
	"github.com/talos-agent/talos-agent/internal/host/setup"
	"github.com/talos-agent/talos-agent/internal/host/setup/account"
	"github.com/talos-agent/talos-agent/internal/pattern"
	"github.com/talos-agent/talos-agent/internal/repo/sealed"
	"github.com/talos-agent/talos-agent/sources"
	"github.com/talos-agent/talos-agent/sources/secrets"
)

// Config describes whose account is made, and where its secret goes.
type Config struct {
	Host       probe.Host
	HostConfig string // the config of the agent on the host
	Kind       account.Kind
	Dir        string // the repository; "" only to undo
	Folder     string // of the repository, that holds the clusters' folders; "": the config's
	Cluster    string
	Datastores []string
	AgeKey     string // file with the key that opens the secrets; "": the agent's
	URL        string // where pods reach the API; "": this host, on the bridge of the nodes
	Region     string // "": that of the nodes' labels, else DefaultRegion
	Rotate     bool
}

// DefaultRegion is the region of nodes whose labels have none.
const DefaultRegion = "proxmox"

// regionLabel is the label of a region that nodes may have in the inventory.
const regionLabel = "topology.kubernetes.io/region"

// Account is an account that is looked at, with what it still needs.
type Account struct {
	account.Plan
	// Name is the secrets file in the repository, with slashes.
	Name string

	c          Config
	ids        *secrets.Identities
	file       string          // the secrets file on disk
	home       string          // the cluster's folder below the repository, with slashes
	stored     cluster.TokenID // of the secret in the secrets file; "": none
	root       *os.Root        // the repository, while it is written
	url        string
	region     string
	patched    bool // the nodes have the patch already
	hasAddon   bool // the inventory has the addon already
	encrypted  []byte
	newSecrets func(map[string]string) ([]byte, error)
}

// regionForm is what a label of Kubernetes may be.
var regionForm = pattern.New(`^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$`)

// check refuses what could not stand in an addon file.
func (c Config) check() error {
	if u, err := url.Parse(c.URL); c.URL != "" && (err != nil || u.Scheme != "https" || u.Host == "" || strings.ContainsAny(c.URL, " #'\"")) {
		return &fault.Usage{Err: fmt.Errorf("--url %q: write where pods reach the API, like https://pve1.example.org:8006/api2/json", c.URL)}
	}
	if !regionForm.MatchString(c.Region) {
		return &fault.Usage{Err: fmt.Errorf("--region %q: write what a label may be: letters, digits and - _ . between them, at most 63", c.Region)}
	}
	return nil
}

// Look finds out what an account still needs. Nothing is changed.
func Look(ctx context.Context, c Config) (*Account, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	a := &Account{c: c}
	settings, err := a.loadSettings()
	if err != nil {
		return nil, err
	}
	a.c.Folder = cmp.Or(c.Folder, settings.Folder)
	snap, err := a.readCluster(ctx)
	if err != nil {
		return nil, err
	}
	if a.stored, err = a.openSecrets(ctx); err != nil {
		return nil, err
	}
	facts, err := c.Host.ReadFacts(ctx)
	if err != nil {
		return nil, fmt.Errorf("look at the host: %w", err)
	}
	pool, err := choosePool(c.Cluster, settings.Policy.Pool, snap.Spec.Nodes)
	if err != nil {
		return nil, err
	}
	plan, problems := account.Make(facts, account.Wish{Kind: c.Kind, Cluster: c.Cluster, Pool: pool, Datastores: c.Datastores, Stored: a.stored, Rotate: c.Rotate})
	if problems.HasErrors() {
		return nil, fmt.Errorf("there can be no such account:\n%w", problems)
	}
	a.Plan = plan
	a.readWishes(snap)
	a.url, err = a.findURL(facts, snap)
	return a, err
}

// LookUndo finds out what of an account is there. Nothing is changed.
func LookUndo(ctx context.Context, c Config) (account.Plan, error) {
	a := &Account{c: c}
	settings, err := a.loadSettings()
	if err != nil {
		return account.Plan{}, err
	}
	pool := settings.Policy.Pool
	if c.Dir != "" {
		a.c.Folder = cmp.Or(c.Folder, settings.Folder)
		snap, err := a.readCluster(ctx)
		if err != nil {
			return account.Plan{}, err
		}
		if pool, err = choosePool(c.Cluster, pool, snap.Spec.Nodes); err != nil {
			return account.Plan{}, err
		}
	}
	facts, err := c.Host.ReadFacts(ctx)
	if err != nil {
		return account.Plan{}, fmt.Errorf("look at the host: %w", err)
	}
	plan, problems := account.Undo(facts, account.Wish{Kind: c.Kind, Cluster: c.Cluster, Pool: pool})
	if problems.HasErrors() {
		return account.Plan{}, fmt.Errorf("nothing was deleted:\n%w", problems)
	}
	return plan, nil
}

// choosePool returns the pool of a cluster's nodes, on which its account gets rights: the one that the host's policy allows.
// A repository that names another one would have root give rights on VMs that are not the agent's.
func choosePool(name, allowed string, nodes []cluster.Node) (string, error) {
	pool := allowed
	for _, n := range nodes {
		switch {
		case allowed != "" && n.Pool != "" && n.Pool != allowed:
			return "", fault.WithHint(fmt.Errorf("cluster.yaml of %s: pool: the node %s wants the pool %s, and the policy of this host allows %s", name, n.Name, n.Pool, allowed),
				"write `pool: "+allowed+"` below `proxmox` in cluster.yaml, or remove the line")
		case pool != "" && n.Pool != "" && n.Pool != pool:
			return "", fault.WithHint(fmt.Errorf("cluster.yaml of %s: pool: the node %s wants the pool %s, and others want %s: an account has rights on one pool", name, n.Name, n.Pool, pool),
				"write one pool for all nodes")
		}
		pool = cmp.Or(pool, n.Pool)
	}
	return pool, nil
}

// loadSettings reads the config of the agent, for its policy and its age key.
func (a *Account) loadSettings() (config.Settings, error) {
	if err := a.c.Host.Verify(); err != nil {
		return config.Settings{}, err
	}
	path := a.c.Host.Path(a.c.HostConfig)
	s, problems := config.Load(path)
	if a.c.Host.Root != "" {
		s, problems = config.LoadFrom(path, config.FromStore(a.c.Host.Path(config.CredentialStore)))
	}
	if err := s.WithoutHidden(problems).Err(); err != nil {
		return s, fault.WithHint(err, "set up the host first, with `talos-agent init`; `talos-agent doctor` shows what is wrong")
	}
	a.ids = s.Identities
	return s, nil
}

// readCluster reads the cluster, which must be valid but for the values of its secrets:
// no key is needed for that.
func (a *Account) readCluster(ctx context.Context) (cluster.Snapshot, error) {
	repo, err := sources.New(sources.Config{Path: a.c.Folder})
	if err != nil {
		return cluster.Snapshot{}, &fault.Usage{Err: fmt.Errorf("--path: %w", err)}
	}
	tree, err := sources.ReadDirectory(ctx, a.c.Dir)
	if err != nil {
		return cluster.Snapshot{}, err
	}
	snap, problems, err := repo.Snapshot(ctx, tree, a.c.Cluster)
	if err != nil {
		return cluster.Snapshot{}, err
	}
	if problems.HasErrors() {
		problems = slices.DeleteFunc(problems, func(p cluster.Problem) bool { return p.Severity != cluster.Error })
		return cluster.Snapshot{}, fault.WithHint(fmt.Errorf("the cluster %s is not valid:\n%w", a.c.Cluster, problems), "correct it first; `talos-agent validate` shows more")
	}
	return snap, nil
}

// openSecrets opens the cluster's secrets, proves that a value can be added, and returns
// the name of the token that they hold with its secret.
func (a *Account) openSecrets(ctx context.Context) (cluster.TokenID, error) {
	a.Name, a.file = sealed.Config{Cluster: a.c.Cluster, Folder: a.c.Folder}.Locate(a.c.Dir)
	a.home = path.Dir(a.Name)
	if a.c.AgeKey != "" {
		data, _, err := config.ReadFile(a.c.AgeKey, 0)
		if err != nil {
			return "", fmt.Errorf("age key %s: %w", a.c.AgeKey, err)
		}
		if a.ids, err = secrets.ParseIdentities(data); err != nil {
			return "", fmt.Errorf("age key %s: %w", a.c.AgeKey, err)
		}
	}
	if a.ids == nil {
		return "", fault.WithHint(errors.New("the agent's age key cannot be read here, and it opens the cluster's secrets"), "name a file that holds the key, with --age-key")
	}
	var err error
	if a.encrypted, _, err = config.ReadFile(a.file, 0); err != nil {
		return "", fault.WithHint(fmt.Errorf("%s: %w", a.file, err), "`talos-agent secrets new` makes the secrets of a cluster")
	}
	a.newSecrets = func(values map[string]string) ([]byte, error) {
		return secrets.SetValues(ctx, a.Name, a.encrypted, a.ids, values)
	}
	// What cannot be written is better known before there is a secret to write.
	if _, err := a.newSecrets(a.values(cluster.Token{ID: "a", Secret: cluster.SecretString("b")})); err != nil {
		return "", err
	}
	plain, err := secrets.Decrypt(ctx, a.Name, a.encrypted, a.ids)
	if err != nil {
		return "", err
	}
	defer clear(plain)
	var have struct {
		Values map[string]yaml.Node `yaml:"values"`
	}
	if err := yaml.Unmarshal(plain, &have); err != nil {
		return "", fmt.Errorf("%s cannot be read as YAML", a.Name) // and its words may hold a secret
	}
	id, secret := have.Values[a.c.Kind.IDValue()], have.Values[a.c.Kind.SecretValue()]
	if secret.Value == "" {
		return "", nil
	}
	return cluster.TokenID(id.Value), nil
}

// values are what the secrets hold of a token.
func (a *Account) values(t cluster.Token) map[string]string {
	return map[string]string{a.c.Kind.IDValue(): string(t.ID), a.c.Kind.SecretValue(): string(t.Secret.Reveal())}
}

// readWishes reads what the inventory has already.
func (a *Account) readWishes(snap cluster.Snapshot) {
	a.region = a.c.Region
	a.patched = a.c.Kind.Patch == ""
	for _, n := range snap.Spec.Nodes {
		a.region = cmp.Or(a.region, n.Labels[regionLabel])
		for _, p := range n.Patches {
			a.patched = a.patched || strings.Contains(string(p.Document.Reveal()), "externalCloudProvider")
		}
	}
	a.region = cmp.Or(a.region, DefaultRegion)
	a.hasAddon = slices.ContainsFunc(snap.Spec.Addons, func(x cluster.Addon) bool { return x.Name == a.c.Kind.Addon })
}

// findURL is where pods reach the API of Proxmox VE: a name that its certificate has,
// else this host's address on the bridge of the nodes.
func (a *Account) findURL(f setup.Facts, snap cluster.Snapshot) (string, error) {
	if a.c.URL != "" || a.hasAddon {
		return a.c.URL, nil
	}
	if c := f.Certificate; c != nil && c.Trusted && len(c.Names) > 0 && !strings.HasPrefix(c.Names[0], "*") {
		return "https://" + c.Names[0] + ":8006/api2/json", nil
	}
	bridge := ""
	for _, n := range snap.Spec.Nodes {
		bridge = cmp.Or(bridge, n.Bridge)
	}
	for _, b := range f.Bridges {
		if p, err := netip.ParsePrefix(b.Address); err == nil && b.Name == bridge {
			return "https://" + netip.AddrPortFrom(p.Addr(), 8006).String() + "/api2/json", nil
		}
	}
	return "", fault.WithHint(fmt.Errorf("this host has no address on %s, the bridge of the nodes, so that it is not known where pods reach its API", cmp.Or(bridge, "a bridge")),
		"use --url https://ADDRESS:8006/api2/json")
}

// addonFile and patchFile are paths below the cluster's folder, with slashes.
func (a *Account) addonFile() string { return path.Join("addons", a.c.Kind.Addon+".yaml") }

func (a *Account) patchFile() string { return path.Join("patches", a.c.Kind.Patch+".yaml") }
