package kube

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// mustKnow fails unless the nodes are known and as many.
func (b *bench) mustKnow(o cluster.Observed, nodes int) {
	b.Helper()
	if !o.Nodes.Known || len(o.Nodes.Value) != nodes {
		b.Fatalf("nodes are %+v, want %d known", o.Nodes, nodes)
	}
}

// mustNotKnow fails unless the nodes are unknown for a reason with these words.
func (b *bench) mustNotKnow(o cluster.Observed, words string) {
	b.Helper()
	if o.Nodes.Known || !strings.Contains(o.Nodes.Why, words) {
		b.Fatalf("nodes are %+v, want unknown: %s", o.Nodes, words)
	}
}

func TestBringUp(t *testing.T) {
	bubble(t, 1, func(b *bench) {
		o := b.look()
		b.mustNotKnow(o, "there is no way to it")
		if s := o.APIs["cp-1"]; s.Known {
			b.Errorf("an API without an answer is %+v", s)
		}
		if server, ok := b.cluster.API(); ok {
			b.Errorf("API is %s", server)
		}

		ready, _ := b.join("cp-1", "10.0.0.11", 401)
		b.serve(1)
		o = b.look()
		if s := o.APIs["cp-1"]; !s.Known || !s.Value {
			b.Errorf("the API is %+v", s)
		}
		if server, ok := b.cluster.API(); !ok || server != "https://10.0.0.11:6443" {
			b.Errorf("API is %s %v", server, ok)
		}
		b.mustKnow(o, len(o.Nodes.Value))

		changes := b.changes.Load()
		<-ready
		synctest.Wait()
		if b.changes.Load() == changes {
			b.Error("no one was notified that the node became Ready")
		}
		o = b.look()
		b.mustKnow(o, 1)
		if n := o.Nodes.Value["cp-1"]; !n.Ready || n.Why != "" || n.Kubelet != "v1.36.1" || n.Name != "cp-1" {
			b.Errorf("the node is %+v", n)
		}
	})
}

func TestNodeThatIsNotReadyHasReason(t *testing.T) {
	bubble(t, 1, func(b *bench) {
		b.serve(1)
		ready, stop := b.join("wk-1", "10.0.0.21", 501)
		time.Sleep(b.world.Latency.ImagePull + time.Second)
		n := b.look().Nodes.Value["wk-1"]
		if n.Ready || n.Why == "" {
			b.Errorf("a node without a network is %+v", n)
		}
		<-ready
		stop()
		time.Sleep(5 * time.Minute)
		n = b.look().Nodes.Value["wk-1"]
		if n.Ready || !strings.Contains(n.Why, "stopped") {
			b.Errorf("a node that died is %+v", n)
		}
	})
}

// TestQuiet: while nothing changes, looking costs one call per control plane, and one
// at the VIP, each half minute.
func TestQuiet(t *testing.T) {
	bubble(t, 3, func(b *bench) {
		for n := range 3 {
			b.serve(n + 1)
		}
		ready, _ := b.join("wk-1", "10.0.0.21", 501)
		<-ready
		b.look()
		b.calls()
		for range 10 {
			time.Sleep(2 * time.Second)
			b.mustKnow(b.look(), 1)
		}
		if calls := b.calls(); len(calls) != 0 {
			b.Errorf("within half a minute: %v", calls)
		}
		for range 4 {
			time.Sleep(time.Minute)
			b.mustKnow(b.look(), 1)
		}
		if calls := b.calls(); len(calls) != 1 || calls["GET /readyz"] != 16 {
			b.Errorf("in four quiet minutes: %v", calls)
		}
		// Watches are ended by the server after five to ten minutes; going on
		// costs one call and no list.
		time.Sleep(time.Hour)
		b.mustKnow(b.look(), 1)
		if calls := b.calls(); calls["GET /api/v1/nodes"] != 0 || calls["WATCH /api/v1/nodes"] < 3 || calls["WATCH /api/v1/nodes"] > 13 {
			b.Errorf("in a quiet hour: %v", calls)
		}
	})
}

