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
	s.must(c.Create(context.Background(), d, n, n.Placement.Pin, bootOf(d), nil))
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

// TestDeletionTakenBack: a person who takes the word out of the mark keeps the
// VM.
func TestDeletionTakenBack(t *testing.T) {
	d := desired(1)
	n := d.Spec.Nodes[0]
	onStand(t, "9.2", func(t *testing.T, s *stand) {
		c := s.made(d)
		defer c.Close()
		s.world.OnCall(func(r world.CallRecord) {
			if strings.HasSuffix(r.Op, "/status/current") {
				s.must(s.host.Edit(n.VMID, "description", "keep it"))
			}
		})
		if err := c.Delete(context.Background(), d, vmOf(d), nil); err == nil || !strings.Contains(err.Error(), "was removed meanwhile") {
			t.Errorf("got %v", err)
		}
		s.world.OnCall(nil)
		if vm, _ := s.host.VM(n.VMID); vm.Power != pve.Running {
			t.Errorf("%+v", vm)
		}
	})
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
				err := c.Delete(context.Background(), d, vm, nil)
				if err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("got %v", err)
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
