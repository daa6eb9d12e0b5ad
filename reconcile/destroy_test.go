package reconcile

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/journal/journaltest"
)

// TestDestroyOfWhatWasShown: a command that names what was shown to the administrator
// is for that and nothing else, also over a restart; without names it is for what the
// last pass has seen.
func TestDestroyOfWhatWasShown(t *testing.T) {
	for name, named := range map[string]bool{"named": true, "not named": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, files := newFake(1, 1), journaltest.NewFiles()
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
				if err := a.Destroy(shown, nil); err != nil {
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

// TestDestroyOfSome: what the last pass has seen is not deleted where the
// administrator was shown less.
func TestDestroyOfSome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(1, 1)
		a := start(t, f, journaltest.NewFiles())
		defer a.stop()
		until(t, a, cluster.Ready)
		if err := a.Destroy([]int{f.vms["cp-1"].VMID}, nil); err != nil {
			t.Fatal(err)
		}
		if s := until(t, a, cluster.Stalled); s.Destroying || s.Reason != cluster.VMNotShown || s.Concerns != "wk-1" {
			t.Errorf("%+v", s)
		}
		if _, ok := f.vms["wk-1"]; !ok || len(f.vms) != 1 {
			t.Errorf("left: %v", f.vms)
		}
	})
}

// TestDestroyOfAnUnprovenControlPlane: it is remembered that etcd was founded until
// the VM is seen again, or root declares that none is left. Where a VM of the cluster
// is left, root's word is not taken.
func TestDestroyOfAnUnprovenControlPlane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(1, 1)
		a := start(t, f, journaltest.NewFiles())
		defer a.stop()
		until(t, a, cluster.Ready)
		hide := func(name string, protect bool) {
			f.set(func() {
				vm := f.vms[name]
				if vm.Protected = protect; !protect {
					vm.Owner, vm.Why = cluster.Foreign, "a guest outside pool talos has vmid 411"
				}
				f.vms[name] = vm
				f.founded = 0 // its etcd does not answer
			})
		}
		hide("cp-1", false)
		hide("wk-1", true)
		if err := a.Destroy(nil, nil); err != nil {
			t.Fatal(err)
		}
		if s := until(t, a, cluster.Stalled); s.Destroying || len(s.Blocked) != 2 || s.Blocked[0].Reason != cluster.ControlPlaneUnproven || s.Blocked[0].Hint == "" {
			t.Errorf("%+v", s)
		}
		if err := a.AcceptBootstrap(); err == nil || !a.c.Journal.Facts().BootstrapSent() {
			t.Errorf("the founding is forgotten while a worker is left: %v", err)
		}
		if err := a.Destroy(nil, []int{f.vms["wk-1"].VMID}); err != nil {
			t.Fatal(err)
		}
		for range 100 {
			if s := a.Status(); !s.Destroying && len(f.vms) == 1 {
				break
			}
			time.Sleep(time.Second)
		}
		if s := a.Status(); s.Condition != cluster.Stalled || s.Reason != cluster.ControlPlaneUnproven || !a.c.Journal.Facts().BootstrapSent() {
			t.Errorf("%+v", s)
		}
		time.Sleep(time.Minute)
		if err := a.AcceptBootstrap(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if s := a.Status(); s.Condition != cluster.Suspended || len(s.Blocked) > 0 || len(f.vms) != 1 {
			t.Errorf("%+v", s)
		}
		if facts := a.c.Journal.Facts(); facts.BootstrapSent() || facts.Fingerprint != "" || !facts.Suspended() {
			t.Errorf("facts: %+v", facts)
		}
		if err := a.AcceptBootstrap(); err == nil {
			t.Error("it is accepted twice")
		}
	})
}
