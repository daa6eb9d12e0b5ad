package validation

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"filippo.io/age"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/reconcile/bounds"
	"github.com/talos-agent/talos-agent/reconcile/machineconfig"
	"github.com/talos-agent/talos-agent/reconcile/plan"
	"github.com/talos-agent/talos-agent/sources/inventory"
	"github.com/talos-agent/talos-agent/sources/secrets"
)

// Config describes what is checked, and with what.
type Config struct {
	Cluster string   // only this one, by the name of its folder; "": all
	Folder  string   // of the repository, that holds the clusters' folders
	Owner   string   // of the clusters, as the host's config names it
	Policy  string   // the file with the host's policy; "": none
	AgeKeys []string // the files with the keys that open the secrets
	Strict  bool     // warnings count as errors
}

// Result is what was found, and the data of the JSON output.
type Result struct {
	Valid    bool             `json:"valid"`
	Clusters []Cluster        `json:"clusters"`
	Problems cluster.Problems `json:"problems"`
	Revision cluster.Revision `json:"revision"`

	files fs.FS
}

// Cluster is one cluster of a Result; an invalid one has nothing but its name.
type Cluster struct {
	Cluster       string `json:"cluster"`
	Valid         bool   `json:"valid"`
	Talos         string `json:"talos,omitempty"`
	Kubernetes    string `json:"kubernetes,omitempty"`
	ControlPlanes int    `json:"controlPlanes,omitempty"`
	Workers       int    `json:"workers,omitempty"`
	// Rendered is how many machine configs were rendered and validated.
	Rendered int `json:"rendered,omitempty"`
	// SecretsMissing marks a cluster that is valid, and that cannot be made
	// before its file of secrets holds some.
	SecretsMissing bool `json:"secretsMissing,omitempty"`
	// Placeholders are what was not known here: "schematic" always, for only the
	// image factory knows its id, and "secrets" where there was no key.
	Placeholders []string `json:"placeholders,omitempty"`
	// Reservations are what a DHCP server must know, in mode dhcp-reservation.
	Reservations []Reservation `json:"reservations,omitempty"`
}

// Reservation is an address that a DHCP server must give to a node.
type Reservation struct {
	Node    string `json:"node"`
	MAC     string `json:"mac"`
	Address string `json:"address"`
}

// validator is one run of Validate.
type validator struct {
	*Checkout
	config Config
	now    time.Time
	render machineconfig.Renderer
	out    Result

	unlisted cluster.Problems
}

// Validate checks the repository in dir. An error means that it could not be
// read at all, or that the config is wrong.
func Validate(ctx context.Context, dir string, c Config, now time.Time) (Result, error) {
	opened, err := Open(ctx, dir, c)
	if err != nil {
		return Result{}, err
	}
	v := &validator{Checkout: opened, config: c, now: now,
		out: Result{Valid: true, Clusters: []Cluster{}, Problems: cluster.Problems{}, Revision: opened.Tree.Revision, files: opened.Tree.FS}}
	names, problems, err := opened.ListClusters(ctx)
	if err != nil {
		return Result{}, err
	}
	if v.unlisted, err = v.findUnlisted(ctx); err != nil {
		return Result{}, err
	}
	problems = append(problems, v.takeUnlisted("")...)
	v.addProblems(problems)
	v.out.Valid = !problems.HasErrors()
	for _, name := range names {
		if err := v.checkCluster(ctx, name); err != nil {
			return Result{}, err
		}
	}
	warns := slices.ContainsFunc(v.out.Problems, func(p cluster.Problem) bool { return p.Severity == cluster.Warning })
	v.out.Valid = v.out.Valid && !(c.Strict && warns)
	return v.out, nil
}

// findUnlisted looks for the files that no cluster names.
func (v *validator) findUnlisted(ctx context.Context) (cluster.Problems, error) {
	names, _, err := v.Repository.Clusters(ctx, v.Tree)
	if err != nil {
		return nil, err
	}
	var valid []cluster.Snapshot
	for _, name := range names {
		snap, problems, err := v.Repository.Snapshot(ctx, v.Tree, name)
		if err != nil {
			return nil, err
		}
		if !problems.HasErrors() {
			valid = append(valid, snap)
		}
	}
	return inventory.Unlisted(v.Tree.FS, v.config.Folder, valid), nil
}

// takeUnlisted returns those of the unlisted files that lie in the folder of a
// cluster; with "", those that lie in no cluster's, unless one cluster alone is
// looked at.
func (v *validator) takeUnlisted(name string) cluster.Problems {
	var out cluster.Problems
	for _, p := range v.unlisted {
		dir := path.Dir(p.File)
		for path.Dir(dir) != path.Clean(v.config.Folder) && dir != "." {
			dir = path.Dir(dir)
		}
		_, err := fs.Stat(v.Tree.FS, path.Join(dir, inventory.ClusterFile))
		if name == path.Base(dir) || name == "" && err != nil && v.config.Cluster == "" {
			out = append(out, p)
		}
	}
	return out
}

