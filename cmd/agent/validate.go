package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"filippo.io/age"
	"github.com/spf13/cobra"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/terminal"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/machineconfig"
	"github.com/talos-agent/talos-agent/reconcile/plan"
	"github.com/talos-agent/talos-agent/sources"
	"github.com/talos-agent/talos-agent/sources/git"
	"github.com/talos-agent/talos-agent/sources/inventory"
	"github.com/talos-agent/talos-agent/sources/secrets"
)

// validateFlags are what validate is told.
type validateFlags struct {
	cluster, folder, owner, policy string
	ageKeys                        []string
}

// offer adds the flags to a command.
func (f *validateFlags) offer(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.cluster, "cluster", "", "look at this cluster only, by the name of its folder")
	flags.StringVar(&f.folder, "path", "inventory", "the folder of the repository that holds the clusters' folders")
	flags.StringArrayVar(&f.ageKeys, "age-key", nil, "file with the age key that opens the secrets; may be given several times")
	flags.StringVar(&f.policy, "policy", "", "file with the policy of the host")
	flags.StringVar(&f.owner, "owner", inventory.DefaultOwner, "owner in the config of the host; MAC addresses follow from it")
	complete(cmd, "cluster", folderNames)
}

func newValidate(env *environment) *cobra.Command {
	var f validateFlags
	cmd := &cobra.Command{
		Use:   "validate DIR",
		Short: "Check a repository, offline, down to every machine config",
		Long: `Check the clusters of a repository without a network and without a daemon: the
files, what they say to each other, the versions, and the machine config of
every node, which is rendered and validated as the agent would. Every problem is
told at once, as file:line:column: field: what is wrong (what to write).

With the age key the secrets are checked too, and what they are used for.
Without one it is only checked that they are encrypted, placeholders stand for
them, and a warning says so. With the policy of a host the clusters are held
against it.

Exit codes: 0 every cluster is valid; 1 at least one is not; 2 wrong usage.`,
		Example: `  talos-agent validate .
  talos-agent validate . --cluster dev --age-key age.key --policy policy.yaml`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: directories,
	}
	output := outputFlag(cmd)
	f.offer(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		p, err := newPrinter(env.stdout, *output)
		if err != nil {
			return err
		}
		v, err := validate(cmd.Context(), args[0], f, time.Now())
		if err != nil {
			return err
		}
		if p.IsJSON() {
			err = p.PrintJSON("Validation", v)
		} else {
			printValidation(p, v, args[0])
		}
		if err == nil && !v.Valid {
			err = errSilent(exitFailed)
		}
		return err
	}
	return cmd
}

// validation is what validate finds, and the data of its JSON output.
type validation struct {
	Valid    bool              `json:"valid"`
	Clusters []clusterValidity `json:"clusters"`
	Problems cluster.Problems  `json:"problems"`
	Revision cluster.Revision  `json:"revision"`
}

// clusterValidity is one cluster; an invalid one has nothing but its name.
type clusterValidity struct {
	Cluster       string `json:"cluster"`
	Valid         bool   `json:"valid"`
	Talos         string `json:"talos,omitempty"`
	Kubernetes    string `json:"kubernetes,omitempty"`
	ControlPlanes int    `json:"controlPlanes,omitempty"`
	Workers       int    `json:"workers,omitempty"`
	// Rendered is how many machine configs were rendered and validated.
	Rendered int `json:"rendered,omitempty"`
	// Placeholders are what was not known here: "schematic" always, for only the
	// image factory knows its id, and "secrets" where there was no key.
	Placeholders []string `json:"placeholders,omitempty"`
	// Reservations are what a DHCP server must know, in mode dhcp-reservation.
	Reservations []reservation `json:"reservations,omitempty"`
}

type reservation struct {
	Node    string `json:"node"`
	MAC     string `json:"mac"`
	Address string `json:"address"`
}

// validator is one run of validate.
type validator struct {
	dir    string
	flags  validateFlags
	now    time.Time
	repo   *sources.Repository
	tree   sources.Tree
	ids    *secrets.Identities // nil: none
	policy *cluster.Policy     // nil: none
	render machineconfig.Renderer
	out    validation
}

// validate checks the repository in dir. An error means that it could not be
// read at all, or that a flag is wrong.
func validate(ctx context.Context, dir string, f validateFlags, now time.Time) (validation, error) {
	v := &validator{dir: dir, flags: f, now: now, out: validation{Valid: true, Clusters: []clusterValidity{}, Problems: cluster.Problems{}}}
	if err := v.open(ctx); err != nil {
		return validation{}, err
	}
	names := []string{f.cluster}
	if f.cluster == "" {
		var problems cluster.Problems
		var err error
		if names, problems, err = v.repo.Clusters(ctx, v.tree); err != nil {
			return validation{}, err
		}
		v.say(problems)
		v.out.Valid = !problems.HasErrors()
	}
	for _, name := range names {
		if err := v.cluster(ctx, name); err != nil {
			return validation{}, err
		}
	}
	return v.out, nil
}

