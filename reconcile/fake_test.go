package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/availability"
	"github.com/talos-agent/talos-agent/internal/retry"
)

// fake is a world of one cluster behind the interfaces of this room: VMs that
// boot in a moment, machines that take configs. Everything that talks to real
// systems is tested in the adapters' rooms and over the lab.
type fake struct {
	mu         sync.Mutex
	head       cluster.Revision
	parents    map[cluster.Revision]cluster.Revision
	problems   cluster.Problems
	fetchErr   error
	found      Fetched // by the last look for the head
	spec       cluster.Spec
	vms        map[string]cluster.VM
	machines   map[string]cluster.Machine
	founded    int
	image      bool
	stored     bool
	blind      bool
	veiled     bool           // orphans cannot be seen
	fail       map[string]int // kind -> how many more times it fails
	hang       map[string]bool
	done       []string
	panics     bool
	poison     bool                             // reading the repository panics
	looks      int                              // at the host
	unsure     error                            // why no history can be compared
	removed    bool                             // from the repository
	forgot     bool                             // the store does not have what was applied
	recalls    int                              // how often it was asked for that
	unfit      atomic.Pointer[cluster.Revision] // that no config can be made from
	asked      forgotten                        // with a lock of its own: a command may come while somebody looks
	before     map[cluster.Revision]cluster.Spec
	kubelets   map[string]string
	turns      map[string]cluster.KubeNode
	metas      map[string]cluster.NodeMeta      // that the agent has set
	lost       map[string][]string              // pods without a controller, by node
	unlisted   error                            // why no pods are listed
	staged     map[string]string                // digest of a config, by node
	reboots    bool                             // a change of a config takes a reboot
	installs   error                            // why no machine pulls or installs another Talos
	installers map[string]cluster.InstallerSeen // that were looked for
	refuses    string                           // why machines that run take no other config
	where      map[string]cluster.Position
	renders    time.Duration           // how long rendering takes
	during     func(*cluster.Observed) // called while the other observer looks
}

func newFake(cps, workers int) *fake {
	id := cluster.ClusterID("agent", "dev")
	f := &fake{head: rev(1), parents: map[cluster.Revision]cluster.Revision{}, vms: map[string]cluster.VM{}, machines: map[string]cluster.Machine{},
		fail: map[string]int{}, hang: map[string]bool{}, before: map[cluster.Revision]cluster.Spec{}, kubelets: map[string]string{}, turns: map[string]cluster.KubeNode{}, staged: map[string]string{}, metas: map[string]cluster.NodeMeta{},
		spec: cluster.Spec{ID: id, Name: "dev", CNI: cluster.CNIFlannel, Versions: cluster.Versions{Talos: "v1.13.9", Kubernetes: "v1.36.1", Contract: "v1.13"}}}
	for i := range cps + workers {
		n := cluster.Node{Role: cluster.ControlPlane, Name: fmt.Sprintf("cp-%d", i+1), VMID: 410 + i}
		if i >= cps {
			n = cluster.Node{Role: cluster.Worker, Name: fmt.Sprintf("wk-%d", i-cps+1), VMID: 510 + i}
		}
		n.IP, n.Placement.Pin, n.Datastore, n.DiskBytes = netip.AddrFrom4([4]byte{10, 0, 0, byte(10 + i)}), "pve1", "local-lvm", 40<<30
		n.UUID = cluster.NodeUUID(id, n.Name)
		f.spec.Nodes = append(f.spec.Nodes, n)
	}
	return f
}

func rev(n int) cluster.Revision { return cluster.Revision(fmt.Sprintf("main@sha1:%040d", n)) }

func (f *fake) push(child, parent cluster.Revision) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.head, f.parents[child] = child, parent
}

