package helm

import (
	"bytes"
	"context"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"log"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"

	"github.com/talos-agent/talos-agent/internal/cluster"
	labcharts "github.com/talos-agent/talos-agent/internal/lab/charts"
	"github.com/talos-agent/talos-agent/internal/lab/httpservice"
	labkube "github.com/talos-agent/talos-agent/internal/lab/kube"
	"github.com/talos-agent/talos-agent/internal/lab/world"
	"github.com/talos-agent/talos-agent/internal/worker/workertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// authority is a Kubernetes CA.
type authority struct {
	*world.PKI
	t testing.TB
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	ca, err := world.NewPKI(pkix.Name{Organization: []string{"kubernetes"}})
	if err != nil {
		t.Fatal(err)
	}
	return &authority{ca, t}
}

// access mints credentials that live for ttl, for an administrator.
func (a *authority) access(ttl time.Duration) cluster.Credentials {
	a.t.Helper()
	cert, key, err := a.Client(ttl, "admin", "system:masters")
	if err != nil {
		a.t.Fatal(err)
	}
	return cluster.Credentials{CA: cluster.NewSecret(a.PEM), Cert: cluster.NewSecret(cert), Key: cluster.NewSecret(key), NotAfter: time.Now().Add(ttl)}
}

// bench is a world with a cluster, sources of charts and a Releaser.
type bench struct {
	testing.TB
	world    *world.World
	kube     *labkube.Clusters
	charts   *labcharts.Repository
	registry *labcharts.Registry
	ca       *authority
	releaser *Releaser
	link     *world.Link
	config   Config
	desired  cluster.Desired
	facts    cluster.Facts
	changes  atomic.Int64
	dead     atomic.Bool // no API is ready
	server   atomic.Pointer[string]
	logged   *transcript
}

// transcript keeps everything that was logged, by us or by libraries.
type transcript struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (t *transcript) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buf.Write(b)
}

func (t *transcript) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buf.String()
}

// newBench makes a bench in a network in memory, or on loopback with addresses
// under a prefix.
func newBench(t testing.TB, c world.Config, prefix string, charts ...labcharts.Chart) *bench {
	t.Helper()
	w, err := world.New(c)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{TB: t, world: w, kube: labkube.New(labkube.Config{World: w}), ca: newAuthority(t), logged: &transcript{}}
	addr := func(host string) string { return host + ".lab:443" }
	if prefix != "10.0.0" {
		addr = func(string) string { return "127.0.0.1:0" }
	}
	if len(charts) > 0 {
		stock, err := labcharts.Stock()
		if err != nil {
			t.Fatal(err)
		}
		charts = append(stock, charts...)
	}
	if b.charts, err = labcharts.NewRepository(labcharts.RepositoryConfig{Service: httpservice.Config{World: w, Addr: addr("charts")}, Charts: charts}); err != nil {
		t.Fatal(err)
	}
	if b.registry, err = labcharts.NewRegistry(labcharts.RegistryConfig{Service: httpservice.Config{World: w, Addr: addr("registry")}, Charts: charts}); err != nil {
		t.Fatal(err)
	}
	b.desired.Spec.ID = cluster.ClusterID("agent", "dev")
	b.desired.Spec.Nodes = []cluster.Node{{Name: "cp-1", Role: cluster.ControlPlane, IP: netip.MustParseAddr(prefix + ".11")}}
	b.desired.Access.Kube = b.ca.access(24 * time.Hour)
	b.facts.Charts = map[string]string{}
	b.setServer(prefix + ".11")
	b.config = Config{
		CacheDir: t.TempDir(), CA: w.PKI.PEM, Log: slog.New(slog.NewTextHandler(b.logged, &slog.HandlerOptions{Level: slog.LevelDebug})),
		API:      func() (string, bool) { return *b.server.Load(), !b.dead.Load() },
		OnChange: func() { b.changes.Add(1) },
		Worker:   workertest.Run,
	}
	before := log.Writer()
	log.SetOutput(b.logged)
	b.start()
	t.Cleanup(func() {
		log.SetOutput(before)
		b.stop()
		if err := b.charts.Close(); err != nil {
			t.Error(err)
		}
		if err := b.registry.Close(); err != nil {
			t.Error(err)
		}
		b.kube.Close()
		w.Close()
	})
	return b
}

