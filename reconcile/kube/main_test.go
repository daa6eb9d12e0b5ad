package kube

import (
	"context"
	"crypto/x509/pkix"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/talos-agent/talos-agent/internal/cluster"
	labkube "github.com/talos-agent/talos-agent/internal/lab/kube"
	"github.com/talos-agent/talos-agent/internal/lab/world"
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

// access mints credentials that live for ttl, for somebody in a group.
func (a *authority) access(ttl time.Duration, group string) cluster.Credentials {
	a.t.Helper()
	cert, key, err := a.Client(ttl, "admin", group)
	if err != nil {
		a.t.Fatal(err)
	}
	return cluster.Credentials{CA: cluster.NewSecret(a.PEM), Cert: cluster.NewSecret(cert), Key: cluster.NewSecret(key), NotAfter: time.Now().Add(ttl), Seal: seal}
}

// bench is a world with Kubernetes clusters and a Cluster that looks at one.
type bench struct {
	testing.TB
	world   *world.World
	kube    *labkube.Clusters
	ca      *authority
	cluster *Cluster
	desired cluster.Desired
	changes atomic.Int64
	link    *world.Link
}

// newBench makes a bench with so many control planes in the inventory; nothing
// of them runs.
func newBench(t testing.TB, c world.Config, prefix string, planes int) *bench {
	t.Helper()
	w, err := world.New(c)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{TB: t, world: w, kube: labkube.New(labkube.Config{World: w}), ca: newAuthority(t), link: world.NewLink(w.Net)}
	for i := range planes {
		b.desired.Spec.Nodes = append(b.desired.Spec.Nodes, cluster.Node{
			Name: fmt.Sprintf("cp-%d", i+1), Role: cluster.ControlPlane, IP: netip.MustParseAddr(fmt.Sprintf("%s.%d", prefix, 11+i)),
		})
	}
	b.desired.Spec.Network.VIP = netip.MustParseAddr(prefix + ".5")
	b.desired.Access.Kube = b.ca.access(24*time.Hour, "system:masters")
	b.cluster = New(Config{Dial: b.link.DialContext, OnChange: func() { b.changes.Add(1) }})
	t.Cleanup(func() {
		b.cluster.Close()
		// One that was just dialled, or read to its end, is closed by whoever
		// did so.
		for end := time.Now().Add(time.Minute); b.link.Open() > 0; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Errorf("%d connections are open after Close", b.link.Open())
				break
			}
		}
		b.kube.Close()
		w.Close()
	})
	return b
}

// serve brings the API of the nth control plane up, and returns when it is.
func (b *bench) serve(n int) (stop func()) {
	b.Helper()
	node := b.desired.Spec.Nodes[n-1]
	up := make(chan bool, 16)
	stop = b.kube.ServeAPI(b.ca.Fingerprint(), "etcd-1", world.ControlPlane{
		Node: node.Name, Address: node.IP, VIP: b.desired.Spec.Network.VIP, CACert: b.ca.PEM, CAKey: b.ca.KeyPEM, Kubernetes: "v1.36.1",
		CNI: "flannel", KubeProxy: true, PodCIDR: "10.244.0.0/16", ServiceCIDR: "10.96.0.0/12",
	}, func(ready bool) { up <- ready })
	if !<-up {
		b.Fatal("the API answers that it is not ready")
	}
	return stop
}

// join lets a kubelet register, and returns a channel that reports Ready.
func (b *bench) join(name, addr string, vmid int) (ready <-chan bool, stop func()) {
	notified := make(chan bool, 16)
	stop = b.kube.RunKubelet(b.ca.Fingerprint(), world.Kubelet{Node: name, Address: netip.MustParseAddr(addr), Kubernetes: "v1.36.1", Talos: "v1.14.1", VMID: vmid},
		func(ready bool) { notified <- ready })
	return notified, stop
}

// look is one observation, bounded as the loop bounds it.
func (b *bench) look() cluster.Observed {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	var o cluster.Observed
	b.cluster.Observe(ctx, b.desired, &o)
	return o
}

// soon looks, in real time, until cond holds.
func (b *bench) soon(what string, cond func(cluster.Observed) bool) {
	b.Helper()
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		o := b.look()
		if cond(o) {
			return
		}
		if time.Now().After(end) {
			b.Fatalf("%s: %+v, %+v", what, o.APIs, o.Nodes)
		}
	}
}

// calls counts the calls of the cluster since it was asked last.
func (b *bench) calls() map[string]int {
	counts := map[string]int{}
	for _, c := range b.world.Calls() {
		counts[c.Op]++
	}
	b.world.ForgetCalls()
	return counts
}

// bubble runs a test in virtual time over a network in memory.
func bubble(t *testing.T, planes int, f func(b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f(newBench(t, world.Config{}, "10.0.0", planes))
	})
}

var (
	// seal is that of every cluster's notes.
	seal = cluster.SecretString("seal")
	// plainReader knows of no labels and no notes.
	plainReader nodeReader
)
