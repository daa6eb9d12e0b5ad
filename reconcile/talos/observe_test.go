package talos

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"maps"
	"math/big"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab/world"
	"github.com/talos-agent/talos-agent/reconcile/talos/etcdmember"
)

// TestBringUp takes a cluster from machines in maintenance mode to an etcd in
// which all control planes vote, woken by changes alone.
func TestBringUp(t *testing.T) {
	nodes := []cluster.Node{cp(1), cp(2), cp(3), wk(1)}
	for _, version := range []string{"v1.8.4", "v1.9.6", "v1.10.9", "v1.11.6", "v1.12.11", newest, "v1.14.1"} {
		t.Run(version, func(t *testing.T) {
			inBubble(t, version, nodes, func(b *bench) {
				b.bringUp(nodes...)
				o := b.observe()
				for _, n := range nodes {
					m := o.Machines[n.Name]
					if m.Reach != cluster.Configured || m.Why != "" || m.UUID != n.UUID || len(m.MACs) != 1 || m.MACs[0] != n.MAC || m.Talos != version ||
						m.Stage != "running" || m.Schematic != schematic || m.ConfigDigest != b.desired.Configs[n.Name].Digest {
						t.Errorf("%s: %+v", n.Name, m)
					}
					if m.Ready || len(m.Unmet) != 1 || !strings.HasPrefix(m.Unmet[0], "nodeReady: node ") {
						t.Errorf("%s waits for %q, although no Kubernetes runs here", n.Name, m.Unmet)
					}
					if s := m.Services["kubelet"]; s.State != "Running" || !s.Healthy || s.Message != "" {
						t.Errorf("kubelet of %s: %+v", n.Name, s)
					}
				}
				if !o.Members.Known || len(o.Members.Value) != 3 {
					t.Fatalf("members %+v", o.Members)
				}
				for _, n := range nodes[:3] {
					m, ok := etcdmember.Find(o.Members.Value, n)
					if !ok || m.Name != n.Name || m.Address != n.IP.String() || m.ID == 0 || m.Learner {
						t.Errorf("member %s: %+v", n.Name, m)
					}
				}
				calls := b.calls()
				if calls["ApplyConfiguration"] != len(nodes) || calls["Bootstrap"] != 1 {
					t.Errorf("calls %v, want one ApplyConfiguration per node and one Bootstrap", calls)
				}
				b.wantNoViolations()
			})
		})
	}
}

// TestMaintenance: what a machine without a config reports. Up to v1.9 there is
// no way to ask it for its version.
func TestMaintenance(t *testing.T) {
	for version, talos := range map[string]string{"v1.8.4": "", "v1.9.6": "", "v1.10.9": "v1.10.9", "v1.12.11": "v1.12.11", newest: newest, "v1.14.1": "v1.14.1"} {
		for _, keys := range []bool{true, false} {
			t.Run(fmt.Sprint(version, " keys ", keys), func(t *testing.T) {
				inBubble(t, version, []cluster.Node{cp(1)}, func(b *bench) {
					if !keys {
						b.desired.Access = cluster.Access{}
					}
					b.power(cp(1))
					m := b.see(cp(1))
					if m.Reach != cluster.Maintenance || m.Why != "" || m.UUID != cp(1).UUID || m.Stage != "maintenance" || m.Talos != talos ||
						len(m.MACs) != 1 || m.MACs[0] != cp(1).MAC || m.Schematic != schematic || m.Services != nil || m.ConfigDigest != "" {
						t.Errorf("%+v", m)
					}
					b.calls()
					time.Sleep(time.Hour)
					b.wantReach(cp(1), cluster.Maintenance, "")
					if calls := b.calls(); len(calls) > 0 {
						t.Errorf("an hour in maintenance mode cost %v", calls)
					}
				})
			})
		}
	}
}

func TestSilent(t *testing.T) {
	inBubble(t, newest, []cluster.Node{cp(1), cp(2)}, func(b *bench) {
		// cp-2's host is known to the network, and nothing listens at its port.
		l, err := b.world.Net.Listen("10.5.0.12:1")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		b.wantReach(cp(1), cluster.Silent, "nothing answers at 10.5.0.11:50000: no route to host")
		b.wantReach(cp(2), cluster.Silent, "nothing answers at 10.5.0.12:50000: connection refused")
		b.power(cp(1))
		b.untilReach(cp(1), cluster.Maintenance)
	})
}

