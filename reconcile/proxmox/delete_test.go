package proxmox

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab/pve"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// made makes the first node's VM with the agent's own token and starts it.
func (s *stand) made(d cluster.Desired) *Client {
	s.t.Helper()
	s.image()
	c := s.client()
	n := d.Spec.Nodes[0]
	s.must(c.Create(context.Background(), d, n, n.Placement.Pin, d.Image, nil))
	s.must(c.Start(context.Background(), d, n, nil))
	s.world.ForgetCalls()
	return c
}

func vmOf(d cluster.Desired) cluster.VM {
	n := d.Spec.Nodes[0]
	return cluster.VM{VMID: n.VMID, Node: n.Name, Host: n.Placement.Pin, Presence: cluster.Present, Owner: cluster.Ours}
}

// TestDeleteWithSomebodyInTheWay lets a person do something right before each
// single call of a deletion.
func TestDeleteWithSomebodyInTheWay(t *testing.T) {
	d := desired(1)
	n, ctx := d.Spec.Nodes[0], context.Background()
	var calls []world.CallRecord
	onStand(t, "9.2", func(t *testing.T, s *stand) {
		c := s.made(d)
		defer c.Close()
		s.must(c.Delete(ctx, d, vmOf(d), nil))
		calls = s.world.Calls()
	})
	swap := func(config map[string]string) func(*stand) {
		return func(s *stand) {
			s.must(s.host.Remove(n.VMID))
			s.must(s.host.CreateForeign(n.VMID, pve.Foreign{Pool: testPool, Config: config, Running: true}))
		}
	}
	for _, tc := range []struct {
		name  string
		do    func(*stand)
		swap  bool // the VM is another's afterwards
		keeps bool // it is refused, unless Proxmox VE deletes it already
	}{
		{name: "writes into the description", do: func(s *stand) {
			vm, _ := s.host.VM(n.VMID)
			s.must(s.host.Edit(n.VMID, "description", vm.Config["description"]+"\nask alice first"))
		}},
		{name: "protects it", keeps: true, do: func(s *stand) { s.must(s.host.Edit(n.VMID, "protection", "1")) }},
		{name: "starts it", do: func(s *stand) {
			if vm, _ := s.host.VM(n.VMID); vm.Power == pve.Stopped {
				s.must(s.host.Start(n.VMID))
			}
		}},
		{name: "stops it", do: func(s *stand) { s.must(s.host.Stop(n.VMID)) }},
		{name: "backs it up", do: func(s *stand) {
			s.must(s.host.Lock(n.VMID, "backup"))
			s.world.After(20*time.Second, func() {
				if _, ok := s.host.VM(n.VMID); ok {
					s.must(s.host.Unlock(n.VMID))
				}
			})
		}},
		{name: "removes it", do: func(s *stand) { s.must(s.host.Remove(n.VMID)) }},
		{name: "puts another in its place", do: swap(map[string]string{"name": n.Name}), swap: true},
		{name: "puts another with its mark in its place", swap: true,
			do: swap(map[string]string{"name": n.Name, "description": cluster.Mark{Version: 1, Cluster: d.Spec.ID, Node: n.Name, Deleting: true}.String()})},
	} {
		for k, at := range calls {
			if strings.HasSuffix(at.Op, "/tasks/{upid}/status") && at.N > 1 {
				continue
			}
			t.Run(fmt.Sprintf("%s/%d %s", tc.name, k, at.Op), func(t *testing.T) {
				onStand(t, "9.2", func(t *testing.T, s *stand) {
					c := s.made(d)
					defer c.Close()
					i, struck := 0, false
					s.world.OnCall(func(r world.CallRecord) {
						if i == k {
							if _, ok := s.host.VM(n.VMID); ok {
								tc.do(s)
								struck = true
							}
						}
						i++
					})
					var err error
					for range 20 {
						if err = c.Delete(ctx, d, vmOf(d), nil); err == nil {
							break
						}
						time.Sleep(5 * time.Second)
					}
					s.world.OnCall(nil)
					vm, there := s.host.VM(n.VMID)
					if struck && tc.keeps && there {
						if err == nil || !strings.Contains(err.Error(), "somebody has set Proxmox VE's Protection on vm 411") || vm.Config["protection"] != "1" {
							t.Errorf("%v, %+v", err, vm)
						}
						return
					}
					if !struck || !tc.swap {
						if err != nil || there {
							t.Fatalf("it is not deleted: %v, %+v", err, vm)
						}
						s.checkRules()
						return
					}
					// Between the last look and the request there is nothing
					// that could notice. A write is refused for its digest; to
					// stop and to delete, Proxmox VE takes none.
					if strings.HasPrefix(at.Op, "DELETE") || strings.HasSuffix(at.Op, "/stop") {
						return
					}
					if err == nil || !there || vm.Maker != "root@pam" || vm.Power != pve.Running || vm.Config["protection"] != "" {
						t.Errorf("%v, %+v", err, vm)
					}
					if !strings.HasPrefix(at.Op, "PUT") {
						s.checkRules()
					}
				})
			})
		}
	}
}

