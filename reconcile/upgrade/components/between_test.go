package components

import (
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestBetween: components are between two versions while some are newer than the oldest, by a config or by what still runs, and these
// are named.
func TestBetween(t *testing.T) {
	for name, c := range map[string]struct {
		edit  func(w *modelled)
		ahead string
	}{
		"all have the same": {func(*modelled) {}, ""},
		"a kube-apiserver":  {func(w *modelled) { w.has["cp-1"].APIServer = to }, "cp-1 has kube-apiserver " + to},
		"it goes back":      {func(w *modelled) { w.runs["cp-1"].Scheduler = to }, "cp-1 still runs kube-scheduler " + to},
		"most of them": {func(w *modelled) {
			w.has["cp-1"].APIServer, w.has["cp-1"].ControllerManager, w.has["cp-1"].Scheduler, w.has["cp-1"].Kubelet = to, to, to, to
		}, "cp-1 has kube-apiserver " + to + ", cp-1 has kube-controller-manager " + to + ", cp-1 has kube-scheduler " + to + ", and 1 more"},
	} {
		w := newModel(1, 2, from)
		c.edit(w)
		oldest, newest, ahead := Between(w.spec, w.observe())
		want := from
		if c.ahead != "" {
			want = to
		}
		if oldest != from || newest != want || ahead != c.ahead {
			t.Errorf("%s: %q, %q, %q", name, oldest, newest, ahead)
		}
	}
	if oldest, newest, ahead := Between(cluster.Spec{}, cluster.Observed{}); oldest+newest+ahead != "" {
		t.Errorf("of nothing: %q, %q, %q", oldest, newest, ahead)
	}
}
