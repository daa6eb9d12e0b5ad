package components

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestOrder: the steps of a whole hop, one after the other. Workers get theirs side by side.
func TestOrder(t *testing.T) {
	w := newModel(3, 3, from)
	w.spec.MaxUnavailable = 2
	var got []string
	for range 50 {
		next, waiting := Next(to, w.spec, w.observe())
		if waiting.Reason != "" {
			t.Fatal(Describe(waiting))
		}
		var steps []string
		for _, n := range w.spec.Nodes {
			for _, p := range w.changesOf(n, next) {
				steps = append(steps, n.Name+" "+p.name)
			}
			if n.Role == cluster.ControlPlane && next[n.Name].Proxy != next[n.Name].Kubelet {
				t.Errorf("%s has %+v", n.Name, next[n.Name])
			}
			*w.has[n.Name] = next[n.Name]
			for _, p := range partsOf(n) {
				w.comesUp(n.Name, p)
			}
		}
		if len(steps) == 0 {
			break
		}
		got = append(got, strings.Join(steps, ", "))
	}
	want := []string{
		"cp-1 kube-apiserver", "cp-2 kube-apiserver", "cp-3 kube-apiserver",
		"cp-1 kube-controller-manager", "cp-2 kube-controller-manager", "cp-3 kube-controller-manager",
		"cp-1 kube-scheduler", "cp-2 kube-scheduler", "cp-3 kube-scheduler",
		"cp-1 kubelet", "cp-2 kubelet", "cp-3 kubelet", "wk-1 kubelet, wk-2 kubelet", "wk-3 kubelet",
	}
	if !slices.Equal(got, want) {
		t.Errorf("steps:\n%s", strings.Join(got, "\n"))
	}
	if v, ok := oldestIn(w.spec, w.observe()); !ok || v != to {
		t.Errorf("the oldest is %q", v)
	}
}

// describeStep is what Next or Revert has a cluster do, in one line.
func describeStep(w *modelled, next map[string]cluster.Components, waiting cluster.Wait) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(w.has)) {
		n, _ := w.spec.Node(name)
		if _, ok := next[name]; !ok {
			out = append(out, name+" is left alone")
		}
		for _, p := range w.changesOf(n, next) {
			c := next[name]
			out = append(out, fmt.Sprintf("%s %s %s", name, p.name, *p.of(&c)))
		}
	}
	if waiting.Reason != "" {
		out = append(out, "waits: "+Describe(waiting))
	}
	return strings.Join(out, ", ")
}