// TestDeleteKeepsWhatPeopleWrote: the first phase changes the mark and nothing
// else, and refuses to overwrite what was written meanwhile.
func TestDeleteKeepsWhatPeopleWrote(t *testing.T) {
	d := desired(1)
	n := d.Spec.Nodes[0]
	onStand(t, "9.2", func(t *testing.T, s *stand) {
		c := s.made(d)
		defer c.Close()
		vm, _ := s.host.VM(n.VMID)
		s.must(s.host.Edit(n.VMID, "description", vm.Config["description"]+"\nask alice first"))
		s.must(s.host.Edit(n.VMID, "protection", "1"))
		edits := 0
		s.world.OnCall(func(r world.CallRecord) {
			if r.Op == "PUT /nodes/{node}/qemu/{vmid}/config" && edits == 0 {
				edits++
				vm, _ := s.host.VM(n.VMID)
				s.must(s.host.Edit(n.VMID, "description", vm.Config["description"]+"\nand bob"))
			}
			if strings.HasSuffix(r.Op, "/status/stop") {
				vm, _ := s.host.VM(n.VMID)
				m, ok := cluster.ParseMark(vm.Config["description"])
				if !ok || !m.Deleting || m.Node != n.Name || !strings.HasSuffix(vm.Config["description"], "\nask alice first\nand bob") || vm.Config["protection"] == "1" {
					t.Errorf("when it is stopped: %+v", vm.Config)
				}
			}
		})
		known := vmOf(d)
		known.Protected = true // and it goes all the same
		s.must(c.Delete(context.Background(), d, known, nil))
		s.world.OnCall(nil)
	})
}

// TestDeletionGoesOnUnderAKnownProtection: a protection that was set after a deletion has
// begun, and was known to whoever decided that it goes on, is lifted.
func TestDeletionGoesOnUnderAKnownProtection(t *testing.T) {
	d := desired(1)
	n := d.Spec.Nodes[0]
	onStand(t, "9.2", func(t *testing.T, s *stand) {
		c := s.made(d)
		defer c.Close()
		s.must(s.host.Edit(n.VMID, "description", cluster.Mark{Version: 1, Cluster: d.Spec.ID, Node: n.Name, Deleting: true}.String()))
		s.must(s.host.Edit(n.VMID, "protection", "1"))
		vm := vmOf(d)
		vm.Protected = true
		s.must(c.Delete(context.Background(), d, vm, nil))
		if _, there := s.host.VM(n.VMID); there {
			t.Error("it is still there")
		}
	})
}

