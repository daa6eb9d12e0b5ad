package kube

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/kubeapi"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// register puts Node objects of a usual size into the cluster.
func (b *bench) register(nodes int) {
	b.Helper()
	conn, err := kubeapi.Connect(b.desired.Access.Kube, b.world.Net.DialContext, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	client, err := corev1client.NewForConfigAndClient(&rest.Config{
		Host: serverOf(b.desired.Spec.Nodes[0].IP), QPS: -1, ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeJSON},
	}, &http.Client{Transport: conn})
	if err != nil {
		b.Fatal(err)
	}
	n := &corev1.Node{}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Message: "kubelet is posting ready status"}}
	n.Status.NodeInfo.KubeletVersion = "v1.36.1"
	for i := range 50 {
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{
			Names:     []string{fmt.Sprintf("registry.k8s.io/some/image-%d@sha256:%s", i, strings.Repeat("0123456789abcdef", 4)), fmt.Sprintf("registry.k8s.io/some/image-%d:v1.2.3", i)},
			SizeBytes: 123456789,
		})
	}
	for i := range nodes {
		n.Name = fmt.Sprintf("node-%04d", i)
		if _, err := client.Nodes().Create(context.Background(), n, metav1.CreateOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkObserve is a pass in which nothing changed, a minute after the one
// before: every control plane's API is asked whether it is ready, and the nodes
// come from the watch.
func BenchmarkObserve(b *testing.B) {
	for _, nodes := range []int{3, 1000} {
		b.Run(fmt.Sprint(nodes), func(b *testing.B) {
			w := newBench(b, world.Config{Speed: 1000}, "10.0.0", 3)
			for n := range 3 {
				w.serve(n + 1)
			}
			w.register(nodes)
			w.mustKnow(w.look(), nodes)
			b.ReportAllocs()
			for b.Loop() {
				w.cluster.mu.Lock()
				for addr, a := range w.cluster.apis {
					a.asked = a.asked.Add(-time.Minute)
					w.cluster.apis[addr] = a
				}
				w.cluster.mu.Unlock()
				w.mustKnow(w.look(), nodes)
			}
		})
	}
}

// BenchmarkHeartbeat is what one update of a Node costs after it was decoded.
func BenchmarkHeartbeat(b *testing.B) {
	w := &follower[cluster.KubeNode]{kind: kindOfNodes(corev1client.New(nil), nodeReader{}, &writings{}), moved: make(chan struct{}), change: func() {}}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	if err := w.Replace([]any{n}, ""); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := w.Update(n); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkNameSetters is what a pass costs in which so many of 1,000 nodes differ from the
// inventory.
func BenchmarkNameSetters(b *testing.B) {
	for _, differ := range []int{0, 1000} {
		b.Run(fmt.Sprint(differ), func(b *testing.B) {
			w, d, o := &writings{}, cluster.Desired{}, cluster.Observed{Nodes: cluster.Saw(map[string]cluster.KubeNode{})}
			for i := range 1000 {
				n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%04d", i), Labels: map[string]string{"zone": "b"}}}
				for _, manager := range []string{"kubelet", "kube-controller-manager", "kubectl-label"} {
					n.ManagedFields = append(n.ManagedFields, metav1.ManagedFieldsEntry{Manager: manager, FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(
						`{"f:metadata":{"f:annotations":{".":{},"f:csi.volume.kubernetes.io/nodeid":{},"f:node.alpha.kubernetes.io/ttl":{}},"f:labels":{".":{},"f:zone":{},"f:kubernetes.io/os":{}}},"f:spec":{"f:podCIDR":{},"f:podCIDRs":{".":{},"v:\"10.244.0.0/24\"":{}},"f:taints":{}}}`)})
				}
				w.note(n)
				want := cluster.Node{Name: n.Name, Labels: map[string]string{"zone": "b"}}
				if i < differ {
					want.Labels = map[string]string{"zone": "a"}
				}
				d.Spec.Nodes = append(d.Spec.Nodes, want)
				o.Nodes.Value[n.Name] = cluster.KubeNode{Name: n.Name, Meta: cluster.NodeMeta{Labels: n.Labels}}
			}
			b.ReportAllocs()
			for b.Loop() {
				o := o
				w.nameSetters(d, &o)
			}
		})
	}
}