func TestNext(t *testing.T) {
	const cp1, cp2, wk1 = "cp-1", "cp-2", "wk-1"
	planesAt := func(w *modelled, v string) {
		for _, n := range w.spec.ControlPlanes() {
			*w.has[n.Name] = cluster.Components{APIServer: v, ControllerManager: v, Scheduler: v, Proxy: v, Kubelet: v}
			*w.runs[n.Name] = *w.has[n.Name]
		}
	}
	kubelets := func(w *modelled, v string) { // after the other components
		if w.has[cp1].APIServer == from {
			planesAt(w, to)
		}
		for name := range w.has {
			w.has[name].Kubelet, w.runs[name].Kubelet = v, v
		}
	}
	kubeletAt := func(w *modelled, name string) { w.has[name].Kubelet, w.runs[name].Kubelet = to, to }
	configSince := func(o *cluster.Observed, name string, ago time.Duration) {
		m := o.Machines[name]
		m.ConfigSince = o.Now.Add(-ago)
		o.Machines[name] = m
	}
	lock := func(w *modelled, name string) {
		for i := range w.spec.Nodes {
			w.spec.Nodes[i].Locked = w.spec.Nodes[i].Name == name
		}
	}
	changePod := func(o *cluster.Observed, name string, change func(*cluster.SystemPod)) {
		p := o.SystemPods.Value[name]
		change(&p)
		o.SystemPods.Value[name] = p
	}
	for name, tc := range map[string]struct {
		world func(*modelled)
		seen  func(*cluster.Observed)
		to    string
		want  string
	}{
		"begins":     {want: "cp-1 kube-apiserver v1.36.1"},
		"is there":   {to: from, want: ""},
		"no version": {to: "stable", want: `waits: "stable" is not a version of Kubernetes`},
		"the one before does not run it yet": {
			world: func(w *modelled) { w.has[cp1].APIServer = to },
			want:  "waits: cp-1: its kube-apiserver is not yet the one of its config, by what Kubernetes shows"},
		"Kubernetes shows another config": {
			world: func(w *modelled) { w.has[cp1].APIServer, w.runs[cp1].APIServer = to, to },
			seen: func(o *cluster.Observed) {
				changePod(o, "kube-apiserver-cp-1", func(p *cluster.SystemPod) { p.Static.Versions = "1112" })
			},
			want: "waits: cp-1: its kube-apiserver is not yet the one of its config, by what Kubernetes shows"},
		"its kube-apiserver restarts after the scheduler": {
			world: func(w *modelled) { planesAt(w, to); w.has[cp2].Scheduler, w.runs[cp2].Scheduler = from, from },
			seen: func(o *cluster.Observed) {
				changePod(o, "kube-apiserver-cp-1", func(p *cluster.SystemPod) { p.Ready = false })
			},
			want: "waits: cp-1: its kube-apiserver is not ready"},
		"its kube-apiserver does not answer": {
			world: func(w *modelled) { w.has[cp1].APIServer, w.runs[cp1].APIServer = to, to },
			seen:  func(o *cluster.Observed) { o.APIs[cp1] = cluster.Saw(false) },
			want:  "waits: cp-1: its kube-apiserver is not ready"},
		"its machine has not taken the config": {
			world: func(w *modelled) { w.has[cp1].APIServer, w.runs[cp1].APIServer = to, to },
			seen: func(o *cluster.Observed) {
				m := o.Machines[cp1]
				m.StaticPods = nil
				o.Machines[cp1] = m
			},
			want: "waits: cp-1: its machine has not taken the kube-apiserver of its config yet"},
		"no pods seen": {
			world: func(w *modelled) { w.has[cp1].APIServer, w.podsWhy = to, "no kube-apiserver answers" },
			want:  "waits: cp-1: cannot see the pods of kube-system: no kube-apiserver answers"},
		"no nodes seen": {world: func(w *modelled) { w.nodesWhy = "no kube-apiserver answers" },
			want: "waits: the kubelets are not seen: no kube-apiserver answers"},
		"another control plane is not Ready": {world: func(w *modelled) { w.broken[cp2] = true },
			want: "waits: cp-2: Kubernetes reports NotReady: its network is down"},
		"a worker is not":          {world: func(w *modelled) { w.broken[wk1] = true }, want: "waits: wk-1: Kubernetes reports NotReady: its network is down"},
		"a worker does not answer": {world: func(w *modelled) { w.silent[wk1] = true }, want: "waits: wk-1: its machine does not answer with its config"},
		"a locked worker does not": {world: func(w *modelled) { w.silent[wk1] = true; lock(w, wk1) }, want: "cp-1 kube-apiserver v1.36.1"},
		"a worker is not Ready in the middle": {
			world: func(w *modelled) { w.has[cp1].APIServer, w.runs[cp1].APIServer = to, to; w.broken[wk1] = true }, want: "cp-2 kube-apiserver v1.36.1"},
		"a worker is not, and nothing is asked for": {world: func(w *modelled) { w.broken[wk1] = true }, to: from, want: "waits: wk-1: Kubernetes reports NotReady: its network is down"},
		"which did not come up, and there is a newer one": {
			world: func(w *modelled) { w.has[cp2].APIServer = to }, to: "v1.36.2", want: "cp-2 kube-apiserver v1.36.2"},
		"which runs, and is not ready": {
			world: func(w *modelled) { w.has[cp2].APIServer, w.runs[cp2].APIServer = to, to },
			seen: func(o *cluster.Observed) {
				changePod(o, "kube-apiserver-cp-2", func(p *cluster.SystemPod) { p.Ready = false })
			},
			to: "v1.36.2", want: "cp-2 kube-apiserver v1.36.2"},
		"which is locked now": {
			world: func(w *modelled) { w.has[cp2].APIServer = to; lock(w, cp2) }, to: "v1.36.2",
			want: "waits: cp-2: its kube-apiserver is not yet the one of its config, by what Kubernetes shows"},
		"a newer worker that does not answer": {
			world: func(w *modelled) {
				planesAt(w, to)
				w.has[wk1].Kubelet, w.runs[wk1].Kubelet, w.silent[wk1] = "v1.35.11", "v1.35.11", true
			},
			want: "waits: wk-1: its machine does not answer with its config"},
		"newer by hand": {world: func(w *modelled) { w.has[cp1].APIServer, w.runs[cp1].APIServer = "v1.36.9", "v1.36.9" },
			want: "cp-2 kube-apiserver v1.36.1"},
		"locked control plane": {world: func(w *modelled) { lock(w, cp1) },
			want: "waits: cp-1: it is locked in the inventory, and keeps kube-apiserver v1.35.10"},
		"locked worker": {world: func(w *modelled) { planesAt(w, to); lock(w, wk1) }, want: "wk-2 kubelet v1.36.1"},
		"all but the locked worker": {
			world: func(w *modelled) {
				planesAt(w, to)
				lock(w, wk1)
				w.has["wk-2"].Kubelet, w.runs["wk-2"].Kubelet = to, to
			},
			want: "waits: wk-1: it is locked in the inventory, and keeps kubelet v1.35.10"},
		"a worker that was given its kubelet": {
			world: func(w *modelled) { planesAt(w, to); w.has[wk1].Kubelet = to },
			want:  "waits: wk-1: its kubelet is still v1.35.10, and its machine config has v1.36.1"},
		"a worker that is not Ready with it": {
			world: func(w *modelled) {
				planesAt(w, to)
				w.has[wk1].Kubelet, w.runs[wk1].Kubelet = to, to
				w.broken[wk1] = true
			},
			want: "waits: wk-1: Kubernetes reports NotReady: its network is down"},
		"a worker that does not answer": {
			world: func(w *modelled) { planesAt(w, to); w.silent["wk-2"] = true },
			want:  "waits: wk-2: its machine does not answer with its config"},
		"a control plane that leaves": {
			world: func(w *modelled) { planesAt(w, to) },
			seen: func(o *cluster.Observed) {
				o.SystemPods.Value["kube-apiserver-old"] = cluster.SystemPod{Node: "old", Static: cluster.NewStaticPod("kube-apiserver:"+from, nil)}
			},
			want: "waits: kube-apiserver-old is not yet seen to run v1.36.1"},
		"the canary has its kubelet first": {world: func(w *modelled) { kubelets(w, from); w.spec.Canary = "wk-2" }, want: "wk-2 kubelet v1.36.1"},
		"it is a control plane":            {world: func(w *modelled) { kubelets(w, from); w.spec.Canary = cp2 }, want: "cp-2 kubelet v1.36.1"},
		"it is locked":                     {world: func(w *modelled) { kubelets(w, from); w.spec.Canary = "wk-2"; lock(w, "wk-2") }, want: "cp-1 kubelet v1.36.1"},
		"the other components come before": {world: func(w *modelled) { w.spec.Canary = "wk-2" }, want: "cp-1 kube-apiserver v1.36.1"},
		"the canary does not come up": {
			world: func(w *modelled) { kubelets(w, from); w.spec.Canary = "wk-2"; w.has["wk-2"].Kubelet = to },
			want:  "waits: wk-2: its kubelet is still v1.35.10, and its machine config has v1.36.1"},
		"and there is a newer one": {
			world: func(w *modelled) {
				planesAt(w, "v1.36.2")
				kubelets(w, from)
				w.spec.Canary = "wk-2"
				w.has["wk-2"].Kubelet = to
			},
			to: "v1.36.2", want: "wk-2 kubelet v1.36.2"},
		"and it runs the one before, and is not Ready": {
			world: func(w *modelled) {
				planesAt(w, "v1.36.2")
				kubelets(w, from)
				kubeletAt(w, "wk-2")
				w.spec.Canary, w.broken["wk-2"] = "wk-2", true
			},
			to: "v1.36.2", want: "wk-2 kubelet v1.36.2"},
		"the canary is not Ready before it": {
			world: func(w *modelled) { kubelets(w, from); w.spec.Canary, w.broken["wk-2"] = "wk-2", true },
			want:  "waits: wk-2: Kubernetes reports NotReady: its network is down"},
		"another one did not come up with its own": {
			world: func(w *modelled) {
				planesAt(w, "v1.36.2")
				w.spec.Canary, w.has[wk1].Kubelet, w.has["wk-2"].Kubelet, w.runs["wk-2"].Kubelet = "wk-2", to, to, to
			},
			to: "v1.36.2", want: "wk-1 kubelet v1.36.2"},
		"another worker is not Ready before it": {
			world: func(w *modelled) { kubelets(w, from); w.spec.Canary, w.broken[wk1] = "wk-2", true },
			want:  "waits: wk-1: Kubernetes reports NotReady: its network is down"},
		"the canary soaks": {
			world: func(w *modelled) {
				kubelets(w, from)
				w.spec.Canary = "wk-2"
				kubeletAt(w, "wk-2")
				w.spec.Soak = time.Hour
			},
			seen: func(o *cluster.Observed) { configSince(o, "wk-2", 10*time.Minute) },
			want: "waits: the next kubelet follows when wk-2 has been Ready with its own for 1h0m0s, at 2027-01-01 00:50 UTC"},
		"it has soaked": {
			world: func(w *modelled) {
				kubelets(w, from)
				w.spec.Canary = "wk-2"
				kubeletAt(w, "wk-2")
				w.spec.Soak = time.Hour
			},
			seen: func(o *cluster.Observed) { configSince(o, "wk-2", 61*time.Minute) },
			want: "cp-1 kubelet v1.36.1"},
		"it was not Ready since": {
			world: func(w *modelled) { kubelets(w, from); kubeletAt(w, cp1); w.spec.Soak = time.Hour },
			seen: func(o *cluster.Observed) {
				configSince(o, cp1, 61*time.Minute)
				kn := o.Nodes.Value[cp1]
				kn.ReadySince = o.Now.Add(-time.Minute)
				o.Nodes.Value[cp1] = kn
			},
			want: "waits: the next kubelet follows when cp-1 has been Ready with its own for 1h0m0s, at 2027-01-01 00:59 UTC"},
		"no kubelet is left to soak for": {
			world: func(w *modelled) { planesAt(w, to); kubeletAt(w, wk1); kubeletAt(w, "wk-2"); w.spec.Soak = time.Hour },
			seen:  func(o *cluster.Observed) { configSince(o, "wk-2", time.Minute) }},
		"too far from a kube-apiserver": {to: "v1.37.0",
			want: "waits: kube-apiserver-cp-1 runs v1.35.10, and no other may be newer by more than one minor version, as v1.37.0 is"},
		"too far from a kubelet": {world: func(w *modelled) { w.has[wk1].Kubelet, w.runs[wk1].Kubelet = "v1.32.1", "v1.32.1" },
			want: "waits: kubelet of wk-1 is v1.32.1, and no kube-apiserver may be newer by more than three minor versions, as v1.36.1 is"},
		"too far from kube-proxy": {
			seen: func(o *cluster.Observed) {
				o.SystemPods.Value["kube-proxy-x"] = cluster.SystemPod{Node: wk1, Workload: "kube-proxy", Proxy: "registry.k8s.io/kube-proxy:v1.32.1"}
			},
			want: "waits: kube-proxy-x is v1.32.1, and no kube-apiserver may be newer by more than three minor versions, as v1.36.1 is"},
	} {
		w := newModel(2, 2, from)
		if tc.to == "" {
			tc.to = to
		}
		if tc.world != nil {
			tc.world(w)
		}
		o := w.observe()
		if tc.seen != nil {
			tc.seen(&o)
		}
		next, waiting := Next(tc.to, w.spec, o)
		if got := describeStep(w, next, waiting); got != tc.want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, tc.want)
		}
	}
}

