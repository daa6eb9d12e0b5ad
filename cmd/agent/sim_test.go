package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"filippo.io/age"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/world"
	"github.com/talos-agent/talos-agent/internal/terminal"
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

// The simulation runs the whole agent, with its real clients and its real
// wiring, against the lab, in virtual time and in one process. The world, not
// the agent, says whether a law was broken.

// keys are made once: a bundle costs an RSA key. They are dated by the real
// clock, which a bubble of virtual time has to catch up with first.
var keys = sync.OnceValue(func() (k struct {
	at        time.Time
	ids       *secrets.Identities
	ageKey    []byte
	encrypted []byte
}) {
	k.at = time.Now()
	id, err := age.GenerateX25519Identity()
	must(err)
	k.ageKey = []byte(id.String() + "\n")
	k.ids, err = secrets.ParseIdentities(k.ageKey)
	must(err)
	bundle, err := machineconfig.NewBundle("v1.13", k.at)
	must(err)
	k.encrypted, err = secrets.Encrypt(bundle, []string{id.Recipient().String()})
	must(err)
	return k
})

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// size is a cluster to simulate.
type size struct{ controlPlanes, workers int }

func (s size) String() string { return fmt.Sprintf("%d+%d", s.controlPlanes, s.workers) }

// name is the name of the nth node, control planes first.
func (s size) name(n int) string {
	if n < s.controlPlanes {
		return fmt.Sprintf("dev-cp-%d", n+1)
	}
	return fmt.Sprintf("dev-wk-%d", n-s.controlPlanes+1)
}

