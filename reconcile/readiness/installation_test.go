package readiness

import (
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestAwaitInstallation: a machine that answers, and is no node so long after its VM was started, is late; one that was a node is not
// called so, nor told to get another machine, because of a medium in its drive.
func TestAwaitInstallation(t *testing.T) {
	n := cluster.Node{Name: "wk-1", VMID: 520, Bridge: "vmbr1", Placement: cluster.Placement{Pin: "pve1"}}
	now := time.Unix(100_000, 0)
	type world struct {
		vm cluster.VM
		o  cluster.Observed
	}
	for _, c := range []struct {
		what         string
		change       func(*world)
		late, hinted bool
	}{
		{"in maintenance mode again", func(*world) {}, true, true},
		{"it installs itself", func(w *world) { w.o.Machines["wk-1"] = cluster.Machine{Stage: "installing"} }, true, true},
		{"unattended", func(w *world) { w.o.Machines["wk-1"] = cluster.Machine{Stage: "booting"} }, true, true},
		{"it runs", func(w *world) { w.o.Machines["wk-1"] = cluster.Machine{Stage: "running"} }, false, true},
		{"nothing answers", func(w *world) { w.o.Machines["wk-1"] = cluster.Machine{Reach: cluster.Silent} }, false, true},
		{"in time", func(w *world) { w.vm.Uptime = installWithin }, false, true},
		{"stopped", func(w *world) { w.vm.Power = cluster.Stopped }, false, true},
		{"from a disk image", func(w *world) { w.vm.Hardware.Value.Medium = "" }, false, false},
		{"it is a node", func(w *world) { w.o.Nodes = cluster.Saw(map[string]cluster.KubeNode{"wk-1": {}}) }, false, false},
		{"another one is a node", func(w *world) { w.o.Nodes = cluster.Saw(map[string]cluster.KubeNode{"wk-2": {}}) }, true, true},
		{"a new machine of a node that was well", func(w *world) {
			w.o.Nodes, w.o.Facts.Settled = cluster.Saw(map[string]cluster.KubeNode{}), map[string]string{"wk-1": "as it was"}
		}, true, true},
		{"its cluster worked, and Kubernetes cannot be asked", func(w *world) { w.o.Facts.Intend(cluster.Intent{Kind: cluster.SeenReady}) }, false, false},
		{"nothing is known of what was before", func(w *world) { w.o.Facts.Lost = true }, false, false},
		{"it was well, and Kubernetes cannot be asked", func(w *world) { w.o.Facts.Settled = map[string]string{"wk-1": "as it was"} }, false, false},
	} {
		w := world{vm: cluster.VM{VMID: 520, Power: cluster.PowerRunning, Uptime: 21 * time.Minute, Hardware: cluster.Saw(cluster.Hardware{Medium: cluster.MediumDrive})},
			o: cluster.Observed{Now: now, Machines: map[string]cluster.Machine{"wk-1": {Reach: cluster.Maintenance, Stage: "maintenance"}}}}
		c.change(&w)
		got, late := AwaitInstallation(n, w.vm, w.o)
		if late != c.late {
			t.Errorf("%s: %+v, late %v", c.what, got, late)
		}
		if late && (got.Subject != "wk-1" || got.Reason != cluster.WaitingForTalos || !got.Began.Equal(now.Add(-21*time.Minute)) || got.Within != installWithin || !strings.Contains(got.Hint, "`talos-agent console wk-1`")) {
			t.Errorf("%s: %+v", c.what, got)
		}
		if hinted := strings.Contains(HintOfSilent(n, w.vm, w.o), "give it another `replace`"); hinted != c.hinted {
			t.Errorf("%s: hinted %v", c.what, hinted)
		}
	}
	seen := AwaitSeen(n, cluster.VM{}, cluster.Machine{Reach: cluster.ReachUnknown, Stage: "installing", Why: "it says so", Hint: "look"}, cluster.Observed{}, time.Minute)
	if !seen.Equal(cluster.Wait{Subject: "wk-1", Reason: cluster.WaitingForTalos, Message: "Talos is installing", Within: installWithin}) {
		t.Errorf("%+v", seen)
	}
}
