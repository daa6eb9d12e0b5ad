package kube

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/talos-agent/talos-agent/internal/lab/kube/containers"
	"github.com/talos-agent/talos-agent/internal/lab/kube/plumbing"
	"github.com/talos-agent/talos-agent/internal/lab/kube/rules"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// Config is what the service needs.
type Config struct {
	World *world.World // required
}

// Clusters are all Kubernetes clusters of a lab. It implements
// world.Kubernetes.
type Clusters struct {
	world *world.World
	ctx   context.Context
	end   context.CancelFunc
	wake  chan struct{} // capacity 1: there is something for run to look at
	done  chan struct{} // closed when run has ended
	gate  plumbing.Gate

	mu               sync.Mutex
	clusters         []*cluster // as founded
	kubelets         []*kubelet // that run, as started
	awaiting         []*awaiting
	pulled           map[string]bool
	closedRegistries map[string]bool     // by host
	balanced         map[netip.Addr]bool // addresses of load balancers
	exits            map[string]Exit
	effects          plumbing.Queue
	callbacks        []func() // callbacks to make once mu is free
}

var _ world.Kubernetes = (*Clusters)(nil)

// New makes a service without any cluster. Close it when done.
func New(c Config) *Clusters {
	ctx, end := context.WithCancel(c.World.Context())
	cs := &Clusters{
		world: c.World, balanced: map[netip.Addr]bool{}, ctx: ctx, end: end,
		wake: make(chan struct{}, 1), done: make(chan struct{}), pulled: map[string]bool{}, closedRegistries: map[string]bool{}, exits: map[string]Exit{},
	}
	go cs.runLoop()
	return cs
}

// Close stops every API and everything that goes on in the clusters. When it
// returns nothing of them runs any more; what they stored can still be viewed.
func (c *Clusters) Close() {
	c.end()
	<-c.done
	c.mu.Lock()
	var apis []*apiserver
	for _, cl := range c.clusters {
		apis = append(apis, cl.apis...)
	}
	c.mu.Unlock()
	for _, a := range apis {
		a.stopServing()
	}
	c.gate.CloseAndWait()
}

// ReadRegistry implements world.Storage. An etcd that nothing was stored in yet has nothing.
func (c *Clusters) ReadRegistry(ca, etcd string) world.Registry {
	c.mu.Lock()
	cl := c.clusterOf(ca, etcd)
	c.mu.Unlock()
	r, err := cl.store.readRegistry()
	if err != nil {
		c.world.Log.Error("lab cannot read what it stores", "etcd", etcd, "err", err)
	}
	return r
}

// FillRegistry implements world.Storage. The kubelets of the nodes that it holds have nodeGrace to come,
// from when an API answers. What the etcds held that no API of the cluster stores in is seen no more.
func (c *Clusters) FillRegistry(ca, etcd string, r world.Registry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, before := range c.clusters {
		before.lost = before.lost || before.ca == ca && len(before.apis) == 0
	}
	cl := c.clusterOf(ca, etcd)
	cl.lost = false
	for _, err := range cl.store.fillRegistry(r) {
		c.world.Report(etcd, "holds what no kube-apiserver can read: %v", err)
	}
	nodes, _ := cl.store.listObjects(resNodes, "")
	cl.restored = map[string]bool{}
	for _, o := range nodes {
		cl.restored[rules.TextAt(o.body, "spec", "podCIDR")] = true
	}
	cl.held = append(cl.held, func() {
		for _, ch := range cl.store.takeChanges() {
			cl.observeChange(ch)
		}
		for _, node := range slices.Sorted(maps.Keys(cl.nodes)) {
			cl.scheduleAfter(nodeGrace, func() {
				if !cl.kubelets[node].isAlive() {
					cl.loseNode(node)
				}
			})
		}
	})
}

