package talos

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/config"
	talosconfig "github.com/siderolabs/talos/pkg/machinery/config/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/configpatcher"
	"github.com/siderolabs/talos/pkg/machinery/config/container"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
	"github.com/siderolabs/talos/pkg/machinery/config/generate"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/stdpatches"
	"github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"go.uber.org/goleak"

	"github.com/talos-agent/talos-agent/internal/cluster"
	labtalos "github.com/talos-agent/talos-agent/internal/lab/talos"
	"github.com/talos-agent/talos-agent/internal/lab/world"
	"github.com/talos-agent/talos-agent/reconcile/talos/redaction"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	newest    = "v1.13.9"
	schematic = "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba"
)

// bench is a lab with a fleet that looks at it.
type bench struct {
	testing.TB
	world    *world.World
	lab      *labtalos.Fleet
	secrets  *secrets.Bundle
	fleet    *Fleet
	link     atomic.Pointer[world.Link] // the cable that all of the fleet's connections go through
	divert   sync.Map                   // addresses that lead to another
	desired  cluster.Desired
	changes  chan struct{} // one slot
	reported atomic.Int64
	most     atomic.Int64 // bytes that were sent over one connection
	log      *journal
}

// journal keeps what was logged.
type journal struct {
	mu sync.Mutex
	bytes.Buffer
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.Buffer.Write(b)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.Buffer.String()
}

// bubbleSecrets belong to the date at which every bubble begins; making them
// takes long enough to do it once.
var bubbleSecrets = sync.OnceValues(newSecrets)

// otherSecrets are those of another cluster.
var otherSecrets = sync.OnceValues(newSecrets)

func newSecrets() (*secrets.Bundle, error) {
	return secrets.NewBundle(secrets.NewFixedClock(time.Now()), config.TalosVersionCurrent, secrets.WithECDSAServiceAccountKey())
}

// inBubble runs a test in virtual time over a network in memory, with an
// inventory of these nodes at this version of Talos, of which nothing runs.
func inBubble(t *testing.T, version string, nodes []cluster.Node, test func(*bench)) {
	t.Helper()
	inBubbleAt(t, 0, version, nodes, test)
}

// inBubbleAt does so with machines whose services take this long from one
// state to the next.
func inBubbleAt(t *testing.T, step time.Duration, version string, nodes []cluster.Node, test func(*bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		bundle, err := bubbleSecrets()
		if err != nil {
			t.Fatal(err)
		}
		b := newBench(t, world.Config{}, step, bundle, version, nodes)
		defer b.close()
		time.Sleep(time.Hour)
		b.mint()
		test(b)
	})
}

func newBench(t testing.TB, c world.Config, step time.Duration, bundle *secrets.Bundle, version string, nodes []cluster.Node) *bench {
	t.Helper()
	w, err := world.New(c)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{TB: t, world: w, secrets: bundle, changes: make(chan struct{}, 1), log: &journal{}}
	if b.lab, err = labtalos.New(labtalos.Config{World: w, Step: step}); err != nil {
		t.Fatal(err)
	}
	b.link.Store(world.NewLink(w.Net))
	b.desired.Spec = cluster.Spec{Name: "lab", Versions: cluster.Versions{Talos: version, Kubernetes: "v" + kubernetesFor(version)}, Nodes: nodes}
	b.desired.Configs = map[string]cluster.Config{}
	b.fleet = b.newFleet()
	return b
}

