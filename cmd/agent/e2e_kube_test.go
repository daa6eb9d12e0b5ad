package main

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// realKubernetes is a Kubernetes face of the lab that is no make-believe: the
// control plane's API is a real kube-apiserver with a real etcd, behind the
// cluster's own authority. What kubelets, controllers and the scheduler would
// report is played. It serves one control plane.
type realKubernetes struct {
	world   *world.World
	program string
	dir     string
	playing sync.WaitGroup

	mu       sync.Mutex
	plane    *realPlane
	kubelets []*playedKubelet
	held     map[string]bool // workloads whose pods do not become ready
}

// playedKubelet is what a node would report.
type playedKubelet struct {
	world.Kubelet
	ready func(bool)
	told  bool
}

// realPlane is the control plane.
type realPlane struct {
	k     *realKubernetes
	cp    world.ControlPlane
	ready func(bool)
	dir   string

	mu     sync.Mutex
	server *child // nil: it is not to run
	end    context.CancelFunc
}

// ServeAPI implements world.Kubernetes. The images of a real API server need
// not be pulled: it is ready when it is.
func (k *realKubernetes) ServeAPI(_, etcd string, cp world.ControlPlane, ready func(bool)) (stop func()) {
	p := &realPlane{k: k, cp: cp, ready: ready, dir: filepath.Join(k.dir, strings.ReplaceAll(etcd, "/", "-"))}
	k.mu.Lock()
	k.plane = p
	k.mu.Unlock()
	if err := p.start(nobody); err != nil {
		k.world.Report(cp.Node, "kube-apiserver cannot start: %v", err)
	}
	return p.stop
}

// RunStaticPods implements world.Kubernetes: nothing runs but the API.
func (k *realKubernetes) RunStaticPods(string, string, string, []world.StaticPod) {}

// RunKubelet implements world.Kubernetes.
func (k *realKubernetes) RunKubelet(_ string, kubelet world.Kubelet, ready func(bool)) (stop func()) {
	pk := &playedKubelet{Kubelet: kubelet, ready: ready}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.kubelets = append(k.kubelets, pk)
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.kubelets = slices.DeleteFunc(k.kubelets, func(other *playedKubelet) bool { return other == pk })
	}
}

// AwaitEndpoint implements world.Kubernetes: who plays a node gets through at once.
func (k *realKubernetes) AwaitEndpoint(_ string, _ netip.Addr, answers func()) (stop func()) {
	answers()
	return func() {}
}

// hold keeps the pods of a workload, "namespace/name", from becoming ready, or
// lets them.
func (k *realKubernetes) hold(workload string, held bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.held == nil {
		k.held = map[string]bool{}
	}
	k.held[workload] = held
}

// api returns the control plane's API once there is one.
func (k *realKubernetes) api() *realPlane {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.plane
}

// stranger says what of an API server is another cluster's.
type stranger string

const (
	nobody    stranger = ""
	itself    stranger = "itself"      // it shows another cluster's certificate
	itsClient stranger = "its clients" // it believes another cluster's clients only
)

// start runs the API server.
func (p *realPlane) start(strange stranger) error {
	files := map[string][]byte{"ca.crt": p.cp.CACert, "ca.key": p.cp.CAKey}
	args := []string{"serve", "--dir", p.dir, "--address", p.cp.Address.String(), "--service-cidr", strings.Split(p.cp.ServiceCIDR, ",")[0]}
	other, err := world.NewPKI(pkix.Name{CommonName: "another cluster"})
	if err != nil {
		return err
	}
	switch strange {
	case itself:
		files["ca.crt"], files["ca.key"] = other.PEM, other.KeyPEM
	case itsClient:
		files["clients.crt"] = other.PEM
		args = append(args, "--client-ca", filepath.Join(p.dir, "clients.crt"))
	}
	if err := writeFiles(p.dir, files); err != nil {
		return err
	}
	server, err := startProcess(filepath.Join(p.dir, "log"), p.k.program, args...)
	if err != nil {
		return err
	}
	ctx, end := context.WithCancel(context.Background())
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.end != nil {
		p.end()
	}
	p.server, p.end = server, end
	p.k.playing.Go(func() { p.play(ctx, server) })
	return nil
}

// stop takes the API server away as a power cut does.
func (p *realPlane) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.server != nil {
		p.end()
		p.server.kill()
		p.server = nil
	}
}

// kill lets the API server die; the node stays.
func (p *realPlane) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.server.kill()
}

// log is the end of what the API server said.
func (p *realPlane) log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.server == nil {
		return "it does not run"
	}
	return p.server.tail(30)
}

// play waits for the API, tells the node of it, and then reports what
// controllers and kubelets would, until ctx or the server ends.
func (p *realPlane) play(ctx context.Context, server *child) {
	config, client, err := p.connect()
	if err != nil {
		p.k.world.Log.Error("cannot reach the API", "err", err)
		return
	}
	defer client.CloseIdleConnections()
	set, err := kubernetes.NewForConfigAndClient(config, client)
	if err != nil {
		p.k.world.Log.Error("cannot reach the API", "err", err)
		return
	}
	if err := untilReadyz(ctx, server, client, config.Host); err != nil {
		p.k.world.Report(p.cp.Node, "kube-apiserver is not ready: %v", err)
		return
	}
	p.k.world.Report(p.cp.Node, "kube-apiserver is ready")
	p.ready(true)
	defer func() {
		if ctx.Err() == nil { // otherwise it is the node that stopped it
			p.ready(false)
		}
	}()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		if err := p.k.settle(ctx, set); err != nil && ctx.Err() == nil {
			p.k.world.Log.Debug("what is played could not be reported", "err", err)
		}
		select {
		case <-tick.C:
		case <-server.done:
			return
		case <-ctx.Done():
			return
		}
	}
}

// connect makes a client that may do everything, under a name of its own.
func (p *realPlane) connect() (*rest.Config, *http.Client, error) {
	pair, err := clientCertificate(p.cp.CACert, p.cp.CAKey, pkix.Name{CommonName: "lab", Organization: []string{"system:masters"}})
	if err != nil {
		return nil, nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(p.cp.CACert)
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12},
		ForceAttemptHTTP2: true,
	}}
	return &rest.Config{
		Host: "https://" + netip.AddrPortFrom(p.cp.Address, 6443).String(), QPS: -1,
		ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeJSON, AcceptContentTypes: runtime.ContentTypeJSON},
	}, client, nil
}

// clientCertificate signs a client's certificate with an authority.
func clientCertificate(caCert, caKey []byte, who pkix.Name) (tls.Certificate, error) {
	ca, err := tls.X509KeyPair(caCert, caKey)
	if err != nil {
		return tls.Certificate{}, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: who,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, ca.Leaf, &key.PublicKey, ca.PrivateKey)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// close ends everything that is played. The lab must be closed already, so that
// nothing begins any more.
func (k *realKubernetes) close() {
	if p := k.api(); p != nil {
		p.stop()
	}
	k.playing.Wait()
}

// sorted returns the kubelets in the order of their nodes' names.
func (k *realKubernetes) sorted() []*playedKubelet {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.SortedFunc(slices.Values(k.kubelets), func(a, b *playedKubelet) int { return cmp.Compare(a.Node, b.Node) })
}

func (k *realKubernetes) isHeld(namespace, name string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.held[fmt.Sprintf("%s/%s", namespace, name)]
}
