package components

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/readiness"
)

// TestRevertUpgrade: an upgrade that is taken back at any point of it, whatever of it came up, ends with
// what there was; no component is newer than a kube-apiserver that goes back, and nothing gets a newer
// version.
func TestRevertUpgrade(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newModel(rapid.SampledFrom([]int{1, 3}).Draw(t, "planes"), rapid.IntRange(0, 3).Draw(t, "workers"), from)
		w.spec.MaxUnavailable = rapid.IntRange(0, 2).Draw(t, "max unavailable")
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			next, _ := Next(to, w.spec, w.observe())
			proceed(t, w, next)
		}
		if n := rapid.SampledFrom(w.spec.Nodes).Draw(t, "node"); rapid.Bool().Draw(t, "broken") && slices.ContainsFunc(partsOf(n), func(p part) bool { return *p.of(w.has[n.Name]) == to }) {
			w.broken[n.Name] = true // for the newer version
		}
		for range 300 {
			next, waiting := Revert(from, w.spec, w.observe())
			checkStepBack(t, w, next)
			isBack := !slices.ContainsFunc(w.spec.Nodes, func(n cluster.Node) bool { return !isBackAt(w, n) })
			if isBack {
				if waiting.Reason != "" {
					t.Fatalf("all is back, and it waits: %s", Describe(waiting))
				}
				return
			}
			proceed(t, w, next)
			for _, n := range w.spec.Nodes {
				w.broken[n.Name] = w.broken[n.Name] && !isBackAt(w, n)
			}
		}
		_, waiting := Revert(from, w.spec, w.observe())
		t.Fatalf("it does not end: %s\n%s", Describe(waiting), describe(w))
	})
}

// isBackAt reports whether a node has and runs what it had.
func isBackAt(w *modelled, n cluster.Node) bool {
	return !slices.ContainsFunc(partsOf(n), func(p part) bool {
		return isOlder(from, *p.of(w.has[n.Name])) || isOlder(from, *p.of(w.runs[n.Name]))
	})
}

func checkStepBack(t *rapid.T, w *modelled, next map[string]cluster.Components) {
	planes := 0
	for _, n := range w.spec.Nodes {
		want, has := next[n.Name], *w.has[n.Name]
		for _, p := range w.changesOf(n, next) {
			if *p.of(&want) != from || !isOlder(from, *p.of(&has)) {
				t.Fatalf("%s gets %s %s after %s", n.Name, p.name, *p.of(&want), *p.of(&has))
			}
			if n.Role == cluster.ControlPlane {
				planes++
			}
			for _, other := range w.spec.Nodes {
				for _, q := range partsOf(other) {
					if p.name == apiServer && q.name != apiServer && (isOlder(from, *q.of(w.has[other.Name])) || isOlder(from, *q.of(w.runs[other.Name]))) {
						t.Fatalf("%s gets %s %s before the %s of %s\n%s", n.Name, p.name, from, q.name, other.Name, describe(w))
					}
				}
			}
		}
		if n.Role == cluster.ControlPlane && (isOlder(has.Proxy, want.Proxy) || isOlder(want.Proxy, from)) {
			t.Fatalf("%s gets kube-proxy %s after %s", n.Name, want.Proxy, has.Proxy)
		}
	}
	if planes > 1 {
		t.Fatalf("%d steps of control planes at once: %v", planes, next)
	}
}

func TestRevert(t *testing.T) {
	// upgraded is 2 control planes and 2 workers, of which all but the workers run the newer version.
	upgraded := func() *modelled {
		w := newModel(2, 2, from)
		for _, n := range w.spec.ControlPlanes() {
			*w.has[n.Name] = cluster.Components{APIServer: to, ControllerManager: to, Scheduler: to, Proxy: to, Kubelet: to}
			*w.runs[n.Name] = *w.has[n.Name]
		}
		return w
	}
	back := func(w *modelled, parts ...part) {
		for _, n := range w.spec.ControlPlanes() {
			for _, p := range parts {
				*p.of(w.has[n.Name]), *p.of(w.runs[n.Name]) = from, from
			}
		}
	}
	all := append(slices.Clone(planeParts[1:]), kubelet)
	for name, tc := range map[string]struct {
		world func(*modelled)
		seen  func(*cluster.Observed)
		to    string
		want  string
	}{
		"kubelets first":         {want: "cp-1 kubelet v1.35.10"},
		"of workers before":      {world: func(w *modelled) { w.has["wk-2"].Kubelet, w.runs["wk-2"].Kubelet = to, to }, want: "wk-2 kubelet v1.35.10"},
		"then the schedulers":    {world: func(w *modelled) { back(w, kubelet) }, want: "cp-1 kube-scheduler v1.35.10"},
		"the apiservers last":    {world: func(w *modelled) { back(w, all...) }, want: "cp-1 kube-apiserver v1.35.10"},
		"nothing is newer":       {to: to, want: ""},
		"two minor versions":     {to: "v1.34.2", want: "waits: cp-1 has kube-apiserver v1.36.1, and v1.34.2 is more than one minor version older"},
		"no version":             {to: "stable", want: `waits: "stable" is not a version of Kubernetes`},
		"what does not come up":  {world: func(w *modelled) { back(w, all...); w.broken["cp-2"] = true }, want: "cp-2 kube-apiserver v1.35.10"},
		"beside one that is off": {world: func(w *modelled) { back(w, all...); w.silent["cp-2"] = true }, want: "waits: cp-2: its machine does not answer with its config"},
		"a locked one": {world: func(w *modelled) {
			w.spec.Nodes[0].Locked = true
			w.has["cp-2"].Kubelet, w.runs["cp-2"].Kubelet = from, from
		}, want: "waits: cp-1: it is locked in the inventory, and keeps kubelet v1.36.1"},
		"a kubelet of another node": {world: func(w *modelled) { back(w, all...) },
			seen: func(o *cluster.Observed) { o.Nodes.Value["other"] = cluster.KubeNode{Name: "other", Kubelet: to} },
			want: "waits: other still runs kubelet v1.36.1"},
		"the only apiserver is down": {world: func(w *modelled) {
			back(w, all...)
			w.spec.Nodes = slices.Delete(w.spec.Nodes, 1, 2)
			delete(w.has, "cp-2")
			w.podsWhy, w.nodesWhy = "no kube-apiserver answers", "no kube-apiserver answers"
		}, want: "cp-1 kube-apiserver v1.35.10"},
	} {
		w := upgraded()
		if tc.world != nil {
			tc.world(w)
		}
		if tc.to == "" {
			tc.to = from
		}
		o := w.observe()
		if tc.seen != nil {
			tc.seen(&o)
		}
		next, waiting := Revert(tc.to, w.spec, o)
		if got := describeStep(w, next, waiting); got != tc.want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, tc.want)
		}
		if next["cp-1"].Kubelet == from && next["cp-1"].Proxy != from {
			t.Errorf("%s: kube-proxy stays: %s", name, strings.TrimSpace(describe(w)))
		}
	}
}

