package kube_test

import (
	"fmt"
	"io"
	"net/http"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// thousand is a cluster of 1,000 Ready nodes.
func thousand(b *testing.B) (*lab, kubernetes.Interface) {
	b.Helper()
	l := newLab(b, world.Config{Speed: 1e6})
	set := l.running(apiAddr)
	ready := readiness{make(chan bool, 1000)}
	for i := range 1000 {
		l.kube.RunKubelet(l.id, kubelet(fmt.Sprintf("node-%d", i), fmt.Sprintf("10.1.%d.%d", i/250, 1+i%250), i), ready.call)
	}
	for range 1000 {
		<-ready.ch
	}
	return l, set
}

// BenchmarkBringUp makes 1,000 nodes Ready, with flannel and kube-proxy on
// each.
func BenchmarkBringUp(b *testing.B) {
	for b.Loop() {
		l, _ := thousand(b)
		b.StopTimer()
		l.kube.Close()
		l.world.Close()
		b.StartTimer()
	}
}

// BenchmarkListNodes is one list of 1,000 nodes, as bytes on the wire.
func BenchmarkListNodes(b *testing.B) {
	l, _ := thousand(b)
	config := l.config(apiAddr)
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		b.Fatal(err)
	}
	defer utilnet.CloseIdleConnectionsFor(client.Transport)
	var size int64
	for b.Loop() {
		resp, err := client.Get(config.Host + "/api/v1/nodes")
		if err != nil || resp.StatusCode != http.StatusOK {
			b.Fatal(resp, err)
		}
		if size, err = io.Copy(io.Discard, resp.Body); err != nil {
			b.Fatal(err)
		}
		if err := resp.Body.Close(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(size)/1000, "B/node")
}

// BenchmarkWatch is one change of a node until ten watches of 1,000 have it.
func BenchmarkWatch(b *testing.B) {
	l, set := thousand(b)
	seen := make(chan struct{}, 10)
	for range 10 {
		w, err := l.typed(apiAddr).CoreV1().Nodes().Watch(ctx, metav1.ListOptions{})
		if err != nil {
			b.Fatal(err)
		}
		defer w.Stop()
		for range 1000 {
			<-w.ResultChan()
		}
		go func() {
			for e := range w.ResultChan() {
				if e.Type != watch.Modified {
					return // the end of the benchmark
				}
				seen <- struct{}{}
			}
		}()
	}
	n := 0
	for b.Loop() {
		n++
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"n":"%d"}}}`, n)
		if _, err := set.CoreV1().Nodes().Patch(ctx, "node-7", "application/merge-patch+json", patch, metav1.PatchOptions{}); err != nil {
			b.Fatal(err)
		}
		for range 10 {
			<-seen
		}
	}
}
