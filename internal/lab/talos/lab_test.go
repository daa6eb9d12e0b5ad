package talos_test

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configpatcher"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
	"github.com/siderolabs/talos/pkg/machinery/config/generate"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/stdpatches"
	"github.com/siderolabs/talos/pkg/machinery/config/machine"
	runtimeres "github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/talos-agent/talos-agent/internal/lab/talos"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// lab is a fleet with a Kubernetes that only keeps the books.
type lab struct {
	t       *testing.T
	world   *world.World
	fleet   *talos.Fleet
	kube    *books
	secrets *secrets.Bundle
	off     chan int // VMIDs of guests that switched themselves off
}

// bubbleSecrets belong to the date at which every bubble begins; making them
// takes long enough to do it once.
var bubbleSecrets = sync.OnceValues(func() (*secrets.Bundle, error) {
	return secrets.NewBundle(secrets.NewFixedClock(time.Now()), config.TalosVersionCurrent, secrets.WithECDSAServiceAccountKey())
})

// inBubble runs a test in virtual time over a network in memory.
func inBubble(t *testing.T, c world.Config, test func(*lab)) {
	t.Helper()
	inBubbleWith(t, c, nil, test)
}

// inBubbleWith does so with a fleet that is sized otherwise.
func inBubbleWith(t *testing.T, c world.Config, change func(*talos.Config), test func(*lab)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		bundle, err := bubbleSecrets()
		if err != nil {
			t.Fatal(err)
		}
		l := newLab(t, c, bundle, change)
		time.Sleep(time.Hour)
		test(l)
		l.fleet.Close()
		l.world.Close()
	})
}

func newLab(t *testing.T, c world.Config, bundle *secrets.Bundle, change func(*talos.Config)) *lab {
	t.Helper()
	w, err := world.New(c)
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{t: t, world: w, kube: &books{world: w}, secrets: bundle, off: make(chan int, 10)}
	config := talos.Config{World: w, Kubernetes: l.kube, Off: func(vmid int) { l.off <- vmid }}
	if change != nil {
		change(&config)
	}
	l.fleet, err = talos.New(config)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// Nodes of the tests: n counts from 1.
func cp(n int) node {
	return node{fmt.Sprintf("cp%d", n), 400 + n, machine.TypeControlPlane, fmt.Sprintf("10.5.0.%d", 10+n)}
}
func wk(n int) node {
	return node{fmt.Sprintf("w%d", n), 500 + n, machine.TypeWorker, fmt.Sprintf("10.5.0.%d", 20+n)}
}

type node struct {
	name string
	vmid int
	kind machine.Type
	ip   string
}

// guest is the node's virtual machine with a fresh disk.
func (n node) guest(version string, extensions ...string) world.Guest {
	return world.Guest{
		VMID: n.vmid, Name: n.name, Host: "pve1", UUID: fmt.Sprintf("00000000-0000-5000-8000-%012d", n.vmid),
		MAC: fmt.Sprintf("bc:24:11:00:%02x:%02x", n.vmid/256, n.vmid%256), Cores: 2, MemoryMiB: 2048, Agent: false,
		Address: netip.MustParsePrefix(n.ip + "/24"), Gateway: netip.MustParseAddr("10.5.0.1"),
		Boot: &world.Disk{Image: world.Image{Platform: "nocloud", Version: version, Schematic: "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba", Extensions: extensions}},
	}
}

// kubernetesFor is a version of Kubernetes that a version of Talos runs: one runs
// those of six minors, of which the newest goes up with it.
func kubernetesFor(version string) string {
	minor, _, _ := strings.Cut(strings.TrimPrefix(version, "v1."), ".")
	n, err := strconv.Atoi(minor)
	if err != nil || n >= 13 {
		return "1.36.1"
	}
	return fmt.Sprintf("1.%d.1", n+23)
}

// config generates the node's machine config at the contract of a version.
func (l *lab) config(n node, version string, patches ...string) []byte {
	l.t.Helper()
	contract, err := config.ParseContractFromVersion(version)
	if err != nil {
		l.t.Fatal(err)
	}
	in, err := generate.NewInput("lab", "https://10.5.0.11:6443", kubernetesFor(version), generate.WithVersionContract(contract), generate.WithSecretsBundle(l.secrets))
	if err != nil {
		l.t.Fatal(err)
	}
	cfg, err := in.Config(n.kind)
	if err != nil {
		l.t.Fatal(err)
	}
	hostname, err := stdpatches.WithStaticHostname(contract, n.name)
	if err != nil {
		l.t.Fatal(err)
	}
	for _, p := range append([]string{string(hostname)}, patches...) {
		patch, err := configpatcher.LoadPatch([]byte(p))
		if err != nil {
			l.t.Fatal(err)
		}
		out, err := configpatcher.Apply(configpatcher.WithConfig(cfg), []configpatcher.Patch{patch})
		if err != nil {
			l.t.Fatal(err)
		}
		if cfg, err = out.Config(); err != nil {
			l.t.Fatal(err)
		}
	}
	data, err := cfg.EncodeBytes(encoder.WithComments(encoder.CommentsDisabled))
	if err != nil {
		l.t.Fatal(err)
	}
	return data
}

// The clients.

func (l *lab) connect(ip string, config *tls.Config) *client.Client {
	l.t.Helper()
	c, err := client.New(context.Background(), client.WithTLSConfig(config), client.WithEndpoints(ip),
		client.WithGRPCDialOptions(grpc.WithNoProxy(), grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return l.world.Net.DialContext(ctx, "tcp", addr)
		})))
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { _ = c.Close() })
	return c
}