func (b *bench) newFleet() *Fleet {
	return New(Config{
		Dial:   b.dial,
		Log:    slog.New(slog.NewTextHandler(b.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Digest: digest,
		Summarize: func(config []byte) (s cluster.ConfigSummary, err error) {
			p, err := configloader.NewFromBytes(config)
			if err == nil {
				s.Images.Kubelet = p.K8sKubeletConfig().Image()
			}
			return s, err
		},
		MayDisconnect: func(have, want []byte) bool {
			return bytes.Contains(have, []byte(blocksAll)) != bytes.Contains(want, []byte(blocksAll)) || bytes.Contains(want, []byte("interface:"))
		},
		TakeNetwork: takeNetwork,
		OnChange: func() {
			b.reported.Add(1)
			select {
			case b.changes <- struct{}{}:
			default:
			}
		},
	})
}

func (b *bench) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if other, ok := b.divert.Load(addr); ok {
		addr = other.(string)
	}
	c, err := b.link.Load().DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &counted{Conn: c, most: &b.most}, nil
}

// counted counts what is written to a connection.
type counted struct {
	net.Conn
	sent atomic.Int64
	most *atomic.Int64
}

func (c *counted) Write(b []byte) (int, error) {
	sent := c.sent.Add(int64(len(b)))
	for {
		most := c.most.Load()
		if sent <= most || c.most.CompareAndSwap(most, sent) {
			return c.Conn.Write(b)
		}
	}
}

// open counts the fleet's connections.
func (b *bench) open() int { return b.link.Load().Open() }

func (b *bench) close() {
	b.fleet.Close()
	// One that the machine broke just now is closed by whoever noticed.
	for end := time.Now().Add(time.Minute); b.open() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			b.Errorf("%d connections are open after Close", b.open())
			break
		}
	}
	b.lab.Close()
	b.world.Close()
}

// digest is what a config means, for the tests.
func digest(data []byte) (string, error) {
	cfg, err := configloader.NewFromBytes(data)
	if err != nil {
		return "", err
	}
	canonical, err := cfg.EncodeBytes(encoder.WithComments(encoder.CommentsDisabled))
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(canonical)
	return hex.EncodeToString(sum[:]), nil
}

// takeNetwork returns a config with the firewall of another.
func takeNetwork(have, want []byte) ([]byte, error) {
	var docs, firewalls [2][]talosconfig.Document
	var texts [2]string
	for i, text := range [][]byte{have, want} {
		cfg, err := configloader.NewFromBytes(text)
		if err != nil {
			return nil, err
		}
		for _, doc := range cfg.Documents() {
			if strings.HasPrefix(doc.Kind(), "Network") {
				firewalls[i] = append(firewalls[i], doc)
			} else {
				docs[i] = append(docs[i], doc)
			}
		}
		if texts[i], err = encode(firewalls[i]); err != nil {
			return nil, err
		}
	}
	if texts[0] == texts[1] {
		return nil, nil
	}
	out, err := encode(append(docs[0], firewalls[1]...))
	return []byte(out), err
}

func encode(docs []talosconfig.Document) (string, error) {
	cfg, err := container.New(docs...)
	if err != nil {
		return "", err
	}
	return cfg.EncodeString(encoder.WithComments(encoder.CommentsDisabled))
}

// Nodes of the tests: n counts from 1.
func cp(n int) cluster.Node {
	return node(cluster.ControlPlane, fmt.Sprintf("cp-%d", n), 400+n, netip.AddrFrom4([4]byte{10, 5, 0, byte(10 + n)}))
}

func wk(n int) cluster.Node {
	return node(cluster.Worker, fmt.Sprintf("wk-%d", n), 500+n, netip.AddrFrom4([4]byte{10, 5, byte(1 + n/200), byte(10 + n%200)}))
}

func node(r cluster.Role, name string, vmid int, ip netip.Addr) cluster.Node {
	return cluster.Node{
		Name: name, Role: r, VMID: vmid, IP: ip,
		UUID: cluster.NodeUUID(cluster.ClusterID("tests", "lab"), name),
		MAC:  fmt.Sprintf("BC:24:11:00:%02X:%02X", vmid/256, vmid%256),
	}
}

// guest is a node's virtual machine with a fresh disk.
func guest(n cluster.Node, version string) world.Guest {
	return world.Guest{
		VMID: n.VMID, Name: n.Name, Host: "pve1", UUID: n.UUID, MAC: strings.ToLower(n.MAC), Cores: 2, MemoryMiB: 2048,
		Address: netip.PrefixFrom(n.IP, 16), Gateway: netip.MustParseAddr("10.5.0.1"),
		Boot: &world.Disk{Image: world.Image{Platform: "nocloud", Version: version, Schematic: schematic}},
	}
}

// power switches the machines of nodes on and waits until they are in
// maintenance mode.
func (b *bench) power(nodes ...cluster.Node) {
	for _, n := range nodes {
		b.lab.PowerOn(guest(n, b.desired.Spec.Versions.Talos))
	}
	time.Sleep(b.world.Latency.Boot + time.Second)
}