// change pushes a revision in which the inventory is another.
func (f *fake) change(child, parent cluster.Revision, edit func(*cluster.Spec)) {
	f.set(func() {
		f.before[parent] = f.spec
		f.spec.Nodes = slices.Clone(f.spec.Nodes)
		edit(&f.spec)
	})
	f.push(child, parent)
}

func (f *fake) Fetch(context.Context) (Fetched, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.poison {
		panic("index out of range")
	}
	if f.fetchErr != nil {
		return Fetched{}, f.fetchErr
	}
	if f.found.Revision != f.head || time.Since(f.found.At) >= time.Minute {
		f.found = Fetched{At: time.Now(), Revision: f.head, Problems: f.problems, Removed: f.removed, Snapshot: cluster.Snapshot{Revision: f.head, Spec: f.spec, Where: f.where, Bundle: cluster.SecretString("x")}}
	}
	return f.found, nil
}

func (f *fake) Recall(_ context.Context, revision cluster.Revision) (Fetched, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.recalls++
	if f.forgot {
		return Fetched{}, errors.New("object not found")
	}
	spec := f.spec
	if was, ok := f.before[revision]; ok {
		spec = was
	}
	return Fetched{Revision: revision, Removed: f.removed, Snapshot: cluster.Snapshot{Revision: revision, Spec: spec, Bundle: cluster.SecretString("x")}}, nil
}

func (f *fake) Descends(_ context.Context, head, ancestor cluster.Revision) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.unsure != nil {
		return false, f.unsure
	}
	for r := head; r != ""; r = f.parents[r] {
		if r == ancestor {
			return true, nil
		}
	}
	return false, nil
}

func (f *fake) At(_ context.Context, revision cluster.Revision) (Fetched, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	spec, ok := f.before[revision]
	if !ok {
		return Fetched{}, errors.New("there is no such commit")
	}
	return Fetched{Revision: revision, Snapshot: cluster.Snapshot{Revision: revision, Spec: spec, Bundle: cluster.SecretString("x")}}, nil
}

func (f *fake) Desired(snap cluster.Snapshot, _ cluster.Facts, _ time.Time) (cluster.Desired, cluster.Problems) {
	time.Sleep(f.renders)
	d := cluster.Desired{Snapshot: snap, Schematic: "abc", Image: cluster.Image{Name: "talos.qcow2"}, Configs: map[string]cluster.Config{}, Fingerprint: "keys"}
	for _, n := range snap.Spec.Nodes {
		d.Configs[n.Name] = cluster.Config{Digest: fmt.Sprint(n.Name, snap.Spec.Versions)}
		if pods := snap.Spec.Network.PodCIDR; pods.IsValid() {
			d.Configs[n.Name] = cluster.Config{Digest: fmt.Sprint(n.Name, snap.Spec.Versions, pods), Summary: cluster.ConfigSummary{Cluster: snap.Spec.Name, Pods: pods.String()}}
		}
		for _, p := range n.Patches {
			d.Configs[n.Name] = cluster.Config{Digest: d.Configs[n.Name].Digest + p.Document.RevealString()}
		}
	}
	if bad := f.unfit.Load(); bad != nil && snap.Revision == *bad {
		return d, cluster.Problems{{Severity: cluster.Error, File: "patches/x.yaml", Message: "Talos refuses it"}}
	}
	return d, nil
}

// hostEyes and otherEyes are the two observers of the fake.
type hostEyes struct{ *fake }
type otherEyes struct{ *fake }

