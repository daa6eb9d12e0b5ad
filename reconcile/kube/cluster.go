package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/kubeapi"
	"github.com/talos-agent/talos-agent/internal/logging"
)

// listWithin is how long Observe waits for the first list of nodes.
const listWithin = 5 * time.Second

// Config holds how a Cluster is reached. The zero value works.
type Config struct {
	// Dial makes connections; nil: the operating system's.
	Dial kubeapi.Dial
	// Wrap puts something between the client and its connections; nil: nothing.
	Wrap kubeapi.Wrap
	Log  *slog.Logger
	// OnChange is called when a node changed, or when the watch of them was lost:
	// it is worth looking again. It must not block; nil: no call.
	OnChange func()
}

// Cluster sees one Kubernetes cluster. Close it when done.
type Cluster struct {
	dial   kubeapi.Dial
	wrap   kubeapi.Wrap
	log    *slog.Logger
	change func()

	ctx    context.Context // of every watch
	cancel context.CancelFunc
	wg     sync.WaitGroup

	observing chan struct{} // holds a token while Observe runs

	mu     sync.Mutex
	closed bool
	conn   *kubeapi.Connection // nil: no credentials yet
	apis   map[netip.Addr]api
	watch  *nodes // nil: none
}

// New makes a Cluster. It makes no request before Observe.
func New(c Config) *Cluster {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.OnChange == nil {
		c.OnChange = func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Cluster{dial: c.Dial, wrap: c.Wrap, log: c.Log, change: c.OnChange, ctx: ctx, cancel: cancel,
		observing: make(chan struct{}, 1), apis: map[netip.Addr]api{}}
}

// Close ends the watch and breaks every connection. When it returns nothing of
// the Cluster runs any more.
func (k *Cluster) Close() {
	k.mu.Lock()
	k.closed = true
	conn := k.conn
	k.mu.Unlock()
	k.cancel()
	if conn != nil {
		conn.Close()
	}
	k.wg.Wait()
}

// API returns the base URL of a kube-apiserver on a control plane's own
// address, as observed last, that answered ready when it was asked last; ok is
// false while none does. The one the nodes are watched through comes first, so that everybody
// talks to the same as long as it lives.
func (k *Cluster) API() (server string, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	addr, ok := k.best()
	if !ok {
		return "", false
	}
	return serverOf(addr), true
}

// best is the address of the ready API to talk to. k.mu is held.
func (k *Cluster) best() (netip.Addr, bool) {
	var ready []netip.Addr
	for addr, a := range k.apis {
		if a.ready.Value {
			ready = append(ready, addr)
		}
	}
	if len(ready) == 0 {
		return netip.Addr{}, false
	}
	if k.watch != nil && !k.watch.over() && slices.Contains(ready, k.watch.server) {
		return k.watch.server, true
	}
	return slices.MaxFunc(ready, func(a, b netip.Addr) int {
		return cmp.Or(k.apis[a].since.Compare(k.apis[b].since), b.Compare(a))
	}), true
}

// Observe fills in o.APIs, for every control plane, and o.Nodes. The map of
// nodes is shared between passes: it is read-only.
//
// An API that is ready is asked again after 30 seconds, or when the watch
// breaks; the nodes are read from the watch.
func (k *Cluster) Observe(ctx context.Context, d cluster.Desired, o *cluster.Observed) {
	select {
	case k.observing <- struct{}{}:
		defer func() { <-k.observing }()
	case <-ctx.Done():
		o.Nodes = cluster.Unseen[map[string]cluster.KubeNode]("another look is under way")
		return
	}
	planes := d.Spec.ControlPlanes()
	conn, err := k.connection(d.Access.Kube, time.Now())
	if err != nil {
		o.APIs = map[string]cluster.Seen[bool]{}
		for _, n := range planes {
			o.APIs[n.Name] = cluster.Unseen[bool](err.Error())
		}
		o.Nodes = cluster.Unseen[map[string]cluster.KubeNode](err.Error())
		return
	}
	o.APIs = k.askAll(ctx, conn, planes)
	o.Nodes = k.seeNodes(ctx, conn, planes, o.APIs)
}

// connection returns the connection for the credentials; a change that matters
// ends what went through the one before.
func (k *Cluster) connection(c cluster.Credentials, now time.Time) (*kubeapi.Connection, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.closed:
		return nil, errors.New("the agent stops")
	case c.Cert.IsZero():
		return nil, errors.New("the cluster has no secrets yet")
	case k.conn != nil && k.conn.Serves(c, now):
		return k.conn, nil
	}
	conn, err := kubeapi.Connect(c, k.dial, k.wrap)
	if err != nil {
		return nil, err
	}
	if k.conn != nil {
		k.log.Debug("take new Kubernetes credentials")
		k.conn.Close()
	}
	k.conn, k.apis = conn, map[netip.Addr]api{}
	k.drop()
	return conn, nil
}