// mint makes new credentials, as the renderer does now and then.
func (b *bench) mint() { b.desired.Access.Talos = minted(b, b.secrets, time.Now()) }

func minted(t testing.TB, bundle *secrets.Bundle, at time.Time) cluster.Credentials {
	t.Helper()
	fresh := *bundle
	fresh.Clock = secrets.NewFixedClock(at)
	crt, err := fresh.GenerateTalosAPIClientCertificate(role.MakeSet(role.Admin))
	if err != nil {
		t.Fatal(err)
	}
	return cluster.Credentials{CA: cluster.NewSecret(bundle.Certs.OS.Crt), Cert: cluster.NewSecret(crt.Crt), Key: cluster.NewSecret(crt.Key)}
}

// config renders a node's config, with patches, and remembers it.
func (b *bench) config(n cluster.Node, patches ...string) cluster.Config {
	b.Helper()
	cfg := render(b, b.secrets, n, b.desired.Spec.Versions.Talos, patches...)
	b.desired.Configs[n.Name] = cfg
	return cfg
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

func render(t testing.TB, bundle *secrets.Bundle, n cluster.Node, version string, patches ...string) cluster.Config {
	t.Helper()
	contract, err := config.ParseContractFromVersion(version)
	if err != nil {
		t.Fatal(err)
	}
	in, err := generate.NewInput("lab", "https://10.5.0.11:6443", kubernetesFor(version), generate.WithVersionContract(contract), generate.WithSecretsBundle(bundle))
	if err != nil {
		t.Fatal(err)
	}
	kind := machine.TypeWorker
	if n.Role == cluster.ControlPlane {
		kind = machine.TypeControlPlane
	}
	cfg, err := in.Config(kind)
	if err != nil {
		t.Fatal(err)
	}
	hostname, err := stdpatches.WithStaticHostname(contract, n.Name)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range append([]string{string(hostname)}, patches...) {
		patch, err := configpatcher.LoadPatch([]byte(p))
		if err != nil {
			t.Fatal(err)
		}
		out, err := configpatcher.Apply(configpatcher.WithConfig(cfg), []configpatcher.Patch{patch})
		if err != nil {
			t.Fatal(err)
		}
		if cfg, err = out.Config(); err != nil {
			t.Fatal(err)
		}
	}
	data, err := cfg.EncodeBytes(encoder.WithComments(encoder.CommentsDisabled))
	if err != nil {
		t.Fatal(err)
	}
	sum, err := digest(data)
	if err != nil {
		t.Fatal(err)
	}
	return cluster.Config{Bytes: cluster.NewSecret(data), Digest: sum}
}

// observe is one observation, bounded as the loop bounds it.
func (b *bench) observe() cluster.Observed { return b.observeAs(cluster.Facts{}) }

func (b *bench) observeAs(facts cluster.Facts) cluster.Observed {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	o := cluster.Observed{Now: time.Now(), Facts: facts}
	b.fleet.Observe(ctx, b.desired, &o)
	return o
}

// see observes one machine.
func (b *bench) see(n cluster.Node) cluster.Machine { return b.observe().Machines[n.Name] }

// wantReach observes one machine and compares.
func (b *bench) wantReach(n cluster.Node, want cluster.Reach, why string) {
	b.Helper()
	if m := b.see(n); m.Reach != want || !strings.Contains(m.Why, why) {
		b.Errorf("%s is %s (%s), want %s (%s)", n.Name, reachWord(m.Reach), m.Why, reachWord(want), why)
	}
}

// until observes after every change until something is so; in virtual time
// that takes no time, and a machine that gets nowhere fails the test.
func (b *bench) until(what string, ok func(cluster.Observed) bool) cluster.Observed {
	b.Helper()
	for give := time.Now().Add(10 * time.Minute); ; {
		o := b.observe()
		if ok(o) {
			return o
		}
		if time.Now().After(give) {
			b.Fatalf("%s: not after ten minutes; machines %+v, members %+v", what, o.Machines, o.Members)
		}
		_ = b.wait(time.Minute)
	}
}

// wait waits for a change.
func (b *bench) wait(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-b.changes:
		return true
	case <-t.C:
		return false
	}
}