// TestDeletionTakenBack: a person who takes the word out of the mark, protects the VM or has
// something else done with it, keeps it, and it runs on: nothing more is asked for.
func TestDeletionTakenBack(t *testing.T) {
	d := desired(1)
	n := d.Spec.Nodes[0]
	edit := func(option, value string) func(*stand) {
		return func(s *stand) { s.must(s.host.Edit(n.VMID, option, value)) }
	}
	for name, c := range map[string]struct {
		do   func(*stand)
		want string
	}{
		"no mark":       {edit("description", "keep it"), "was removed meanwhile"},
		"its own mark":  {edit("description", cluster.Mark{Version: 1, Cluster: d.Spec.ID, Node: n.Name}.String()), "was removed meanwhile"},
		"is protected":  {edit("protection", "1"), "somebody has set Proxmox VE's Protection on vm 411"},
		"another's now": {edit("smbios1", "uuid="+cluster.NodeUUID(d.Spec.ID, "another")), "is not ours"},
		"is backed up":  {func(s *stand) { s.must(s.host.Lock(n.VMID, "backup")) }, "vm is locked (backup)"},
	} {
		onStand(t, "9.2", func(t *testing.T, s *stand) {
			client := s.made(d)
			defer client.Close()
			taken := false
			s.world.OnCall(func(r world.CallRecord) {
				if taken && !strings.HasPrefix(r.Op, "GET ") {
					t.Errorf("%s: asked for %s", name, r.Op)
				}
				if strings.HasSuffix(r.Op, "/status/current") && !taken {
					taken = true
					c.do(s)
				}
			})
			if err := client.Delete(context.Background(), d, vmOf(d), nil); err == nil || !strings.Contains(err.Error(), c.want) || !taken {
				t.Errorf("%s: got %v", name, err)
			}
			s.world.OnCall(nil)
			if vm, _ := s.host.VM(n.VMID); vm.Power != pve.Running {
				t.Errorf("%s: %+v", name, vm)
			}
		})
	}
}

func TestDeleteRefuses(t *testing.T) {
	for _, tc := range []struct {
		name string
		do   func(*stand, *cluster.Desired)
		want string
	}{
		{"others' volume", func(s *stand, d *cluster.Desired) {
			s.must(s.host.Edit(411, "scsi7", "local-lvm:vm-411-disk-9,size=8G"))
		}, "volumes that are not known to be ours would be deleted with it: scsi7 (local-lvm:vm-411-disk-9)"},
		{"detached volume", func(s *stand, d *cluster.Desired) {
			s.must(s.host.Edit(411, "unused0", "local:411/vm-411-disk-3.qcow2"))
		}, "unused0"},
		{"protection by a person", func(s *stand, d *cluster.Desired) { s.must(s.host.Edit(411, "protection", "1")) }, "somebody has set Proxmox VE's Protection on vm 411"},
		{"lock", func(s *stand, d *cluster.Desired) { s.must(s.host.Lock(411, "backup")) }, "vm is locked (backup)"},
		{"protected node", func(s *stand, d *cluster.Desired) { d.Spec.Nodes[0].Protect = true }, "protected or locked in the inventory"},
		{"locked node", func(s *stand, d *cluster.Desired) { d.Spec.Nodes[0].Locked = true }, "protected or locked in the inventory"},
		{"protected node that got another vmid", func(s *stand, d *cluster.Desired) {
			d.Spec.Nodes[0].Protect, d.Spec.Nodes[0].VMID = true, 499
		}, "protected or locked in the inventory"},
		{"foreign cluster", func(s *stand, d *cluster.Desired) { d.Spec.ID = cluster.ClusterID("another", "dev") }, "is not ours"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			onStand(t, "9.2", func(t *testing.T, s *stand) {
				d := desired(1)
				c := s.made(d)
				defer c.Close()
				vm := vmOf(d)
				tc.do(s, &d)
				s.world.ForgetCalls()
				err := c.Delete(context.Background(), d, vm, nil)
				if err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("got %v", err)
				}
				for _, call := range s.world.Calls() {
					if !strings.HasPrefix(call.Op, "GET ") {
						t.Errorf("asked for %s", call.Op)
					}
				}
				if vm, ok := s.host.VM(411); !ok || vm.Power != pve.Running || strings.Contains(vm.Config["description"], "deleting") {
					t.Errorf("%+v", vm)
				}
			})
		})
	}
}