func TestMovesToAnotherAPI(t *testing.T) {
	bubble(t, 3, func(b *bench) {
		stops := map[string]func(){}
		for n, node := range b.desired.Spec.Nodes {
			stops[serverOf(node.IP)] = b.serve(n + 1)
		}
		ready, _ := b.join("wk-1", "10.0.0.21", 501)
		<-ready
		b.mustKnow(b.look(), 1)
		dead := map[string]bool{}
		for left := 2; left >= 0; left-- {
			server, ok := b.cluster.API()
			if !ok {
				b.Fatalf("no API with %d left", left+1)
			}
			changes := b.changes.Load()
			stops[server]()
			dead[server] = true
			time.Sleep(time.Second)
			if b.changes.Load() == changes {
				b.Error("no one was notified that the watch broke")
			}
			began := time.Now()
			o := b.look()
			if took := time.Since(began); took > 3*time.Second {
				b.Errorf("moving took %v", took)
			}
			next, ok := b.cluster.API()
			if left == 0 {
				b.mustNotKnow(o, "")
				if ok {
					b.Errorf("API is %s, and all are dead", next)
				}
				break
			}
			b.mustKnow(o, 1)
			if next == server {
				b.Errorf("API is %s, which is dead", next)
			}
			for name, s := range o.APIs {
				if s.Value == dead[serverOf(mustNode(b, name).IP)] {
					b.Errorf("%s is %+v, dead are %v", name, s, dead)
				}
			}
		}
		// One comes back.
		b.serve(2)
		b.mustKnow(b.look(), 1)
	})
}

func mustNode(b *bench, name string) cluster.Node {
	b.Helper()
	n, ok := b.desired.Spec.Node(name)
	if !ok {
		b.Fatalf("no node %s", name)
	}
	return n
}

// TestDarkHost: a host that lost its power closes nothing and answers nothing.
func TestDarkHost(t *testing.T) {
	bubble(t, 2, func(b *bench) {
		b.serve(1)
		b.serve(2)
		b.look()
		server, _ := b.cluster.API()
		dark := netip.MustParseAddrPort(strings.TrimPrefix(server, "https://")).Addr()
		b.world.Net.(*world.Memory).Darken(dark.String(), true)
		time.Sleep(10 * time.Second)
		began := time.Now()
		o := b.look()
		if took := time.Since(began); took > 3*time.Second {
			b.Errorf("looking took %v", took)
		}
		b.mustKnow(o, 0)
		for _, n := range b.desired.Spec.Nodes {
			if s := o.APIs[n.Name]; s.Value != (n.IP != dark) || n.IP == dark && (s.Known || !strings.Contains(s.Why, "does not answer")) {
				b.Errorf("%s is %+v", n.Name, s)
			}
		}
		if next, ok := b.cluster.API(); !ok || next == server {
			b.Errorf("API is %s %v", next, ok)
		}
	})
}

// TestBrokenWatch: while a watch is being re-created, what it saw before is not
// taken for what is.
func TestBrokenWatch(t *testing.T) {
	bubble(t, 1, func(b *bench) {
		b.serve(1)
		b.mustKnow(b.look(), 0)
		time.Sleep(10 * time.Second)
		b.world.Net.(*world.Memory).Darken("10.0.0.11", true)
		time.Sleep(time.Second)
		began := time.Now()
		b.mustNotKnow(b.look(), "does not answer")
		if took := time.Since(began); took > listWithin {
			b.Errorf("looking took %v", took)
		}
		b.world.Net.(*world.Memory).Darken("10.0.0.11", false)
		b.mustKnow(b.look(), 0)
	})
}

// silent is a connection to a host that lost its power: nothing is closed, and
// nothing comes any more.
type silent struct {
	net.Conn
	since  <-chan struct{}
	closed chan struct{}
	once   sync.Once
}

func (s *silent) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	select {
	case <-s.since:
		<-s.closed
		return 0, net.ErrClosed
	default:
		return n, err
	}
}

func (s *silent) Write(b []byte) (int, error) {
	select {
	case <-s.since:
		return len(b), nil
	default:
		return s.Conn.Write(b)
	}
}

func (s *silent) Close() error {
	s.once.Do(func() { close(s.closed) })
	return s.Conn.Close()
}

