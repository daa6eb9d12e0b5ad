package kube_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
)

func configMap(name string, labels map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
}

// next is the next event of a watch, as "TYPE name".
func next(t *testing.T, w watch.Interface) string {
	t.Helper()
	select {
	case e, ok := <-w.ResultChan():
		if !ok {
			return "closed"
		}
		if s, ok := e.Object.(*metav1.Status); ok {
			return fmt.Sprintf("%s %s", e.Type, s.Reason)
		}
		o, ok := e.Object.(metav1.Object)
		if !ok {
			t.Fatalf("event of %T", e.Object)
		}
		return fmt.Sprintf("%s %s", e.Type, o.GetName())
	case <-time.After(time.Second):
		return "nothing"
	}
}

func TestWatch(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		maps := l.running(apiAddr).CoreV1().ConfigMaps("default")
		yes := map[string]string{"pick": "yes"}
		if _, err := maps.Create(ctx, configMap("before", yes), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		list, err := maps.List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		// From a version: only what happened since. From none: everything.
		picked := metav1.ListOptions{LabelSelector: "pick=yes", ResourceVersion: list.ResourceVersion}
		later, err := maps.Watch(ctx, picked)
		if err != nil {
			t.Fatal(err)
		}
		defer later.Stop()
		all, err := maps.Watch(ctx, metav1.ListOptions{LabelSelector: "pick=yes"})
		if err != nil {
			t.Fatal(err)
		}
		defer all.Stop()
		if got := next(t, all); got != "ADDED before" {
			t.Errorf("first event %q", got)
		}
		patch := func(body string) {
			t.Helper()
			if _, err := maps.Patch(ctx, "b", types.MergePatchType, []byte(body), metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := maps.Create(ctx, configMap("b", nil), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		patch(`{"metadata":{"labels":{"pick":"yes"}}}`)
		patch(`{"data":{"a":"b"}}`)
		patch(`{"metadata":{"labels":{"pick":"no"}}}`)
		patch(`{"metadata":{"labels":{"pick":"yes"}}}`)
		if err := maps.Delete(ctx, "b", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"ADDED b", "MODIFIED b", "DELETED b", "ADDED b", "DELETED b", "nothing"} {
			for name, w := range map[string]watch.Interface{"later": later, "all": all} {
				if got := next(t, w); got != want {
					t.Errorf("%s: event %q, want %q", name, got, want)
				}
			}
		}
		// A watch can be resumed from the past.
		again, err := maps.Watch(ctx, picked)
		if err != nil {
			t.Fatal(err)
		}
		defer again.Stop()
		if got := next(t, again); got != "ADDED b" {
			t.Errorf("resumed watch begins with %q", got)
		}
		// A version that is not reached yet is waited for, a list refuses it.
		future, err := maps.Watch(ctx, metav1.ListOptions{ResourceVersion: "99999999"})
		if err != nil {
			t.Fatal(err)
		}
		defer future.Stop()
		if got := next(t, future); got != "nothing" {
			t.Errorf("watch from the future: %q", got)
		}
		_, err = maps.List(ctx, metav1.ListOptions{ResourceVersion: "99999999"})
		if !apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) {
			t.Errorf("list from the future: %v", err)
		}
	})
}

func TestWatchEnds(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		stopped := newReadiness()
		stop := l.kube.ServeAPI(l.id, "etcd-1", l.control("cp-1", apiAddr), stopped.call)
		<-stopped.ch
		maps := l.typed(apiAddr).CoreV1().ConfigMaps("default")
		start := time.Now()
		limit := int64(90)
		w, err := maps.Watch(ctx, metav1.ListOptions{TimeoutSeconds: &limit, AllowWatchBookmarks: true, ResourceVersion: "1"})
		if err != nil {
			t.Fatal(err)
		}
		var kinds []watch.EventType
		for e := range w.ResultChan() {
			kinds = append(kinds, e.Type)
		}
		if last := kinds[len(kinds)-1]; last != watch.Bookmark || time.Since(start).Round(time.Second) != 90*time.Second {
			t.Errorf("watch ended after %v with %v", time.Since(start), kinds)
		}
		if w, err = maps.Watch(ctx, metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
		for next(t, w) != "nothing" {
		}
		stop()
		if got := next(t, w); got != "closed" {
			t.Errorf("after the API stopped: %q", got)
		}
	})
}