// insecure is a client of the maintenance mode.
func (l *lab) insecure(n node) *client.Client {
	return l.connect(n.ip, &tls.Config{InsecureSkipVerify: true})
}

// admin is a client with the cluster's own certificates.
func (l *lab) admin(n node) *client.Client { return l.connect(n.ip, l.tls(role.Admin)) }

func (l *lab) tls(roles ...role.Role) *tls.Config { return clientTLS(l.t, l.secrets, roles...) }

func clientTLS(t *testing.T, bundle *secrets.Bundle, roles ...role.Role) *tls.Config {
	t.Helper()
	fresh := *bundle
	fresh.Clock = secrets.NewFixedClock(time.Now())
	crt, err := fresh.GenerateTalosAPIClientCertificate(role.MakeSet(roles...))
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(crt.Crt, crt.Key)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle.Certs.OS.Crt)
	return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}
}

func within(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	context.AfterFunc(ctx, cancel)
	return ctx
}

// Steps that many tests take.

// apply sends a node its config in maintenance mode.
func (l *lab) apply(n node, data []byte) {
	l.t.Helper()
	if _, err := l.insecure(n).ApplyConfiguration(within(5*time.Second), &machineapi.ApplyConfigurationRequest{Data: data, Mode: machineapi.ApplyConfigurationRequest_AUTO}); err != nil {
		l.t.Fatalf("apply config of %s: %v", n.name, err)
	}
}

// bring boots and configures nodes.
func (l *lab) bring(version string, nodes ...node) {
	l.t.Helper()
	for _, n := range nodes {
		l.fleet.PowerOn(n.guest(version))
	}
	time.Sleep(l.world.Latency.Boot + time.Second)
	for _, n := range nodes {
		l.apply(n, l.config(n, version))
	}
	time.Sleep(l.world.Latency.Apply + 3*time.Second)
}

func (l *lab) bootstrap(n node) {
	l.t.Helper()
	if err := l.admin(n).Bootstrap(within(10*time.Second), &machineapi.BootstrapRequest{}); err != nil {
		l.t.Fatalf("bootstrap %s: %v", n.name, err)
	}
}

// view is a machine seen with X-ray eyes.
func (l *lab) view(n node) talos.MachineView {
	l.t.Helper()
	for _, v := range l.fleet.Machines() {
		if v.VMID == n.vmid {
			return v
		}
	}
	l.t.Fatalf("machine %d is off", n.vmid)
	panic("unreachable")
}

func (l *lab) stage(n node) string { return l.view(n).Stage }

const (
	running     = "running"
	booting     = "booting"
	maintenance = "maintenance"
)

func (l *lab) wantStage(n node, want string) {
	l.t.Helper()
	if got := l.stage(n); got != want {
		l.t.Errorf("%s is in stage %q, want %q", n.name, got, want)
	}
}

func (l *lab) wantViolations(want ...string) {
	l.t.Helper()
	var rules []string
	for _, v := range l.world.Violations() {
		rule, _, _ := strings.Cut(v, " ")
		rules = append(rules, rule)
	}
	if !slices.Equal(rules, want) {
		l.t.Errorf("broken rules %v, want %v\n%v", rules, want, l.world.Violations())
	}
}

// status reads a machine's own status.
func status(t *testing.T, c *client.Client) runtimeres.MachineStatusSpec {
	t.Helper()
	r, err := c.COSI.Get(within(time.Minute), runtimeres.NewMachineStatus().Metadata())
	if err != nil {
		t.Fatal(err)
	}
	return *r.(*runtimeres.MachineStatus).TypedSpec()
}