// Objects returns copies of the objects of one resource in a namespace (""
// means all of them), in the order of their namespaces and names. If several
// etcds were founded with the CA, it returns the objects of all, the oldest
// etcd's first. "" means every CA.
func (c *Clusters) Objects(ca string, gvr schema.GroupVersionResource, namespace string) []unstructured.Unstructured {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []unstructured.Unstructured
	for _, cl := range c.clusters {
		if ca != "" && cl.ca != ca || cl.lost {
			continue
		}
		res := cl.store.findResource(gvr.GroupResource())
		if res == nil || !res.servesVersion(gvr.Version) {
			continue
		}
		objects, _ := cl.store.listObjects(res, namespace)
		for _, o := range objects {
			body := o.copyBody()
			body["apiVersion"] = gvr.GroupVersion().String()
			out = append(out, unstructured.Unstructured{Object: body})
		}
	}
	return out
}

// CloseRegistry makes images that no node has yet unavailable, if they come from
// this registry ("ghcr.io"); OpenRegistry ends that. What waits for one is pulled
// then.
func (c *Clusters) CloseRegistry(host string) { c.setRegistry(host, true) }

// OpenRegistry ends CloseRegistry.
func (c *Clusters) OpenRegistry(host string) { c.setRegistry(host, false) }

// Exit is how the containers of an image end that are not meant to run for ever.
type Exit = containers.Exit

// SetExit sets how containers of an image end that are started from now on.
func (c *Clusters) SetExit(image string, e Exit) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.exits[image] = e
}

func (c *Clusters) setRegistry(host string, closed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closedRegistries[host] = closed
	for _, cl := range c.clusters {
		for key := range cl.pods {
			cl.dirty[ref{resPods, key}] = true
		}
	}
	c.wakeLoop()
}

// runLoop does everything that happens by itself: one thing after the other, in
// the order of the clock.
func (c *Clusters) runLoop() {
	defer close(c.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		next, calls := c.runDue()
		for _, f := range calls {
			f()
		}
		if len(calls) > 0 {
			continue
		}
		var due <-chan time.Time
		if !next.IsZero() {
			timer.Reset(time.Until(next))
			due = timer.C
		}
		select {
		case <-due:
		case <-c.wake:
		case <-c.ctx.Done():
			return
		}
	}
}

// runDue does what is due and returns when the next thing will be (zero: nothing
// is planned) and the callbacks to make.
func (c *Clusters) runDue() (next time.Time, calls []func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.ctx.Err() == nil {
		if f, ok := c.effects.TakeDue(time.Now()); ok {
			f()
			continue
		}
		busy := false
		for _, cl := range c.clusters {
			busy = cl.runControllers() || busy
		}
		if !busy {
			break
		}
	}
	next, _ = c.effects.Next()
	calls, c.callbacks = c.callbacks, nil
	return next, calls
}

// scheduleAfter plans f for when d of the world's time has passed. It runs with mu
// held.
func (c *Clusters) scheduleAfter(d time.Duration, f func()) {
	c.scheduleAt(time.Now().Add(c.world.Scale(d)), f)
}

// scheduleAt plans f for a time of this process.
func (c *Clusters) scheduleAt(at time.Time, f func()) {
	c.effects.Add(at, f)
	c.wakeLoop()
}

// queueCallback plans a callback, which is made without mu.
func (c *Clusters) queueCallback(f func()) {
	c.callbacks = append(c.callbacks, f)
	c.wakeLoop()
}

// wakeLoop lets run look again.
func (c *Clusters) wakeLoop() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// pullImages returns how long getting images takes: latency the first time, nothing
// when who already has them.
func (c *Clusters) pullImages(who string, latency time.Duration) time.Duration {
	if c.pulled[who] {
		return 0
	}
	c.pulled[who] = true
	return latency
}

// clusterUp returns the cluster with a CA that has an API that answers, nil if there is none.
func (c *Clusters) clusterUp(ca string) *cluster {
	i := slices.IndexFunc(c.clusters, func(cl *cluster) bool { return cl.ca == ca && len(cl.up) > 0 })
	if i < 0 {
		return nil
	}
	return c.clusters[i]
}

// clusterOf returns the cluster that stores in an etcd.
func (c *Clusters) clusterOf(ca, etcd string) *cluster {
	i := slices.IndexFunc(c.clusters, func(cl *cluster) bool { return cl.ca == ca && cl.etcd == etcd })
	if i >= 0 {
		return c.clusters[i]
	}
	cl := newCluster(c, ca, etcd)
	c.clusters = append(c.clusters, cl)
	return cl
}