// TestTableWatch watches as "kubectl get -w" does: rows of a table, whose
// columns are named once.
func TestTableWatch(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.running(apiAddr)
		body, err := set.CoreV1().RESTClient().Get().AbsPath("/api/v1/namespaces").Param("watch", "true").Param("includeObject", "Object").
			SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").Stream(ctx)
		if err != nil {
			t.Fatal(err)
		}
		events := json.NewDecoder(body)
		var names []string
		for range 4 {
			var e struct {
				Type   string
				Object metav1.Table
			}
			if err := events.Decode(&e); err != nil {
				t.Fatal(err)
			}
			if first := len(names) == 0; (len(e.Object.ColumnDefinitions) == 3) != first {
				t.Errorf("event %d names %d columns", len(names)+1, len(e.Object.ColumnDefinitions))
			}
			var ns corev1.Namespace
			if err := json.Unmarshal(e.Object.Rows[0].Object.Raw, &ns); err != nil || ns.Kind != "Namespace" || ns.Status.Phase != corev1.NamespaceActive {
				t.Errorf("object of the row: %s, %v", e.Object.Rows[0].Object.Raw, err)
			}
			names = append(names, fmt.Sprint(e.Object.Rows[0].Cells[0]))
		}
		if got := fmt.Sprint(names); got != "[default kube-node-lease kube-public kube-system]" {
			t.Errorf("rows %s", got)
		}
		if err := body.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestInformers runs typed, dynamic and metadata informers, which list and
// watch in the way of client-go: by a watch that sends what there is, a
// bookmark, and then what comes.
func TestInformers(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.running(apiAddr)
		nodes := schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
		l.kube.RunKubelet(l.id, kubelet("wk-1", "10.0.0.21", 501), ignore)
		ended, end := context.WithCancel(ctx)
		typed := informers.NewSharedInformerFactory(set, 0)
		dyn := dynamicinformer.NewDynamicSharedInformerFactory(dynamic.NewForConfigOrDie(l.config(apiAddr)), 0)
		meta := metadatainformer.NewSharedInformerFactory(metadata.NewForConfigOrDie(l.config(apiAddr)), 0)
		stores := map[string]cache.SharedIndexInformer{
			"typed": typed.Core().V1().Nodes().Informer(), "dynamic": dyn.ForResource(nodes).Informer(), "metadata": meta.ForResource(nodes).Informer(),
		}
		for _, f := range []interface{ Start(<-chan struct{}) }{typed, dyn, meta} {
			f.Start(ended.Done())
		}
		for name, s := range stores {
			if !cache.WaitForCacheSync(ended.Done(), s.HasSynced) {
				t.Fatalf("%s: not synced", name)
			}
		}
		l.kube.RunKubelet(l.id, kubelet("wk-2", "10.0.0.22", 502), ignore)
		for name, s := range stores {
			eventually(t, name, time.Minute, func() error {
				if n := len(s.GetStore().List()); n != 2 {
					return fmt.Errorf("%d nodes", n)
				}
				return nil
			})
		}
		end()
		for _, f := range []interface{ Shutdown() }{typed, dyn, meta} {
			f.Shutdown()
		}
		watches := 0
		for _, c := range l.world.Calls() {
			if c.Op == "GET /api/v1/nodes" {
				t.Error("an informer fell back to a list")
			}
			if c.Op == "WATCH /api/v1/nodes" {
				watches++
			}
		}
		if watches != 3 {
			t.Errorf("%d watches, want one per informer", watches)
		}
	})
}
