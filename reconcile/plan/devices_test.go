package plan

import (
	"slices"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestOneDeviceForTwo: of two nodes whose turns may come at once, one is taken down for a device that their host has one of, and
// both where it has two.
func TestOneDeviceForTwo(t *testing.T) {
	for devices, want := range map[int]string{1: "wk-1", 2: "wk-1 wk-2"} {
		w := converged()
		w.d.Spec.MaxUnavailable, w.p.MaxUnavailable = 2, 2
		for i := range w.d.Spec.Nodes {
			if n := &w.d.Spec.Nodes[i]; n.Role == cluster.Worker {
				wantOffered("PCI device hostpci0", "none", "mapping=gpu,pcie=1")(w, n)
			}
		}
		h := w.o.Hosts["pve1"]
		h.Offers["PCI mapping"] = cluster.Saw(slices.Repeat([]string{"gpu"}, devices))
		w.o.Hosts["pve1"] = h
		var down []string
		f := Forecast(w.d, w.o, w.p)
		for _, s := range f.Steps {
			if !slices.Contains(down, s.Subject) {
				down = append(down, s.Subject)
			}
		}
		slices.Sort(down)
		if got := strings.Join(down, " "); got != want {
			t.Errorf("%d devices: turns of %q, want %q", devices, got, want)
		}
		isShort := func(b cluster.Block) bool {
			return b.Subject == "wk-2" && b.Reason == cluster.HostUnsuitable && strings.Contains(b.Message, "wk-1 gets them already")
		}
		if p := Make(w.d, w.o, w.p); slices.ContainsFunc(p.Blocked, isShort) != (devices == 1) {
			t.Errorf("%d devices: blocked: %+v", devices, p.Blocked)
		}
	}
}
