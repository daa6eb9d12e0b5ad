package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/agent"
	"github.com/talos-agent/talos-agent/internal/host/state"
	"github.com/talos-agent/talos-agent/internal/lab"
	labcharts "github.com/talos-agent/talos-agent/internal/lab/charts"
	"github.com/talos-agent/talos-agent/internal/lab/gitserver"
	"github.com/talos-agent/talos-agent/internal/lab/pve"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/internal/repo/validation"
	"github.com/talos-agent/talos-agent/internal/terminal"
	"github.com/talos-agent/talos-agent/reconcile/factory"
	"github.com/talos-agent/talos-agent/reconcile/helm"
	"github.com/talos-agent/talos-agent/reconcile/machineconfig"
	"github.com/talos-agent/talos-agent/reconcile/proxmox"
	"github.com/talos-agent/talos-agent/sources"
	"github.com/talos-agent/talos-agent/sources/git"
	"github.com/talos-agent/talos-agent/sources/inventory"
)

// rehearseFlags are what rehearse is told.
type rehearseFlags struct {
	validation.Config
	from  string
	speed float64
	limit time.Duration
}

func newRehearse(env *environment) *cobra.Command {
	var f rehearseFlags
	cmd := &cobra.Command{
		Use:   "rehearse DIR",
		Short: "Bring the repository's clusters up on a make-believe host, in seconds",
		Long: `Rehearse a repository: run the agent, as it is, against a make-believe Proxmox
VE host with make-believe Talos machines, until the clusters are Ready or it is
clear why they do not become so. With --from, bring up that directory first (the
state before a change) and then change to DIR, which shows what the change does.

Nothing real is touched and nothing is fetched: charts are stand-ins of the same
name and version, and without the age key the secrets are throw-away ones.

Exit codes: 0 every cluster became Ready; 1 not; 2 wrong usage.`,
		Example: `  talos-agent rehearse .
  talos-agent rehearse . --from ../main --cluster dev --policy policy.yaml`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: directories,
	}
	output := outputFlag(cmd)
	addValidationFlags(cmd, &f.Config)
	flags := cmd.Flags()
	flags.StringVar(&f.from, "from", "", "directory with the state before the change")
	flags.Float64Var(&f.speed, "speed", 50, "how many times faster than life")
	flags.DurationVar(&f.limit, "timeout", 5*time.Minute, "give up after this time")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		p, err := newPrinter(env.stdout, *output)
		if err != nil {
			return err
		}
		r := &rehearsal{flags: f, dir: args[0], p: p}
		ctx, cancel := context.WithTimeout(cmd.Context(), f.limit)
		defer cancel()
		return r.run(ctx)
	}
	return cmd
}

// rehearsal is one run of rehearse.
type rehearsal struct {
	flags rehearseFlags
	dir   string
	p     terminal.Printer

	lab   *lab.Lab
	agent *agent.Agent
	dirs  *git.Directory
	stage string // the directory the agent follows

	mu      sync.Mutex
	charts  map[string]bool
	bundles map[string]cluster.Secret // by cluster
}

// rehearsed is the data of the JSON output.
type rehearsed struct {
	Ready    bool               `json:"ready"`
	Steps    []cluster.Forecast `json:"steps"`
	Clusters []cluster.Status   `json:"clusters"`
}

