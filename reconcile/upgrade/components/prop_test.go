package components

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

const (
	from = "v1.35.10"
	to   = "v1.36.1"
)

// TestUpgrade: wherever an upgrade begins, after whatever was interrupted, not seen for a while or done by
// hand in the middle of it, every step of it keeps what Kubernetes asks for, nothing gets an older
// version, and it comes to its end.
func TestUpgrade(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newModel(rapid.SampledFrom([]int{1, 3, 5}).Draw(t, "planes"), rapid.IntRange(0, 4).Draw(t, "workers"), from)
		w.spec.MaxUnavailable = rapid.IntRange(0, 3).Draw(t, "max unavailable")
		trouble := rapid.IntRange(0, 12).Draw(t, "trouble")
		for range 400 {
			if trouble > 0 && rapid.IntRange(0, 3).Draw(t, "now") == 0 {
				trouble--
				disturb(t, w)
			}
			o := w.observe()
			next, waiting := Next(to, w.spec, o)
			checkStep(t, w, next, waiting)
			if isDone(w) {
				if trouble > 0 {
					continue
				}
				if waiting.Reason != "" {
					t.Fatalf("all is done, and it waits: %s", Describe(waiting))
				}
				return
			}
			proceed(t, w, next)
			if trouble == 0 {
				w.podsWhy, w.nodesWhy = "", ""
				clear(w.broken)
				clear(w.silent)
			}
		}
		_, waiting := Next(to, w.spec, w.observe())
		t.Fatalf("it does not end: %s\n%s", Describe(waiting), describe(w))
	})
}

// disturb does something that no agent asked for.
func disturb(t *rapid.T, w *modelled) {
	n := rapid.SampledFrom(w.spec.Nodes).Draw(t, "node")
	switch rapid.IntRange(0, 4).Draw(t, "disturbance") {
	case 0: // a person gives it another version
		p := rapid.SampledFrom(partsOf(n)).Draw(t, "component")
		*p.of(w.has[n.Name]) = rapid.SampledFrom([]string{from, "v1.35.11", to, "v1.36.2"}).Draw(t, "version")
	case 1:
		w.broken[n.Name] = !w.broken[n.Name]
	case 2:
		w.silent[n.Name] = !w.silent[n.Name]
	case 3:
		w.podsWhy = rapid.SampledFrom([]string{"", "no kube-apiserver answers"}).Draw(t, "pods")
	case 4:
		w.nodesWhy = rapid.SampledFrom([]string{"", "no kube-apiserver answers"}).Draw(t, "nodes")
	}
}

// proceed has some of what is to be done be done, and some of what was started come up.
func proceed(t *rapid.T, w *modelled, next map[string]cluster.Components) {
	for _, n := range w.spec.Nodes {
		for _, p := range partsOf(n) {
			if rapid.Bool().Draw(t, "comes up") {
				w.comesUp(n.Name, p)
			}
		}
		if c, ok := next[n.Name]; ok && !w.silent[n.Name] && rapid.Bool().Draw(t, "is given") {
			*w.has[n.Name] = c
		}
	}
}

func checkStep(t *rapid.T, w *modelled, next map[string]cluster.Components, waiting cluster.Wait) {
	planes, workers, fresh, down := 0, 0, 0, 0
	for _, n := range w.spec.Nodes {
		want, has := next[n.Name], *w.has[n.Name]
		if w.silent[n.Name] {
			if n.Role == cluster.Worker {
				down++
			}
			continue // what it has is not seen, nor does it get anything
		}
		if want == (cluster.Components{}) {
			t.Fatalf("%s has nothing", n.Name)
		}
		if isOlder(want.Proxy, has.Proxy) || isOlder(want.Kubelet, want.Proxy) && want.Proxy != has.Proxy {
			t.Fatalf("%s gets kube-proxy %s after %s with kubelet %s", n.Name, want.Proxy, has.Proxy, want.Kubelet)
		}
		changes := w.changesOf(n, next)
		switch {
		case n.Role == cluster.ControlPlane:
			planes += len(changes)
		case !w.isSettled(n): // another kubelet takes it down no further
			workers, down = workers+len(changes), down+1
		default:
			workers, fresh = workers+len(changes), fresh+len(changes)
		}
		for _, p := range changes {
			v := *p.of(&want)
			if v != to || !isOlder(*p.of(&has), to) {
				t.Fatalf("%s gets %s %s after %s", n.Name, p.name, v, *p.of(&has))
			}
			if w.podsWhy != "" || w.nodesWhy != "" {
				t.Fatalf("%s gets %s %s, and not all is seen", n.Name, p.name, v)
			}
			for _, other := range w.spec.Nodes {
				if other.Role != cluster.ControlPlane {
					continue
				}
				if server := w.runs[other.Name].APIServer; p.name != apiServer && isOlder(server, v) {
					t.Fatalf("%s gets %s %s, and %s runs kube-apiserver %s", n.Name, p.name, v, other.Name, server)
				}
				if other.Name != n.Name && !w.isSettled(other) && w.isSettled(n) { // one that is down itself is brought up
					t.Fatalf("%s gets %s %s, and %s is not what it should be", n.Name, p.name, v, other.Name)
				}
			}
		}
	}
	if planes > 1 || planes > 0 && workers > 0 {
		t.Fatalf("%d steps of control planes and %d of workers at once: %v", planes, workers, next)
	}
	if fresh > 0 && fresh+down > max(1, w.spec.MaxUnavailable) {
		t.Fatalf("%d workers that do well get another kubelet, and %d are down, of %d", fresh, down, w.spec.MaxUnavailable)
	}
	if planes+workers > 0 && waiting.Reason != "" {
		t.Fatalf("there is a step, and it waits: %s", Describe(waiting))
	}
	if planes+workers == 0 && waiting.Reason == "" && !isDone(w) {
		t.Fatalf("nothing is done, and it does not wait\n%s", describe(w))
	}
}

func isDone(w *modelled) bool {
	return !slices.ContainsFunc(w.spec.Nodes, func(n cluster.Node) bool {
		return !w.isSettled(n) || slices.ContainsFunc(partsOf(n), func(p part) bool { return isOlder(*p.of(w.has[n.Name]), to) })
	}) && w.podsWhy == "" && w.nodesWhy == ""
}

func describe(w *modelled) (out string) {
	for _, n := range w.spec.Nodes {
		out += n.Name + ": has " + showComponents(*w.has[n.Name]) + ", runs " + showComponents(*w.runs[n.Name]) + "\n"
	}
	return out
}

func showComponents(c cluster.Components) string {
	return c.APIServer + "/" + c.ControllerManager + "/" + c.Scheduler + "/" + c.Proxy + "/" + c.Kubelet
}