// TestNoAddress: a machine whose address is not known is unknown, and not silent, and is found when there is one.
func TestNoAddress(t *testing.T) {
	known := cp(1)
	lost := known
	lost.IP = netip.Addr{}
	inBubble(t, newest, []cluster.Node{lost}, func(b *bench) {
		b.power(known)
		b.wantReach(lost, cluster.ReachUnknown, "its address is not known")
		b.desired.Spec.Nodes[0].IP = known.IP
		b.untilReach(known, cluster.Maintenance)
		b.desired.Spec.Nodes[0].IP = netip.Addr{}
		b.wantReach(lost, cluster.ReachUnknown, "its address is not known")
	})
}

// TestFirstLook: a machine that swallows packets is unknown at first, because
// Observe does not wait for it, and silent once the dial has given up.
func TestFirstLook(t *testing.T) {
	inBubble(t, newest, []cluster.Node{cp(1), cp(2)}, func(b *bench) {
		b.power(cp(2))
		b.world.Net.(*world.Memory).Darken("10.5.0.11", true)
		start := time.Now()
		o := b.observe()
		if took := time.Since(start); took != firstLook {
			t.Errorf("the first look took %v, want %v", took, firstLook)
		}
		if m := o.Machines["cp-1"]; m.Reach != cluster.ReachUnknown || m.Why != "there is no answer yet" {
			t.Errorf("%+v", m)
		}
		if m := o.Machines["cp-2"]; m.Reach != cluster.Maintenance {
			t.Errorf("%+v", m)
		}
		b.untilReach(cp(1), cluster.Silent)
		if took := time.Since(start); took != dialWithin {
			t.Errorf("silence was noticed after %v, want %v", took, dialWithin)
		}
		start = time.Now()
		b.observe()
		if took := time.Since(start); took != 0 {
			t.Errorf("a later look took %v", took)
		}
	})
}

func TestFirstLookEndsWithItsContext(t *testing.T) {
	inBubble(t, newest, []cluster.Node{cp(1)}, func(b *bench) {
		b.world.Net.(*world.Memory).Darken("10.5.0.11", true)
		start := time.Now()
		var o cluster.Observed
		b.fleet.Observe(within(time.Second), b.desired, &o)
		if took := time.Since(start); took != time.Second || o.Machines["cp-1"].Reach != cluster.ReachUnknown {
			t.Errorf("after %v: %+v", took, o.Machines)
		}
	})
}