// TestSilentHost: a watch through a host that fell silent is lost within a
// minute, not when the operating system gives the connection up.
func TestSilentHost(t *testing.T) {
	bubble(t, 1, func(b *bench) {
		b.serve(1)
		since := make(chan struct{})
		notified := make(chan struct{}, 100)
		k := New(Config{OnChange: func() { notified <- struct{}{} }, Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := b.world.Net.DialContext(ctx, network, addr)
			return &silent{Conn: c, since: since, closed: make(chan struct{})}, err
		}})
		defer k.Close()
		var o cluster.Observed
		k.Observe(context.Background(), b.desired, &o)
		b.mustKnow(o, 0)
		close(since)
		select {
		case <-notified:
		case <-time.After(time.Minute):
			b.Error("no one was notified within a minute")
		}
		k.Observe(context.Background(), b.desired, &o)
		b.mustNotKnow(o, "")
	})
}

// TestNeverThroughTheVIP asks the control planes' own addresses; the VIP is asked for
// nothing but whether it answers.
func TestNeverThroughTheVIP(t *testing.T) {
	bubble(t, 2, func(b *bench) {
		var mu sync.Mutex
		asked := map[string]bool{}
		k := New(Config{Dial: b.world.Net.DialContext, Wrap: func(next http.RoundTripper) http.RoundTripper {
			return roundTrip(func(r *http.Request) (*http.Response, error) {
				mu.Lock()
				asked[r.URL.Host] = true
				if r.URL.Host == "10.0.0.5:6443" && r.URL.Path != "/readyz" {
					t.Errorf("the VIP is asked for %s", r.URL)
				}
				mu.Unlock()
				return next.RoundTrip(r)
			})
		}})
		defer k.Close()
		b.serve(1)
		stop := b.serve(2)
		for range 10 {
			var o cluster.Observed
			k.Observe(context.Background(), b.desired, &o)
			b.mustKnow(o, 0)
			time.Sleep(time.Minute)
			stop()
		}
		mu.Lock()
		defer mu.Unlock()
		if len(asked) != 3 || !asked["10.0.0.11:6443"] || !asked["10.0.0.12:6443"] {
			b.Errorf("asked %v", asked)
		}
	})
}

// roundTrip is a function as a transport.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestVIP(t *testing.T) {
	bubble(t, 2, func(b *bench) {
		const mac = "BC:24:11:00:00:99"
		k := New(Config{Dial: b.link.DialContext, Neighbour: func(addr netip.Addr) string {
			if addr.String() != "10.0.0.5" {
				t.Errorf("looked for %s", addr)
			}
			return mac
		}})
		defer k.Close()
		look := func() cluster.Seen[cluster.VirtualIP] {
			var o cluster.Observed
			k.Observe(context.Background(), b.desired, &o)
			return o.VIP
		}
		if v := look(); v.Known {
			t.Errorf("without an API the VIP is %+v", v)
		}
		taken, err := b.world.Net.Listen("10.0.0.5:6443")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for {
				c, err := taken.Accept()
				if err != nil {
					return
				}
				_ = c.Close() // whoever dialled sees that it ended
			}
		}()
		stop := b.serve(1)
		if v := look(); !v.Known || v.Value.Served || v.Value.MAC != mac || v.Value.Why == "" {
			t.Errorf("a VIP that another machine has is %+v", v)
		}
		if err := taken.Close(); err != nil {
			t.Fatal(err)
		}
		b.serve(2)
		time.Sleep(time.Minute)
		if v := look(); !v.Known || v.Value != (cluster.VirtualIP{Served: true}) {
			t.Errorf("the VIP is %+v", v)
		}
		stop()
		time.Sleep(time.Minute)
		if v := look(); !v.Known || !v.Value.Served {
			t.Errorf("after its holder stopped the VIP is %+v", v)
		}
		b.desired.Spec.Network.VIP = netip.Addr{}
		if v := look(); v.Known {
			t.Errorf("where there is no VIP it is %+v", v)
		}
	})
}