// TestDeleteLeavesOthersVolumes: volumes with another VM's number are only
// detached by Proxmox VE, as is an image in the drive.
func TestDeleteLeavesOthersVolumes(t *testing.T) {
	onStand(t, "9.2", func(t *testing.T, s *stand) {
		d := desired(1)
		c := s.made(d)
		defer c.Close()
		s.must(s.host.AddFile(testHost, "local-lvm", "vm-9999-pvc-1", 1<<30, world.Image{}))
		s.must(s.host.Edit(411, "scsi7", "local-lvm:vm-9999-pvc-1,size=1G"))
		// A disk somebody keeps under the VM's number, in no config.
		s.must(s.host.AddFile(testHost, "local-lvm", "vm-411-disk-9", 1<<30, world.Image{}))
		s.must(s.host.Edit(411, "sata0", "local:iso/talos.iso,media=cdrom"))
		s.must(s.host.Edit(411, "ide0", "none,media=cdrom"))
		s.must(c.Delete(context.Background(), d, vmOf(d), nil))
		var left []string
		for _, v := range s.host.Volumes(testHost, "local-lvm") {
			left = append(left, v.Volid)
		}
		slices.Sort(left)
		if !slices.Equal(left, []string{"local-lvm:vm-411-disk-9", "local-lvm:vm-9999-pvc-1"}) {
			t.Errorf("left: %v", left)
		}
	})
}

// TestDeleteOfWhatIsNoVM: what cannot be a VM of ours is asked of nobody.
func TestDeleteOfWhatIsNoVM(t *testing.T) {
	onStand(t, "9.2", func(t *testing.T, s *stand) {
		d := desired(1)
		c := s.made(d)
		defer c.Close()
		for name, spoil := range map[string]func(*cluster.VM, *cluster.Desired){
			"vmid":       func(vm *cluster.VM, _ *cluster.Desired) { vm.VMID = 0 },
			"node name":  func(vm *cluster.VM, _ *cluster.Desired) { vm.Node = "../x" },
			"host":       func(vm *cluster.VM, _ *cluster.Desired) { vm.Host = "a/b" },
			"cluster id": func(_ *cluster.VM, d *cluster.Desired) { d.Spec.ID = "dev" },
		} {
			vm, d := vmOf(d), d
			spoil(&vm, &d)
			if err := c.Delete(context.Background(), d, vm, nil); err == nil || !strings.Contains(err.Error(), name) || len(s.world.Calls()) > 0 {
				t.Errorf("%s: %v, asked %v", name, err, s.world.Calls())
			}
		}
	})
}

// TestDeletionIsConfirmed: a VM is deleted when its VMID is seen to be free, whatever was
// answered before.
func TestDeletionIsConfirmed(t *testing.T) {
	d := desired(1)
	n := d.Spec.Nodes[0]
	for want, other := range map[string]pve.Foreign{
		"a guest that the agent's token does not see has its number": {},
		"it is still there": {Pool: testPool, Config: map[string]string{"name": n.Name, "smbios1": "uuid=" + n.UUID}},
	} {
		onStand(t, "9.2", func(t *testing.T, s *stand) {
			c := s.made(d)
			defer c.Close()
			s.world.OnCall(func(r world.CallRecord) {
				if _, there := s.host.VM(n.VMID); strings.HasSuffix(r.Op, "/cluster/nextid") && !there {
					s.must(s.host.CreateForeign(n.VMID, other))
				}
			})
			if err := c.Delete(context.Background(), d, vmOf(d), nil); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %s", err, want)
			}
			s.world.OnCall(nil)
		})
	}
}

// TestDeletionThatCannotGoOn: a step that fails is the last, and what is not known to have
// ended is no success.
func TestDeletionThatCannotGoOn(t *testing.T) {
	d := desired(1)
	n := d.Spec.Nodes[0]
	for name, c := range map[string]struct {
		before func(*stand)
		op     string // what fails
		never  string // what is not asked for then
	}{
		"it is not stopped":            {func(*stand) {}, "POST /nodes/{node}/qemu/{vmid}/status/stop", "DELETE"},
		"it is deleted, by a task":     {func(s *stand) { s.must(s.host.Remove(n.VMID)) }, "GET /nodes/{node}/tasks", "GET /cluster/nextid"},
		"it may be there":              {func(*stand) {}, "GET /cluster/nextid", "nothing"},
		"its mark cannot be written":   {func(*stand) {}, "PUT /nodes/{node}/qemu/{vmid}/config", "POST"},
		"it cannot be found once more": {func(*stand) {}, "GET /cluster/resources", "POST"},
	} {
		onStand(t, "9.2", func(t *testing.T, s *stand) {
			client := s.made(d)
			defer client.Close()
			c.before(s)
			s.world.ForgetCalls()
			s.world.Inject(world.Fault{System: "pve", Op: c.op, Kind: world.Answer, Status: 500, Text: "it did not work", Times: 1000})
			err := client.Delete(context.Background(), d, vmOf(d), nil)
			if err == nil || !strings.Contains(err.Error(), "it did not work") {
				t.Errorf("%s: %v", name, err)
			}
			for _, call := range s.world.Calls() {
				if strings.HasPrefix(call.Op, c.never) {
					t.Errorf("%s: asked for %s", name, call.Op)
				}
			}
		})
	}
}

