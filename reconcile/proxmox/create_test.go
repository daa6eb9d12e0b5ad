package proxmox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/lab/pve"
	"github.com/talos-agent/talos-agent/internal/lab/world"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/pveconf"
)

const (
	createOp = "POST /nodes/{node}/qemu"
	putOp    = "PUT /nodes/{node}/qemu/{vmid}/config"
	resizeOp = "PUT /nodes/{node}/qemu/{vmid}/resize"
)

func (s *stand) count(op string) int {
	return s.world.CountCalls(func(r world.CallRecord) bool { return r.Op == op })
}

// TestCreateIsIdempotent: carried out twice it changes nothing the second time.
func TestCreateIsIdempotent(t *testing.T) {
	onStand(t, "9.2", func(t *testing.T, s *stand) {
		d := desired(1)
		n, ctx := d.Spec.Nodes[0], context.Background()
		c := s.made(d)
		defer c.Close()
		s.must(c.Create(ctx, d, n, n.Placement.Pin, d.Image, nil))
		s.must(c.Start(ctx, d, n, nil))
		for _, r := range s.world.Calls() {
			if r.Mutating {
				t.Errorf("%+v", r)
			}
		}
	})
}

// TestCreateForSecureBoot: the VM has a TPM, a firmware without keys, and the image that is signed; and goes with all of it.
func TestCreateForSecureBoot(t *testing.T) {
	for _, version := range []string{"8.4", "9.2"} {
		onStand(t, version, func(t *testing.T, s *stand) {
			s.image()
			d := desired(1)
			d.Spec.SecureBoot = true
			n, ctx := d.Spec.Nodes[0], context.Background()
			c := s.client()
			defer c.Close()
			s.must(c.Create(ctx, d, n, n.Placement.Pin, d.Image, nil))
			got, _ := s.host.VM(n.VMID)
			efi, tpm := pveconf.ParseProperties(got.Config["efidisk0"]), pveconf.ParseProperties(got.Config["tpmstate0"])
			if efi["efitype"] != "4m" || efi["pre-enrolled-keys"] != "0" || tpm["version"] != "v2.0" || tpm["size"] != "4M" || !strings.HasPrefix(tpm.First("file", ""), n.Datastore+":") {
				t.Errorf("%s: efidisk0 %v, tpmstate0 %v", version, efi, tpm)
			}
			vm := observe(c, d).VMs[n.Name]
			if vm.Hardware.Value.TPM != cluster.TPMVersion || len(vm.Others) > 0 {
				t.Errorf("%s: %+v", version, vm)
			}
			s.must(c.Start(ctx, d, n, nil))
			s.must(c.Delete(ctx, d, vm, nil))
			if left := observe(c, d).VMs[n.Name]; left.Presence != cluster.Absent {
				t.Errorf("%s: %+v", version, left)
			}
			s.checkRules()
		})
	}
}

// TestCreateFinishes: a VM that was interrupted while it was made is finished from where it
// is, whatever people did to it.
func TestCreateFinishes(t *testing.T) {
	d := desired(1)
	n, ctx := d.Spec.Nodes[0], context.Background()
	for _, cut := range []string{putOp, resizeOp} {
		t.Run(cut, func(t *testing.T) {
			onStand(t, "9.2", func(t *testing.T, s *stand) {
				s.image()
				s.world.Inject(world.Fault{System: "pve", Op: cut, Kind: world.Answer, Status: 500, Text: "it did not work", Times: 1})
				c := s.client()
				defer c.Close()
				if err := c.Create(ctx, d, n, n.Placement.Pin, d.Image, nil); err == nil {
					t.Fatal("it was not interrupted")
				}
				vm := observe(c, d).VMs[n.Name]
				if vm.Owner != cluster.Ours || !unfinished(vm) {
					t.Errorf("%+v", vm)
				}
				s.must(s.host.Edit(n.VMID, "tags", strings.TrimPrefix("mine;"+strings.Join(vm.Tags, ";"), ";")))
				s.must(c.Create(ctx, d, n, n.Placement.Pin, d.Image, nil))
				if vm = observe(c, d).VMs[n.Name]; unfinished(vm) {
					t.Errorf("%+v", vm)
				}
				got, _ := s.host.VM(n.VMID)
				if tags := slices.Sorted(slices.Values(pveconf.SplitTags(got.Config["tags"]))); fmt.Sprint(tags) != "[controlplane dev mine talos-agent]" || got.Disks["scsi0"].Bytes != n.DiskBytes {
					t.Errorf("%+v", got.Config)
				}
				if s.count(createOp) != 1 {
					t.Errorf("%d creations", s.count(createOp))
				}
				s.checkRules()
			})
		})
	}
}

