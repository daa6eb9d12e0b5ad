package daemontest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"filippo.io/age"
	"go.yaml.in/yaml/v4"

	"github.com/talos-agent/talos-agent/internal/api"
	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/agent"
	"github.com/talos-agent/talos-agent/internal/daemon/reporting"
	"github.com/talos-agent/talos-agent/internal/daemon/sandbox"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/pve"
	"github.com/talos-agent/talos-agent/internal/lab/world"
	"github.com/talos-agent/talos-agent/internal/worker/workertest"
	"github.com/talos-agent/talos-agent/reconcile/factory"
	"github.com/talos-agent/talos-agent/reconcile/helm"
	"github.com/talos-agent/talos-agent/reconcile/machineconfig"
	"github.com/talos-agent/talos-agent/reconcile/proxmox"
	"github.com/talos-agent/talos-agent/sources"
	"github.com/talos-agent/talos-agent/sources/forge"
	"github.com/talos-agent/talos-agent/sources/git"
	"github.com/talos-agent/talos-agent/sources/inventory"
	"github.com/talos-agent/talos-agent/sources/secrets"
)

// KeySet opens the clusters of the simulation.
type KeySet struct {
	At        time.Time // when they were made
	IDs       *secrets.Identities
	AgeKey    []byte
	Encrypted []byte // secrets.sops.yaml
	ClusterID string // of Talos
}

// Keys are made once: a bundle costs an RSA key. They are dated by the real
// clock, which a bubble of virtual time has to catch up with first.
var Keys = sync.OnceValue(func() (k KeySet) {
	k.At = time.Now()
	id, err := age.GenerateX25519Identity()
	must(err)
	k.AgeKey = []byte(id.String() + "\n")
	k.IDs, err = secrets.ParseIdentities(k.AgeKey)
	must(err)
	bundle, err := machineconfig.NewBundle("v1.13", k.At)
	must(err)
	var has struct{ Cluster struct{ ID string } }
	must(yaml.Unmarshal(bundle, &has))
	k.ClusterID = has.Cluster.ID
	k.Encrypted, err = secrets.Encrypt(bundle, []string{id.Recipient().String()})
	must(err)
	return k
})