// files is the repository of a cluster of that size, with Cilium and an addon
// behind it.
func (s size) files() map[string][]byte {
	var nodes strings.Builder
	nodes.WriteString("controlplane:\n")
	for i := range s.controlPlanes {
		fmt.Fprintf(&nodes, "  - {name: dev-cp-%d, ip: 10.10.0.%d, cpu: 4, ram: 8192, disk: 40G}\n", i+1, 11+i)
	}
	nodes.WriteString("workers:\n")
	for i := range s.workers {
		fmt.Fprintf(&nodes, "  - {name: dev-wk-%d, ip: 10.10.%d.%d, cpu: 4, ram: 8192, disk: 60G}\n", i+1, (41+i)/250, (41+i)%250)
	}
	if s.workers == 0 {
		nodes.WriteString("  []\n")
	}
	vip := ""
	if s.controlPlanes > 1 {
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
	if s.workers == 0 {
		addons = "[addons/cilium.yaml]" // a control plane runs nobody's pods
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
  node: pve1
  datastore: local-lvm
  bridge: vmbr1
  vmid_ranges: {controlplane: 400-499, worker: 500-2599}
cni: cilium
talos:
  schematic: {extensions: [siderolabs/iscsi-tools, siderolabs/util-linux-tools]}
addons: ` + addons + `
`),
		"inventory/dev/nodes.yaml":          []byte(nodes.String()),
		"inventory/dev/addons/cilium.yaml":  []byte(cilium),
		"inventory/dev/addons/podinfo.yaml": []byte(podinfo),
		"inventory/dev/secrets.sops.yaml":   keys().encrypted,
	}
}

// sim is one simulated life of a cluster: a lab, and agents that come and go.
type sim struct {
	t     testing.TB
	lab   *lab.Lab
	disk  *simDisk
	cache string
	log   *slog.Logger
	// notify are the targets that are told; nobody at first.
	notify []config.Notification

	mu     sync.Mutex
	agent  *agent
	link   *world.Link
	files  *simFiles
	dead   chan struct{} // closed when the running agent has died
	deaths int
}

// newSim starts a lab and pushes the repository. It must be called in a bubble.
func newSim(t testing.TB, sz size, c lab.Config) *sim {
	t.Helper()
	// Virtual time begins in the year 2000; the keys are not valid yet.
	time.Sleep(time.Until(keys().at.Add(time.Hour)))
	l, err := lab.Start(c)
	if err != nil {
		t.Fatal(err)
	}
	s := &sim{t: t, lab: l, disk: &simDisk{files: map[string][]byte{}}, cache: t.TempDir(), log: slog.New(slog.DiscardHandler)}
	l.World.OnCrash(func(world.Call) { s.die() })
	l.World.OnCall(s.witness)
	s.push(sz.files(), "bring up "+sz.String())
	return s
}

// witness looks at the agent's disk when etcd is about to be founded: that this
// was intended must be there already, or an agent that dies now could choose
// another founder.
func (s *sim) witness(c world.CallRecord) {
	if !strings.HasSuffix(c.Op, "/Bootstrap") {
		return
	}
	s.disk.mu.Lock()
	defer s.disk.mu.Unlock()
	if !bytes.Contains(s.disk.files["dev.json"], []byte(`"bootstrap"`)) {
		s.lab.World.Violate("bootstrap", "%s is to found etcd, and the journal does not know of it", c.Subject)
	}
}

func (s *sim) push(files map[string][]byte, message string) {
	s.t.Helper()
	if _, err := s.lab.Repo.Commit("main", files, message); err != nil {
		s.t.Fatal(err)
	}
}

// wiring is what the host's config would give.
func (s *sim) wiring() wiring {
	link, files := s.link, s.files
	store, err := git.Open(git.Config{URL: s.lab.Repo.URL(), Branch: "main", Token: lab.GitToken, CA: s.lab.CA(), Dial: link.DialContext})
	if err != nil {
		s.t.Fatal(err)
	}
	targets := slices.Clone(s.notify)
	for i := range targets {
		targets[i].To.Dial = link.DialContext
	}
	policy := cluster.Policy{File: "policy.yaml", Pool: "talos", VMIDs: []cluster.Range{{First: 400, Last: 2999}}}
	return wiring{
		owner: "sim", clusters: []string{"dev"}, interval: time.Minute, policy: func() cluster.Policy { return policy },
		files: files, cacheDir: s.cache, dial: link.DialContext, log: s.log, store: store,
		sources: sources.Config{Store: store, Decrypt: func(ctx context.Context, name string, file []byte) ([]byte, error) {
			return secrets.Decrypt(ctx, name, file, keys().ids)
		}, Inventory: inventory.Options{Owner: "sim", Pool: "talos", ImageDatastore: "local"}},
		proxmox: proxmox.Config{URL: s.lab.PVE.URL(), Token: cluster.SecretString(s.lab.Token), CA: s.lab.CA(), Pool: "talos", Dial: link.DialContext, Log: s.log},
		factory: factory.Config{URL: s.lab.Factory.URL(), CacheDir: s.cache + "/images", CA: s.lab.CA(), Dial: link.DialContext, Log: s.log},
		charts: helm.Config{CA: s.lab.CA(), Mirrors: map[string]string{"https://helm.cilium.io": s.lab.Charts.URL(),
			"https://charts.example.org": s.lab.Charts.URL()}},
		forge:  &forge.Config{Kind: forge.GitHub, URL: s.lab.Forge.URL(), Repository: lab.Repository, Token: lab.ForgeToken, CA: s.lab.CA(), Dial: link.DialContext},
		notify: targets, spoken: openSpoken(files, targets, s.log), host: "pve1",
	}
}

// boot starts an agent on what the one before left behind. Changes are made to its
// wiring first.
func (s *sim) boot(changes ...func(*wiring)) {
	s.t.Helper()
	s.mu.Lock()
	s.link = world.NewLink(s.lab.World.Net)
	s.files = &simFiles{disk: s.disk, sim: s}
	s.dead = make(chan struct{})
	s.mu.Unlock()
	w := s.wiring()
	for _, change := range changes {
		change(&w)
	}
	a, err := newAgent(w)
	if err == nil {
		s.agent = a
		a.start(context.Background())
	}
	if err != nil && !s.isDead() {
		s.t.Fatal(err)
	}
}

// die ends the running agent's reach: nothing it still does has any effect, on
// the world or on its own disk.
func (s *sim) die() {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.dead:
		return
	default:
	}
	s.deaths++
	s.files.cut.Store(true)
	s.link.Cut()
	close(s.dead)
}

func (s *sim) isDead() bool {
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
func (s *sim) bury() {
	s.die()
	if s.agent != nil {
		s.agent.stop()
		s.agent = nil
	}
}

// halt stops the agent as systemd would.
func (s *sim) halt() {
	if s.agent != nil {
		s.agent.stop()
		s.agent = nil
	}
}

func (s *sim) close() {
	if s.agent != nil {
		s.bury()
	}
	s.lab.Close()
}

func (s *sim) status() cluster.Status {
	if s.agent == nil {
		return cluster.Status{}
	}
	st, err := s.agent.Status("dev")
	if err != nil {
		return cluster.Status{Message: err.Error()}
	}
	return st
}

// until lets virtual time pass until done, restarting an agent that died.
func (s *sim) until(within time.Duration, what string, done func(cluster.Status) bool) time.Duration {
	s.t.Helper()
	began := time.Now()
	for time.Since(began) < within {
		if s.isDead() {
			s.bury()
			s.boot()
		}
		if done(s.status()) {
			return time.Since(began)
		}
		time.Sleep(50 * time.Millisecond)
	}
	s.t.Errorf("not %s within %v of virtual time\n%s\nlab:\n%s", what, within, describe(s.status()), s.story(30))
	return within
}

func (s *sim) untilReady(within time.Duration) time.Duration {
	s.t.Helper()
	return s.until(within, "Ready", func(st cluster.Status) bool {
		return st.Condition == cluster.Ready && st.Revision == st.Applied && st.Revision.Commit() == s.head()
	})
}

func (s *sim) head() string {
	h, err := s.lab.Repo.Head("main")
	if err != nil {
		s.t.Fatal(err)
	}
	return h
}

// quiet lets time pass in a converged world, in which nothing may be changed.
func (s *sim) quiet(d time.Duration) {
	s.t.Helper()
	s.lab.World.ForgetCalls()
	time.Sleep(d)
	for _, c := range s.lab.World.Calls() {
		if c.Mutating && c.System != "forge" {
			s.t.Errorf("a converged world was changed: %s %s %s", c.System, c.Op, c.Subject)
		}
	}
}

// lawful ends a life: the world says what was broken, and what it finally
// holds is looked at.
func (s *sim) lawful(sz size) {
	s.t.Helper()
	for _, v := range s.lab.World.Violations() {
		s.t.Errorf("broken law: %s", v)
	}
	ours := 0
	for _, vm := range s.lab.PVE.VMs() {
		if vm.Pool == "talos" {
			ours++
		}
	}
	if want := sz.controlPlanes + sz.workers; ours != want {
		s.t.Errorf("%d VMs in the pool, want %d", ours, want)
	}
}

func (s *sim) story(n int) string {
	all := s.lab.World.Events()
	var b strings.Builder
	for _, e := range all[max(0, len(all)-n):] {
		fmt.Fprintf(&b, "  %8.1fs %s: %s\n", e.At.Seconds(), e.Subject, e.Text)
	}
	return b.String()
}

func describe(st cluster.Status) string {
	var b bytes.Buffer
	p := terminal.NewPlain(&b)
	p.PrintStatus(st)
	return b.String()
}

// simDisk is the host's disk: what the journal made durable survives.
type simDisk struct {
	mu    sync.Mutex
	files map[string][]byte
	steps int
	dieAt int // the step before which the agent dies; negative: after which
}

// simFiles is one agent's view of the disk; it ends with the agent.
type simFiles struct {
	disk    *simDisk
	sim     *sim
	cut     atomic.Bool
	unsaved map[string][]byte
}

var errPowerless = errors.New("the agent is dead")

// step counts a durable step and lets the agent die at the chosen one.
func (f *simFiles) step(do func()) error {
	f.disk.mu.Lock()
	f.disk.steps++
	n, die := f.disk.steps, f.disk.dieAt
	if f.cut.Load() {
		f.disk.mu.Unlock()
		return errPowerless
	}
	if n == die {
		f.disk.mu.Unlock()
		f.sim.die()
		return errPowerless
	}
	do()
	f.disk.mu.Unlock()
	if n == -die {
		f.sim.die()
		return errPowerless
	}
	return nil
}

func (f *simFiles) Read(name string) ([]byte, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	b, ok := f.disk.files[name]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return slices.Clone(b), nil
}

func (f *simFiles) Write(name string, data []byte) error {
	return f.step(func() {
		if f.unsaved == nil {
			f.unsaved = map[string][]byte{}
		}
		f.unsaved[name] = slices.Clone(data)
	})
}

func (f *simFiles) Sync(name string) error {
	return f.step(func() { f.disk.files[name] = f.unsaved[name] })
}

func (f *simFiles) Rename(from, to string) error {
	return f.step(func() {
		f.disk.files[to] = f.disk.files[from]
		delete(f.disk.files, from)
	})
}