// TestCreateMeetsAnEdit: a write that somebody's edit crossed is planned again
// from what is there, and the edit survives.
func TestCreateMeetsAnEdit(t *testing.T) {
	d := desired(1)
	n, ctx := d.Spec.Nodes[0], context.Background()
	for _, op := range []string{putOp, resizeOp} {
		onStand(t, "9.2", func(t *testing.T, s *stand) {
			s.image()
			c := s.client()
			defer c.Close()
			edits := 0
			s.world.OnCall(func(r world.CallRecord) {
				if r.Op == op && edits == 0 {
					edits++
					s.must(s.host.Edit(n.VMID, "tags", "mine"))
				}
			})
			s.must(c.Create(ctx, d, n, n.Placement.Pin, d.Image, nil))
			s.world.OnCall(nil)
			got, _ := s.host.VM(n.VMID)
			if want := "controlplane;dev;mine;talos-agent"; op == putOp && got.Config["tags"] != want {
				t.Errorf("%s: %+v", op, got.Config)
			}
			if got.Disks["scsi0"].Bytes != n.DiskBytes || s.count(op) != 2 {
				t.Errorf("%s: %d times, %+v", op, s.count(op), got.Config)
			}
		})
	}
}

// TestTagsRefused: where the datacenter's options forbid our tags the VM goes
// without, is not taken for unfinished, and it is logged once. It is tagged when everything is to be looked
// at again.
func TestTagsRefused(t *testing.T) {
	onStand(t, "9.2", func(t *testing.T, s *stand) {
		d := desired(1)
		n, ctx := d.Spec.Nodes[0], context.Background()
		s.image()
		s.world.Inject(world.Fault{System: "pve", Op: putOp, Kind: world.Answer, Status: 403, Text: "Permission check failed (/, Sys.Modify)"})
		c := s.client()
		defer c.Close()
		for range 2 {
			s.must(c.Create(ctx, d, n, n.Placement.Pin, d.Image, nil))
			if vm := observe(c, d).VMs[n.Name]; unfinished(vm) || vm.Hardware.Value.System.Bytes != n.DiskBytes {
				t.Errorf("%+v", vm)
			}
		}
		if n := strings.Count(s.log.String(), "does not let the agent tag"); n != 1 {
			t.Errorf("logged %d times:\n%s", n, s.log)
		}
		s.world.Heal()
		if !observe(c, d).VMs[n.Name].Untaggable {
			t.Error("it is tried again unasked")
		}
		if c.Forget(d.Spec.ID); observe(c, d).VMs[n.Name].Untaggable {
			t.Error("it is not tried again, though everything is to be looked at again")
		}
		s.must(c.Create(ctx, d, n, n.Placement.Pin, d.Image, nil))
		if vm := observe(c, d).VMs[n.Name]; fmt.Sprint(vm.Tags) != "[controlplane dev talos-agent]" {
			t.Errorf("%+v", vm.Tags)
		}
	})
}