// OtherSecrets is a secrets.sops.yaml that the same key opens, with the keys of another cluster.
func OtherSecrets() []byte {
	bundle, err := machineconfig.NewBundle("v1.13", time.Now())
	must(err)
	id, err := age.ParseX25519Identity(strings.TrimSpace(string(Keys().AgeKey)))
	must(err)
	out, err := secrets.Encrypt(bundle, []string{id.Recipient().String()})
	must(err)
	return out
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// Size is a cluster to simulate.
type Size struct {
	ControlPlanes, Workers int
	// Left is how many control planes the inventory has no longer that were in front of the others:
	// with one it begins with dev-cp-2.
	Left int
	// Spread leaves to the agent which of pve1 and pve2 has which node.
	Spread bool
}

func (s Size) String() string {
	if s.Left > 0 {
		return fmt.Sprintf("%d+%d from %s on", s.ControlPlanes, s.Workers, s.Name(0))
	}
	return fmt.Sprintf("%d+%d", s.ControlPlanes, s.Workers)
}

// Name is the name of the nth node, control planes first.
func (s Size) Name(n int) string {
	if n < s.ControlPlanes {
		return fmt.Sprintf("dev-cp-%d", s.Left+n+1)
	}
	return fmt.Sprintf("dev-wk-%d", n-s.ControlPlanes+1)
}

// Files is the repository of a cluster of that size, with Cilium and an addon
// behind it.
func (s Size) Files() map[string][]byte {
	var nodes strings.Builder
	nodes.WriteString("controlplane:\n")
	for i := range s.ControlPlanes {
		fmt.Fprintf(&nodes, "  - {name: %s, ip: 10.10.0.%d, cpu: 4, ram: 8192, disk: 40G}\n", s.Name(i), 11+s.Left+i)
	}
	nodes.WriteString("workers:\n")
	for i := range s.Workers {
		fmt.Fprintf(&nodes, "  - {name: dev-wk-%d, ip: 10.10.%d.%d, cpu: 4, ram: 8192, disk: 60G}\n", i+1, (41+i)/250, (41+i)%250)
	}
	if s.Workers == 0 {
		nodes.WriteString("  []\n")
	}
	vip := ""
	if s.ControlPlanes > 1 {
		vip = "  vip: 10.10.0.5\n"
	}
	cilium := `name: cilium
namespace: kube-system
chart: {repository: https://helm.cilium.io, name: cilium, version: 1.19.3}
`
	podinfo := `name: podinfo
namespace: apps
chart: {repository: https://charts.example.org, name: podinfo, version: 6.9.0}
depends_on: [cilium]
`
	addons := "[addons/cilium.yaml, addons/podinfo.yaml]"
	if s.Workers == 0 {
		addons = "[addons/cilium.yaml]" // a control plane runs nobody's pods
	}
	hosts, spread := "node: pve1", ""
	if s.Spread {
		hosts, spread = "nodes: [pve1, pve2]", "\nplacement: spread"
	}
	return map[string][]byte{
		"inventory/dev/cluster.yaml": []byte(`cluster_name: dev
talos_version: v1.13.9
kubernetes_version: v1.36.1
network:
  cidr: 10.10.0.0/20
  gateway: 10.10.0.1
  nameservers: [10.10.0.1]
  time_servers: [10.10.0.1]
` + vip + `proxmox:
  ` + hosts + `
  datastore: local-lvm
  bridge: vmbr1
  vmid_ranges: {controlplane: 400-499, worker: 500-2599}
cni: cilium
talos:
  schematic: {extensions: [siderolabs/iscsi-tools, siderolabs/util-linux-tools]}
addons: ` + addons + spread + `
`),
		"inventory/dev/nodes.yaml":          []byte(nodes.String()),
		"inventory/dev/addons/cilium.yaml":  []byte(cilium),
		"inventory/dev/addons/podinfo.yaml": []byte(podinfo),
		"inventory/dev/secrets.sops.yaml":   Keys().Encrypted,
	}
}

// Host is a host with room for a cluster of that size, and for what is added to it.
func (s Size) Host() pve.Host {
	n := int64(s.ControlPlanes + s.Workers)
	storages := pve.InstalledStorages()
	storages[0].Content = append(storages[0].Content, "import")
	storages[1].TotalBytes = 4<<40 + n*120<<30
	return pve.Host{Name: "pve1", MemoryBytes: 256<<30 + n*16<<30, Storages: storages}
}

// Sim is one simulated life of a cluster: a lab, and agents that come and go.
type Sim struct {
	T    testing.TB
	Lab  *lab.Lab
	Disk *Disk
	Log  *slog.Logger
	// Notify are the targets that are notified; none at first.
	Notify []reporting.Target
	// Agent is the agent that runs; nil: none does.
	Agent *agent.Agent
	// Mappings are the resource mappings that the host's policy allows, by kind.
	Mappings map[string][]string
	// HA is whether it allows VMs to be those of Proxmox VE's HA manager.
	HA bool
	// Removals is how many nodes the host lets be removed at once; 0: one.
	Removals int
	// Copies is how many VMs at once the host lets copy onto a storage; 0: the default.
	Copies int
	// Deaths is how often one has died.
	Deaths int

	cache  string
	signal context.CancelFunc // what the signal to stop does

	mu    sync.Mutex
	link  *world.Link
	files *simFiles
	dead  chan struct{} // closed when the running agent has died
}

// New starts a lab and pushes the repository. It must be called in a bubble.
func New(t testing.TB, sz Size, c lab.Config) *Sim {
	t.Helper()
	// Virtual time begins in the year 2000; the keys are not valid yet.
	time.Sleep(time.Until(Keys().At.Add(time.Hour)))
	if len(c.Hosts) == 0 {
		c.Hosts = []pve.Host{sz.Host()}
	}
	l, err := lab.Start(c)
	if err != nil {
		t.Fatal(err)
	}
	s := &Sim{T: t, Lab: l, Disk: &Disk{files: map[string][]byte{}}, cache: t.TempDir(), Log: slog.New(slog.DiscardHandler)}
	l.World.OnCrash(func(world.Call) { s.Die() })
	l.World.OnCall(s.Witness)
	s.Push(sz.Files(), "bring up "+sz.String())
	return s
}

// Witness looks at the agent's disk when etcd is about to be founded: that this
// was intended must be there already, or an agent that dies now could choose
// another founder.
func (s *Sim) Witness(c world.CallRecord) {
	if !strings.HasSuffix(c.Op, "/Bootstrap") {
		return
	}
	s.Disk.mu.Lock()
	defer s.Disk.mu.Unlock()
	if !bytes.Contains(s.Disk.files["dev.json"], []byte(`"kind":"Bootstrap"`)) {
		s.Lab.World.Violate("bootstrap", "%s is to found etcd, and the journal does not know of it", c.Subject)
	}
}

func (s *Sim) Push(files map[string][]byte, message string) {
	s.T.Helper()
	if _, err := s.Lab.Repo.Commit("main", files, message); err != nil {
		s.T.Fatal(err)
	}
}

// config is what the host's config would give.
func (s *Sim) config() agent.Config {
	link, files := s.link, s.files
	store, err := git.Open(git.Config{URL: s.Lab.Repo.URL(), Branch: "main", Token: lab.GitToken, CA: s.Lab.CA(), Dial: link.DialContext, Dir: s.cache + "/repository", Worker: workertest.Run})
	if err != nil {
		s.T.Fatal(err)
	}
	targets := slices.Clone(s.Notify)
	for i := range targets {
		targets[i].To.Dial = link.DialContext
	}
	policy := cluster.Policy{File: "policy.yaml", Pool: "talos", Removals: s.Removals, Capacity: cluster.Capacity{CopiesPerStorage: s.Copies}, Mappings: s.Mappings, HA: s.HA, VMIDs: []cluster.Range{{First: 400, Last: 2999}}}
	options := inventory.Options{Owner: "sim", Pool: "talos", ImageDatastore: "local"}
	return agent.Config{
		Owner: "sim", Clusters: []string{"dev"}, Known: s.Disk.journals(), Interval: time.Minute, Policy: func() cluster.Policy { return policy },
		Files: files, CacheDir: s.cache, Dial: link.DialContext, Log: s.Log, Store: store,
		Sources: sources.Config{Store: store, Decrypt: func(ctx context.Context, name string, file []byte) ([]byte, error) {
			return secrets.Decrypt(ctx, name, file, Keys().IDs)
		}, Inventory: options, Inspect: sandbox.New(sandbox.Config{Inventory: options, Worker: workertest.Run}).Inspect},
		Proxmox: proxmox.Config{URL: s.Lab.PVE.URL(), Token: cluster.SecretString(s.Lab.Token), CA: s.Lab.CA(), Pool: "talos", Dial: link.DialContext, Log: s.Log},
		Factory: factory.Config{URL: s.Lab.Factory.URL(), CacheDir: s.cache + "/images", CA: s.Lab.CA(), Dial: link.DialContext, Log: s.Log},
		Charts: helm.Config{CA: s.Lab.CA(), Worker: workertest.Run, Mirrors: map[string]string{"https://helm.cilium.io": s.Lab.Charts.URL(),
			"https://charts.example.org": s.Lab.Charts.URL()}},
		Forge:  &forge.Config{Kind: forge.GitHub, URL: s.Lab.Forge.URL(), Repository: lab.Repository, Token: lab.ForgeToken, CA: s.Lab.CA(), Dial: link.DialContext},
		Notify: targets, Sent: reporting.OpenSentNotices(files, targets, s.Log), Host: "pve1",
	}
}

// Boot starts an agent on what the one before left behind. Changes are made to its
// config first.
func (s *Sim) Boot(changes ...func(*agent.Config)) {
	s.T.Helper()
	s.mu.Lock()
	s.link = world.NewLink(s.Lab.World.Net)
	s.files = &simFiles{disk: s.Disk, sim: s}
	s.dead = make(chan struct{})
	s.mu.Unlock()
	c := s.config()
	for _, change := range changes {
		change(&c)
	}
	a, err := agent.New(c)
	if err == nil {
		s.Agent = a
		ctx, cancel := context.WithCancel(context.Background())
		s.signal = cancel
		a.Start(ctx)
	}
	if err != nil && !s.IsDead() {
		s.T.Fatal(err)
	}
}

// Signal asks the agent to stop, as systemd's signal does, and does not wait.
func (s *Sim) Signal() { s.signal() }

// Die ends the running agent's reach: nothing it still does has any effect, on
// the world or on its own disk.
func (s *Sim) Die() {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.dead:
		return
	default:
	}
	s.Deaths++
	s.files.cut.Store(true)
	s.link.Cut()
	close(s.dead)
}