// open reads what the flags name and looks at the directory.
func (v *validator) open(ctx context.Context) error {
	options := inventory.Options{Owner: v.flags.owner}
	if !inventory.Format("label").Pattern.MatchString(v.flags.owner) {
		return &usageError{fmt.Errorf("--owner %q: is not a DNS label", v.flags.owner)}
	}
	if v.flags.policy != "" {
		data, _, err := config.ReadFile(v.flags.policy, 0)
		if err != nil {
			return fmt.Errorf("policy %s: %w", v.flags.policy, err)
		}
		policy, problems := config.ParsePolicy(v.flags.policy, data)
		if err := problems.Err(); err != nil {
			return err
		}
		v.policy, options.Pool = &policy, policy.Pool
	}
	config := sources.Config{Path: v.flags.folder, Inventory: options}
	if err := v.readKeys(&config); err != nil {
		return err
	}
	var err error
	if v.repo, err = sources.New(config); err != nil {
		return &usageError{fmt.Errorf("--path: %w", err)}
	}
	// First, because to read a directory that is no repository may take minutes.
	missing := fault.WithHint(fmt.Errorf("there is no folder %s in %s", v.flags.folder, v.dir), "name the top of the repository; if the clusters lie elsewhere in it, name that folder with --path")
	if info, err := os.Stat(v.dir); err == nil && info.IsDir() {
		if _, err := os.Lstat(filepath.Join(v.dir, filepath.FromSlash(v.flags.folder))); errors.Is(err, fs.ErrNotExist) {
			return missing
		}
	}
	v.tree, err = localTree(ctx, v.dir)
	if err != nil {
		return err
	}
	v.out.Revision = v.tree.Revision
	if _, err := fs.Stat(v.tree.FS, path.Clean(v.flags.folder)); errors.Is(err, fs.ErrNotExist) {
		return missing // there is one, and Git ignores it
	}
	return nil
}

// readKeys reads the age keys, if there are any.
func (v *validator) readKeys(c *sources.Config) error {
	var keys []byte
	for _, name := range v.flags.ageKeys {
		data, _, err := config.ReadFile(name, 0)
		if err != nil {
			return fmt.Errorf("age key %s: %w", name, err)
		}
		keys = append(append(keys, data...), '\n')
	}
	if len(keys) == 0 {
		return nil
	}
	ids, err := secrets.ParseIdentities(keys)
	if err != nil {
		return fmt.Errorf("age key %s: %w", strings.Join(v.flags.ageKeys, ", "), err)
	}
	v.ids = ids
	c.Decrypt = func(ctx context.Context, name string, file []byte) ([]byte, error) {
		return secrets.Decrypt(ctx, name, file, ids)
	}
	return nil
}

// localTree reads a directory as the agent would: links and what Git ignores
// are left out. A repository may hold much besides the inventory, so that the
// bounds are wide.
func localTree(ctx context.Context, dir string) (sources.Tree, error) {
	d, err := git.OpenDir(git.Config{Dir: dir, Limits: git.Limits{Total: 1 << 30, Entries: 500_000}})
	if err != nil {
		return sources.Tree{}, err
	}
	head, err := d.Head(ctx)
	if err != nil {
		return sources.Tree{}, err
	}
	files, err := d.Tree(ctx, head)
	if err != nil {
		return sources.Tree{}, err
	}
	return sources.Tree{Revision: cluster.Revision(head.Revision), Content: head.Content, FS: files}, d.Close()
}

// say records problems once: what two clusters share is a problem of both.
func (v *validator) say(problems cluster.Problems) {
	for _, p := range problems {
		if !slices.Contains(v.out.Problems, p) {
			v.out.Problems = append(v.out.Problems, p)
		}
	}
}

// cluster checks one cluster.
func (v *validator) cluster(ctx context.Context, name string) error {
	snap, problems, err := v.repo.Snapshot(ctx, v.tree, name)
	if err != nil {
		return err
	}
	found := clusterValidity{Cluster: name}
	problems = append(problems, v.encrypted(ctx, name)...)
	if !problems.HasErrors() {
		found = v.describe(name, snap)
		more, err := v.machineConfigs(snap, &found)
		if err != nil {
			return err
		}
		problems = append(problems, more...)
		problems = append(problems, v.againstPolicy(snap)...)
	}
	problems.Sort()
	v.say(problems)
	if problems.HasErrors() {
		found = clusterValidity{Cluster: name}
	}
	found.Valid = !problems.HasErrors()
	v.out.Valid = v.out.Valid && found.Valid
	v.out.Clusters = append(v.out.Clusters, found)
	return nil
}

// secretsFile is where the secrets of a cluster are.
func (v *validator) secretsFile(name string) string {
	return path.Join(v.flags.folder, name, inventory.SecretsFile)
}

