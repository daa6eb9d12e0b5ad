package rehearsal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/device"
	"github.com/talos-agent/talos-agent/internal/daemon/agent"
	"github.com/talos-agent/talos-agent/internal/host/state"
	"github.com/talos-agent/talos-agent/internal/lab"
	labcharts "github.com/talos-agent/talos-agent/internal/lab/charts"
	"github.com/talos-agent/talos-agent/internal/lab/gitserver"
	"github.com/talos-agent/talos-agent/internal/lab/pve"
	"github.com/talos-agent/talos-agent/internal/repo/validation"
	"github.com/talos-agent/talos-agent/internal/retry"
	"github.com/talos-agent/talos-agent/reconcile/factory"
	"github.com/talos-agent/talos-agent/reconcile/helm"
	"github.com/talos-agent/talos-agent/reconcile/leases"
	"github.com/talos-agent/talos-agent/reconcile/machineconfig"
	"github.com/talos-agent/talos-agent/reconcile/proxmox"
	"github.com/talos-agent/talos-agent/sources"
	"github.com/talos-agent/talos-agent/sources/git"
	"github.com/talos-agent/talos-agent/sources/inventory"
)

// Config describes what is rehearsed, and how.
type Config struct {
	Validation validation.Config
	From       string  // directory with the state before the change; "": none
	Speed      float64 // how many times faster than life

	Log *slog.Logger // of the agent; nil: none
	// OnBegin is called before a state is brought up, OnEnd with how the clusters
	// stand after, and whether that is because the time is over.
	OnBegin func(what string)
	OnEnd   func(all []cluster.Status, late bool)
}

func (c *Config) setDefaults() {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.OnBegin == nil {
		c.OnBegin = func(string) {}
	}
	if c.OnEnd == nil {
		c.OnEnd = func([]cluster.Status, bool) {}
	}
}

// Result is how it ended, and the data of the JSON output.
type Result struct {
	Ready    bool               `json:"ready"`
	Steps    []cluster.Forecast `json:"steps"`
	Clusters []cluster.Status   `json:"clusters"`
}

// InvalidError means that a directory is not valid, so that nothing was rehearsed.
type InvalidError struct {
	Dir   string
	Found validation.Result
}

// Error implements error.
func (e *InvalidError) Error() string { return e.Dir + " is not valid" }

// rehearsal is one Run.
type rehearsal struct {
	c   Config
	dir string

	lab    *lab.Lab
	unlock func() // the state directory
	agent  *agent.Agent
	dirs   *git.Directory
	stage  string // the directory the agent follows

	mu      sync.Mutex
	charts  map[string]bool
	bundles map[string]cluster.Secret // by cluster
}

// Run rehearses the repository in dir until ctx ends.
func Run(ctx context.Context, dir string, c Config) (Result, error) {
	c.setDefaults()
	r := &rehearsal{c: c, dir: dir}
	out := Result{Steps: []cluster.Forecast{}} // an empty list in the JSON, never null
	return out, r.run(ctx, &out)
}

