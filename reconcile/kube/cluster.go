package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/kubeapi"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/internal/worker"
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
	// Neighbour is the MAC of the machine that has an address on one of this host's
	// networks, "" when it is not known; nil: it never is.
	Neighbour func(netip.Addr) string
	// Worker evaluates the conditions of gates; nil: worker.Run.
	Worker worker.Runner
}

// jobsLeft is what is known of the Jobs that the agent has made. While there are none, Kubernetes is not asked.
type jobsLeft struct {
	listed bool // once at least
	some   bool // in the last list, or made since
	starts int  // so many were begun to be made
}

// Cluster sees one Kubernetes cluster. Close it when done.
type Cluster struct {
	dial      kubeapi.Dial
	wrap      kubeapi.Wrap
	log       *slog.Logger
	change    func()
	neighbour func(netip.Addr) string
	worker    worker.Runner

	ctx    context.Context // of every watch
	cancel context.CancelFunc
	wg     sync.WaitGroup

	observing    chan struct{} // holds a token while Observe runs
	deprecations deprecations  // guarded by that token
	releaseAPIs  releaseAPIs   // by the same

	mu     sync.Mutex
	closed bool
	conn   *kubeapi.Connection // nil: no credentials yet
	apis   map[netip.Addr]api
	vip    vip
	jobs   jobsLeft
	// What is followed, both through one API; nil: nothing.
	nodes *follower[cluster.KubeNode]
	pods  *follower[cluster.SystemPod]
	// reader reads the nodes that are followed.
	reader nodeReader
	// writings are of the nodes that are followed, and never nil while they are.
	writings *writings
}