func (b *bench) setServer(addr string) {
	server := "https://" + addr + ":6443"
	b.server.Store(&server)
}

// start makes a Releaser, as a process that begins.
func (b *bench) start() {
	b.Helper()
	b.link = world.NewLink(b.world.Net)
	c := b.config
	c.Dial = b.link.DialContext
	r, err := New(c)
	if err != nil {
		b.Fatal(err)
	}
	b.releaser = r
}

// stop ends it.
func (b *bench) stop() {
	b.Helper()
	b.releaser.Close()
	// A connection whose last answer was just read is closed by the goroutine
	// that read it.
	for end := time.Now().Add(10 * time.Second); b.link.Open() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			b.Errorf("%d connections are open after Close", b.link.Open())
			return
		}
	}
}

// serve brings the API up and returns when it is.
func (b *bench) serve(cni string) (stop func()) {
	b.Helper()
	node := b.desired.Spec.Nodes[0]
	up := make(chan bool, 16)
	stop = b.kube.ServeAPI(b.ca.Fingerprint(), "etcd-1", world.ControlPlane{
		Node: node.Name, Address: node.IP, CACert: b.ca.PEM, CAKey: b.ca.KeyPEM, Kubernetes: "v1.36.1",
		CNI: cni, KubeProxy: cni != "none", PodCIDR: "10.244.0.0/16", ServiceCIDR: "10.96.0.0/12",
	}, func(ready bool) { up <- ready })
	if !<-up {
		b.Fatal("the API answers that it is not ready")
	}
	return stop
}

// join lets so many workers, and the control plane, register.
func (b *bench) join(workers int) {
	node := b.desired.Spec.Nodes[0]
	run := func(name string, ip netip.Addr, vmid int, control bool) {
		b.kube.RunKubelet(b.ca.Fingerprint(), world.Kubelet{Node: name, Address: ip, Kubernetes: "v1.36.1", Talos: "v1.14.1", Control: control, VMID: vmid}, func(bool) {})
	}
	run(node.Name, node.IP, 401, true)
	ip := node.IP
	for i := range workers {
		ip = ip.Next()
		run(fmt.Sprintf("wk-%d", i+1), ip, 501+i, false)
	}
}

// addon asks for a chart of the repository.
func (b *bench) addon(name, namespace, chart, version string, values map[string]any) cluster.Addon {
	b.Helper()
	return cluster.Addon{
		Name: name, Namespace: namespace, Ownership: cluster.Managed, ReadyAfter: 15 * time.Minute, File: "addons/" + name + ".yaml",
		Chart: cluster.Chart{Repository: b.charts.URL(), Name: chart, Version: version}, Values: b.values(values),
	}
}

func (b *bench) values(values map[string]any) cluster.Secret {
	b.Helper()
	if values == nil {
		values = map[string]any{}
	}
	text, err := json.Marshal(values)
	if err != nil {
		b.Fatal(err)
	}
	return cluster.NewSecret(text)
}

// cilium is the addon most tests use.
func (b *bench) cilium() cluster.Addon {
	return b.addon("cilium", "kube-system", "cilium", "1.19.3", map[string]any{"operator": map[string]any{"replicas": 1}})
}

// local is an addon whose chart lies in the inventory.
func (b *bench) local(name, namespace string, values map[string]any, files map[string]string) cluster.Addon {
	a := b.addon(name, namespace, "", "", values)
	a.Chart = cluster.Chart{Path: "charts/" + name, Name: name, Version: "0.1.0", Files: map[string][]byte{}}
	if files["Chart.yaml"] == "" {
		a.Chart.Files["Chart.yaml"] = []byte("apiVersion: v2\nname: " + name + "\nversion: 0.1.0\n")
	}
	for file, text := range files {
		a.Chart.Files[file] = []byte(text)
	}
	return a
}