// IsDead reports whether the running agent has died.
func (s *Sim) IsDead() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.dead:
		return true
	default:
		return false
	}
}

// bury waits for the remains of a dead agent.
func (s *Sim) bury() {
	s.Die()
	if s.Agent != nil {
		s.Agent.Stop()
		s.Agent = nil
	}
}

// Halt stops the agent as systemd would.
func (s *Sim) Halt() {
	if s.Agent != nil {
		s.Agent.Stop()
		s.Agent = nil
	}
}

func (s *Sim) Close() {
	if s.Agent != nil {
		s.bury()
	}
	s.Lab.Close()
}

func (s *Sim) Status() cluster.Status {
	if s.Agent == nil {
		return cluster.Status{}
	}
	st, err := s.Agent.Status("dev")
	if err != nil {
		return cluster.Status{Message: err.Error()}
	}
	return st
}

// Until lets virtual time pass until done, restarting an agent that died.
func (s *Sim) Until(within time.Duration, what string, done func(cluster.Status) bool) time.Duration {
	s.T.Helper()
	began := time.Now()
	for time.Since(began) < within {
		if s.IsDead() {
			s.bury()
			s.Boot()
		}
		if done(s.Status()) {
			return time.Since(began)
		}
		time.Sleep(50 * time.Millisecond)
	}
	s.T.Errorf("not %s within %v of virtual time\n%s\nlab:\n%s", what, within, describe(s.Status()), s.Story(30))
	return within
}

