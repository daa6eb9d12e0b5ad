package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/kubeapi"
)

// nodes is a watch of the Node objects through one kube-apiserver. It ends by
// itself when that one is lost; whoever needs the nodes then begins another.
type nodes struct {
	server netip.Addr
	client corev1client.NodeInterface
	change func() // something about a node changed, or the watch was lost
	cancel context.CancelFunc

	mu       sync.Mutex
	moved    chan struct{} // closed and replaced whenever the fields below change
	listed   bool
	watching bool
	lost     error // why the watch ended
	whole    bool  // they were listed and watched at the same time, once
	missed   bool  // somebody gave up waiting
	seen     map[string]cluster.KubeNode
	shared   map[string]cluster.KubeNode // copy of seen that was handed out, nil after a change
}

// watchNodes begins a watch that ends with ctx, when cancel is called, or when
// the server is lost. run must be started by the caller.
func watchNodes(ctx context.Context, c *kubeapi.Connection, server netip.Addr, change func()) (w *nodes, run func(), err error) {
	config := &rest.Config{Host: serverOf(server), QPS: -1, ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeJSON, AcceptContentTypes: runtime.ContentTypeJSON}}
	client, err := corev1client.NewForConfigAndClient(config, &http.Client{Transport: kubeapi.Once(c)})
	if err != nil {
		return nil, nil, fmt.Errorf("make client for %s: %w", server, err)
	}
	// What client-go reports about a watch that broke is reported by us.
	ctx, cancel := context.WithCancel(klog.NewContext(ctx, logr.Discard()))
	w = &nodes{server: server, client: client.Nodes(), change: change, cancel: cancel, moved: make(chan struct{}), seen: map[string]cluster.KubeNode{}}
	return w, func() { w.run(ctx) }, nil
}

// run keeps the nodes up to date until the server is lost.
func (w *nodes) run(ctx context.Context) {
	defer w.cancel()
	reflector := cache.NewReflectorWithOptions(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return w.client.List(ctx, o)
		},
		WatchFuncWithContext: w.watch,
	}, &corev1.Node{}, w, cache.ReflectorOptions{Name: "nodes"})
	for {
		began := time.Now()
		err := reflector.ListAndWatchWithContext(ctx)
		switch {
		case ctx.Err() != nil:
			err = ctx.Err()
		case err == nil && time.Since(began) < time.Second:
			err = errors.New("its watches end at once")
		case err == nil:
			// The history it watched was thrown away: list again.
			continue
		}
		w.update(func() bool { w.lost, w.watching = err, false; return ctx.Err() == nil })
		return
	}
}

// watch begins one watch request. A server that is too busy would make the
// reflector try it for ever, so that its answer is disguised.
func (w *nodes) watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	w.update(func() bool { w.watching = false; return false })
	stream, err := w.client.Watch(ctx, o)
	if apierrors.IsTooManyRequests(err) {
		return nil, kubeapi.InWords(err)
	}
	if err != nil {
		return nil, err
	}
	w.update(func() bool { w.watching = true; return false })
	return stream, nil
}

// wait returns the nodes as soon as they are listed and watched. The map is
// shared and read-only.
func (w *nodes) wait(ctx context.Context) (map[string]cluster.KubeNode, error) {
	for {
		w.mu.Lock()
		moved := w.moved
		switch {
		case w.lost != nil:
			defer w.mu.Unlock()
			return nil, w.lost
		case w.listed && w.watching:
			defer w.mu.Unlock()
			if w.shared == nil {
				w.shared = make(map[string]cluster.KubeNode, len(w.seen))
				for name, n := range w.seen {
					w.shared[name] = n
				}
			}
			return w.shared, nil
		}
		w.mu.Unlock()
		select {
		case <-moved:
		case <-ctx.Done():
			w.mu.Lock()
			w.missed = true
			w.mu.Unlock()
			return nil, errors.New("it has not listed its nodes in time")
		}
	}
}

// over reports whether the watch has ended.
func (w *nodes) over() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lost != nil
}

// update changes the fields and wakes who waits. It notifies when what is known
// of the nodes changed, unless whoever began the watch still waits for it: who
// waits needs no notice, and a watch that is refused would call for the next
// one without end.
func (w *nodes) update(f func() (changed bool)) {
	w.mu.Lock()
	notify := w.whole || w.missed
	changed := f()
	w.whole = w.whole || w.listed && w.watching
	if changed {
		w.shared = nil
	}
	close(w.moved)
	w.moved = make(chan struct{})
	w.mu.Unlock()
	if changed && notify {
		w.change()
	}
}

// Add implements cache.ReflectorStore.
func (w *nodes) Add(obj any) error { return w.Update(obj) }

// Update implements cache.ReflectorStore. Most updates are heartbeats that
// change nothing anybody asks about.
func (w *nodes) Update(obj any) error {
	n, err := nodeOf(obj)
	if err != nil {
		return err
	}
	w.mu.Lock()
	same := w.seen[n.Name] == n
	w.mu.Unlock()
	if !same {
		w.update(func() bool { w.seen[n.Name] = n; return true })
	}
	return nil
}

// Delete implements cache.ReflectorStore.
func (w *nodes) Delete(obj any) error {
	n, err := nodeOf(obj)
	if err != nil {
		return err
	}
	w.update(func() bool { delete(w.seen, n.Name); return true })
	return nil
}

// Replace implements cache.ReflectorStore.
func (w *nodes) Replace(list []any, _ string) error {
	seen := make(map[string]cluster.KubeNode, len(list))
	for _, obj := range list {
		n, err := nodeOf(obj)
		if err != nil {
			return err
		}
		seen[n.Name] = n
	}
	w.update(func() bool { w.seen, w.listed = seen, true; return true })
	return nil
}

// Resync implements cache.ReflectorStore.
func (w *nodes) Resync() error { return nil }

// Transformer implements cache.TransformingStore: of a node, only what nodeOf
// reads is kept while a list comes in.
func (w *nodes) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) {
		n, ok := obj.(*corev1.Node)
		if !ok {
			return obj, nil
		}
		small := &corev1.Node{}
		small.Name, small.ResourceVersion = n.Name, n.ResourceVersion
		small.Status.NodeInfo.KubeletVersion = n.Status.NodeInfo.KubeletVersion
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady {
				small.Status.Conditions = []corev1.NodeCondition{c}
			}
		}
		return small, nil
	}
}

// nodeOf reads a Node object.
func nodeOf(obj any) (cluster.KubeNode, error) {
	o, ok := obj.(*corev1.Node)
	if !ok {
		return cluster.KubeNode{}, fmt.Errorf("%T is no node", obj)
	}
	n := cluster.KubeNode{Name: o.Name, Kubelet: o.Status.NodeInfo.KubeletVersion, Why: "its kubelet has not reported yet"}
	for _, c := range o.Status.Conditions {
		if c.Type != corev1.NodeReady {
			continue
		}
		n.Ready, n.Why = c.Status == corev1.ConditionTrue, kubeapi.Sanitize(c.Message)
		if n.Ready {
			n.Why = ""
		}
	}
	return n, nil
}
