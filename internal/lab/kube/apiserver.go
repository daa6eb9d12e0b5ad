package kube

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/talos-agent/talos-agent/internal/lab/kube/deprecation"
	"github.com/talos-agent/talos-agent/internal/lab/kube/plumbing"
	"github.com/talos-agent/talos-agent/internal/lab/kube/rules"
	"github.com/talos-agent/talos-agent/internal/lab/kube/system"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// port is where every kube-apiserver listens.
const port = 6443

// restart is how long a kube-apiserver that could not start stays down before its kubelet tries again.
const restart = 10 * time.Second

// apiserver is the kube-apiserver of one control-plane node.
type apiserver struct {
	c     *Clusters
	cl    *cluster
	cp    world.ControlPlane
	ready func(bool)
	cas   *x509.CertPool // whose client certificates it trusts

	// Guarded by Clusters.mu.
	stopped   bool
	server    *http.Server   // nil: does not listen
	listeners []net.Listener // own address, and the VIP if it holds it
	halt      context.CancelFunc

	conns    plumbing.Connections
	requests deprecation.Requests
}

// ServeAPI implements world.Kubernetes: the API answers at Address:6443 once
// its images are pulled and it has started, and stops answering, in the middle
// of a request if need be, when stop is called. A call of ready that began
// before stop may end after it.
func (c *Clusters) ServeAPI(ca, etcd string, cp world.ControlPlane, ready func(bool)) (stop func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		return func() {}
	}
	cl := c.clusterOf(ca, etcd)
	a := &apiserver{c: c, cl: cl, cp: cp, ready: ready}
	cl.apis, cl.lost = append(cl.apis, a), false
	pull, start := c.pullImages("api/"+ca+"/"+etcd+"/"+cp.Node, c.world.Latency.ImagePull), c.world.Latency.API
	c.scheduleAfter(pull, func() {
		if a.stopped {
			return
		}
		c.world.Spend("pull", cp.Node, pull, "etcd/"+cp.Node, "learn/"+cp.Node)
		c.scheduleAfter(start, func() {
			if a.stopped {
				return
			}
			c.world.Spend("api", cp.Node, start, "pull/"+cp.Node)
			a.startServing()
		})
	})
	return a.stopServing
}

// startServing brings the API up. What stands in its way (a port in use, a CA that
// cannot sign) is reported, and it is tried again like a crashing static pod.
func (a *apiserver) startServing() {
	if a.stopped {
		return
	}
	a.cl.fillStore(a.cp)
	if err := a.listenAll(); err != nil {
		a.c.world.Report(a.cp.Node, "kube-apiserver cannot start: %v", err)
		a.c.scheduleAfter(restart, a.startServing)
		return
	}
	a.c.world.Report(a.cp.Node, "kube-apiserver is ready")
	a.cl.deploy(a.cp)
	a.cl.apiUp(a)
	a.cl.judgeSkew()
	a.c.queueCallback(func() { a.ready(true) })
}

func (a *apiserver) listenAll() error {
	cert, err := system.ServerCertificate(a.cp, a.c.world.GuestNow())
	if err != nil {
		return err
	}
	a.cas = x509.NewCertPool()
	if !a.cas.AppendCertsFromPEM(a.cp.CACert) {
		return errors.New("the Kubernetes CA is no certificate")
	}
	ctx, halt := context.WithCancel(a.c.ctx)
	server := &http.Server{
		Handler: a.newHandler(),
		TLSConfig: &tls.Config{
			MinVersion:   tls.VersionTLS12,
			Certificates: []tls.Certificate{cert},
			// Whom to trust is decided per request: a bad certificate is a 401, not a failed handshake.
			ClientAuth: tls.RequestClientCert,
		},
		BaseContext: func(net.Listener) context.Context { return ctx },
		ConnContext: func(ctx context.Context, _ net.Conn) context.Context {
			return context.WithValue(ctx, callerKey{}, &caller{})
		},
		ConnState: a.conns.FollowState,
		ErrorLog:  slog.NewLogLogger(a.c.world.Log.Handler(), slog.LevelDebug),
	}
	a.server, a.halt = server, halt
	if err := a.openAddress(a.cp.Address); err != nil {
		halt()
		a.server = nil
		return err
	}
	return nil
}

// openAddress serves the API at one more address.
func (a *apiserver) openAddress(addr netip.Addr) error {
	l, err := a.c.world.Net.Listen(netip.AddrPortFrom(addr, port).String())
	if err != nil {
		return err
	}
	a.listeners = append(a.listeners, l)
	server := a.server
	if !a.c.gate.TryEnter() {
		return errors.Join(http.ErrServerClosed, l.Close())
	}
	go func() {
		defer a.c.gate.Leave()
		if err := server.ServeTLS(l, "", ""); err != nil && !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			a.c.world.Log.Debug("kube-apiserver stopped serving", "node", a.cp.Node, "err", err)
		}
	}()
	return nil
}