// New makes a Cluster. It makes no request before Observe.
func New(c Config) *Cluster {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.OnChange == nil {
		c.OnChange = func() {}
	}
	if c.Neighbour == nil {
		c.Neighbour = func(netip.Addr) string { return "" }
	}
	if c.Worker == nil {
		c.Worker = worker.Run
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Cluster{dial: c.Dial, wrap: c.Wrap, log: c.Log, change: c.OnChange, neighbour: c.Neighbour, worker: c.Worker, ctx: ctx, cancel: cancel,
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
	if k.nodes != nil && !k.nodes.over() && slices.Contains(ready, k.nodes.server) {
		return k.nodes.server, true
	}
	return slices.MaxFunc(ready, func(a, b netip.Addr) int {
		return cmp.Or(k.apis[a].since.Compare(k.apis[b].since), b.Compare(a))
	}), true
}

// Observe fills in o.APIs, for every control plane, o.VIP, o.Nodes, o.SystemPods, o.Deprecated and
// o.ReleaseAPIs. The maps of these are shared between passes: they are read-only.
//
// An API that is ready is asked again after 30 seconds, or when the watch of the
// nodes breaks; nodes and pods are read from watches.
func (k *Cluster) Observe(ctx context.Context, d cluster.Desired, o *cluster.Observed) {
	select {
	case k.observing <- struct{}{}:
		defer func() { <-k.observing }()
	case <-ctx.Done():
		setUnseen(o, "another look is under way")
		return
	}
	planes := d.Spec.ControlPlanes()
	conn, err := k.connection(d.Access.Kube, time.Now())
	if err != nil {
		o.APIs = map[string]cluster.Seen[bool]{}
		for _, n := range planes {
			o.APIs[n.Name] = cluster.Unseen[bool](err.Error())
		}
		setUnseen(o, err.Error())
		return
	}
	o.APIs = k.askAll(ctx, conn, planes)
	o.VIP = k.seeVIP(ctx, conn, d.Spec.Network.VIP)
	k.seeObjects(ctx, conn, d, o)
	k.seeDeprecated(ctx, conn, d, o)
}

// seeDeprecated looks for deprecated APIs, in requests and in releases of Helm, where a node is to run another version of Kubernetes.
func (k *Cluster) seeDeprecated(ctx context.Context, conn *kubeapi.Connection, d cluster.Desired, o *cluster.Observed) {
	if why := whyNotLookedFor(d, o.Nodes); why != "" {
		o.Deprecated, o.ReleaseAPIs = cluster.Unseen[[]cluster.DeprecatedAPI](why), cluster.Unseen[[]cluster.ReleaseAPI](why)
		return
	}
	o.Deprecated, o.ReleaseAPIs = k.deprecations.look(ctx, conn, d), cluster.Unseen[[]cluster.ReleaseAPI](errNoAPI.Error())
	if server, ok := k.API(); ok {
		o.ReleaseAPIs = k.releaseAPIs.look(ctx, conn, server)
	}
}

func setUnseen(o *cluster.Observed, why string) {
	o.Nodes = cluster.Unseen[map[string]cluster.KubeNode](why)
	o.SystemPods = cluster.Unseen[map[string]cluster.SystemPod](why)
	o.Deprecated = cluster.Unseen[[]cluster.DeprecatedAPI](why)
	o.ReleaseAPIs = cluster.Unseen[[]cluster.ReleaseAPI](why)
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
	k.conn, k.apis, k.vip = conn, map[netip.Addr]api{}, vip{}
	k.drop()
	return conn, nil
}

// drop ends the watches, if there are any. k.mu is held.
func (k *Cluster) drop() {
	if k.nodes != nil {
		k.nodes.cancel()
		k.nodes = nil
	}
	if k.pods != nil {
		k.pods.cancel()
		k.pods = nil
	}
}

// askAll asks the APIs whose word does not hold any more, side by side, and
// returns what is known of each.
func (k *Cluster) askAll(ctx context.Context, conn *kubeapi.Connection, planes []cluster.Node) map[string]cluster.Seen[bool] {
	now := time.Now()
	k.mu.Lock()
	if k.nodes != nil && k.nodes.over() {
		// Who was ready may have died with the watch.
		for addr, a := range k.apis {
			a.asked = time.Time{}
			k.apis[addr] = a
		}
		k.drop()
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

// seeObjects fills in the nodes and pods from their watches, after moving these to
// an API that is ready if need be.
func (k *Cluster) seeObjects(ctx context.Context, conn *kubeapi.Connection, d cluster.Desired, o *cluster.Observed) {
	nodes, pods, err := k.followThrough(conn, nodeReader{keysOf(d.Repository().Spec), d.Access.Kube.Seal})
	switch {
	case err != nil:
		setUnseen(o, err.Error())
		return
	case nodes == nil:
		setUnseen(o, "there is no control plane")
		for _, n := range d.Spec.ControlPlanes() {
			if why := o.APIs[n.Name].Why; why != "" {
				setUnseen(o, why)
				break
			}
		}
		return
	}
	ctx, cancel := context.WithTimeout(ctx, listWithin)
	defer cancel()
	o.Nodes = nodes.see(ctx)
	k.mu.Lock()
	writings := k.writings
	k.mu.Unlock()
	writings.nameSetters(d, o)
	o.SystemPods = pods.see(ctx)
}

// see returns the objects, or why they are not known.
func (f *follower[V]) see(ctx context.Context) cluster.Seen[map[string]V] {
	list, err := f.wait(ctx)
	if err != nil {
		return cluster.Unseen[map[string]V](fmt.Sprintf("the API at %s: %s", f.server, kubeapi.Reason(err)))
	}
	return cluster.Saw(list)
}

// followThrough returns the followers, begun again if one was lost or their API is
// not ready while another is; nil while none is. The pods are followed through
// the API that the nodes are, and lost by themselves: what is known of the nodes
// does not depend on them. Other keys of labels, taints and annotations take another list of nodes:
// what is kept of a Node has no others.
func (k *Cluster) followThrough(conn *kubeapi.Connection, r nodeReader) (*follower[cluster.KubeNode], *follower[cluster.SystemPod], error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	addr, ok := k.best()
	switch {
	case k.closed:
		return nil, nil, errors.New("the agent stops")
	case !ok:
		return nil, nil, nil
	}
	switch {
	case k.nodes == nil || k.nodes.server != addr || k.nodes.over():
		k.drop()
	case !k.reader.isEqual(r):
		k.nodes.cancel()
		k.nodes = nil
	}
	if k.pods != nil && k.pods.over() {
		k.pods = nil
	}
	if k.nodes != nil && k.pods != nil {
		return k.nodes, k.pods, nil
	}
	config := &rest.Config{Host: serverOf(addr), QPS: -1, ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeJSON, AcceptContentTypes: runtime.ContentTypeJSON}}
	client, err := corev1client.NewForConfigAndClient(config, &http.Client{Transport: kubeapi.Once(conn)})
	if err != nil {
		return nil, nil, fmt.Errorf("make client for %s: %w", addr, err)
	}
	k.log.Debug("watch nodes and pods", logging.Server, addr.String())
	var run func()
	if k.nodes == nil {
		k.reader, k.writings = r, &writings{}
		k.nodes, run = follow(k.ctx, kindOfNodes(client, r, k.writings), addr, k.change)
		k.wg.Go(run)
	}
	if k.pods == nil {
		k.pods, run = follow(k.ctx, kindOfPods(client), addr, k.change)
		k.wg.Go(run)
	}
	return k.nodes, k.pods, nil
}