func (b *bench) untilReach(n cluster.Node, want cluster.Reach) cluster.Machine {
	b.Helper()
	return b.until(n.Name+" becomes "+reachWord(want), func(o cluster.Observed) bool { return o.Machines[n.Name].Reach == want }).Machines[n.Name]
}

func within(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	context.AfterFunc(ctx, cancel)
	return ctx
}

// apply gives nodes their configs through the fleet.
func (b *bench) apply(nodes ...cluster.Node) {
	b.Helper()
	for _, n := range nodes {
		if err := b.fleet.Apply(within(10*time.Minute), b.desired, n, b.config(n)); err != nil {
			b.Fatal(err)
		}
	}
}

// bringUp boots and configures nodes and founds etcd on the first.
func (b *bench) bringUp(nodes ...cluster.Node) {
	b.Helper()
	b.power(nodes...)
	b.observe()
	b.apply(nodes...)
	b.until("etcd waits", func(o cluster.Observed) bool { return o.Machines[nodes[0].Name].Services["etcd"].State == "Preparing" })
	if err := b.fleet.Bootstrap(within(time.Minute), b.desired, nodes[0]); err != nil {
		b.Fatal(err)
	}
	b.until("all run and vote", func(o cluster.Observed) bool {
		votes := 0
		for _, m := range o.Members.Value {
			if !m.Learner {
				votes++
			}
		}
		for _, n := range nodes {
			m := o.Machines[n.Name]
			if m.Stage != "running" {
				return false
			}
			if n.Role == cluster.ControlPlane {
				if votes--; !m.Services["etcd"].Healthy {
					return false
				}
			}
		}
		return votes == 0
	})
}

// raw makes the fleet's own kind of connection, for what only a human would do.
func (b *bench) raw(n cluster.Node) *link {
	b.Helper()
	k, err := parseKeys(b.desired.Access.Talos)
	if err != nil {
		b.Fatal(err)
	}
	f := &Fleet{dial: b.world.Net.DialContext}
	l, err := f.connect(within(time.Minute), n.IP, k)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(l.close)
	return l
}

// rawApply sends a config past all checks.
func (b *bench) rawApply(n cluster.Node, cfg cluster.Config) {
	b.Helper()
	l := b.raw(n)
	defer l.close()
	_, err := l.machine.ApplyConfiguration(within(time.Minute), &machineapi.ApplyConfigurationRequest{
		Data: cfg.Bytes.Reveal(), Mode: machineapi.ApplyConfigurationRequest_AUTO,
	})
	if err != nil {
		b.Fatal(err)
	}
	time.Sleep(3 * time.Second)
}

// calls counts calls by method, without the service, since it was asked last.
func (b *bench) calls() map[string]int {
	counts := map[string]int{}
	for _, c := range b.world.Calls() {
		counts[c.Op[strings.LastIndexByte(c.Op, '/')+1:]]++
	}
	b.world.ForgetCalls()
	return counts
}

func (b *bench) wantNoViolations() {
	b.Helper()
	if v := b.world.Violations(); len(v) > 0 {
		b.Errorf("broken laws: %v", v)
	}
}

// impostor answers at a node's address with whatever the test wants.
func (b *bench) impostor(n cluster.Node, serve func(net.Conn)) (stop func()) {
	b.Helper()
	l, err := b.world.Net.Listen(netip.AddrPortFrom(n.IP, 50000).String())
	if err != nil {
		b.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				serve(c)
			})
		}
	})
	return func() {
		_ = l.Close()
		wg.Wait()
	}
}

// serveTLS answers the handshake with a certificate and then sends nothing.
func serveTLS(config *tls.Config) func(net.Conn) {
	return func(c net.Conn) {
		conn := tls.Server(c, config)
		if conn.HandshakeContext(within(time.Second)) == nil {
			_, _ = conn.Read(make([]byte, 1))
		}
	}
}

// noSecrets looks for anything secret of a config in some text.
func (b *bench) noSecrets(where string, cfg cluster.Config, text string) {
	b.Helper()
	values, ok := redaction.ListScalars(cfg.Bytes.Reveal())
	if !ok {
		b.Fatal("the config is not YAML")
	}
	for _, v := range values {
		if len(v) >= 20 && !strings.ContainsAny(v, "./:") && strings.Contains(text, v) {
			b.Errorf("%s holds %q of the config:\n%s", where, v, text)
		}
	}
}