// TestUnexpectedMachines: everybody who answers and is not the machine we made.
func TestUnexpectedMachines(t *testing.T) {
	n := cp(1)
	for _, tc := range []struct {
		name  string
		stage func(b *bench) (undo func())
		want  cluster.Reach
		why   string
	}{
		{"another UUID in maintenance mode", func(b *bench) func() {
			g := guest(n, newest)
			g.UUID = cp(2).UUID
			return b.boot(g)
		}, cluster.Unexpected, "its SMBIOS UUID is " + cp(2).UUID + ", expected " + n.UUID},
		{"another MAC in maintenance mode", func(b *bench) func() {
			g := guest(n, newest)
			g.MAC = "bc:24:11:ff:ff:ff"
			return b.boot(g)
		}, cluster.Unexpected, "it has no network card with MAC " + n.MAC + " (it has BC:24:11:FF:FF:FF)"},
		{"another machine of the cluster", func(b *bench) func() {
			g := guest(n, newest)
			g.UUID = cp(2).UUID
			undo := b.boot(g)
			b.rawApply(n, render(b, b.secrets, n, newest))
			return undo
		}, cluster.Unexpected, "it is another machine of this cluster: its SMBIOS UUID is " + cp(2).UUID},
		{"another cluster", func(b *bench) func() {
			undo := b.boot(guest(n, newest))
			other, err := otherSecrets()
			if err != nil {
				t.Fatal(err)
			}
			b.rawApply(n, render(b, other, n, newest))
			return undo
		}, cluster.Unexpected, "it belongs to another Talos cluster: its certificate is signed by another authority"},
		{"somebody else's TLS", func(b *bench) func() {
			cert, err := b.world.PKI.Server("10.5.0.11")
			if err != nil {
				t.Fatal(err)
			}
			return b.impostor(n, serveTLS(&tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"}}))
		}, cluster.Unexpected, "its certificate is neither this cluster's nor that of a Talos machine"},
		{"no TLS", func(b *bench) func() {
			return b.impostor(n, func(c net.Conn) {
				_, _ = c.Write([]byte("220 smtp.example.org ESMTP\r\n"))
				_, _ = c.Read(make([]byte, 1))
			})
		}, cluster.Unexpected, "does not speak TLS"},
		{"nothing but TCP", func(b *bench) func() {
			return b.impostor(n, func(c net.Conn) { _, _ = c.Read(make([]byte, 1)) })
		}, cluster.Silent, "accepts connections and then does not answer: EOF"},
		{"no common TLS", func(b *bench) func() {
			cert, err := b.world.PKI.Server("10.5.0.11")
			if err != nil {
				t.Fatal(err)
			}
			return b.impostor(n, serveTLS(&tls.Config{Certificates: []tls.Certificate{cert}, MaxVersion: tls.VersionTLS12}))
		}, cluster.ReachUnknown, "the TLS handshake with 10.5.0.11:50000 fails"},
		{"our certificate for another address", func(b *bench) func() {
			undo := b.boot(guest(n, newest))
			// The node's network lies in the pod network: Talos takes no address
			// of it for the node's own.
			b.rawApply(n, render(b, b.secrets, n, newest, "cluster: {network: {podSubnets: [10.5.0.0/16]}}"))
			return undo
		}, cluster.ReachUnknown, "signed by this cluster's authority, but not to be trusted: x509: certificate is valid for 127.0.0.1, ::1, not 10.5.0.11"},
		{"another node of the cluster has the address", func(b *bench) func() {
			g := guest(cp(2), newest)
			undo := b.boot(g)
			b.rawApply(cp(2), render(b, b.secrets, cp(2), newest))
			b.divert.Store("10.5.0.11:50000", "10.5.0.12:50000")
			return undo
		}, cluster.ReachUnknown, "cp-2 of this cluster answers there: its certificate is for 10.5.0.12, not for 10.5.0.11"},
		{"our certificate, expired", func(b *bench) func() {
			return b.impostor(n, serveTLS(b.expired(n)))
		}, cluster.ReachUnknown, "signed by this cluster's authority, but not to be trusted: it is good from 1999-12-30T"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, newest, []cluster.Node{n}, func(b *bench) {
				undo := tc.stage(b)
				b.calls()
				b.wantReach(n, tc.want, tc.why)
				if m := b.see(n); m.OtherAuthority != (tc.name == "another cluster") {
					t.Errorf("%+v", m)
				}
				time.Sleep(time.Minute)
				b.wantReach(n, tc.want, tc.why)
				before := b.reported.Load()
				time.Sleep(time.Minute)
				if now := b.reported.Load(); now != before {
					t.Errorf("nothing changed, and that was reported %d times", now-before)
				}

				// And nothing secret goes to any of them.
				b.most.Store(0)
				cfg := b.config(n)
				err := b.fleet.Apply(within(10*time.Minute), b.desired, n, cfg)
				if err == nil {
					t.Error("a config was applied")
				}
				if calls := b.calls(); calls["ApplyConfiguration"] > 0 || b.most.Load() > int64(len(cfg.Bytes.Reveal()))/2 {
					t.Errorf("the config was sent: %v, %d bytes over one connection", calls, b.most.Load())
				}
				if err := b.fleet.Bootstrap(within(10*time.Minute), b.desired, n); err == nil {
					t.Error("etcd was founded")
				}
				for _, stage := range []bool{false, true} {
					if err := b.fleet.Change(within(10*time.Minute), b.desired, n, cfg, stage); err == nil {
						t.Error("its config was changed")
					}
				}
				if err := b.fleet.Reboot(within(10*time.Minute), b.desired, n, "some boot", nil); err == nil {
					t.Error("it has rebooted")
				}
				if err := b.fleet.Forfeit(within(10*time.Minute), b.desired, n); err == nil {
					t.Error("it gave up leadership")
				}
				if calls := b.calls(); calls["Bootstrap"]+calls["ApplyConfiguration"]+calls["Reboot"]+calls["EtcdForfeitLeadership"] > 0 {
					t.Errorf("it was asked to change: %v", calls)
				}
				b.noSecrets("an error", cfg, fmt.Sprint(err))
				undo()
			})
		})
	}
}