// books is a Kubernetes that writes down what it is given and reports ready when
// the test wants it, or by itself once an API runs.
type books struct {
	world *world.World
	byAct bool // the test decides when nodes are ready

	holdDrains bool // drains wait for the test

	mu       sync.Mutex
	apis     []api
	kubelets map[string]world.Kubelet
	ready    map[string]func(bool) // of kubelets
	cas      map[string]bool
	drained  []string // nodes that were drained, or are no more
	drains   []func() // what ends those that wait
	awaited  []*awaited
	static   map[string][]world.StaticPod // by node
	closed   string                       // what images begin with that are not given out
}

// awaited is an endpoint that a machine waits for.
type awaited struct {
	at      netip.Addr
	answers func()
}

type api struct {
	ca, etcd string
	world.ControlPlane
	up, stopped bool
}

func (k *books) ServeAPI(ca, etcd string, p world.ControlPlane, ready func(bool)) func() {
	k.mu.Lock()
	k.apis = append(k.apis, api{ca: ca, etcd: etcd, ControlPlane: p})
	i := len(k.apis) - 1
	k.mu.Unlock()
	cancel := k.world.After(k.world.Latency.ImagePull+k.world.Latency.API, func() {
		k.mu.Lock()
		k.apis[i].up = true
		k.mu.Unlock()
		ready(true)
		k.settle()
		k.answerEndpoints()
	})
	return func() {
		cancel()
		k.mu.Lock()
		k.apis[i].stopped = true
		k.mu.Unlock()
	}
}

func (k *books) RunStaticPods(_, _, node string, pods []world.StaticPod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.static == nil {
		k.static = map[string][]world.StaticPod{}
	}
	k.static[node] = pods
}

func (k *books) AwaitEndpoint(_ string, at netip.Addr, answers func()) func() {
	w := &awaited{at, answers}
	k.mu.Lock()
	k.awaited = append(k.awaited, w)
	k.mu.Unlock()
	k.answerEndpoints()
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.awaited = slices.DeleteFunc(k.awaited, func(other *awaited) bool { return other == w })
	}
}

// answerEndpoints notifies those whose endpoint is that of an API that runs.
func (k *books) answerEndpoints() {
	k.mu.Lock()
	var answered []func()
	k.awaited = slices.DeleteFunc(k.awaited, func(w *awaited) bool {
		ok := slices.ContainsFunc(k.apis, func(a api) bool { return a.up && !a.stopped && (a.Address == w.at || a.VIP == w.at) })
		if ok {
			answered = append(answered, w.answers)
		}
		return ok
	})
	k.mu.Unlock()
	for _, answer := range answered {
		answer()
	}
}

func (k *books) RunKubelet(ca string, n world.Kubelet, ready func(bool)) func() {
	k.mu.Lock()
	if k.kubelets == nil {
		k.kubelets, k.ready, k.cas = map[string]world.Kubelet{}, map[string]func(bool){}, map[string]bool{}
	}
	k.kubelets[n.Node], k.ready[n.Node] = n, ready
	k.cas[ca] = true
	k.mu.Unlock()
	k.settle()
	return func() {
		k.mu.Lock()
		delete(k.kubelets, n.Node)
		delete(k.ready, n.Node)
		k.mu.Unlock()
	}
}

// settle makes every node ready as soon as an API runs.
func (k *books) settle() {
	k.mu.Lock()
	if k.byAct || !slices.ContainsFunc(k.apis, func(a api) bool { return !a.stopped }) {
		k.mu.Unlock()
		return
	}
	var waiting []func(bool)
	for _, r := range k.ready {
		waiting = append(waiting, r)
	}
	k.mu.Unlock()
	for _, r := range waiting {
		r(false)
		k.world.After(k.world.Latency.Ready, func() { r(true) })
	}
}

func (k *books) setReady(node string, ready bool) {
	k.mu.Lock()
	r := k.ready[node]
	k.mu.Unlock()
	if r != nil {
		r(ready)
	}
}

func (k *books) serving() []api {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(k.apis), func(a api) bool { return a.stopped })
}

func (k *books) kubelet(node string) (world.Kubelet, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	n, ok := k.kubelets[node]
	return n, ok
}

func certFingerprint(pemBytes []byte) string {
	block, _ := pem.Decode(pemBytes)
	sum := sha256.Sum256(block.Bytes)
	return hex.EncodeToString(sum[:])
}

// applyConfigured sends a configured node another config.
func (l *lab) applyConfigured(n node, data []byte, mode machineapi.ApplyConfigurationRequest_Mode) error {
	l.t.Helper()
	_, err := l.admin(n).ApplyConfiguration(within(5*time.Second), &machineapi.ApplyConfigurationRequest{Data: data, Mode: mode})
	return err
}

// eventually waits, in real time, until something works.
func (l *lab) eventually(f func() error) {
	l.t.Helper()
	deadline := time.Now().Add(5 * time.Minute)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			l.t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