// TestCreationsTakeTurns: on one storage as many at once as the policy has, and one with data disks
// alone; on another side by side, and the turn ends with the import.
func TestCreationsTakeTurns(t *testing.T) {
	for _, tc := range []struct{ copies, data, want int }{{1, 0, 1}, {2, 0, 2}, {3, 0, 3}, {3, 1, 2}, {3, 3, 1}} {
		t.Run(fmt.Sprintf("%d places, %d with data", tc.copies, tc.data), func(t *testing.T) {
			onStand(t, "9.2", func(t *testing.T, s *stand) {
				d := desired(4)
				for i := range tc.data {
					d.Spec.Nodes[i].Disks = []cluster.Disk{{Name: "data", Bytes: 20 << 30, Datastore: "local-lvm", Serial: "talos-data"}}
				}
				d.Spec.Nodes[3].Datastore, d.Spec.Nodes[3].CloudInitDatastore = "local", "local"
				s.image()
				s.must(s.host.AddFile(testHost, "local", "iso/x.iso", 1, world.Image{}))
				c := s.client()
				defer c.Close()
				c.copies = func() int { return tc.copies }
				running, most := map[string]int{}, map[string]int{}
				var mu sync.Mutex
				var wg sync.WaitGroup
				for _, n := range d.Spec.Nodes {
					wg.Go(func() {
						s.t.Helper()
						var allocated bool
						err := c.Create(context.Background(), d, n, n.Placement.Pin, d.Image, func(p cluster.Progress) {
							mu.Lock()
							defer mu.Unlock()
							switch {
							case strings.Contains(p.UPID, ":qmcreate:"):
								running[n.Datastore]++
								most[n.Datastore] = max(most[n.Datastore], running[n.Datastore])
							case p.Allocated && !allocated:
								allocated = true
								running[n.Datastore]--
							}
						})
						if err != nil && n.Datastore == "local-lvm" {
							t.Error(err)
						}
					})
					synctest.Wait() // they stand in line in the order of the inventory
				}
				wg.Wait()
				if most["local-lvm"] != tc.want {
					t.Errorf("side by side: %v", most)
				}
				s.checkRules()
			})
		})
	}
}

// TestCancelledWhileItWaits: whoever stops waiting for a turn or a task returns
// at once; the task goes on.
func TestCancelledWhileItWaits(t *testing.T) {
	onStand(t, "9.2", func(t *testing.T, s *stand) {
		d := desired(2)
		s.image()
		c := s.client()
		defer c.Close()
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		for _, n := range d.Spec.Nodes {
			wg.Go(func() {
				if err := c.Create(ctx, d, n, n.Placement.Pin, d.Image, nil); !errors.Is(err, context.Canceled) {
					t.Errorf("%s: %v", n.Name, err)
				}
			})
		}
		time.Sleep(3 * time.Second)
		began := time.Now()
		cancel()
		wg.Wait()
		if took := time.Since(began); took > time.Second {
			t.Errorf("it took %v", took)
		}
		if n := s.count(createOp); n != 1 {
			t.Errorf("%d creations", n)
		}
		time.Sleep(time.Minute)
		if vms := s.host.VMs(); len(vms) != 1 || vms[0].Pool != testPool {
			t.Errorf("%+v", vms)
		}
	})
}

// TestFailuresCarryHints: errors carry what Proxmox VE answers, the log's end, and
// what to do.
func TestFailuresCarryHints(t *testing.T) {
	d := desired(1)
	n, ctx := d.Spec.Nodes[0], context.Background()
	for _, tc := range []struct {
		name       string
		do         func(*stand)
		want, hint string
	}{
		{"no image", func(*stand) {}, "task qmcreate failed: unable to create VM 411", ""},
		{"no storage privilege", func(s *stand) {
			s.image()
			s.host.Role("TalosAgentStore", "Datastore.Audit")
		}, "Permission check failed (/storage/local-lvm, Datastore.AllocateSpace)",
			"give Datastore.AllocateSpace on /storage/local-lvm to the user talos-agent@pve and to the token talos-agent@pve!pve1"},
		{"no bridge privilege", func(s *stand) {
			s.image()
			s.host.Role("TalosAgentNet", "SDN.Audit")
		}, "403 Permission check failed (/sdn/zones/localnetwork/vmbr1, SDN.Use)", "give SDN.Use on /sdn/zones/localnetwork/vmbr1 to"},
		{"no pool privilege", func(s *stand) {
			s.image()
			s.host.Role("TalosAgentVM", "VM.Audit", "Pool.Audit")
		}, "403 Permission check failed", "give VM.Allocate on /pool/talos-dev to"},
		{"token refused", func(s *stand) { s.host.Token("talos-agent@pve", "pve1", true) }, "401 Authentication failed!", "pveum user token list talos-agent@pve"},
		{"no quorum", func(s *stand) {
			s.image()
			s.world.Inject(world.Fault{System: "pve", Op: createOp, Kind: world.Answer, Status: 500, Text: "cluster not ready - no quorum?"})
		}, "cluster not ready - no quorum?", "pvecm status"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			onStand(t, "9.2", func(t *testing.T, s *stand) {
				tc.do(s)
				c := s.client()
				defer c.Close()
				err := c.Create(ctx, d, n, n.Placement.Pin, d.Image, nil)
				if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.HasPrefix(err.Error(), "create vm 411 (dev-cp-1): ") || !strings.Contains(fault.HintOf(err), tc.hint) {
					t.Errorf("got %v [%s]", err, fault.HintOf(err))
				}
				if strings.Contains(fmt.Sprint(err), strings.SplitN(s.token, "=", 2)[1]) {
					t.Errorf("the error holds the token's secret: %v", err)
				}
				if vms := s.host.VMs(); len(vms) != 0 {
					t.Errorf("%+v", vms)
				}
			})
		})
	}
}