func (r *rehearsal) run(ctx context.Context) error {
	first := r.dir
	if r.flags.from != "" {
		first = r.flags.from
	}
	// An invalid repository is told the way validate tells it.
	for _, dir := range slices.Compact([]string{first, r.dir}) {
		v, err := validation.Validate(ctx, dir, r.flags.Config, time.Now())
		if err != nil {
			return err
		}
		if !v.Valid {
			if r.p.IsJSON() {
				err = r.p.PrintJSON("Validation", v)
			} else {
				printValidation(r.p, v, dir)
			}
			return errors.Join(err, errSilent(exitFailed))
		}
	}
	scratch, err := os.MkdirTemp("", "talos-agent-rehearse-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	r.stage = filepath.Join(scratch, "repository")
	if err := r.put(first); err != nil {
		return err
	}
	if err := r.open(ctx, scratch); err != nil {
		return err
	}
	defer r.close()
	out := rehearsed{Steps: []cluster.Forecast{}} // an empty list in the JSON, never null
	if err := r.reach(ctx, "bring up "+first, &out); err != nil {
		return err
	}
	if r.flags.from != "" && out.Ready {
		if err := r.put(r.dir); err != nil {
			return err
		}
		if err := r.reach(ctx, "change to "+r.dir, &out); err != nil {
			return err
		}
	}
	if err := r.lab.Broken(); err != nil {
		return fmt.Errorf("the agent broke a law in the rehearsal; this is a bug worth reporting: %w", err)
	}
	if r.p.IsJSON() {
		if err := r.p.PrintJSON("Rehearsal", out); err != nil {
			return err
		}
	}
	if !out.Ready {
		return errSilent(exitFailed)
	}
	return nil
}

// put makes the directory the agent follows a copy of dir.
func (r *rehearsal) put(dir string) error {
	files, err := gitserver.ReadFiles(dir)
	if err != nil {
		return fmt.Errorf("read %s: %w", dir, err)
	}
	if err := os.RemoveAll(r.stage); err != nil {
		return err
	}
	for name, data := range files {
		file := filepath.Join(r.stage, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(file, data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// open starts a lab that has what the inventory asks for, and an agent on it.
func (r *rehearsal) open(ctx context.Context, scratch string) error {
	v, err := validation.Open(ctx, r.stage, r.flags.Config)
	if err != nil {
		return err
	}
	names, _, err := v.ListClusters(ctx)
	if err != nil {
		return err
	}
	var specs []cluster.Spec
	for _, name := range names {
		snap, problems, err := v.Repository.Snapshot(ctx, v.Tree, name)
		if err != nil {
			return err
		}
		if err := problems.Err(); err != nil {
			return err
		}
		specs = append(specs, snap.Spec)
	}
	c := labFor(specs)
	c.Speed = r.flags.speed
	if r.lab, err = lab.Start(c); err != nil {
		return err
	}
	policy := cluster.Policy{Pool: c.Pool}
	if v.Policy != nil {
		policy = *v.Policy
	}
	if r.dirs, err = git.OpenDir(git.Config{Dir: r.stage}); err != nil {
		return err
	}
	source := sources.Config{Store: r.dirs, Path: r.flags.Folder, Clusters: names, Inventory: inventory.Options{Owner: r.flags.Owner, Pool: policy.Pool}, Decrypt: v.Decrypt}
	r.charts, r.bundles = map[string]bool{}, map[string]cluster.Secret{}
	files, unlock, err := state.Open(filepath.Join(scratch, "state"))
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, unlock)
	log := slog.New(slog.DiscardHandler)
	if !r.p.IsJSON() {
		log = logging.New(logging.Config{Output: terminal.NewCleaner(indent{r.p})})
	}
	r.agent, err = agent.New(agent.Config{
		Owner: r.flags.Owner, Clusters: names, Interval: 2 * time.Second, Policy: func() cluster.Policy { return policy },
		Files: files, CacheDir: filepath.Join(scratch, "cache"), Dial: r.lab.DialContext, Log: log, Store: r.dirs, Sources: source,
		Proxmox: proxmox.Config{URL: r.lab.PVE.URL(), Token: cluster.SecretString(r.lab.Token), CA: r.lab.CA(), Pool: policy.Pool, Dial: r.lab.DialContext, Log: log},
		Factory: factory.Config{URL: r.lab.Factory.URL(), CacheDir: filepath.Join(scratch, "cache", "images"), CA: r.lab.CA(), Dial: r.lab.DialContext, Log: log},
		Charts:  helm.Config{CA: r.lab.CA()},
		Prepare: r.standIn,
	})
	if err != nil {
		return err
	}
	r.agent.Start(context.WithoutCancel(ctx))
	return nil
}

func (r *rehearsal) close() {
	if r.agent != nil {
		r.agent.Stop()
	}
	if r.lab != nil {
		r.lab.Close()
	}
}

// bundle makes throw-away keys for a cluster, once: other keys after a change
// would be another cluster.
func (r *rehearsal) bundle(s cluster.Spec) (cluster.Secret, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if b, ok := r.bundles[s.Name]; ok {
		return b, nil
	}
	b, err := machineconfig.PlaceholderBundle(s.Versions.Contract, r.lab.World.Start())
	if err == nil {
		r.bundles[s.Name] = b
	}
	return b, err
}

// standIn puts throw-away keys where the real ones are not known, and stand-ins
// where charts would have to be fetched.
func (r *rehearsal) standIn(snap cluster.Snapshot) (cluster.Snapshot, error) {
	if snap.Bundle.IsZero() {
		b, err := r.bundle(snap.Spec)
		if err != nil {
			return snap, err
		}
		snap.Bundle = b
	}
	snap.Spec.Addons = slices.Clone(snap.Spec.Addons)
	for i := range snap.Spec.Addons {
		c := &snap.Spec.Addons[i].Chart
		if c.Path != "" {
			continue
		}
		name := c.Name
		if name == "" {
			name = path.Base(c.OCI)
		}
		if err := r.publish(name, c.Version); err != nil {
			return snap, err
		}
		*c = cluster.Chart{Repository: r.lab.Charts.URL(), Name: name, Version: c.Version}
	}
	return snap, nil
}

// publish puts a stand-in for a chart into the lab's repository.
func (r *rehearsal) publish(name, version string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if key := name + " " + version; r.charts[key] {
		return nil
	} else {
		r.charts[key] = true
	}
	chart, err := labcharts.NewStandIn(name, version)
	if err != nil {
		return fmt.Errorf("make a stand-in for chart %s: %w", name, err)
	}
	r.lab.Charts.Publish(chart)
	return nil
}

// reach waits until every cluster is Ready at the directory's state, or a
// person would have to act.
func (r *rehearsal) reach(ctx context.Context, what string, out *rehearsed) error {
	tree, err := r.dirs.Head(ctx)
	if err != nil {
		return err
	}
	if !r.p.IsJSON() {
		r.p.Printf("== %s\n", what)
	}
	r.agent.LookAll()
	for {
		all := []cluster.Status{}
		done, ready := true, true
		for _, name := range r.agent.Clusters() {
			s, err := r.agent.Status(name)
			if err != nil {
				return err
			}
			all = append(all, s)
			at := string(s.Revision) == tree.Revision && s.Revision == s.Applied
			ready = ready && s.Condition == cluster.Ready && at
			done = done && string(s.Revision) == tree.Revision && (s.Condition == cluster.Ready && at || s.Condition == cluster.Stalled && len(s.Running) == 0 && time.Since(s.Since) > 2*time.Second)
		}
		if done && len(all) > 0 || ctx.Err() != nil {
			out.Ready, out.Clusters = ready, all
			r.tell(all, ctx.Err() != nil)
			return nil
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil && ctx.Err() == nil {
			return err
		}
	}
}

func (r *rehearsal) tell(all []cluster.Status, late bool) {
	if r.p.IsJSON() {
		return
	}
	p := r.p.At(time.Now())
	for _, s := range all {
		p.Printf("\n")
		p.PrintStatus(s)
	}
	if late {
		r.p.Printf("\ngave up: not every cluster became Ready in time\n")
	}
	r.p.Printf("\n")
}

// labFor is a host that has what the clusters ask for: hosts, storages,
// bridges, pool, DHCP reservations.
func labFor(specs []cluster.Spec) lab.Config {
	c := lab.Config{Pool: "talos", Reservations: map[string]netip.Prefix{}}
	hosts := map[string]*pve.Host{}
	var order []string
	content := map[string]map[string]bool{} // storage -> content types
	use := func(storage, what string) {
		if content[storage] == nil {
			content[storage] = map[string]bool{}
		}
		content[storage][what] = true
	}
	for _, s := range specs {
		for _, n := range s.Nodes {
			if n.Pool != "" {
				c.Pool = n.Pool
			}
			h := hosts[n.Placement.Pin]
			if h == nil {
				h = &pve.Host{Name: n.Placement.Pin, Cores: 64, MemoryBytes: 1 << 40}
				hosts[n.Placement.Pin] = h
				order = append(order, n.Placement.Pin)
			}
			if !slices.Contains(h.Bridges, n.Bridge) {
				h.Bridges = append(h.Bridges, n.Bridge)
			}
			if !slices.Contains(c.Bridges, n.Bridge) {
				c.Bridges = append(c.Bridges, n.Bridge)
			}
			use(n.Datastore, "images")
			use(n.CloudInitDatastore, "images")
			use(n.ImageDatastore, "import")
			for _, d := range n.Disks {
				use(d.Datastore, "images")
			}
			bits := 24
			if s.Network.CIDR.IsValid() {
				bits = s.Network.CIDR.Bits()
			}
			if s.Network.Mode == cluster.AddressReserved {
				c.Reservations[strings.ToLower(n.MAC)] = netip.PrefixFrom(n.IP, bits)
			}
		}
	}
	for name := range content {
		if name != "" {
			c.Storages = append(c.Storages, name)
		}
	}
	slices.Sort(c.Storages)
	for _, host := range order {
		for _, name := range c.Storages {
			st := pve.Storage{Name: name, Type: "dir", TotalBytes: 16 << 40}
			for _, what := range []string{"images", "import"} {
				if content[name][what] {
					st.Content = append(st.Content, what)
				}
			}
			hosts[host].Storages = append(hosts[host].Storages, st)
		}
		c.Hosts = append(c.Hosts, *hosts[host])
	}
	return c
}

// indent sets the agent's own lines apart.
type indent struct{ p terminal.Printer }

func (i indent) Write(b []byte) (int, error) {
	i.p.Printf("  %s", b)
	return len(b), nil
}