func (f hostEyes) Observe(_ context.Context, d cluster.Desired, o *cluster.Observed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	o.VMs = map[string]cluster.VM{}
	f.looks++
	if f.blind {
		return
	}
	images := map[string]int64{}
	if f.stored {
		images["talos.qcow2"] = 1
	}
	o.Hosts = map[string]cluster.Host{"pve1": {Name: "pve1", Known: true, Images: cluster.Saw(images), Storages: cluster.Saw(map[string]cluster.Storage{"local-lvm": {Active: true, Content: []string{"images"}}})}}
	for _, n := range d.Spec.Nodes {
		vm, ok := f.vms[n.Name]
		if !ok {
			vm = cluster.VM{VMID: n.VMID, Node: n.Name, Presence: cluster.Absent}
		}
		o.VMs[n.Name] = vm
	}
	var orphans []cluster.VM
	for _, name := range slices.Sorted(maps.Keys(f.vms)) {
		if _, ok := d.Spec.Node(name); !ok {
			orphans = append(orphans, f.vms[name])
		}
	}
	if o.Orphans = cluster.Saw(orphans); f.veiled {
		o.Orphans = cluster.Unseen[[]cluster.VM]("nobody knows")
	}
}

func (f hostEyes) Forget(id string) { f.asked.add("host " + id) }

func (f otherEyes) Forget(id string) { f.asked.add("other " + id) }

// forgotten is what was asked to be forgotten.
type forgotten struct {
	mu   sync.Mutex
	what []string
}

func (f *forgotten) add(what string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.what = append(f.what, what)
}

// take returns what was asked since it was taken last.
func (f *forgotten) take() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := f.what
	f.what = nil
	return out
}

// What sees the machines is one of the observers.
func (f fakeMachines) Forget(id string) { otherEyes(f).Forget(id) }

func (f fakeMachines) Observe(ctx context.Context, d cluster.Desired, o *cluster.Observed) {
	otherEyes(f).Observe(ctx, d, o)
}

func (f otherEyes) Observe(_ context.Context, d cluster.Desired, o *cluster.Observed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.during != nil {
		f.during(o)
	}
	o.Machines = maps.Clone(f.machines)
	o.Charts = map[string]cluster.Seen[cluster.Fetched]{}
	for _, a := range d.Spec.Addons {
		if digest := o.Facts.Charts[a.Chart.Ref()]; digest != "" {
			o.Charts[a.Name] = cluster.Saw(cluster.Fetched{Digest: digest, Release: digest})
		}
	}
	o.APIs = map[string]cluster.Seen[bool]{}
	if f.founded == 0 {
		return
	}
	nodes := map[string]cluster.KubeNode{}
	var members []cluster.Member
	for _, n := range d.Spec.Nodes {
		m := f.machines[n.Name]
		if m.Reach != cluster.Configured {
			continue
		}
		m.Stage, m.Ready = "running", true
		m.Services = map[string]cluster.Service{"etcd": {State: "Running", Healthy: true}}
		o.Machines[n.Name] = m
		if want := d.Repository().Configs[n.Name].Digest; m.ConfigDigest != want {
			m.Change = &cluster.Change{For: want, Reboots: f.reboots, Refused: f.refuses}
			o.Machines[n.Name] = m
		}
		kn := f.turns[n.Name]
		kn.Name, kn.Ready, kn.Kubelet, kn.BootID = n.Name, true, f.kubelets[n.Name], m.BootID
		kn.Meta, kn.Owned = f.metas[n.Name], f.metas[n.Name].Noted()
		nodes[n.Name] = kn
		if n.Role == cluster.ControlPlane {
			members = append(members, cluster.Member{Name: n.Name})
			o.APIs[n.Name] = cluster.Saw(true)
		}
	}
	o.SystemPods = cluster.Saw(map[string]cluster.SystemPod{})
	o.MembersAgree, o.Etcd = cluster.Saw(true), cluster.Saw(cluster.Etcd{})
	o.Members, o.Nodes, o.Releases = cluster.Saw(members), cluster.Saw(nodes), cluster.Saw(map[string]cluster.Release{})
}

// act is what every action does first: take a second, fail if told to.
func (f *fake) act(ctx context.Context, kind, subject string) error {
	f.mu.Lock()
	hang, panics := f.hang[kind], f.panics
	f.mu.Unlock()
	if panics {
		panic("boom")
	}
	wait := time.Second
	if hang {
		wait = time.Hour
	}
	if err := retry.Sleep(ctx, wait); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail[kind] > 0 {
		f.fail[kind]--
		return errors.New("no luck")
	}
	f.done = append(f.done, kind+" "+subject)
	return nil
}