// TestDeletionOfWhatCannotBeRead: whichever look at the VM fails, that is why it is not
// deleted.
func TestDeletionOfWhatCannotBeRead(t *testing.T) {
	d := desired(1)
	for op, least := range map[string]int{"GET /nodes/{node}/qemu/{vmid}/config": 3, "GET /cluster/resources": 2} {
		looks := 0
		onStand(t, "9.2", func(t *testing.T, s *stand) {
			c := s.made(d)
			defer c.Close()
			s.must(c.Delete(context.Background(), d, vmOf(d), nil))
			for _, call := range s.world.Calls() {
				if call.Op == op {
					looks++
				}
			}
		})
		if looks < least {
			t.Errorf("%s is asked for %d times", op, looks)
		}
		for nth := range looks {
			onStand(t, "9.2", func(t *testing.T, s *stand) {
				c := s.made(d)
				defer c.Close()
				s.world.Inject(world.Fault{System: "pve", Op: op, Kind: world.Answer, Status: 500, Text: "it did not work", Nth: nth + 1})
				err := c.Delete(context.Background(), d, vmOf(d), nil)
				if _, there := s.host.VM(411); !there || err == nil || !strings.Contains(err.Error(), "it did not work") {
					t.Errorf("%s, look %d: %v", op, nth+1, err)
				}
			})
		}
	}
}

// TestDeletionWithoutAnAnswer: what was asked for last may have been done, so that it is
// waited for, and found to be so; an answer that it failed is taken as one.
func TestDeletionWithoutAnAnswer(t *testing.T) {
	d := desired(1)
	for kind, want := range map[world.FaultKind]string{world.LoseReply: "", world.LoseRequest: "it is still there", world.FailTask: "it did not work"} {
		onStand(t, "9.2", func(t *testing.T, s *stand) {
			c := s.made(d)
			defer c.Close()
			s.world.Inject(world.Fault{System: "pve", Op: "DELETE /nodes/{node}/qemu/{vmid}", Kind: kind, Text: "it did not work", Nth: 1})
			err := c.Delete(context.Background(), d, vmOf(d), nil)
			_, there := s.host.VM(411)
			if there != (want != "") || (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s: there: %v, %v", kind, there, err)
			}
		})
	}
}

// TestDeletionAtTheLastMoment: a stopped VM that somebody else works on is not deleted, and
// of one that is deleted nobody is asked whether it still is.
func TestDeletionAtTheLastMoment(t *testing.T) {
	d := desired(1)
	for name, locks := range map[string]bool{"it is backed up": true, "it is deleted": false} {
		onStand(t, "9.2", func(t *testing.T, s *stand) {
			c := s.made(d)
			defer c.Close()
			stopped, locked, deleted := false, false, false
			s.world.OnCall(func(r world.CallRecord) {
				switch {
				case strings.HasSuffix(r.Op, "/status/stop"):
					stopped = true
				case stopped && locks && !locked && r.Op == "GET /nodes/{node}/qemu/{vmid}/config":
					locked = true
					s.must(s.host.Lock(411, "backup"))
				case strings.HasPrefix(r.Op, "DELETE"):
					deleted = true
				case deleted && r.Op == "GET /nodes/{node}/tasks":
					t.Errorf("%s: its tasks are asked for", name)
				}
			})
			err := c.Delete(context.Background(), d, vmOf(d), nil)
			s.world.OnCall(nil)
			if deleted != !locks || (err == nil) != !locks || locks && !strings.Contains(err.Error(), "vm is locked (backup)") {
				t.Errorf("%s: asked to: %v, %v", name, deleted, err)
			}
		})
	}
}