// want sets the addons of the inventory.
func (b *bench) want(addons ...cluster.Addon) { b.desired.Spec.Addons = addons }

// look is one observation, bounded as the loop bounds it.
func (b *bench) look() cluster.Observed {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	o := cluster.Observed{Now: time.Now(), Facts: b.facts}
	b.releaser.Observe(ctx, b.desired, &o)
	return o
}

// step does what a pass would do for one addon: fetch its chart, install it,
// or wait. It returns true when there is nothing left to do.
func (b *bench) step(ctx context.Context, a cluster.Addon) (settled bool, err error) {
	o := b.look()
	fetched := o.Charts[a.Name]
	if !fetched.Known {
		pin := a.Chart.Digest
		if pin == "" {
			pin = b.facts.Charts[a.Chart.Ref()]
		}
		digest, err := b.releaser.FetchChart(ctx, a, pin)
		if err == nil {
			b.facts.Charts[a.Chart.Ref()] = digest
		}
		return false, err
	}
	rel, installed := o.Releases.Value[a.Name]
	switch {
	case !o.Releases.Known:
		return false, fmt.Errorf("releases: %s", o.Releases.Why)
	case installed && rel.Status == "deployed" && rel.Digest == fetched.Value.Release:
		return rel.Ready, nil
	}
	return false, b.releaser.Install(ctx, b.desired, a, fetched.Value.Release)
}

// settle steps until there is nothing left to do, for at most limit.
func (b *bench) settle(a cluster.Addon, limit time.Duration) cluster.Release {
	b.Helper()
	var last error
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
		settled, err := b.step(context.Background(), a)
		if settled {
			return b.look().Releases.Value[a.Name]
		}
		if err != nil {
			last = err
		}
	}
	b.Fatalf("%s is not settled within %v: %+v, last error %v", a.Name, limit, b.look().Releases, last)
	return cluster.Release{}
}

// digest is what chart and values of an addon come to, with the chart fetched.
func (b *bench) digest(a cluster.Addon) string {
	b.Helper()
	for range 3 {
		if c := b.look().Charts[a.Name]; c.Known {
			return c.Value.Release
		}
		if _, err := b.step(context.Background(), a); err != nil {
			b.Fatal(err)
		}
	}
	b.Fatalf("the chart of %s is not to be had", a.Name)
	return ""
}

// client is a client of the cluster that has nothing to do with the Releaser.
func (b *bench) client() kubernetes.Interface {
	b.Helper()
	conn, err := connectServer(*b.server.Load(), b.desired.Access.Kube, b.world.Net.DialContext, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(conn.Close)
	set, err := kubernetes.NewForConfig(conn.config(conn))
	if err != nil {
		b.Fatal(err)
	}
	return set
}

// objects are those of a resource, in a namespace.
func (b *bench) objects(group, version, resource, namespace string) []unstructured.Unstructured {
	return b.kube.Objects(b.ca.Fingerprint(), schema.GroupVersionResource{Group: group, Version: version, Resource: resource}, namespace)
}

// calls counts the calls of a system since it was asked last.
func (b *bench) calls(system string) map[string]int {
	counts := map[string]int{}
	for _, c := range b.world.Calls() {
		if c.System == system {
			counts[c.Op]++
		}
	}
	b.world.ForgetCalls()
	return counts
}

// bubble runs a test in virtual time over a network in memory.
func bubble(t *testing.T, f func(b *bench), charts ...labcharts.Chart) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f(newBench(t, world.Config{}, "10.0.0", charts...))
	})
}

// mustPack packs a chart for the repository.
func mustPack(t testing.TB, files map[string]string) labcharts.Chart {
	t.Helper()
	c, err := labcharts.Pack(files)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// must fails the test with an error that nothing in it expects.
func (b *bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}