// addProblems records problems once: what two clusters share is a problem of both.
func (v *validator) addProblems(problems cluster.Problems) {
	for _, p := range problems {
		if !slices.Contains(v.out.Problems, p) {
			v.out.Problems = append(v.out.Problems, p)
		}
	}
}

// checkCluster checks one cluster.
func (v *validator) checkCluster(ctx context.Context, name string) error {
	snap, problems, err := v.Repository.Snapshot(ctx, v.Tree, name)
	if err != nil {
		return err
	}
	found := Cluster{Cluster: name}
	problems = append(problems, v.checkEncryption(ctx, name)...)
	if !problems.HasErrors() {
		found = describeCluster(name, snap)
		more, err := v.checkMachineConfigs(snap, &found)
		if err != nil {
			return err
		}
		problems = append(problems, more...)
		problems = append(problems, v.checkPolicy(snap)...)
		problems = append(problems, v.takeUnlisted(name)...)
		found.SecretsMissing = v.lacksSecrets(name, snap)
	}
	problems.Sort()
	v.addProblems(problems)
	if problems.HasErrors() {
		found = Cluster{Cluster: name}
	}
	found.Valid = !problems.HasErrors()
	v.out.Valid = v.out.Valid && found.Valid
	v.out.Clusters = append(v.out.Clusters, found)
	return nil
}

// secretsFile is where the secrets of a cluster are.
func (v *validator) secretsFile(name string) string {
	return path.Join(v.config.Folder, name, inventory.SecretsFile)
}

// lacksSecrets reports whether a cluster has no secrets to be made with; whether an
// encrypted file has them is known with its key only.
func (v *validator) lacksSecrets(name string, snap cluster.Snapshot) bool {
	_, err := fs.Stat(v.Tree.FS, v.secretsFile(name))
	return errors.Is(err, fs.ErrNotExist) || v.Decrypt != nil && snap.Bundle.IsZero()
}

// checkEncryption makes sure, where there is no key, that the secrets are at least
// encrypted: nobody should push them otherwise.
func (v *validator) checkEncryption(ctx context.Context, name string) cluster.Problems {
	if v.Decrypt != nil {
		return nil // decrypting them shows more
	}
	file := v.secretsFile(name)
	data, err := inventory.ReadFile(v.Tree.FS, file)
	if err != nil {
		return nil // the snapshot has that problem
	}
	unrelated, err := age.GenerateX25519Identity()
	if err != nil {
		return cluster.Problems{{Severity: cluster.Error, File: file, Message: "cannot be looked at: " + err.Error()}}
	}
	ids, err := secrets.ParseIdentities([]byte(unrelated.String()))
	if err == nil {
		_, err = secrets.Decrypt(ctx, file, data, ids)
	}
	if err == nil || errors.Is(err, secrets.ErrNoKey) {
		return nil
	}
	return cluster.Problems{{Severity: cluster.Error, File: file, Message: strings.TrimPrefix(err.Error(), file+": "), Hint: fault.HintOf(err)}}
}

// describeCluster returns what a cluster is made of.
func describeCluster(name string, snap cluster.Snapshot) Cluster {
	s := snap.Spec
	out := Cluster{Cluster: name, Talos: s.Versions.Talos, Kubernetes: s.Versions.Kubernetes,
		ControlPlanes: len(s.ControlPlanes()), Workers: len(s.Nodes) - len(s.ControlPlanes()), Placeholders: []string{"schematic"}}
	for _, n := range s.Nodes {
		if s.Network.ModeOf(n) == cluster.AddressReserved {
			out.Reservations = append(out.Reservations, Reservation{Node: n.Name, MAC: n.MAC, Address: n.IP.String()})
		}
	}
	return out
}

// checkMachineConfigs checks the versions and renders the config of every node.
func (v *validator) checkMachineConfigs(snap cluster.Snapshot, found *Cluster) (cluster.Problems, error) {
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
	} else if _, err := machineconfig.OpenBundle(snap.Bundle, snap.Spec.Versions.Contract); err != nil {
		return append(problems, cluster.Problem{Severity: cluster.Error, File: v.secretsFile(found.Cluster), Message: err.Error(), Hint: fault.HintOf(err)}), nil
	}
	configs, more := v.render.Render(snap, machineconfig.PlaceholderSchematic)
	found.Rendered = len(configs)
	return append(problems, more...), nil
}

// checkPolicy holds a cluster against the policy: what the planner blocks
// because of it, and would not block without, and upgrades that it never lets begin.
func (v *validator) checkPolicy(snap cluster.Snapshot) cluster.Problems {
	if v.Policy == nil {
		return nil
	}
	desired := cluster.Desired{Snapshot: snap}
	anyway := plan.Make(desired, cluster.Observed{}, cluster.Policy{}).Blocked
	var problems cluster.Problems
	if message, hint := bounds.MissingWindow(snap.Spec, *v.Policy); message != "" {
		problems = append(problems, snap.At(cluster.Error, "upgrade", message, hint))
	}
	for _, b := range plan.Make(desired, cluster.Observed{}, *v.Policy).Blocked {
		if slices.ContainsFunc(anyway, b.Equal) {
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