func (s *Sim) UntilReady(within time.Duration) time.Duration {
	s.T.Helper()
	return s.Until(within, "Ready", func(st cluster.Status) bool {
		return st.Condition == cluster.Ready && st.Revision == st.Applied && st.Revision.Commit() == s.Head()
	})
}

// Cluster is the simulated cluster, as the socket has it.
func (s *Sim) Cluster() api.Cluster {
	s.T.Helper()
	c, err := s.Agent.Cluster("dev")
	if err != nil {
		s.T.Fatal(err)
	}
	return c
}

func (s *Sim) Head() string {
	h, err := s.Lab.Repo.Head("main")
	if err != nil {
		s.T.Fatal(err)
	}
	return h
}

// Quiet lets time pass in a converged world, in which nothing may be changed.
func (s *Sim) Quiet(d time.Duration) {
	s.T.Helper()
	s.Lab.World.ForgetCalls()
	time.Sleep(d)
	for _, c := range s.Lab.World.Calls() {
		if c.Mutating && c.System != "forge" {
			s.T.Errorf("a converged world was changed: %s %s %s", c.System, c.Op, c.Subject)
		}
	}
}

// CheckRules ends a life: the world reports what was broken, and what it finally
// holds is looked at.
func (s *Sim) CheckRules(sz Size) {
	s.T.Helper()
	for _, v := range s.Lab.World.Violations() {
		s.T.Errorf("broken rule: %s", v)
	}
	ours := 0
	for _, vm := range s.Lab.PVE.VMs() {
		if vm.Pool == "talos" {
			ours++
		}
	}
	if want := sz.ControlPlanes + sz.Workers; ours != want {
		s.T.Errorf("%d VMs in the pool, want %d", ours, want)
	}
}

func (s *Sim) Story(n int) string {
	all := s.Lab.World.Events()
	var b strings.Builder
	for _, e := range all[max(0, len(all)-n):] {
		fmt.Fprintf(&b, "  %8.1fs %s: %s\n", e.At.Seconds(), e.Subject, e.Text)
	}
	return b.String()
}

// describe is a status for the output of a test that fails.
func describe(st cluster.Status) string {
	b, err := json.MarshalIndent(st, "", "  ")
	must(err)
	return string(b)
}