// TestHasNewer: a static pod that still runs what its config had before counts, unless Kubernetes does not answer.
func TestHasNewer(t *testing.T) {
	for name, c := range map[string]struct {
		has, runs, podsWhy string
		want               bool
	}{
		"taken back":             {has: "v1.35.3", runs: "v1.35.3"},
		"by its config":          {has: "v1.36.1", runs: "v1.35.3", want: true},
		"it still runs":          {has: "v1.35.3", runs: "v1.36.1", want: true},
		"nothing is seen to run": {has: "v1.35.3", runs: "v1.36.1", podsWhy: "kubernetes does not answer"},
	} {
		w := newModel(1, 1, "v1.35.3")
		w.has["cp-1"].APIServer, w.runs["cp-1"].APIServer, w.podsWhy = c.has, c.runs, c.podsWhy
		if got := HasNewer("v1.35.3", w.spec, w.observe()); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// TestRevertAwaitsTurns: while a node is out of service for its turn nothing goes back, unless it was NotReady for longer than a boot
// takes, or is locked, or another node does not come up with the newer version.
func TestRevertAwaitsTurns(t *testing.T) {
	type world struct {
		*modelled
		o cluster.Observed
	}
	change := func(w world, node string, edit func(*cluster.KubeNode)) {
		kn := w.o.Nodes.Value[node]
		edit(&kn)
		w.o.Nodes.Value[node] = kn
	}
	isDown := func(since time.Duration) func(*world) {
		return func(w *world) {
			change(*w, "wk-1", func(kn *cluster.KubeNode) { kn.Ready, kn.NotReadySince = false, w.o.Now.Add(-since) })
		}
	}
	for name, c := range map[string]struct {
		edit    func(*world)
		gives   string // the node that is given its kubelet
		waitFor string
	}{
		"Ready, about to be in service":   {edit: func(*world) {}, waitFor: "wk-1"},
		"boots":                           {edit: isDown(readiness.BootWithin - 1), waitFor: "wk-1"},
		"stuck":                           {edit: isDown(readiness.BootWithin), gives: "wk-1"},
		"NotReady since an unknown time":  {edit: func(w *world) { change(*w, "wk-1", func(kn *cluster.KubeNode) { kn.Ready = false }) }, waitFor: "wk-1"},
		"in service":                      {edit: func(w *world) { change(*w, "wk-1", func(kn *cluster.KubeNode) { kn.Cordoned = false }) }, gives: "wk-1"},
		"cordoned by somebody":            {edit: func(w *world) { change(*w, "wk-1", func(kn *cluster.KubeNode) { kn.Turn = "" }) }, gives: "wk-1"},
		"locked":                          {edit: func(w *world) { w.spec.Nodes[1].Locked = true }, gives: "wk-2"},
		"another does not come up":        {edit: func(w *world) { change(*w, "wk-2", func(kn *cluster.KubeNode) { kn.Ready = false }) }, gives: "wk-2"},
		"another does not answer":         {edit: func(w *world) { w.o.Machines["wk-2"] = cluster.Machine{Reach: cluster.Silent} }, waitFor: "wk-1"},
		"another lacks the older version": {edit: func(w *world) { w.takeBack("wk-2"); w.o.Machines["wk-2"] = w.observe().Machines["wk-2"] }, waitFor: "wk-1"},
	} {
		w := world{modelled: newModel(1, 2, to)}
		w.o = w.observe()
		change(w, "wk-1", func(kn *cluster.KubeNode) { kn.Turn, kn.Cordoned = "t", true })
		c.edit(&w)
		next, waiting := Revert(from, w.spec, w.o)
		gives := ""
		for _, n := range w.spec.Nodes {
			for range w.changesOf(n, next) {
				gives += n.Name
			}
		}
		if gives != c.gives || waiting.Subject != c.waitFor {
			t.Errorf("%s: %q is given something, and it waits for %+v", name, gives, waiting)
		}
	}
}

// takeBack has a worker have the older kubelet by its config, and run the newer one still.
func (w *modelled) takeBack(node string) { w.has[node].Kubelet = from }