// stopServing takes the API down like a power cut.
func (a *apiserver) stopServing() {
	a.c.mu.Lock()
	server := a.server
	if a.stopped {
		a.c.mu.Unlock()
		return
	}
	a.stopped = true
	a.cl.apis = slices.DeleteFunc(a.cl.apis, func(other *apiserver) bool { return other == a })
	if server != nil {
		for _, l := range a.listeners {
			if err := l.Close(); err != nil {
				a.c.world.Log.Debug("kube-apiserver closes its listener", "node", a.cp.Node, "err", err)
			}
		}
		a.halt()
		a.c.world.Report(a.cp.Node, "kube-apiserver stopped")
		a.cl.apiDown(a)
	}
	a.c.mu.Unlock()
	if server == nil {
		return
	}
	a.conns.CutAll()
	if err := server.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		a.c.world.Log.Debug("kube-apiserver closes", "node", a.cp.Node, "err", err)
	}
}

// apiUp counts an API in: it may take the VIP, and everything that waited for an API goes on.
func (cl *cluster) apiUp(a *apiserver) {
	cl.up = append(cl.up, a)
	if cl.first == "" {
		cl.first = a.cp.Node
	}
	cl.listServers()
	cl.holdVIP(a.cp.VIP)
	for vip := range cl.c.balanced {
		cl.holdVIP(vip)
	}
	cl.c.notifyAwaiting()
	held := cl.held
	cl.held = nil
	for _, f := range held {
		f()
	}
	for _, k := range cl.c.kubelets {
		if k.ca == cl.ca {
			k.registerNode()
		}
	}
	for _, node := range slices.Sorted(maps.Keys(cl.kubelets)) {
		cl.mirrorPods(node)
	}
}

// apiDown counts an API out.
func (cl *cluster) apiDown(a *apiserver) {
	cl.up = slices.DeleteFunc(cl.up, func(other *apiserver) bool { return other == a })
	for vip, holder := range cl.vips {
		if holder == a {
			delete(cl.vips, vip)
			cl.holdVIP(vip)
			cl.c.notifyAwaiting()
		}
	}
	cl.mirrorPods(a.cp.Node)
	cl.scheduleAfter(rules.ServerLease, cl.listServers)
}

// listServers keeps the addresses that the service kubernetes leads to: those of the APIs that answer.
func (cl *cluster) listServers() {
	var servers []netip.Addr
	for _, a := range cl.up {
		servers = append(servers, a.cp.Address)
	}
	meta := func() map[string]any { return map[string]any{"name": "kubernetes"} }
	cl.fillObject(resEndpoints, "default", meta(), func(have map[string]any) { rules.FillServers(have, servers, port) })
	cl.fillObject(resSlices, "default", meta(), func(have map[string]any) { rules.FillServerSlice(have, servers, port) })
}

// holdVIP lets the API that is up longest answer at the VIP if nobody does.
func (cl *cluster) holdVIP(vip netip.Addr) {
	if !vip.IsValid() || cl.vips[vip] != nil || cl.c.ctx.Err() != nil {
		return
	}
	for _, a := range cl.up {
		if a.cp.VIP != vip && !cl.c.balanced[vip] {
			continue
		}
		if err := a.openAddress(vip); err != nil {
			cl.c.world.Report(a.cp.Node, "cannot hold the VIP %v: %v", vip, err)
			cl.c.scheduleAfter(restart, func() {
				cl.holdVIP(vip)
				cl.c.notifyAwaiting()
			})
			return
		}
		cl.vips[vip] = a
		cl.c.world.Report(a.cp.Node, "holds the VIP %v", vip)
		return
	}
}

// Balance has an address lead to an API that answers, of the only cluster there is, as a load balancer or kube-vip does.
func (c *Clusters) Balance(vip netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.balanced[vip] = true
	for _, cl := range c.clusters {
		cl.holdVIP(vip)
	}
	c.notifyAwaiting()
}

// awaiting is a node that waits until its endpoint answers.
type awaiting struct {
	ca       string
	endpoint netip.Addr
	answers  func()
}

// AwaitEndpoint implements world.Kubernetes. A call of answers that began before
// stop may end after it.
func (c *Clusters) AwaitEndpoint(ca string, endpoint netip.Addr, answers func()) (stop func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := &awaiting{ca: ca, endpoint: endpoint, answers: answers}
	c.awaiting = append(c.awaiting, w)
	c.notifyAwaiting()
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.awaiting = slices.DeleteFunc(c.awaiting, func(other *awaiting) bool { return other == w })
	}
}

// notifyAwaiting notifies the nodes whose endpoint answers now. c.mu is held.
func (c *Clusters) notifyAwaiting() {
	c.awaiting = slices.DeleteFunc(c.awaiting, func(w *awaiting) bool {
		ok := slices.ContainsFunc(c.clusters, func(cl *cluster) bool { return cl.ca == w.ca && cl.answersAt(w.endpoint) })
		if ok {
			c.queueCallback(w.answers)
		}
		return ok
	})
}

// answersAt reports whether an API of the cluster answers at an address.
func (cl *cluster) answersAt(addr netip.Addr) bool {
	return cl.vips[addr] != nil || slices.ContainsFunc(cl.up, func(a *apiserver) bool { return a.cp.Address == addr })
}
