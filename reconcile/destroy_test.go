package reconcile

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestDestroyOfWhatWasShown: a command that names what was shown to the administrator
// is for that and nothing else, also over a restart; without names it is for what the
// last pass has seen.
func TestDestroyOfWhatWasShown(t *testing.T) {
	for name, named := range map[string]bool{"named": true, "not named": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, files := newFake(1, 1), newMemFiles()
				a := start(t, f, files)
				until(t, a, cluster.Ready)
				fc, err := a.ForecastDestroy(t.Context(), nil)
				if err != nil || len(fc.VMs) != 2 {
					t.Fatalf("the preview is of %v: %v", fc.VMs, err)
				}
				shown := fc.VMs
				if !named {
					shown = nil
				}
				f.set(func() {
					vm := f.vms["wk-1"]
					vm.Lock = "backup"
					f.vms["wk-1"] = vm
				})
				if err := a.Destroy(nil, shown); err != nil {
					t.Fatal(err)
				}
				in, _ := a.c.Journal.Facts().Intent(cluster.IntendDestroy)
				if !slices.Equal(in.VMs, fc.VMs) {
					t.Errorf("written: %v, shown: %v", in.VMs, fc.VMs)
				}
				time.Sleep(time.Minute)
				a.stop()
				f.set(func() {
					vm := f.vms["wk-1"]
					vm.VMID, vm.Lock = 999, ""
					f.vms["wk-1"] = vm
					for i := range f.spec.Nodes {
						if f.spec.Nodes[i].Name == "wk-1" {
							f.spec.Nodes[i].VMID = 999
						}
					}
				})
				a = start(t, f, files)
				defer a.stop()
				if s := until(t, a, cluster.Stalled); s.Destroying || s.Reason != cluster.VMNotShown || s.About != "999" || len(f.vms) != 1 {
					t.Errorf("%+v, left: %v", s, f.vms)
				}
			})
		})
	}
}
