package kube_test

import (
	"context"
	"crypto/x509/pkix"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/talos-agent/talos-agent/internal/lab/kube"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// lab is a world with Kubernetes clusters and one CA.
type lab struct {
	t     testing.TB
	world *world.World
	kube  *kube.Clusters
	ca    *world.PKI
	id    string // fingerprint of the CA
}

// newLab makes a lab that ends with the test.
func newLab(t testing.TB, c world.Config) *lab {
	t.Helper()
	w, err := world.New(c)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := world.NewPKI(pkix.Name{Organization: []string{"kubernetes"}})
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{t: t, world: w, kube: kube.New(kube.Config{World: w}), ca: ca, id: ca.Fingerprint()}
	t.Cleanup(func() {
		l.kube.Close()
		w.Close()
	})
	return l
}

// client makes a client certificate.
func (l *lab) client(name string, groups ...string) (cert, key []byte) {
	l.t.Helper()
	cert, key, err := l.ca.Client(24*time.Hour, name, groups...)
	if err != nil {
		l.t.Fatal(err)
	}
	return cert, key
}

// config is an administrator's client config for the API at an address.
func (l *lab) config(addr string) *rest.Config {
	l.t.Helper()
	cert, key := l.client("admin", "system:masters")
	return &rest.Config{
		Host: "https://" + addr + ":6443", Dial: l.world.Net.DialContext, QPS: -1,
		ContentConfig:   rest.ContentConfig{ContentType: "application/json"},
		TLSClientConfig: rest.TLSClientConfig{CAData: l.ca.PEM, CertData: cert, KeyData: key},
	}
}

// typed is a typed client, whose idle connections end with the test.
func (l *lab) typed(addr string) kubernetes.Interface {
	l.t.Helper()
	return l.typedWarned(addr, nil)
}

// typedWarned is typed, and hands on the warnings of the server; warned may be nil.
func (l *lab) typedWarned(addr string, warned rest.WarningHandler) kubernetes.Interface {
	l.t.Helper()
	config := l.config(addr)
	config.WarningHandler = warned
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { utilnet.CloseIdleConnectionsFor(client.Transport) })
	set, err := kubernetes.NewForConfigAndClient(config, client)
	if err != nil {
		l.t.Fatal(err)
	}
	return set
}

// control is a control plane with flannel and kube-proxy.
func (l *lab) control(node, addr string) world.ControlPlane {
	return world.ControlPlane{
		Node: node, Address: netip.MustParseAddr(addr), CACert: l.ca.PEM, CAKey: l.ca.KeyPEM, Kubernetes: "v1.36.1",
		CNI: "flannel", KubeProxy: true, PodCIDR: "10.244.0.0/16", ServiceCIDR: "10.96.0.0/12",
	}
}

func kubelet(node, addr string, vmid int) world.Kubelet {
	return world.Kubelet{Node: node, Address: netip.MustParseAddr(addr), Kubernetes: "v1.36.1", Talos: "v1.14.1", VMID: vmid}
}

func controlKubelet(node, addr string, vmid int) world.Kubelet {
	k := kubelet(node, addr, vmid)
	k.Control = true
	return k
}

// readiness waits for the callbacks of the service.
type readiness struct{ ch chan bool }

func newReadiness() readiness { return readiness{make(chan bool, 16)} }

func (c readiness) call(ready bool) { c.ch <- ready }

// ignore is a callback of which nothing is expected.
func ignore(bool) {}

// running brings a cluster of one control plane up and returns once it answers.
func (l *lab) running(addr string) kubernetes.Interface {
	l.t.Helper()
	up := newReadiness()
	l.kube.ServeAPI(l.id, "etcd-1", l.control("cp-1", addr), up.call)
	if !<-up.ch {
		l.t.Fatal("the API says it is not ready")
	}
	return l.typed(addr)
}

// bubble runs a test in virtual time, on a network in memory.
func bubble(t *testing.T, f func(t *testing.T, l *lab)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f(t, newLab(t, world.Config{}))
	})
}

var ctx = context.Background()

// eventually waits in virtual time until cond holds.
func eventually(t testing.TB, what string, limit time.Duration, cond func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(limit); ; time.Sleep(100 * time.Millisecond) {
		if err = cond(); err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v: %v", what, limit, err)
		}
	}
}

func nodeReady(set kubernetes.Interface, name string) error {
	n, err := set.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			return nil
		}
	}
	return fmt.Errorf("node %s is not ready", name)
}

func mustReason(t testing.TB, err error, want metav1.StatusReason) {
	t.Helper()
	if got := apierrors.ReasonForError(err); got != want {
		t.Errorf("error %v has reason %q, want %q", err, got, want)
	}
}