// TestUnseen: a node that is to be made gets what the others have, the oldest of it, and where nothing
// is known of any, it is left alone.
func TestUnseen(t *testing.T) {
	w := newModel(3, 2, from)
	*w.has["cp-1"] = cluster.Components{APIServer: to, ControllerManager: from, Scheduler: from, Proxy: from, Kubelet: from}
	w.runs["cp-1"].APIServer = to
	o := w.observe()
	for _, name := range []string{"cp-3", "wk-2"} {
		delete(o.Machines, name)
		delete(o.Nodes.Value, name)
		for _, p := range planeParts {
			delete(o.SystemPods.Value, p.name+"-"+name)
		}
	}
	next, waiting := Next(to, w.spec, o)
	if want := (cluster.Components{APIServer: from, ControllerManager: from, Scheduler: from, Proxy: from, Kubelet: from}); next["cp-3"] != want {
		t.Errorf("cp-3 has %+v", next["cp-3"])
	}
	if want := (cluster.Components{Kubelet: from}); next["wk-2"] != want {
		t.Errorf("wk-2 has %+v", next["wk-2"])
	}
	if Describe(waiting) != "cp-3: its machine does not answer with its config" {
		t.Error(Describe(waiting))
	}
	for name := range o.Machines {
		o.Machines[name] = cluster.Machine{Reach: cluster.Silent}
	}
	o.Nodes = cluster.Unseen[map[string]cluster.KubeNode]("no answer")
	if next, _ := Next(to, w.spec, o); next["wk-1"] != (cluster.Components{Kubelet: from}) {
		t.Errorf("wk-1 has %+v where only kube-apiservers are seen", next["wk-1"])
	}
	o = w.observe()
	if next, waiting := Next(to, w.spec, cluster.Observed{}); len(next) > 0 || waiting.Reason == "" {
		t.Errorf("%v, %q", next, Describe(waiting))
	}
	if v, ok := oldestIn(w.spec, cluster.Observed{}); ok {
		t.Error(v)
	}
	if v, ok := oldestIn(w.spec, o); !ok || v != from {
		t.Error(v)
	}
}