func (f *fake) CheckInstallers(_ context.Context, _ cluster.Desired, images []string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, image := range images {
		if f.installers == nil {
			f.installers = map[string]cluster.InstallerSeen{}
		}
		f.installers[image] = cluster.InstallerSeen{At: time.Now()}
	}
	return nil
}

func (f *fake) Installers() map[string]cluster.InstallerSeen {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.installers)
}

func (f *fake) Register(ctx context.Context, _ cluster.Schematic) error {
	return f.act(ctx, "register", "")
}

func (f *fake) Cached(cluster.Desired, cluster.Facts) cluster.Seen[bool] {
	f.mu.Lock()
	defer f.mu.Unlock()
	return cluster.Saw(f.image)
}

func (f *fake) Download(ctx context.Context, d cluster.Desired, _ Progress) (cluster.ImagePin, error) {
	if err := f.act(ctx, "download", d.Image.Name); err != nil {
		return cluster.ImagePin{}, err
	}
	f.set(func() { f.image = true })
	return cluster.ImagePin{Bytes: 1, SHA256: "00"}, nil
}

func (f *fake) Upload(ctx context.Context, _, _ string, img cluster.Image, _ Progress) error {
	if err := f.act(ctx, "upload", img.Name); err != nil {
		return err
	}
	f.set(func() { f.stored = true })
	return nil
}

func (f *fake) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// looked returns how many times the host was looked at.
func (f *fake) looked() (n int) {
	f.set(func() { n = f.looks })
	return n
}

func (f *fake) Create(ctx context.Context, _ cluster.Desired, n cluster.Node, host string, _ cluster.Image, _ Progress) error {
	if err := f.act(ctx, "create", n.Name); err != nil {
		return err
	}
	f.set(func() {
		f.vms[n.Name] = cluster.VM{VMID: n.VMID, Node: n.Name, Host: host, Presence: cluster.Present, Owner: cluster.Ours, Power: cluster.Stopped, Tags: []string{cluster.OwnTag},
			Hardware: cluster.Saw(wanted(f.spec, n))}
	})
	return nil
}

func (f *fake) Start(ctx context.Context, _ cluster.Desired, n cluster.Node, _ Progress) error {
	if err := f.act(ctx, "start", n.Name); err != nil {
		return err
	}
	f.set(func() {
		vm := f.vms[n.Name]
		vm.Power = cluster.PowerRunning
		f.vms[n.Name] = vm
		if f.machines[n.Name].Reach != cluster.Configured {
			f.machines[n.Name] = cluster.Machine{Reach: cluster.Maintenance}
		}
	})
	return nil
}

func (f *fake) Resume(ctx context.Context, _ cluster.Desired, n cluster.Node, _ Progress) error {
	if err := f.act(ctx, "resume", n.Name); err != nil {
		return err
	}
	f.set(func() {
		vm := f.vms[n.Name]
		vm.Power = cluster.PowerRunning
		f.vms[n.Name] = vm
	})
	return nil
}

func (f *fake) Reset(ctx context.Context, _ cluster.Desired, n cluster.Node, _ Progress) error {
	return f.act(ctx, "reset", n.Name)
}

func (f *fake) Change(ctx context.Context, d cluster.Desired, n cluster.Node, _ string, fields []cluster.VMField, _ Progress) error {
	if err := f.act(ctx, "change", n.Name); err != nil {
		return err
	}
	f.set(func() {
		vm := f.vms[n.Name]
		for _, field := range fields {
			if field == cluster.FieldBridge {
				vm.Hardware.Value.Bridge = wanted(d.Spec, n).Bridge
			}
			if field == cluster.FieldCores {
				vm.Hardware.Value.Cores = wanted(d.Spec, n).Cores
			}
		}
		f.vms[n.Name] = vm
	})
	return nil
}