// TestWarningsAreSuccess: a start that warns has started.
func TestWarningsAreSuccess(t *testing.T) {
	onStand(t, "9.2", func(t *testing.T, s *stand) {
		d := desired(1)
		n, ctx := d.Spec.Nodes[0], context.Background()
		s.image()
		c := s.client()
		defer c.Close()
		s.must(c.Create(ctx, d, n, n.Placement.Pin, d.Image, nil))
		s.must(s.host.Edit(n.VMID, "scsihw", "virtio-scsi-pci")) // iothread is ignored with it, which warns
		s.must(c.Start(ctx, d, n, nil))
		if vm, _ := s.host.VM(n.VMID); vm.Power != pve.Running || !strings.Contains(s.log.String(), "iothread is only valid") {
			t.Errorf("%s\n%s", vm.Power, s.log)
		}
	})
}

// TestStartOnAPortlessBridge: what QEMU complains of is in the log of the task, and
// so is what to do about it.
func TestStartOnAPortlessBridge(t *testing.T) {
	for _, flavour := range []string{"9.2", "8.4"} {
		onStand(t, flavour, func(t *testing.T, s *stand) {
			d := desired(1)
			d.Spec.Network.VLAN = 20
			n, ctx := d.Spec.Nodes[0], context.Background()
			s.image()
			s.host.ChangeBridge(testHost, "vmbr1", pve.Bridge{})
			c := s.client()
			defer c.Close()
			s.must(c.Create(ctx, d, n, n.Placement.Pin, d.Image, nil))
			err := c.Start(ctx, d, n, nil)
			if err == nil || !strings.Contains(err.Error(), "no physical interface on bridge 'vmbr1'") || !strings.Contains(fault.HintOf(err), "vlan-aware") {
				t.Errorf("%s: %v (%s)", flavour, err, fault.HintOf(err))
			}
		})
	}
}

func TestStart(t *testing.T) {
	d := desired(1)
	n, ctx := d.Spec.Nodes[0], context.Background()
	start := "POST /nodes/{node}/qemu/{vmid}/status/start"
	for _, tc := range []struct {
		name string
		do   func(*stand)
		want string // "" : it runs
	}{
		{"stopped", func(*stand) {}, ""},
		{"started by somebody in between", func(s *stand) {
			s.world.OnCall(func(r world.CallRecord) {
				if r.Op == start {
					s.must(s.host.Start(n.VMID))
				}
			})
		}, ""},
		{"lost reply", func(s *stand) {
			s.world.Inject(world.Fault{System: "pve", Op: start, Kind: world.LoseReply, Times: 1})
		}, ""},
		{"locked", func(s *stand) { s.must(s.host.Lock(n.VMID, "backup")) }, "vm is locked (backup)"},
		{"no such bridge", func(s *stand) { s.must(s.host.Edit(n.VMID, "net0", "virtio=BC:24:11:00:00:01,bridge=vmbr9")) }, "bridge 'vmbr9' does not exist"},
		{"lock file held", func(s *stand) {
			release, err := s.host.HoldFile(ctx, n.VMID)
			s.must(err)
			s.world.After(15*time.Second, release)
		}, "got timeout"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			onStand(t, "9.2", func(t *testing.T, s *stand) {
				s.image()
				c := s.client()
				defer c.Close()
				s.must(c.Create(ctx, d, n, n.Placement.Pin, d.Image, nil))
				tc.do(s)
				err := c.Start(ctx, d, n, nil)
				s.world.OnCall(nil)
				vm, _ := s.host.VM(n.VMID)
				switch {
				case tc.want == "" && (err != nil || vm.Power != pve.Running):
					t.Errorf("got %v, %s", err, vm.Power)
				case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
					t.Errorf("got %v, want %q", err, tc.want)
				}
				time.Sleep(time.Minute)
			})
		})
	}
}