// oldestIn is the oldest version on any node of a cluster.
func oldestIn(s cluster.Spec, o cluster.Observed) (version string, ok bool) {
	for _, n := range s.Nodes {
		version = oldestOf(version, OldestOn(n, o))
	}
	return version, version != ""
}

// TestNextDespite: a node that an administrator has named holds no other, but for what may not be newer than it is.
func TestNextDespite(t *testing.T) {
	w := newModel(2, 2, from)
	w.broken["wk-1"], w.silent["cp-2"] = true, true
	for _, c := range []struct {
		despite []string
		want    string
	}{
		{nil, "waits: cp-2: its machine does not answer with its config"},
		{[]string{"wk-1"}, "waits: cp-2: its machine does not answer with its config"},
		{[]string{"cp-2", "wk-1"}, "cp-1 kube-apiserver " + to},
	} {
		next, waiting := Next(to, w.spec, w.observe(), c.despite...)
		if got := describeStep(w, next, waiting); got != c.want {
			t.Errorf("despite %v: %s, want %s", c.despite, got, c.want)
		}
	}
	w.silent["cp-2"] = false
	for _, name := range []string{"cp-1", "cp-2"} {
		*w.has[name] = cluster.Components{APIServer: to, ControllerManager: to, Scheduler: to, Proxy: to, Kubelet: to}
		*w.runs[name] = *w.has[name]
	}
	next, waiting := Next(to, w.spec, w.observe())
	if got := describeStep(w, next, waiting); got != "waits: wk-1: Kubernetes reports NotReady: its network is down" {
		t.Errorf("without an order: %s", got)
	}
	next, waiting = Next(to, w.spec, w.observe(), "wk-1")
	if got := describeStep(w, next, waiting); got != "wk-2 kubelet "+to {
		t.Errorf("despite a worker: %s", got)
	}
}

// TestNewest: by what a config has, and by what runs.
func TestNewest(t *testing.T) {
	w := newModel(1, 2, from)
	if got := Newest(w.spec, w.observe()); got != from {
		t.Errorf("%q", got)
	}
	w.has["wk-1"].Kubelet = to
	if got := Newest(w.spec, w.observe()); got != to {
		t.Errorf("by a config: %q", got)
	}
	w.has["wk-1"].Kubelet, w.runs["cp-1"].Scheduler = from, to
	if got := Newest(w.spec, w.observe()); got != to {
		t.Errorf("by what runs: %q", got)
	}
	if got := Newest(w.spec, cluster.Observed{}); got != "" {
		t.Errorf("of nothing: %q", got)
	}
}