// encrypted makes sure, where there is no key, that the secrets are at least
// encrypted: nobody should push them otherwise.
func (v *validator) encrypted(ctx context.Context, name string) cluster.Problems {
	if v.ids != nil {
		return nil // decrypting them says more
	}
	file := v.secretsFile(name)
	data, err := inventory.ReadFile(v.tree.FS, file)
	if err != nil {
		return nil // which the snapshot says
	}
	stranger, err := age.GenerateX25519Identity()
	if err != nil {
		return cluster.Problems{{Severity: cluster.Error, File: file, Message: "cannot be looked at: " + err.Error()}}
	}
	ids, err := secrets.ParseIdentities([]byte(stranger.String()))
	if err == nil {
		_, err = secrets.Decrypt(ctx, file, data, ids)
	}
	if err == nil || errors.Is(err, secrets.ErrNoKey) {
		return nil
	}
	return cluster.Problems{{Severity: cluster.Error, File: file, Message: strings.TrimPrefix(err.Error(), file+": "), Hint: fault.HintOf(err)}}
}

// describe says what a cluster is made of.
func (v *validator) describe(name string, snap cluster.Snapshot) clusterValidity {
	s := snap.Spec
	out := clusterValidity{Cluster: name, Talos: s.Versions.Talos, Kubernetes: s.Versions.Kubernetes,
		ControlPlanes: len(s.ControlPlanes()), Workers: len(s.Nodes) - len(s.ControlPlanes()), Placeholders: []string{"schematic"}}
	if s.Network.Mode == cluster.AddressReserved {
		for _, n := range s.Nodes {
			out.Reservations = append(out.Reservations, reservation{Node: n.Name, MAC: n.MAC, Address: n.IP.String()})
		}
	}
	return out
}

// machineConfigs checks the versions and renders the config of every node.
func (v *validator) machineConfigs(snap cluster.Snapshot, found *clusterValidity) (cluster.Problems, error) {
	problems := machineconfig.Check(snap)
	if problems.HasErrors() {
		return problems, nil
	}
	if snap.Bundle.IsZero() {
		bundle, err := machineconfig.PlaceholderBundle(snap.Spec.Versions.Contract, v.now)
		if err != nil {
			return nil, err
		}
		snap.Bundle = bundle
		found.Placeholders = append(found.Placeholders, "secrets")
	} else if err := machineconfig.CheckBundle(snap.Bundle, snap.Spec.Versions.Contract); err != nil {
		return append(problems, cluster.Problem{Severity: cluster.Error, File: v.secretsFile(found.Cluster), Message: err.Error(), Hint: fault.HintOf(err)}), nil
	}
	configs, more := v.render.Render(snap, machineconfig.PlaceholderSchematic)
	found.Rendered = len(configs)
	return append(problems, more...), nil
}

// againstPolicy holds a cluster against the policy: what the planner blocks
// because of it, and would not block without.
func (v *validator) againstPolicy(snap cluster.Snapshot) cluster.Problems {
	if v.policy == nil {
		return nil
	}
	desired := cluster.Desired{Snapshot: snap}
	anyway := plan.Make(desired, cluster.Observed{}, cluster.Policy{}).Blocked
	var problems cluster.Problems
	for _, b := range plan.Make(desired, cluster.Observed{}, *v.policy).Blocked {
		if slices.Contains(anyway, b) {
			continue
		}
		field, text := "nodes."+b.Subject, b.Message
		if _, ok := snap.Where[field]; !ok {
			field, text = "", b.Subject+": "+b.Message
		}
		problems = append(problems, snap.At(cluster.Error, field, text, b.Hint))
	}
	return problems
}

// printValidation prints what was found: problems the way compilers do, then a line
// for each cluster, then what its DHCP server must know.
func printValidation(p terminal.Printer, v validation, dir string) {
	for _, problem := range v.Problems {
		problem.File = filepath.Join(dir, problem.File)
		p.Printf("%s\n", problem)
	}
	for _, c := range v.Clusters {
		if !c.Valid {
			p.Printf("%s: %s\n", c.Cluster, p.Paint("invalid", terminal.Red))
			continue
		}
		p.Printf("%s: %s: %s, %s, Talos %s, Kubernetes %s; %s validated, with placeholders for %s\n", c.Cluster, p.Paint("valid", terminal.Green),
			text.Count(c.ControlPlanes, "control plane"), text.Count(c.Workers, "worker"), c.Talos, c.Kubernetes, text.Count(c.Rendered, "machine config"), placeholderText(c.Placeholders))
	}
	for _, c := range v.Clusters {
		if len(c.Reservations) == 0 {
			continue
		}
		p.Printf("\n# %s, for dnsmasq:\n", c.Cluster)
		for _, r := range c.Reservations {
			p.Printf("dhcp-host=%s,%s,%s\n", strings.ToLower(r.MAC), r.Address, r.Node)
		}
	}
}

func placeholderText(what []string) string {
	if slices.Contains(what, "secrets") {
		return "the image's id and the secrets"
	}
	return "the image's id"
}