// TestKeysStayHome: who only pretends to be in maintenance mode, and asks for
// the client's certificate, does not get it.
func TestKeysStayHome(t *testing.T) {
	inBubble(t, newest, []cluster.Node{cp(1)}, func(b *bench) {
		pki, err := rsa.GenerateKey(rand.Reader, 2048)
		if err != nil {
			t.Fatal(err)
		}
		self := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "maintenance-service.talos.dev"}, NotAfter: time.Now().Add(time.Hour)}
		der, err := x509.CreateCertificate(rand.Reader, self, self, pki.Public(), pki)
		if err != nil {
			t.Fatal(err)
		}
		var shown, seen atomic.Int64
		stop := b.impostor(cp(1), serveTLS(&tls.Config{
			Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: pki}}, NextProtos: []string{"h2"},
			ClientAuth: tls.RequestClientCert,
			VerifyConnection: func(cs tls.ConnectionState) error {
				shown.Add(int64(len(cs.PeerCertificates)))
				seen.Add(1)
				return nil
			},
		}))
		b.observe()
		b.untilReach(cp(1), cluster.ReachUnknown)
		if err := b.fleet.Apply(within(time.Minute), b.desired, cp(1), b.config(cp(1))); err == nil {
			t.Error("a config was applied")
		}
		if seen.Load() < 2 || shown.Load() > 0 {
			t.Errorf("%d handshakes, %d certificates shown", seen.Load(), shown.Load())
		}
		stop()
	})
}

// expired is a node's certificate of the cluster, of some days ago.
func (b *bench) expired(n cluster.Node) *tls.Config {
	b.Helper()
	ca, err := tls.X509KeyPair(b.secrets.Certs.OS.Crt, b.secrets.Certs.OS.Key)
	if err != nil {
		b.Fatal(err)
	}
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		b.Fatal(err)
	}
	old := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(-24 * time.Hour), IPAddresses: []net.IP{n.IP.AsSlice()}}
	der, err := x509.CreateCertificate(rand.Reader, old, ca.Leaf, public, ca.PrivateKey)
	if err != nil {
		b.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, NextProtos: []string{"h2"}}
}

// boot runs a guest until it is in maintenance mode.
func (b *bench) boot(g world.Guest) (off func()) {
	b.lab.PowerOn(g)
	time.Sleep(b.world.Latency.Boot + time.Second)
	return func() { b.lab.PowerOff(g.VMID) }
}

// TestObservedIsNoNews: a change is reported at once; of those right after it, what an observation has
// seen meanwhile is not reported once more, and all else is.
func TestObservedIsNoNews(t *testing.T) {
	inBubble(t, newest, []cluster.Node{wk(1)}, func(b *bench) {
		b.wantReach(wk(1), cluster.Silent, "")
		time.Sleep(time.Minute)
		b.fleet.mu.Lock()
		w := b.fleet.watchers[wk(1).Name]
		m := w.machine
		b.fleet.mu.Unlock()
		w.stop() // what it sees is published here
		time.Sleep(time.Minute)
		for i, c := range []struct {
			observed bool
			want     int64
		}{{true, 1}, {false, 2}, {true, 1}} {
			before := b.reported.Load()
			for j := range 3 {
				m.Why = fmt.Sprintf("%d.%d", i, j)
				w.publish(m)
				time.Sleep(time.Millisecond)
			}
			if c.observed {
				if why := b.see(wk(1)).Why; why != m.Why {
					t.Errorf("observed %q, want %q", why, m.Why)
				}
			}
			time.Sleep(time.Second)
			if got := b.reported.Load() - before; got != c.want {
				t.Errorf("%d: reported %d times, want %d", i, got, c.want)
			}
		}
	})
}

// TestNoKeys: without the cluster's keys a configured machine is unknown; with
// them it is seen at once.
func TestNoKeys(t *testing.T) {
	inBubble(t, newest, []cluster.Node{wk(1), cp(1)}, func(b *bench) {
		b.bringUp(cp(1), wk(1))
		b.fleet.Close()
		b.fleet = b.newFleet()
		access := b.desired.Access
		b.desired.Access = cluster.Access{}
		b.wantReach(cp(1), cluster.ReachUnknown, "no keys to ask it with")
		if o := b.observe(); o.Members.Known {
			t.Errorf("members %+v", o.Members)
		}
		b.desired.Access.Talos = cluster.Credentials{CA: cluster.SecretString("x"), Cert: cluster.SecretString("y"), Key: cluster.SecretString("z")}
		b.wantReach(cp(1), cluster.ReachUnknown, "certificate and its key do not go together")
		b.desired.Access.Talos = access.Talos
		b.desired.Access.Talos.CA = cluster.SecretString("-----BEGIN")
		b.wantReach(cp(1), cluster.ReachUnknown, "authority holds no PEM certificate")
		b.desired.Access = access
		b.wantReach(cp(1), cluster.Configured, "")
	})
}