// TestCreationOnALockedStorage: that somebody else allocates on the storage for longer than Proxmox VE
// waits ends a creation, which tells so; the next one makes the VM.
func TestCreationOnALockedStorage(t *testing.T) {
	onStand(t, "9.2", func(t *testing.T, s *stand) {
		d := desired(1)
		n := d.Spec.Nodes[0]
		s.image()
		c := s.client()
		defer c.Close()
		unlock, err := s.host.LockStorage(n.Placement.Pin, n.Datastore)
		s.must(err)
		err = c.Create(t.Context(), d, n, n.Placement.Pin, d.Image, nil)
		if err == nil || !strings.Contains(err.Error(), "can't lock file '/var/lock/pve-manager/pve-storage-local-lvm' - got timeout") || !strings.Contains(fault.HintOf(err), "pvesm status") {
			t.Errorf("got %v -> %s", err, fault.HintOf(err))
		}
		if _, there := s.host.VM(n.VMID); there {
			t.Error("there is half a VM")
		}
		unlock()
		s.must(c.Create(t.Context(), d, n, n.Placement.Pin, d.Image, nil))
	})
}

// TestLostCreationIsReported: a request that got lost is not sent again by the same
// creation.
func TestLostCreationIsReported(t *testing.T) {
	onStand(t, "9.2", func(t *testing.T, s *stand) {
		d := desired(1)
		s.image()
		s.world.Inject(world.Fault{System: "pve", Op: createOp, Kind: world.LoseRequest})
		c := s.client()
		defer c.Close()
		err := c.Create(context.Background(), d, d.Spec.Nodes[0], d.Spec.Nodes[0].Placement.Pin, d.Image, nil)
		if err == nil || !strings.Contains(err.Error(), "nothing came of it: POST /nodes/pve1/qemu: ") || s.count(createOp) != 1 {
			t.Errorf("%d creations: %v", s.count(createOp), err)
		}
	})
}

// TestChangesAreForgotten: what was read of a VM before we changed it is not
// taken for what it is.
func TestChangesAreForgotten(t *testing.T) {
	onStand(t, "9.2", func(t *testing.T, s *stand) {
		d := desired(1)
		n, ctx := d.Spec.Nodes[0], context.Background()
		c := s.made(d)
		defer c.Close()
		for what, change := range map[string]func() error{
			"create": func() error { return c.Create(ctx, d, n, n.Placement.Pin, d.Image, nil) },
			"start":  func() error { return c.Start(ctx, d, n, nil) },
		} {
			observe(c, d)
			if _, ok := c.recall(n.VMID); !ok {
				t.Fatalf("%s: nothing is remembered", what)
			}
			s.must(change())
			if _, ok := c.recall(n.VMID); ok {
				t.Errorf("%s: it is still remembered", what)
			}
		}
		before := c.touches(n.VMID)
		c.forget(n.VMID) // a change begins while a pass reads
		c.remember(n.VMID, before, facts{})
		if _, ok := c.recall(n.VMID); ok {
			t.Error("what was read before the change is remembered")
		}
		c.attribute(n.VMID, before, change{after: time.Now()})
		if got := c.lastChange(n.VMID); !got.after.IsZero() {
			t.Errorf("a look that crossed our change calls it somebody else's: %+v", got)
		}
		c.remember(n.VMID, c.touches(n.VMID), facts{})
		if _, ok := c.recall(n.VMID); !ok {
			t.Error("what was read after the change is not remembered")
		}
	})
}