func TestAPIThatIsNotReady(t *testing.T) {
	bubble(t, 1, func(b *bench) {
		b.serve(1)
		b.world.Inject(world.Fault{System: "kube", Op: "GET /readyz", Kind: world.Answer, Status: 500, Text: "no"})
		for range 3 {
			o := b.look()
			if s := o.APIs["cp-1"]; !s.Known || s.Value || !strings.Contains(s.Why, "500") {
				b.Errorf("the API is %+v", s)
			}
			b.mustNotKnow(o, "500")
			time.Sleep(time.Second)
		}
		if calls := b.calls(); calls["GET /readyz"] != 3 {
			b.Errorf("an API that is not ready is asked each time: %v", calls)
		}
		b.world.Heal()
		b.mustKnow(b.look(), 0)
	})
}

func TestCredentialsThatAreNotAccepted(t *testing.T) {
	bubble(t, 1, func(b *bench) {
		b.serve(1)
		b.desired.Access.Kube = b.ca.access(time.Hour, "nobodies")
		b.mustNotKnow(b.look(), "it does not accept the agent's certificate: nodes is forbidden")

		other := newAuthority(b).access(time.Hour, "system:masters")
		other.CA = cluster.NewSecret(b.ca.PEM)
		b.desired.Access.Kube = other
		b.mustNotKnow(b.look(), "") // the old ones are good for long

		b.desired.Access.Kube = newAuthority(b).access(time.Hour, "system:masters")
		o := b.look()
		b.mustNotKnow(o, "another cluster")
		if s := o.APIs["cp-1"]; s.Known {
			b.Errorf("an unknown server is %+v", s)
		}

		b.desired.Access.Kube = cluster.Credentials{}
		b.mustNotKnow(b.look(), "no secrets")

		wrong := b.ca.access(time.Hour, "system:masters")
		wrong.Key = b.ca.access(time.Hour, "system:masters").Key
		b.desired.Access.Kube = wrong
		b.mustNotKnow(b.look(), "do not go together")

		b.desired.Access.Kube = b.ca.access(time.Hour, "system:masters")
		b.mustKnow(b.look(), 0)
	})
}

// TestRefused: whoever looks learns that the API refuses to be looked at, and
// no one is called to look again for it, or the two would never stop.
func TestRefused(t *testing.T) {
	bubble(t, 1, func(b *bench) {
		b.serve(1)
		b.world.Inject(world.Fault{Op: "* /api/v1/nodes", Kind: world.Answer, Status: 403, Text: "nodes is forbidden"})
		for range 3 {
			b.mustNotKnow(b.look(), "it does not accept the agent's certificate: nodes is forbidden")
			time.Sleep(time.Minute)
		}
		if n := b.changes.Load(); n != 0 {
			b.Errorf("somebody was called to look again %d times", n)
		}
		b.world.Heal()
		b.mustKnow(b.look(), 0)
	})
}

// TestCredentialsAreRenewed: newer ones are taken when the present ones grow
// old, not whenever they are minted.
func TestCredentialsAreRenewed(t *testing.T) {
	bubble(t, 1, func(b *bench) {
		b.serve(1)
		b.look()
		first := b.cluster.conn
		for range 17 { // hours
			time.Sleep(time.Hour)
			b.desired.Access.Kube = b.ca.access(24*time.Hour, "system:masters")
			b.mustKnow(b.look(), 0)
			if b.cluster.conn != first {
				b.Fatal("credentials with a good part of their life left were thrown away")
			}
		}
		for range 30 {
			time.Sleep(time.Hour)
			b.desired.Access.Kube = b.ca.access(24*time.Hour, "system:masters")
			b.mustKnow(b.look(), 0)
		}
		if b.cluster.conn == first {
			b.Error("credentials were kept beyond their life")
		}
		synctest.Wait()
		if n := b.link.Open(); n != 1 {
			b.Errorf("%d connections are open", n)
		}
	})
}