// TestNewestKeys: what is connected stays, what connects uses the newest
// credentials.
func TestNewestKeys(t *testing.T) {
	inBubble(t, newest, []cluster.Node{cp(1)}, func(b *bench) {
		b.bringUp(cp(1))
		b.calls()
		b.mint()
		b.wantReach(cp(1), cluster.Configured, "")
		if calls := b.calls(); len(calls) > 0 {
			t.Errorf("new credentials cost %v", calls)
		}
		time.Sleep(366 * 24 * time.Hour)
		if err := b.lab.Reboot(401); err != nil {
			t.Fatal(err)
		}
		m := b.until("the old credentials are refused", func(o cluster.Observed) bool { return o.Machines["cp-1"].Reach == cluster.ReachUnknown }).Machines["cp-1"]
		if !strings.Contains(m.Why, "it answers with this cluster's certificates, but cannot") {
			t.Errorf("%+v", m)
		}
		b.mint()
		b.untilReach(cp(1), cluster.Configured)
	})
}

// TestAnotherAuthority: what was proven by other keys is proven no longer.
func TestAnotherAuthority(t *testing.T) {
	inBubble(t, newest, []cluster.Node{cp(1)}, func(b *bench) {
		b.bringUp(cp(1))
		other, err := otherSecrets()
		if err != nil {
			t.Fatal(err)
		}
		b.desired.Access.Talos = minted(t, other, time.Now())
		b.wantReach(cp(1), cluster.Unexpected, "another Talos cluster")
	})
}

// TestComesAndGoes follows a machine through everything that can happen to it.
func TestComesAndGoes(t *testing.T) {
	inBubble(t, newest, []cluster.Node{cp(1), wk(1)}, func(b *bench) {
		b.bringUp(cp(1), wk(1))
		for _, step := range []struct {
			what string
			do   func() error
			want cluster.Reach
		}{
			{"reboot", func() error { return b.lab.Reboot(501) }, cluster.Silent},
			{"back", func() error { return nil }, cluster.Configured},
			{"hang", func() error { return b.lab.Kill(501) }, cluster.Silent},
			{"power cycle", func() error { return b.lab.Reboot(501) }, cluster.Configured},
			{"cable pulled", func() error { return b.lab.Partition(501, true) }, cluster.Silent},
			{"cable back", func() error { return b.lab.Partition(501, false) }, cluster.Configured},
			{"off", func() error { b.lab.PowerOff(501); return nil }, cluster.Silent},
			{"made anew", func() error { b.lab.PowerOn(guest(wk(1), newest)); return nil }, cluster.Maintenance},
		} {
			if err := step.do(); err != nil {
				t.Fatal(err)
			}
			b.untilReach(wk(1), step.want)
			b.wantReach(cp(1), cluster.Configured, "")
		}
	})
}

// TestInventoryMoves: watchers follow the inventory.
func TestInventoryMoves(t *testing.T) {
	inBubble(t, newest, []cluster.Node{cp(1), wk(1)}, func(b *bench) {
		b.power(cp(1), wk(1))
		b.observe()
		if n := b.open(); n != 2 {
			t.Fatalf("%d connections, want 2", n)
		}
		// A node leaves.
		b.desired.Spec.Nodes = []cluster.Node{cp(1)}
		if o := b.observe(); len(o.Machines) != 1 {
			t.Errorf("%+v", o.Machines)
		}
		synctest.Wait()
		if n := b.open(); n != 1 {
			t.Errorf("%d connections, want 1", n)
		}
		// A node gets another MAC: it is another machine from now on.
		moved := cp(1)
		moved.MAC = wk(1).MAC
		b.desired.Spec.Nodes = []cluster.Node{moved, wk(1)}
		b.wantReach(moved, cluster.Unexpected, "no network card with MAC")
		b.wantReach(wk(1), cluster.Maintenance, "")
	})
}