func (f *fake) ShutDown(ctx context.Context, _ cluster.Desired, n cluster.Node, _ Progress) error {
	if err := f.act(ctx, "shut down", n.Name); err != nil {
		return err
	}
	f.set(func() {
		vm := f.vms[n.Name]
		vm.Power = cluster.Stopped
		f.vms[n.Name] = vm
	})
	f.bootAgain(n)
	return nil
}

func (f *fake) SetAvailability(ctx context.Context, _ cluster.Desired, vm cluster.VM, _ availability.State, _ Progress) error {
	return f.act(ctx, "set availability", vm.Node)
}

func (f *fake) SetApart(ctx context.Context, d cluster.Desired, _ []int, _ Progress) error {
	return f.act(ctx, "set apart", d.Spec.Name)
}

// bootAgain has a machine boot with the config that was staged.
func (f *fake) bootAgain(n cluster.Node) {
	f.set(func() {
		m := f.machines[n.Name]
		m.BootID += "+"
		if staged := f.staged[n.Name]; staged != "" {
			m.ConfigDigest = staged
			delete(f.staged, n.Name)
		}
		f.machines[n.Name] = m
	})
}

// fakeMachines are the machines of the fake.
type fakeMachines struct{ *fake }

func (f fakeMachines) Change(ctx context.Context, _ cluster.Desired, n cluster.Node, cfg cluster.Config, stage bool) error {
	if err := f.act(ctx, "change config", n.Name); err != nil {
		return err
	}
	f.set(func() {
		m := f.machines[n.Name]
		if stage {
			f.staged[n.Name] = cfg.Digest
		} else {
			m.ConfigDigest, m.Summary = cfg.Digest, cfg.Summary
		}
		f.machines[n.Name] = m
	})
	return nil
}

func (f fakeMachines) ChangeNetwork(ctx context.Context, d cluster.Desired, n cluster.Node, cfg cluster.Config) error {
	return f.Change(ctx, d, n, cfg, false)
}

func (f fakeMachines) DropStaged(ctx context.Context, d cluster.Desired, n cluster.Node, cfg cluster.Config) error {
	return f.Change(ctx, d, n, cfg, false)
}

func (f *fake) PullInstaller(context.Context, cluster.Desired, cluster.Node, string, Progress) error {
	return f.installs
}

func (f *fake) InstallTalos(context.Context, cluster.Desired, cluster.Node, string, string, Progress) error {
	return f.installs
}

func (f *fake) UpgradeTalos(context.Context, cluster.Desired, cluster.Node, string, string, Progress) error {
	return f.installs
}

func (f *fake) PullImages(context.Context, cluster.Desired, cluster.Node, Progress) error { return nil }

func (f *fake) Reboot(ctx context.Context, _ cluster.Desired, n cluster.Node, _ string, _ Progress) error {
	if err := f.act(ctx, "reboot", n.Name); err != nil {
		return err
	}
	f.bootAgain(n)
	return nil
}

func (f *fake) RollBackTalos(ctx context.Context, _ cluster.Desired, n cluster.Node, _ string, _ Progress) error {
	if f.installs != nil {
		return f.installs
	}
	return f.act(ctx, "roll back", n.Name)
}

func (f *fake) Forfeit(context.Context, cluster.Desired, cluster.Node) error { return nil }

func (f *fake) RemoveMember(context.Context, cluster.Desired, cluster.Node, cluster.Member) error {
	return nil
}

func (f *fake) DeleteNode(context.Context, cluster.Desired, cluster.Node, Progress) error {
	return nil
}