func (r *rehearsal) run(ctx context.Context, out *Result) (err error) {
	first := r.dir
	if r.c.From != "" {
		first = r.c.From
	}
	dirs := slices.Compact([]string{first, r.dir})
	for _, dir := range dirs {
		v, err := validation.Validate(ctx, dir, r.c.Validation, time.Now())
		if err != nil {
			return err
		}
		if !v.Valid {
			return &InvalidError{Dir: dir, Found: v}
		}
	}
	scratch, err := os.MkdirTemp("", "talos-agent-rehearse-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	r.stage = filepath.Join(scratch, "repository")
	// The host is there before the change, and has what the change asks for: a
	// storage, a bridge, the leases of new nodes.
	var names [][]string
	var specs []cluster.Spec
	for _, dir := range dirs {
		if err := r.stageFiles(dir); err != nil {
			return err
		}
		found, its, err := r.readSpecs(ctx)
		if err != nil {
			return err
		}
		names, specs = append(names, found), append(specs, its...)
	}
	if err := r.stageFiles(first); err != nil {
		return err
	}
	defer r.close()
	if err := r.open(ctx, scratch, LabFor(specs)); err != nil {
		return err
	}
	if err := r.awaitReady(ctx, "bring up "+first, names[0], out); err != nil {
		return err
	}
	if r.c.From != "" && out.Ready {
		if err := r.stageFiles(r.dir); err != nil {
			return err
		}
		if err := r.awaitReady(ctx, "change to "+r.dir, names[len(names)-1], out); err != nil {
			return err
		}
	}
	if err := r.lab.Broken(); err != nil {
		return fmt.Errorf("the agent broke a rule in the rehearsal; this is a bug worth reporting: %w", err)
	}
	return nil
}

// stageFiles makes the directory the agent follows a copy of dir, at once: half of
// it would be another repository.
func (r *rehearsal) stageFiles(dir string) error {
	files, err := gitserver.ReadFiles(dir)
	if err != nil {
		return fmt.Errorf("read %s: %w", dir, err)
	}
	fresh, old := r.stage+".new", r.stage+".old"
	for name, data := range files {
		file := filepath.Join(fresh, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(file, data, 0o600); err != nil {
			return err
		}
	}
	if err := os.Rename(r.stage, old); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Rename(fresh, r.stage); err != nil {
		return err
	}
	return os.RemoveAll(old)
}

// readSpecs reads what the staged directory describes.
func (r *rehearsal) readSpecs(ctx context.Context) (names []string, specs []cluster.Spec, err error) {
	v, err := validation.Open(ctx, r.stage, r.c.Validation)
	if err != nil {
		return nil, nil, err
	}
	if names, _, err = v.ListClusters(ctx); err != nil {
		return nil, nil, err
	}
	for _, name := range names {
		snap, problems, err := v.Repository.Snapshot(ctx, v.Tree, name)
		if err != nil {
			return nil, nil, err
		}
		if err := problems.Err(); err != nil {
			return nil, nil, err
		}
		specs = append(specs, snap.Spec)
	}
	return names, specs, nil
}

// open starts a lab, and an agent on it that follows the staged directory.
func (r *rehearsal) open(ctx context.Context, scratch string, c lab.Config) error {
	v, err := validation.Open(ctx, r.stage, r.c.Validation)
	if err != nil {
		return err
	}
	// A cluster that the change adds is one of all.
	var only []string
	if name := r.c.Validation.Cluster; name != "" {
		only = []string{name}
	}
	c.Speed = r.c.Speed
	if r.lab, err = lab.Start(c); err != nil {
		return err
	}
	policy := cluster.Policy{Pool: c.Pool, Mappings: map[string][]string{}}
	for path := range c.Mappings { // whatever the inventory asks for, where the policy of the host is not given
		m := device.MappingAt(path)
		policy.Mappings[m.Kind] = append(policy.Mappings[m.Kind], m.Name)
	}
	if v.Policy != nil {
		policy = *v.Policy
		policy.Window = policy.Window.KeptOpen()
	}
	if r.dirs, err = git.OpenDir(git.Config{Dir: r.stage}); err != nil {
		return err
	}
	source := sources.Config{Store: r.dirs, Path: r.c.Validation.Folder, Clusters: only, Inventory: inventory.Options{Owner: r.c.Validation.Owner, Pool: policy.Pool}, Decrypt: v.Decrypt}
	r.charts, r.bundles = map[string]bool{}, map[string]cluster.Secret{}
	files, unlock, err := state.Open(filepath.Join(scratch, "state"))
	if err != nil {
		return err
	}
	r.unlock = unlock
	log := r.c.Log
	r.agent, err = agent.New(agent.Config{
		Owner: r.c.Validation.Owner, Clusters: only, Interval: 2 * time.Second, Policy: func() cluster.Policy { return policy },
		Files: files, CacheDir: filepath.Join(scratch, "cache"), Dial: r.lab.DialContext, Log: log, Store: r.dirs, Sources: source,
		Proxmox: proxmox.Config{URL: r.lab.PVE.URL(), Token: cluster.SecretString(r.lab.Token), CA: r.lab.CA(), Pool: policy.Pool, Dial: r.lab.DialContext, Log: log},
		Factory: factory.Config{URL: r.lab.Factory.URL(), CacheDir: filepath.Join(scratch, "cache", "images"), CA: r.lab.CA(), Dial: r.lab.DialContext, Log: log},
		Charts:  helm.Config{CA: r.lab.CA()},
		Prepare: r.substitute,
		Addresses: func(context.Context, netip.Prefix, func(netip.Addr) bool) leases.Seen {
			return leases.Seen{Addresses: r.lab.DHCP.Addresses(), Where: "the leases of the simulated DHCP server"}
		},
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
	if r.unlock != nil {
		r.unlock()
	}
	if r.lab != nil {
		r.lab.Close()
	}
}

// makeBundle makes throw-away keys for a cluster, once: other keys after a change
// would be another cluster.
func (r *rehearsal) makeBundle(s cluster.Spec) (cluster.Secret, error) {
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

// substitute puts throw-away keys where the real ones are not known, and stand-ins
// where charts would have to be fetched. A rehearsal does not wait for a window.
func (r *rehearsal) substitute(snap cluster.Snapshot) (cluster.Snapshot, error) {
	if snap.Bundle.IsZero() {
		b, err := r.makeBundle(snap.Spec)
		if err != nil {
			return snap, err
		}
		snap.Bundle = b
	}
	snap.Spec.Window = snap.Spec.Window.KeptOpen()
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
		if err := r.publishChart(name, c.Version); err != nil {
			return snap, err
		}
		*c = cluster.Chart{Repository: r.lab.Charts.URL(), Name: name, Version: c.Version}
	}
	return snap, nil
}

// publishChart puts a stand-in for a chart into the lab's repository.
func (r *rehearsal) publishChart(name, version string) error {
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

// awaitReady waits until every cluster is Ready at the directory's state, or a
// person would have to act. names are the clusters of that state.
func (r *rehearsal) awaitReady(ctx context.Context, what string, names []string, out *Result) error {
	tree, err := r.dirs.Head(ctx)
	if err != nil {
		return err
	}
	r.c.OnBegin(what)
	r.agent.LookAll()
	for {
		all := []cluster.Status{}
		followed := r.agent.Clusters()
		done := !slices.ContainsFunc(names, func(name string) bool { return !slices.Contains(followed, name) })
		ready := done
		for _, name := range followed {
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
			r.c.OnEnd(all, ctx.Err() != nil)
			return nil
		}
		if err := retry.Sleep(ctx, 20*time.Millisecond); err != nil && ctx.Err() == nil {
			return err
		}
	}
}

// resizeHost gives a host what the inventory gives of it; what that does not bound
// stays. Its policy is not known here, and the memory that is reserved comes on top.
func resizeHost(h *pve.Host, bound cluster.HostCapacity) {
	if bound.Cores > 0 {
		h.Cores = bound.Cores
	}
	if bound.MemoryMiB > 0 {
		h.MemoryBytes = bound.MemoryMiB<<20 + cluster.Capacity{}.Reserve()
	}
}

// leaseAddresses has the DHCP server give nodes without an address a free one of their network.
func leaseAddresses(server map[string]netip.Prefix, specs []cluster.Spec) {
	taken := map[netip.Addr]bool{}
	for _, s := range specs {
		taken[s.Network.Gateway], taken[s.Network.VIP] = true, true
		for _, n := range s.Nodes {
			taken[n.IP] = true
		}
	}
	for _, s := range specs {
		ip := s.Network.CIDR.Masked().Addr()
		for _, n := range s.Nodes {
			if _, known := server[strings.ToLower(n.MAC)]; !n.Leased || known {
				continue
			}
			for ip = ip.Next(); taken[ip]; ip = ip.Next() {
			}
			if s.Network.CIDR.Contains(ip.Next()) { // the last one is for broadcasts
				server[strings.ToLower(n.MAC)] = netip.PrefixFrom(ip, s.Network.CIDR.Bits())
			}
		}
	}
}

// LabFor is a host that has what the clusters ask for: hosts, storages,
// bridges, devices, pool, DHCP reservations.
func LabFor(specs []cluster.Spec) lab.Config {
	c := lab.Config{Pool: "talos", Reservations: map[string]netip.Prefix{}, Mappings: map[string][]string{}}
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
			for _, name := range n.Placement.Hosts() {
				h := hosts[name]
				if h == nil {
					h = &pve.Host{Name: name, Cores: 64, MemoryBytes: 1 << 40, MTU: 65520} // whatever network cards have
					hosts[name] = h
					order = append(order, name)
				}
				resizeHost(h, s.Capacity[h.Name])
				addBridges(&h.Bridges, n)
				for _, m := range n.Devices.Mappings() {
					c.Mappings[m.Path()] = append(c.Mappings[m.Path()], name)
				}
			}
			addBridges(&c.Bridges, n)
			use(n.Datastore, "images")
			use(n.CloudInitDatastore, "images")
			use(n.ImageDatastore, s.ImageContent())
			for _, d := range n.Disks {
				use(d.Datastore, "images")
			}
			bits := 24
			if s.Network.CIDR.IsValid() {
				bits = s.Network.CIDR.Bits()
			}
			// The first one stands, as on a DHCP server that nobody has asked to
			// change the address of a node.
			if _, known := c.Reservations[strings.ToLower(n.MAC)]; !known && s.Network.ModeOf(n) == cluster.AddressReserved {
				c.Reservations[strings.ToLower(n.MAC)] = netip.PrefixFrom(n.IP, bits)
			}
		}
	}
	leaseAddresses(c.Reservations, specs)
	for name := range content {
		if name != "" {
			c.Storages = append(c.Storages, name)
		}
	}
	slices.Sort(c.Storages)
	for _, host := range order {
		for _, name := range c.Storages {
			st := pve.Storage{Name: name, Type: "dir", TotalBytes: 16 << 40}
			for _, what := range []string{"images", "import", "iso"} {
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

// addBridges adds those that the network cards of a node are on.
func addBridges(to *[]string, n cluster.Node) {
	all := []string{n.Bridge}
	for _, c := range n.Devices.Cards {
		all = append(all, c.Bridge)
	}
	for _, bridge := range all {
		if !slices.Contains(*to, bridge) {
			*to = append(*to, bridge)
		}
	}
}