// TestQuiet: looking at a cluster in which nothing happens costs nothing, but
// for the members of etcd, asked for in each pass of which the one before is a minute old.
func TestQuiet(t *testing.T) {
	nodes := []cluster.Node{cp(1), cp(2), cp(3)}
	for i := range 97 {
		nodes = append(nodes, wk(i+1))
	}
	inBubble(t, newest, nodes, func(b *bench) {
		b.bringUp(nodes...)
		time.Sleep(2 * membersFor)
		b.observe()
		b.calls()
		before := b.reported.Load()
		for range int(membersFor/time.Second) - 1 {
			time.Sleep(time.Second)
			if o := b.observe(); len(o.Machines) != 100 || !o.Members.Known {
				t.Fatalf("%d machines, members %+v", len(o.Machines), o.Members)
			}
		}
		if calls := b.calls(); len(calls) > 0 {
			t.Errorf("quiet passes in %v cost %v", membersFor, calls)
		}
		for range 10 {
			time.Sleep(time.Minute)
			b.observe()
		}
		if calls := b.calls(); len(calls) != 2 || calls["EtcdMemberList"] != 30 || calls["EtcdStatus"] != 30 {
			t.Errorf("ten quiet passes a minute apart cost %v, want one EtcdMemberList and one EtcdStatus of each control plane in each", calls)
		}
		if now := b.reported.Load(); now != before {
			t.Errorf("%d changes were reported", now-before)
		}
		if n := b.open(); n != len(nodes) {
			t.Errorf("%d connections, want one per node", n)
		}
	})
}

// TestChangesAreReported: every change is reported, a burst of them not one by one,
// and what Observe itself has returned is no news.
func TestChangesAreReported(t *testing.T) {
	var nodes []cluster.Node
	for i := range 50 {
		nodes = append(nodes, wk(i+1))
	}
	inBubble(t, newest, nodes, func(b *bench) {
		b.observe()
		time.Sleep(time.Minute)
		if n := b.reported.Load(); n != 0 {
			t.Errorf("%d changes were reported when there were none", n)
		}
		b.power(nodes...)
		time.Sleep(5 * time.Second)
		if n := b.reported.Load(); n < 1 || n > 50*20/10 {
			t.Errorf("50 machines came up, and that was reported %d times", n)
		}
		for name, m := range b.observe().Machines {
			if m.Reach != cluster.Maintenance {
				t.Errorf("%s: %+v", name, m)
			}
		}
		before := b.reported.Load()
		if err := b.lab.Reboot(501); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if n := b.reported.Load() - before; n != 2 {
			t.Errorf("a reboot was reported %d times, want 2: down and up", n)
		}
	})
}

// TestConfigIsFollowed: the digest is that of the active config, also after it
// was changed behind our back.
func TestConfigIsFollowed(t *testing.T) {
	inBubble(t, newest, []cluster.Node{cp(1)}, func(b *bench) {
		b.bringUp(cp(1))
		was := b.see(cp(1)).ConfigDigest
		now := render(t, b.secrets, cp(1), newest, "machine: {nodeLabels: {a: b}}")
		b.rawApply(cp(1), now)
		if got := b.see(cp(1)).ConfigDigest; got != now.Digest || got == was {
			t.Errorf("digest %s, want %s (was %s)", got, now.Digest, was)
		}
	})
}

// TestStaticPodsAreFollowed: a control plane shows what its static pods are made of by its
// config, each with the versions that a change counts up.
func TestStaticPodsAreFollowed(t *testing.T) {
	inBubble(t, newest, []cluster.Node{cp(1)}, func(b *bench) {
		b.bringUp(cp(1))
		image := func(name string) string { return "registry.k8s.io/" + name + ":v" + kubernetesFor(newest) }
		want := map[string]cluster.StaticPod{
			"kube-apiserver":          {Image: image("kube-apiserver"), Versions: "1111/1/1"},
			"kube-controller-manager": {Image: image("kube-controller-manager"), Versions: "/1/1"},
			"kube-scheduler":          {Image: image("kube-scheduler"), Versions: "/1/1"},
		}
		if got := b.see(cp(1)).StaticPods; !maps.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
		before := b.see(cp(1)).StaticPods
		b.rawApply(cp(1), render(t, b.secrets, cp(1), newest, "cluster: {scheduler: {extraArgs: {v: \"4\"}}}"))
		was := maps.Clone(want)
		want["kube-apiserver"] = cluster.StaticPod{Image: image("kube-apiserver"), Versions: "1112/1/1"}
		want["kube-scheduler"] = cluster.StaticPod{Image: image("kube-scheduler"), Versions: "/2/1"}
		if got := b.see(cp(1)).StaticPods; !maps.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
		if !maps.Equal(before, was) {
			t.Errorf("what was seen before has become %v", before)
		}
	})
}

