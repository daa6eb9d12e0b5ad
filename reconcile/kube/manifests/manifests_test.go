package manifests

import (
	"context"
	"crypto/x509/pkix"
	"encoding/json"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/kubeapi"
	labkube "github.com/talos-agent/talos-agent/internal/lab/kube"
	"github.com/talos-agent/talos-agent/internal/lab/kube/system"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// bench is a cluster that was made by Talos 1.13 with Kubernetes 1.36, and a Keeper of it.
type bench struct {
	*testing.T
	plane    world.ControlPlane
	desired  cluster.Desired
	rendered cluster.Seen[cluster.RenderedManifests]
	configs  map[string]string // of the control planes
	os       string            // of its node
	refuse   func(*http.Request) bool
	keeper   *Keeper
	set      *kubernetes.Clientset
	runNode  func() // a kubelet, which runs what is deployed
}

func bubble(t *testing.T, do func(*bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w, err := world.New(world.Config{})
		if err != nil {
			t.Fatal(err)
		}
		ca, err := world.NewPKI(pkix.Name{Organization: []string{"kubernetes"}})
		if err != nil {
			t.Fatal(err)
		}
		clusters := labkube.New(labkube.Config{World: w})
		defer func() {
			clusters.Close()
			w.Close()
		}()
		b := &bench{T: t, os: "Talos (v1.13.9)", plane: world.ControlPlane{Node: "cp-1", Address: netip.MustParseAddr("10.0.0.11"), CACert: ca.PEM, CAKey: ca.KeyPEM,
			Kubernetes: "v1.36.1", Talos: "v1.13.9", CNI: "flannel", KubeProxy: true, PodCIDR: "10.244.0.0/16", ServiceCIDR: "10.96.0.0/12"}}
		up := make(chan bool, 16)
		clusters.ServeAPI(ca.Fingerprint(), "etcd-1", b.plane, func(ready bool) { up <- ready })
		b.runNode = func() {
			ready := make(chan bool, 16)
			clusters.RunKubelet(ca.Fingerprint(), world.Kubelet{Node: "cp-1", Address: b.plane.Address, Kubernetes: "v1.36.1", Talos: "v1.13.9", Control: true, Schedulable: true}, func(is bool) { ready <- is })
			for !<-ready {
			}
			time.Sleep(5 * time.Minute)
		}
		if !<-up {
			t.Fatal("the API is not ready")
		}
		cert, key, err := ca.Client(24*time.Hour, "admin", "system:masters")
		if err != nil {
			t.Fatal(err)
		}
		b.desired.Access.Kube = cluster.Credentials{CA: cluster.NewSecret(ca.PEM), Cert: cluster.NewSecret(cert), Key: cluster.NewSecret(key), NotAfter: time.Now().Add(time.Hour)}
		b.desired.Spec.Nodes = []cluster.Node{{Name: "cp-1", Role: cluster.ControlPlane, IP: b.plane.Address}}
		link := world.NewLink(w.Net)
		const server = "https://10.0.0.11:6443"
		conn, err := kubeapi.Connect(b.desired.Access.Kube, link.DialContext, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if b.set, err = kubernetes.NewForConfigAndClient(&rest.Config{Host: server, QPS: -1}, &http.Client{Transport: conn}); err != nil {
			t.Fatal(err)
		}
		b.keeper = New(Config{API: func() (string, bool) { return server, true }, Dial: link.DialContext, Wrap: func(to http.RoundTripper) http.RoundTripper { return refuser{to, b} },
			Rendered: func(context.Context, cluster.Desired) cluster.Seen[cluster.RenderedManifests] { return b.rendered },
			Configs:  func(cluster.Desired) map[string]string { return b.configs }})
		do(b)
	})
}

// render has the control plane render what a version of Talos does, with a kube-proxy.
func (b *bench) render(talos, proxy string) {
	b.Helper()
	cp := b.plane
	cp.Talos = talos
	var list []map[string]any
	for _, o := range system.Deployed(cp, "registry.k8s.io/kube-proxy:"+proxy) {
		list = append(list, o.Manifest())
	}
	text, err := json.Marshal(list)
	if err != nil {
		b.Fatal(err)
	}
	b.rendered = cluster.Saw(cluster.RenderedManifests{Objects: cluster.NewSecret(text)})
	b.keeper.Forget("")
}

// look is what is seen now.
func (b *bench) look() cluster.Seen[cluster.Manifests] {
	o := cluster.Observed{Nodes: cluster.Saw(map[string]cluster.KubeNode{"cp-1": {Ready: true, OS: b.os, Kubelet: "v1.36.1", BootID: "1"}})}
	b.keeper.Observe(b.Context(), b.desired, &o)
	return o.Manifests
}

// expect holds what is seen against one line for each object.
func (b *bench) expect(what string, want ...string) cluster.Manifests {
	b.Helper()
	seen := b.look()
	if !seen.Known {
		b.Fatalf("%s: not known: %s", what, seen.Why)
	}
	var got []string
	for _, c := range seen.Value.Changes {
		got = append(got, c.String())
	}
	if got = append(got, seen.Value.Left...); !slices.Equal(got, want) {
		b.Fatalf("%s:\n got %s\nwant %s", what, strings.Join(got, "\n     "), strings.Join(want, "\n     "))
	}
	return seen.Value
}

// imageOf is the image of a DaemonSet of kube-system.
func (b *bench) imageOf(name string) string {
	b.Helper()
	ds, err := b.set.AppsV1().DaemonSets("kube-system").Get(b.Context(), name, metav1.GetOptions{})
	if err != nil {
		b.Fatal(err)
	}
	return ds.Spec.Template.Spec.Containers[0].Image
}

const (
	proxyChange   = "DaemonSet kube-system/kube-proxy: spec.template.spec.containers[kube-proxy].image registry.k8s.io/kube-proxy:v1.36.1 -> registry.k8s.io/kube-proxy:v1.37.0"
	flannelChange = "DaemonSet kube-system/kube-flannel: spec.template.spec.containers[kube-flannel].image ghcr.io/siderolabs/flannel:v0.28.4 -> ghcr.io/siderolabs/flannel:v0.28.9 (and 1 more)"
	dnsChange     = "Deployment kube-system/coredns: spec.template.spec.containers[kube-dns].image registry.k8s.io/coredns/coredns:v1.14.2 -> registry.k8s.io/coredns/coredns:v1.14.7"
)

// TestSync: what was deployed differs when the versions do; looking changes nothing, and applying brings it to what
// is rendered, once.
func TestSync(t *testing.T) {
	bubble(t, func(b *bench) {
		b.render("v1.13.9", "v1.36.1")
		b.expect("as it was made")
		b.render("v1.14.1", "v1.37.0")
		m := b.expect("newer versions", dnsChange, flannelChange, proxyChange)
		if image := b.imageOf("kube-proxy"); image != "registry.k8s.io/kube-proxy:v1.36.1" {
			b.Errorf("looking has made it %s", image)
		}
		if err := b.keeper.Sync(b.Context(), b.desired, m); err != nil {
			b.Fatal(err)
		}
		b.expect("applied")
		if image := b.imageOf("kube-proxy"); image != "registry.k8s.io/kube-proxy:v1.37.0" {
			b.Errorf("applied, it is %s", image)
		}
		b.render("v1.14.1", "v1.37.1") // which Talos' own apply has by now
		m = b.expect("once more", strings.NewReplacer("v1.37.0", "v1.37.1", "v1.36.1", "v1.37.0").Replace(proxyChange))
		if err := b.keeper.Sync(b.Context(), b.desired, m); err != nil {
			b.Fatal(err)
		}
		b.expect("applied again")
	})
}

// TestSyncKept: what a release of Helm has is left, and so is what a person has set otherwise, also
// if that was after the plan was shown.
func TestSyncKept(t *testing.T) {
	bubble(t, func(b *bench) {
		b.render("v1.14.1", "v1.37.0")
		annotate := []byte(`{"metadata":{"annotations":{"meta.helm.sh/release-name":"coredns","meta.helm.sh/release-namespace":"kube-system"}}}`)
		if _, err := b.set.AppsV1().Deployments("kube-system").Patch(b.Context(), "coredns", types.MergePatchType, annotate, metav1.PatchOptions{FieldManager: "helm"}); err != nil {
			b.Fatal(err)
		}
		left := "Deployment kube-system/coredns: Helm has it, in release kube-system/coredns"
		m := b.expect("Helm has one", flannelChange, proxyChange, left)
		edit := []byte(`{"spec":{"template":{"spec":{"containers":[{"name":"kube-flannel","image":"example.org/flannel:1"}]}}}}`)
		if _, err := b.set.AppsV1().DaemonSets("kube-system").Patch(b.Context(), "kube-flannel", types.StrategicMergePatchType, edit, metav1.PatchOptions{FieldManager: "kubectl-edit"}); err != nil {
			b.Fatal(err)
		}
		if err := b.keeper.Sync(b.Context(), b.desired, m); err != nil {
			b.Fatal(err)
		}
		if image := b.imageOf("kube-flannel"); image != "example.org/flannel:1" {
			b.Errorf("what somebody has set is %s", image)
		}
		b.expect("somebody has one", left, `DaemonSet kube-system/kube-flannel: kubectl-edit has set spec.template.spec.containers[name="kube-flannel"].image`)
	})
}

// TestUnseen: what cannot be compared is unknown, with the reason; what was compared before counts a while longer. What is
// not looked at has no reason.
func TestUnseen(t *testing.T) {
	bubble(t, func(b *bench) {
		differ := cluster.Unseen[cluster.RenderedManifests]("cp-1 and cp-2 do not render the same")
		b.rendered = differ
		if seen := b.look(); seen.Known || seen.Why != differ.Why {
			b.Errorf("at first: %+v", seen)
		}
		b.keeper.Forget("")
		for _, text := range []string{"", "{}", `[{"kind":"Pod"}]`} {
			b.rendered = cluster.Saw(cluster.RenderedManifests{Objects: cluster.SecretString(text)})
			if seen := b.look(); seen.Known || seen.Why == "" {
				b.Errorf("%q: %+v", text, seen)
			}
			b.keeper.Forget("")
		}
		b.render("v1.13.9", "v1.36.1")
		b.expect("they render the same")
		b.rendered = differ
		b.keeper.Forget("")
		b.expect("for a while they do not")
		time.Sleep(missedFor)
		if seen := b.look(); seen.Known || seen.Why != differ.Why {
			b.Errorf("they still do not: %+v", seen)
		}
		b.render("v1.13.9", "v1.36.1")
		b.expect("they do again")
		b.keeper.Forget("")
		b.rendered = differ
		b.expect("for a while they do not, again")
		time.Sleep(againFor)
		b.render("v1.13.9", "v1.37.0")
		b.keeper.asked = time.Now().Add(-againFor)
		b.expect("what could not be compared is asked for soon", proxyChange)
		o := cluster.Observed{Nodes: cluster.Saw(map[string]cluster.KubeNode{"cp-1": {}})}
		b.keeper.Observe(b.Context(), b.desired, &o)
		if o.Manifests.Known || o.Manifests.Why != "" {
			b.Errorf("a node is not Ready: %+v", o.Manifests)
		}
		b.keeper.Forget("")
		b.os = "Talos (v1.12.11)" // which deletes nothing
		b.rendered = cluster.Saw(cluster.RenderedManifests{Objects: cluster.SecretString(`[{"apiVersion":"example.org/v1","kind":"Thing","metadata":{"name":"a"}},{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"b"},"data":{"c":"d"}}]`)})
		b.expect("a kind that is not served", "ConfigMap default/b (new)", "Thing a: its kind is not served")
	})
}

// TestRolling: what was applied is rolling until its pods are the new ones, and then is compared no more.
func TestRolling(t *testing.T) {
	bubble(t, func(b *bench) {
		b.runNode()
		b.render("v1.14.1", "v1.37.0")
		m := b.expect("newer versions", dnsChange, flannelChange, proxyChange)
		if err := b.keeper.Sync(b.Context(), b.desired, m); err != nil {
			t.Fatal(err)
		}
		if got := b.expect("applied").Rolling; len(got) == 0 || !strings.HasPrefix(got[0], "Deployment kube-system/coredns: ") {
			t.Errorf("at first %q roll", got)
		}
		time.Sleep(5 * time.Minute)
		if got := b.expect("a while later").Rolling; len(got) != 0 {
			t.Errorf("in the end %q roll", got)
		}
	})
}

// TestRollingIsSeen: pods that are awaited are asked for every few seconds at first, and at growing distances where they do not start.
func TestRollingIsSeen(t *testing.T) {
	bubble(t, func(b *bench) { // no node runs them
		b.render("v1.14.1", "v1.37.0")
		if err := b.keeper.Sync(b.Context(), b.desired, b.expect("newer versions", dnsChange, flannelChange, proxyChange)); err != nil {
			t.Fatal(err)
		}
		var at []time.Duration
		began := time.Now()
		b.keeper.c.Rendered = func(context.Context, cluster.Desired) cluster.Seen[cluster.RenderedManifests] {
			at = append(at, time.Since(began).Round(time.Second))
			return b.rendered
		}
		for time.Since(began) < 3*time.Minute {
			if got := b.expect("applied").Rolling; len(got) == 0 {
				t.Fatalf("nothing rolls after %v", time.Since(began))
			}
			time.Sleep(time.Second)
		}
		const s = time.Second
		if want := []time.Duration{0, 5 * s, 10 * s, 15 * s, 23 * s, 35 * s, 53 * s, 80 * s, 110 * s, 140 * s, 170 * s}; !slices.Equal(at, want) {
			t.Errorf("compared at %v, want %v", at, want)
		}
		b.render("v1.14.1", "v1.37.1") // there is something to be done again
		for at = nil; len(at) < 2; time.Sleep(time.Second) {
			b.look()
		}
		if at[1]-at[0] != againFor {
			t.Errorf("what is to be applied is compared at %v", at)
		}
	})
}

// TestCompareAgain: what is as it should be is not asked for again, before a control plane gets another config, which may have it render
// something else; where one has not rendered all that it is to, it is asked again a while later.
func TestCompareAgain(t *testing.T) {
	bubble(t, func(b *bench) {
		asked := 0
		b.keeper.c.Rendered = func(context.Context, cluster.Desired) cluster.Seen[cluster.RenderedManifests] {
			asked++
			return b.rendered
		}
		b.render("v1.13.9", "v1.36.1")
		look := func(config string, want int) {
			t.Helper()
			o := cluster.Observed{Nodes: cluster.Saw(map[string]cluster.KubeNode{"cp-1": {Ready: true, OS: b.os, Kubelet: "v1.36.1"}})}
			if b.configs = map[string]string{"cp-1": config}; config == "" { // it does not answer
				b.configs = nil
			}
			if b.keeper.Observe(b.Context(), b.desired, &o); !o.Manifests.Known || asked != want {
				t.Errorf("config %s: asked %d times, want %d; %+v", config, asked, want, o.Manifests)
			}
		}
		look("a", 1)
		time.Sleep(lacksFor)
		look("a", 1)
		look("", 1)
		look("a", 1)
		b.rendered.Value.Lacks = "one is missing"
		look("b", 2)
		time.Sleep(lacksFor - time.Second)
		look("b", 2)
		time.Sleep(time.Second)
		look("b", 3)
		b.rendered.Value.Lacks = ""
		time.Sleep(lacksFor)
		look("b", 4)
		time.Sleep(goodFor - time.Second)
		look("b", 4)
	})
}