// drop ends the watch, if there is one. k.mu is held.
func (k *Cluster) drop() {
	if k.watch != nil {
		k.watch.cancel()
		k.watch = nil
	}
}

// askAll asks the APIs whose word does not hold any more, side by side, and
// returns what is known of each.
func (k *Cluster) askAll(ctx context.Context, conn *kubeapi.Connection, planes []cluster.Node) map[string]cluster.Seen[bool] {
	now := time.Now()
	k.mu.Lock()
	if k.watch != nil && k.watch.over() {
		// Who was ready may have died with the watch.
		for addr, a := range k.apis {
			a.asked = time.Time{}
			k.apis[addr] = a
		}
		k.watch = nil
	}
	for addr := range k.apis {
		if !slices.ContainsFunc(planes, func(n cluster.Node) bool { return n.IP == addr }) {
			delete(k.apis, addr)
		}
	}
	var due []netip.Addr
	for _, n := range planes {
		if k.apis[n.IP].due(now) {
			due = append(due, n.IP)
		}
	}
	k.mu.Unlock()

	answers := make([]cluster.Seen[bool], len(due))
	var wg sync.WaitGroup
	for i, addr := range due {
		wg.Go(func() { answers[i] = askReady(ctx, conn, addr) })
	}
	wg.Wait()

	k.mu.Lock()
	defer k.mu.Unlock()
	for i, addr := range due {
		a := api{ready: answers[i], asked: now, since: k.apis[addr].since}
		if a.ready.Value {
			a.since = now
		}
		k.apis[addr] = a
	}
	seen := make(map[string]cluster.Seen[bool], len(planes))
	for _, n := range planes {
		seen[n.Name] = k.apis[n.IP].ready
	}
	return seen
}

// seeNodes returns the nodes from the watch, after moving it to an API that is
// ready if need be.
func (k *Cluster) seeNodes(ctx context.Context, conn *kubeapi.Connection, planes []cluster.Node, apis map[string]cluster.Seen[bool]) cluster.Seen[map[string]cluster.KubeNode] {
	unseen := func(format string, args ...any) cluster.Seen[map[string]cluster.KubeNode] {
		return cluster.Unseen[map[string]cluster.KubeNode](fmt.Sprintf(format, args...))
	}
	w, err := k.watchThrough(conn)
	switch {
	case err != nil:
		return unseen("%v", err)
	case w == nil:
		for _, n := range planes {
			if why := apis[n.Name].Why; why != "" {
				return unseen("%s", why)
			}
		}
		return unseen("there is no control plane")
	}
	ctx, cancel := context.WithTimeout(ctx, listWithin)
	defer cancel()
	list, err := w.wait(ctx)
	if err != nil {
		return unseen("the API at %s: %s", w.server, kubeapi.Reason(err))
	}
	return cluster.Saw(list)
}

// watchThrough returns the watch, begun again if it was lost or its API is not
// ready while another is; nil while none is.
func (k *Cluster) watchThrough(conn *kubeapi.Connection) (*nodes, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	addr, ok := k.best()
	switch {
	case k.closed:
		return nil, errors.New("the agent stops")
	case !ok:
		return nil, nil
	case k.watch != nil && k.watch.server == addr && !k.watch.over():
		return k.watch, nil
	}
	k.drop()
	w, run, err := watchNodes(k.ctx, conn, addr, k.change)
	if err != nil {
		return nil, err
	}
	k.log.Debug("watch the nodes", logging.Server, addr.String())
	k.watch = w
	k.wg.Go(run)
	return w, nil
}