func (f *fake) Drain(ctx context.Context, _ cluster.Desired, n cluster.Node, turn string, _ cluster.Drain, _ Progress) error {
	if err := f.act(ctx, "drain", n.Name); err != nil {
		return err
	}
	f.set(func() {
		f.turns[n.Name] = cluster.KubeNode{Cordoned: true, Turn: turn, Drained: f.machines[n.Name].BootID}
	})
	return nil
}

func (f *fake) ListLostPods(_ context.Context, _ cluster.Desired, node string) (pods []string, err error) {
	f.set(func() { pods, err = f.lost[node], f.unlisted })
	return pods, err
}

func (f *fake) CheckDrained(context.Context, cluster.Desired, cluster.Node, bool) error { return nil }

func (f *fake) Uncordon(ctx context.Context, _ cluster.Desired, n cluster.Node) error {
	if err := f.act(ctx, "uncordon", n.Name); err != nil {
		return err
	}
	f.set(func() { delete(f.turns, n.Name) })
	return nil
}

func (f *fake) Label(ctx context.Context, _ cluster.Desired, n cluster.Node, _ []string) error {
	if err := f.act(ctx, "label", n.Name); err != nil {
		return err
	}
	f.set(func() { f.metas[n.Name] = n.Meta() })
	return nil
}

func (f *fake) Delete(ctx context.Context, _ cluster.Desired, vm cluster.VM, _ Progress) error {
	if err := f.act(ctx, "delete", vm.Node); err != nil {
		return err
	}
	f.set(func() { delete(f.vms, vm.Node); delete(f.machines, vm.Node) })
	return nil
}

func (f *fake) Apply(ctx context.Context, d cluster.Desired, n cluster.Node, cfg cluster.Config) error {
	if err := f.act(ctx, "apply", n.Name); err != nil {
		return err
	}
	f.set(func() {
		f.kubelets[n.Name] = d.Spec.Versions.Kubernetes
		f.machines[n.Name] = cluster.Machine{Reach: cluster.Configured, Stage: "booting", Talos: d.Spec.Versions.Talos, ConfigDigest: cfg.Digest, Summary: cfg.Summary, BootID: "boot-1",
			Services: map[string]cluster.Service{"etcd": {State: "Preparing"}}}
	})
	return nil
}

func (f *fake) Bootstrap(ctx context.Context, _ cluster.Desired, n cluster.Node) error {
	if err := f.act(ctx, "bootstrap", n.Name); err != nil {
		return err
	}
	f.set(func() { f.founded++ })
	return nil
}

func (f *fake) FetchChart(ctx context.Context, a cluster.Addon, _ string) (string, error) {
	return "digest", f.act(ctx, "chart", a.Name)
}

func (f *fake) CachedCharts(cluster.Desired, cluster.Facts) map[string]cluster.Seen[cluster.Fetched] {
	return map[string]cluster.Seen[cluster.Fetched]{}
}

func (f *fake) MadeOf(context.Context, cluster.Desired, cluster.Addon) (cluster.Installed, error) {
	return cluster.Installed{}, errors.New("nothing is installed")
}

func (f *fake) Install(ctx context.Context, _ cluster.Desired, a cluster.Addon, _ string) error {
	return f.act(ctx, "install", a.Name)
}

func (f *fake) Mark(ctx context.Context, _ cluster.Desired, a cluster.Addon, _ bool) error {
	return f.act(ctx, "mark", a.Name)
}

func (f *fake) RollBack(ctx context.Context, _ cluster.Desired, a cluster.Addon, _ int, _ string) error {
	return f.act(ctx, "roll back", a.Name)
}

func (f *fake) Uninstall(ctx context.Context, _ cluster.Desired, r cluster.ReleaseName) error {
	return f.act(ctx, "uninstall", r.Name)
}

func (f *fake) LabelNamespace(ctx context.Context, _ cluster.Desired, namespace string, _ cluster.NamespaceMeta) error {
	return f.act(ctx, "label", namespace)
}

func (f *fake) did() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.done)
}