// TestConfigsStayUnread: without a reader of configs, none is even asked for;
// an unreadable one causes no problem.
func TestConfigsStayUnread(t *testing.T) {
	for name, digest := range map[string]func([]byte) (string, error){
		"no digest": nil,
		"no sense":  func([]byte) (string, error) { return "", fmt.Errorf("secret: %w", syscall.EINVAL) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, newest, []cluster.Node{cp(1)}, func(b *bench) {
				b.bringUp(cp(1))
				b.fleet.Close()
				b.fleet = b.newFleet()
				b.fleet.digest = digest
				b.calls()
				if m := b.see(cp(1)); m.Reach != cluster.Configured || m.ConfigDigest != "" {
					t.Errorf("%+v", m)
				}
				if strings.Contains(b.log.String(), "secret") {
					t.Error("the error about a config was logged")
				}
				want := 4
				if digest == nil {
					want = 3
				}
				if n := b.calls()["Watch"]; n != want {
					t.Errorf("%d watches, want %d", n, want)
				}
			})
		})
	}
}

func TestObserveAfterClose(t *testing.T) {
	inBubble(t, newest, []cluster.Node{cp(1)}, func(b *bench) {
		b.power(cp(1))
		b.wantReach(cp(1), cluster.Maintenance, "")
		b.fleet.Close()
		b.fleet.Close()
		if n := b.open(); n > 0 {
			t.Errorf("%d connections are open", n)
		}
		o := b.observe()
		if m := o.Machines["cp-1"]; m.Reach != cluster.ReachUnknown || m.Why != "the agent is stopping" || o.Members.Known {
			t.Errorf("%+v", o)
		}
		if err := b.fleet.Apply(within(time.Minute), b.desired, cp(1), b.config(cp(1))); err == nil {
			t.Error("a closed fleet applied a config")
		}
		if err := b.fleet.Bootstrap(within(time.Minute), b.desired, cp(1)); err == nil {
			t.Error("a closed fleet bootstrapped")
		}
	})
}

func TestSwappedUUID(t *testing.T) {
	n := cp(1)
	for _, tc := range []struct {
		uuid string
		ok   bool
	}{
		{n.UUID, true},
		{strings.ToUpper(n.UUID), true},
		{swapUUID(n.UUID), true},
		{strings.ToUpper(swapUUID(n.UUID)), true},
		{cp(2).UUID, false},
		{"", false},
		{"not-a-uuid", false},
		{n.UUID + "0", false},
	} {
		if got := (identity{uuid: tc.uuid}).otherUUID(n); (got == "") != tc.ok {
			t.Errorf("%q: %q, want ok %v", tc.uuid, got, tc.ok)
		}
	}
	if got, want := swapUUID("00112233-4455-6677-8899-aabbccddeeff"), "33221100-5544-7766-8899-aabbccddeeff"; got != want {
		t.Errorf("swapped is %s, want %s", got, want)
	}
}

// TestSecureBootIsSeen: how a machine has booted is read in maintenance mode, and of one that runs a config.
func TestSecureBootIsSeen(t *testing.T) {
	for want, firmware := range map[string]*world.Firmware{cluster.OptionOn: {}, cluster.OptionOff: nil} {
		inBubble(t, "v1.14.1", []cluster.Node{cp(1)}, func(b *bench) {
			g := guest(cp(1), "v1.14.1")
			g.Firmware, g.Boot.Image.Signed, g.Boot.Image.Enrolls = firmware, true, true
			b.lab.PowerOn(g)
			b.untilReach(cp(1), cluster.Maintenance)
			if m := b.see(cp(1)); m.SecureBoot != want {
				t.Errorf("in maintenance mode: %q, want %q", m.SecureBoot, want)
			}
			b.apply(cp(1))
			if m := b.untilReach(cp(1), cluster.Configured); m.SecureBoot != want {
				t.Errorf("configured: %q, want %q", m.SecureBoot, want)
			}
		})
	}
}