// TestFaults: whatever goes wrong with one call, the nodes are never taken for
// an empty list, and are known again soon.
func TestFaults(t *testing.T) {
	faults := []world.Fault{
		{Kind: world.LoseRequest}, {Kind: world.LoseReply}, {Kind: world.Slow, Delay: 20 * time.Second},
		{Kind: world.Answer, Status: 500, Text: "etcdserver: leader changed"}, {Kind: world.Answer, Status: 429, Text: "too many"},
		{Kind: world.Answer, Status: 410, Text: "too old"}, {Kind: world.Answer, Status: 401, Text: "Unauthorized"},
	}
	for _, fault := range faults {
		for _, op := range []string{"GET /readyz", "GET /api/v1/nodes", "WATCH /api/v1/nodes"} {
			for nth := range 3 {
				fault.Op, fault.Nth = op, nth+1
				t.Run(string(fault.Kind)+" "+strings.ReplaceAll(op, "/", "_"), func(t *testing.T) {
					bubble(t, 2, func(b *bench) {
						b.serve(1)
						b.serve(2)
						ready, _ := b.join("wk-1", "10.0.0.21", 501)
						<-ready
						b.world.Inject(fault)
						for range 20 {
							if o := b.look(); o.Nodes.Known && len(o.Nodes.Value) != 1 {
								b.Fatalf("nodes are %+v", o.Nodes)
							}
							time.Sleep(5 * time.Second)
						}
						b.mustKnow(b.look(), 1)
					})
				})
			}
		}
	}
}

// TestForgetsControlPlanes that left the inventory.
func TestForgetsControlPlanes(t *testing.T) {
	bubble(t, 2, func(b *bench) {
		b.serve(1)
		b.serve(2)
		b.look()
		b.desired.Spec.Nodes = b.desired.Spec.Nodes[1:]
		o := b.look()
		b.mustKnow(o, 0)
		if len(o.APIs) != 1 || len(b.cluster.apis) != 1 {
			b.Errorf("APIs are %v, remembered %v", o.APIs, b.cluster.apis)
		}
		if server, ok := b.cluster.API(); !ok || server != "https://10.0.0.12:6443" {
			b.Errorf("API is %s %v", server, ok)
		}
		b.desired.Spec.Nodes = nil
		b.mustNotKnow(b.look(), "no control plane")
	})
}

// TestClosed: a Cluster that was closed makes no request.
func TestClosed(t *testing.T) {
	bubble(t, 1, func(b *bench) {
		b.serve(1)
		b.look()
		b.cluster.Close()
		b.cluster.Close()
		b.calls()
		b.mustNotKnow(b.look(), "stops")
		if calls := b.calls(); len(calls) != 0 {
			b.Errorf("calls %v", calls)
		}
	})
}

// TestGivesUpInTime when a context ends.
func TestGivesUpInTime(t *testing.T) {
	bubble(t, 1, func(b *bench) {
		b.serve(1)
		b.world.Inject(world.Fault{Op: "WATCH /api/v1/nodes", Kind: world.Slow, Delay: 20 * time.Second}, world.Fault{Op: "GET /api/v1/nodes", Kind: world.Slow, Delay: time.Hour})
		began := time.Now()
		b.mustNotKnow(b.look(), "in time")
		if took := time.Since(began); took > listWithin+time.Second {
			b.Errorf("took %v", took)
		}
		// Whoever gave up is notified when the list has come.
		time.Sleep(30 * time.Second)
		if b.changes.Load() == 0 {
			b.Error("no one was notified")
		}
		b.mustKnow(b.look(), 0)

		done, end := context.WithCancel(context.Background())
		end()
		b.cluster.observing <- struct{}{}
		var o cluster.Observed
		b.cluster.Observe(done, b.desired, &o)
		<-b.cluster.observing
		b.mustNotKnow(o, "another look")
	})
}

// TestLoopback does it all over real sockets in real time.
func TestLoopback(t *testing.T) {
	prefix, release, err := world.FreePrefix()
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	net24 := strings.TrimSuffix(prefix.Addr().String(), ".0")
	b := newBench(t, world.Config{Speed: 1000, Network: world.Loopback{}}, net24, 1)
	b.soon("refused", func(o cluster.Observed) bool {
		s := o.APIs["cp-1"]
		return !o.Nodes.Known && strings.Contains(o.Nodes.Why, "nothing listens there") && s.Known && !s.Value
	})
	b.serve(1)
	ready, _ := b.join("wk-1", net24+".21", 501)
	<-ready
	b.soon("known", func(o cluster.Observed) bool { return o.Nodes.Known && len(o.Nodes.Value) == 1 })
}
