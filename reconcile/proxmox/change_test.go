package proxmox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/device"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/lab/pve"
	"github.com/talos-agent/talos-agent/internal/lab/world"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/pveconf"
)

// hardware is what of a VM differs from what it should have, "" when nothing does, and
// whether changes wait for its next start.
func (s *stand) hardware(c *Client, d cluster.Desired, n cluster.Node) (differs string, waits bool) {
	vm := observe(c, d).VMs[n.Name]
	if got, want := fmt.Sprintf("%+v", vm.Hardware.Value), fmt.Sprintf("%+v", wantHardware(n)); got != want {
		return got + "\nwant " + want, vm.Active != nil
	}
	return "", vm.Active != nil
}

// allFields are those that are changed on a VM that is there.
var allFields = []cluster.VMField{cluster.FieldCPUType, cluster.FieldCores, cluster.FieldMemory, cluster.FieldBalloon, cluster.FieldMachine, cluster.FieldSCSI, cluster.FieldModel, cluster.FieldMAC, cluster.FieldAddress,
	cluster.FieldBridge, cluster.FieldVLAN, cluster.FieldLink, cluster.FieldBoot, cluster.FieldAgent, cluster.FieldOnBoot, cluster.FieldTags, cluster.FieldMark}

// TestChangeRunning: a VM that runs has at once what it can have at once, and the rest
// from its next start on. What people set beside that stays.
func TestChangeRunning(t *testing.T) {
	for _, flavour := range flavours {
		t.Run(flavour, func(t *testing.T) {
			onStand(t, flavour, func(t *testing.T, s *stand) {
				d, ctx := desired(1), context.Background()
				n := d.Spec.Nodes[0]
				c := s.made(d)
				defer c.Close()
				s.must(s.host.Edit(n.VMID, "net0", "virtio="+n.MAC+",bridge=vmbr0,firewall=0,rate=100,tag=7"))
				s.must(s.host.Edit(n.VMID, "onboot", "0"))
				s.must(s.host.Edit(n.VMID, "tags", "mine"))
				s.must(s.host.Edit(n.VMID, "description", "call me before you touch it"))
				vm := observe(c, d).VMs[n.Name]
				if !vm.Unmarked || vm.Hardware.Value.Bridge != "vmbr0" || vm.Hardware.Value.VLAN != 7 || vm.Hardware.Value.OnBoot {
					t.Fatalf("%+v", vm)
				}
				s.must(c.Change(ctx, d, n, testHost, []cluster.VMField{cluster.FieldBridge, cluster.FieldVLAN, cluster.FieldOnBoot, cluster.FieldTags, cluster.FieldMark}, nil))
				if differs, waits := s.hardware(c, d, n); differs != "" || waits {
					t.Errorf("%s, waits %v", differs, waits)
				}
				vm, conf := observe(c, d).VMs[n.Name], s.config(n)
				if vm.Unmarked || !strings.HasSuffix(conf["description"], "\ncall me before you touch it") || pveconf.ParseProperties(conf["net0"])["rate"] != "100" || !slices.Contains(vm.Tags, "mine") || !slices.Contains(vm.Tags, cluster.OwnTag) {
					t.Errorf("%+v\n%v", vm, conf)
				}
				// Cores of a VM that runs wait for its next start, and are taken back.
				admin := s.wide()
				defer admin.Close()
				s.must(admin.put(ctx, vmPath(testHost, n.VMID, "config"), params{"cores": "1", "sockets": "1"}, nil))
				c.forget(n.VMID) // it is audited in its turn
				if vm := observe(c, d).VMs[n.Name]; vm.Active == nil || vm.Active.Cores != n.Cores || vm.Hardware.Value.Cores != 1 {
					t.Fatalf("%+v", vm)
				}
				s.must(c.Change(ctx, d, n, testHost, []cluster.VMField{cluster.FieldCores}, nil))
				if differs, waits := s.hardware(c, d, n); differs != "" || waits {
					t.Errorf("%s, waits %v", differs, waits)
				}
				s.checkRules()
			})
		})
	}
}

// TestChangeStopped: one that is stopped takes all at once, its disks grow, and missing
// ones are attached. Carried out again, it changes nothing.
func TestChangeStopped(t *testing.T) {
	for _, flavour := range flavours {
		t.Run(flavour, func(t *testing.T) {
			onStand(t, flavour, func(t *testing.T, s *stand) {
				d, ctx := desired(1), context.Background()
				d.Spec.Nodes[0].Disks = []cluster.Disk{{Name: "a", Serial: "talos-a", Datastore: "local-lvm", Bytes: 1 << 30}}
				c := s.made(d)
				defer c.Close()
				n := d.Spec.Nodes[0]
				s.must(s.host.Stop(n.VMID))
				s.must(c.ShutDown(ctx, d, n, nil)) // it is off
				if vm := observe(c, d).VMs[n.Name]; vm.Power != cluster.Stopped {
					t.Fatalf("%+v", vm)
				}
				for key, value := range map[string]string{"machine": "pc", "balloon": "512", "cpu": "kvm64,flags=+aes", "sockets": "2", "scsihw": "virtio-scsi-pci",
					"net0": "e1000=BC:24:11:00:00:77,bridge=vmbr1,rate=10", "ipconfig0": "ip=10.9.9.9/24,ip6=auto", "boot": "order=net0;scsi0", "agent": "enabled=1,fstrim_cloned_disks=1"} {
					s.must(s.host.Edit(n.VMID, key, value))
				}
				n.Cores, n.MemoryMiB, n.DiskBytes = 3, 4096, 12<<30
				n.Disks = []cluster.Disk{{Name: "b", Serial: "talos-b", Datastore: "local-lvm", Bytes: 2 << 30}, {Name: "a", Serial: "talos-a", Datastore: "local-lvm", Bytes: 3 << 30}}
				d.Spec.Nodes[0] = n
				fields := append(slices.Clone(allFields), cluster.FieldSystemSize, cluster.FieldDiskSize("talos-a"), cluster.FieldDisk("talos-b"))
				s.must(c.Change(ctx, d, n, testHost, fields, nil))
				edited := n
				edited.Options = map[cluster.VMField]string{cluster.FieldCPUFlags: "+aes"} // a person's, that stays
				if differs, waits := s.hardware(c, d, edited); differs != "" || waits {
					t.Errorf("%s, waits %v", differs, waits)
				}
				if conf := s.config(n); !strings.Contains(conf["cpu"], "flags=+aes") || !strings.Contains(conf["net0"], "rate=10") || !strings.Contains(conf["agent"], "fstrim_cloned_disks=1") {
					t.Errorf("what people set is lost: %v", conf)
				}
				s.calls()
				s.must(c.Change(ctx, d, n, testHost, fields, nil))
				for _, r := range s.world.Calls() {
					if r.Mutating {
						t.Errorf("%+v", r)
					}
				}
				s.must(c.Start(ctx, d, n, nil))
				if differs, waits := s.hardware(c, d, edited); differs != "" || waits {
					t.Errorf("%s, waits %v", differs, waits)
				}
				s.checkRules()
			})
		})
	}
}

// TestChangeDiskOptions: of a VM that runs a disk is in backups or not at once, and all else of how it is
// attached waits for the next start; of one that is stopped all is as it should be at once. Its size,
// and what people set of it, stay.
func TestChangeDiskOptions(t *testing.T) {
	for _, flavour := range flavours {
		t.Run(flavour, func(t *testing.T) {
			onStand(t, flavour, func(t *testing.T, s *stand) {
				d, ctx := desired(1), context.Background()
				d.Spec.Nodes[0].Disks = []cluster.Disk{{Name: "a", Serial: "talos-a", Datastore: "local-lvm", Bytes: 1 << 30}}
				c := s.made(d)
				defer c.Close()
				n := d.Spec.Nodes[0]
				disk := s.config(n)["scsi1"]
				s.must(s.host.Edit(n.VMID, "scsi1", disk+",mbps=50"))
				wishes := map[cluster.VMField]string{"system disk backup": "off", "disk talos-a backup": "off"}
				give := func() {
					n.Options = wishes
					d.Spec.Nodes[0] = n
					s.must(c.Change(ctx, d, n, testHost, slices.Sorted(maps.Keys(wishes)), nil))
				}
				if give(); !strings.Contains(s.config(n)["scsi0"], "backup=0") {
					t.Errorf("%v", s.config(n))
				}
				if differs, waits := s.hardware(c, d, n); differs != "" || waits {
					t.Errorf("backup: %s, waits %v", differs, waits)
				}
				wishes = map[cluster.VMField]string{"system disk cache": "writethrough", "system disk ssd": "off", "disk talos-a cache": "directsync", "disk talos-a aio": "native", "disk talos-a discard": "off",
					"disk talos-a iothread": "off", "disk talos-a backup": "on", "system disk backup": "off"}
				give()
				if differs, waits := s.hardware(c, d, n); differs != "" || !waits {
					t.Errorf("as it runs: %s, waits %v", differs, waits)
				}
				s.must(s.host.Stop(n.VMID))
				s.must(c.ShutDown(ctx, d, n, nil)) // it is off
				if differs, waits := s.hardware(c, d, n); differs != "" || waits {
					t.Errorf("stopped: %s, waits %v", differs, waits)
				}
				wishes = map[cluster.VMField]string{"system disk cache": "none", "system disk ssd": "on", "system disk backup": "on", "disk talos-a cache": "none", "disk talos-a aio": "default", "disk talos-a discard": "on", "disk talos-a iothread": "on"}
				give()
				if differs, waits := s.hardware(c, d, n); differs != "" || waits {
					t.Errorf("back: %s, waits %v", differs, waits)
				}
				if got, want := pveconf.ParseProperties(s.config(n)["scsi1"]), pveconf.ParseProperties(disk+",mbps=50"); !maps.Equal(got, want) {
					t.Errorf("%v, want %v", got, want)
				}
				s.calls()
				give()
				for _, r := range s.world.Calls() {
					if r.Mutating {
						t.Errorf("%+v", r)
					}
				}
				s.checkRules()
			})
		})
	}
}

// TestChangeOptions: of a VM that runs what Proxmox VE changes at once is so at once, and the rest waits for the
// next start. What people set beside it in the same options of Proxmox VE stays.
func TestChangeOptions(t *testing.T) {
	for _, flavour := range flavours {
		t.Run(flavour, func(t *testing.T) {
			onStand(t, flavour, func(t *testing.T, s *stand) {
				d, ctx := desired(1), context.Background()
				c := s.made(d)
				defer c.Close()
				n := d.Spec.Nodes[0]
				before := s.config(n)
				give := func(what string, waits bool, wishes map[cluster.VMField]string) {
					t.Helper()
					fields := slices.Sorted(maps.Keys(wishes))
					if n.Options = wishes; wishes["balloon minimum (MiB)"] != "" {
						fields = append(fields, cluster.FieldBalloon)
					}
					d.Spec.Nodes[0] = n
					s.must(c.Change(ctx, d, n, testHost, fields, nil))
					if differs, waiting := s.hardware(c, d, n); differs != "" || waiting != waits {
						t.Errorf("%s: %s, waits %v", what, differs, waiting)
					}
				}
				give("at once", false, map[cluster.VMField]string{"cpu limit": "2", "cpu units": "50", "network card firewall": "on"})
				give("other values at once", false, map[cluster.VMField]string{"cpu limit": "1", "cpu units": "10", "network card firewall": "on"})
				n.Options = nil // which is how the inventory takes them out
				d.Spec.Nodes[0] = n
				s.must(c.Change(ctx, d, n, testHost, []cluster.VMField{"cpu limit", "cpu units", "network card firewall"}, nil))
				if differs, waits := s.hardware(c, d, n); differs != "" || waits {
					t.Errorf("taken out: %s, waits %v", differs, waits)
				}
				all := map[cluster.VMField]string{"cpu flags": "+aes;-pcid", "cpu limit": "2", "cpu units": "50", "numa": "on", "balloon minimum (MiB)": "1024", "machine version": "pc-q35-7.2", "display": "virtio"}
				give("some at the next start", true, all)
				s.must(s.host.Stop(n.VMID))
				s.must(c.ShutDown(ctx, d, n, nil)) // it is off
				s.must(s.host.Edit(n.VMID, "cpu", s.config(n)["cpu"]+",hidden=1"))
				s.must(s.host.Edit(n.VMID, "vga", s.config(n)["vga"]+",memory=32"))
				s.must(s.host.Edit(n.VMID, "machine", s.config(n)["machine"]+",viommu=virtio"))
				s.must(c.Start(ctx, d, n, nil))
				give("the same", false, all)
				all["balloon minimum (MiB)"] = "512"
				give("another minimum at once", false, all)
				s.must(s.host.Stop(n.VMID))
				s.must(c.ShutDown(ctx, d, n, nil))
				n.NetworkCard = "e1000e"
				s.must(c.Change(ctx, d, n, testHost, []cluster.VMField{cluster.FieldModel}, nil))
				give("another card", false, all)
				n.NetworkCard = ""
				all["mtu"] = "9000"
				s.must(c.Change(ctx, d, n, testHost, []cluster.VMField{cluster.FieldModel}, nil))
				give("an mtu", false, all)
				give("back", false, map[cluster.VMField]string{"mtu": "none", "display": "std", "cpu flags": "none", "cpu limit": "none", "cpu units": "100", "numa": "off", "balloon minimum (MiB)": "none", "machine version": "q35"})
				const card, bare = "virtio=BC:24:11:0C:96:40,bridge=vmbr1", "virtio=BC:24:11:0C:96:41,bridge=vmbr1,firewall=1"
				s.must(c.Start(ctx, d, n, nil))
				give("two more cards at once", false, map[cluster.VMField]string{"network card net1": card, "network card net2": bare})
				s.must(s.host.Edit(n.VMID, "net1", s.config(n)["net1"]+",rate=10,link_down=1"))
				give("another VLAN, at once, and the link is up", false, map[cluster.VMField]string{"network card net1": card + ",tag=30", "network card net2": bare})
				if has := s.config(n)["net1"]; has != "virtio=BC:24:11:0C:96:40,bridge=vmbr1,rate=10,tag=30" {
					t.Errorf("net1 is %s", has)
				}
				s.must(s.host.Stop(n.VMID))
				s.must(c.ShutDown(ctx, d, n, nil))
				give("another card", false, map[cluster.VMField]string{"network card net1": strings.Replace(card, "virtio", "e1000", 1), "network card net2": bare})
				n.Options = nil
				d.Spec.Nodes[0] = n
				s.must(c.Change(ctx, d, n, testHost, []cluster.VMField{"network card net1", "network card net2", "network card net3"}, nil))
				after := s.config(n)
				if after["net1"]+after["net2"] != "" || after["net0"] == "" {
					t.Errorf("net0 %s, net1 %s, net2 %s", after["net0"], after["net1"], after["net2"])
				}
				if after["cpu"] != before["cpu"]+",hidden=1" || after["machine"] != "q35,viommu=virtio" || after["vga"] != "std,memory=32" {
					t.Errorf("cpu %s, machine %s, vga %s", after["cpu"], after["machine"], after["vga"])
				}
				s.checkRules()
			})
		})
	}
}

// TestChangeLostBootOrder: a boot order that somebody deleted is put back, of a VM that runs, where its
// deletion is pending, and of one that is stopped and boots from its system disk then.
func TestChangeLostBootOrder(t *testing.T) {
	for _, flavour := range flavours {
		for _, power := range []cluster.Power{cluster.PowerRunning, cluster.Stopped} {
			t.Run(fmt.Sprint(flavour, " ", power), func(t *testing.T) {
				onStand(t, flavour, func(t *testing.T, s *stand) {
					d, ctx := desired(1), context.Background()
					c := s.made(d)
					defer c.Close()
					n := d.Spec.Nodes[0]
					if power == cluster.Stopped {
						s.must(s.host.Stop(n.VMID))
					}
					admin := s.wide()
					defer admin.Close()
					s.must(admin.put(ctx, vmPath(testHost, n.VMID, "config"), params{"delete": "boot"}, nil))
					c.forget(n.VMID) // it is audited in its turn
					vm := observe(c, d).VMs[n.Name]
					if vm.Hardware.Value.Boot != "" || power == cluster.PowerRunning && (vm.Active == nil || vm.Active.Boot != cluster.BootSystemDisk) {
						t.Fatalf("%+v, active %+v", vm.Hardware, vm.Active)
					}
					s.must(c.Change(ctx, d, n, testHost, []cluster.VMField{cluster.FieldBoot}, nil))
					if differs, waits := s.hardware(c, d, n); differs != "" || waits {
						t.Errorf("%s, waits %v", differs, waits)
					}
					s.checkRules()
				})
			})
		}
	}
}

// TestChangeLostCard: a network card that somebody removed is put back whole, of a VM that runs
// with its removal pending, of one that runs without it, and of one that is stopped; one that
// somebody disconnected is connected again.
func TestChangeLostCard(t *testing.T) {
	card := []cluster.VMField{cluster.FieldModel, cluster.FieldMAC, cluster.FieldBridge}
	for _, flavour := range flavours {
		for _, c := range []struct {
			what   string
			fields []cluster.VMField
			lose   func(*stand, *Client, cluster.Node)
		}{
			{"its removal is pending", card, func(s *stand, _ *Client, n cluster.Node) {
				admin := s.wide()
				defer admin.Close()
				if err := admin.put(context.Background(), vmPath(testHost, n.VMID, "config"), params{"delete": "net0"}, nil); err == nil || !strings.Contains(err.Error(), "hot-unplugging") {
					s.t.Errorf("a guest that runs released its card: %v", err)
				}
			}},
			{"removed as it runs", card, func(s *stand, _ *Client, n cluster.Node) { s.must(s.host.Edit(n.VMID, "net0", "")) }},
			{"removed, and only some of it is to be changed", card[2:], func(s *stand, _ *Client, n cluster.Node) { s.must(s.host.Edit(n.VMID, "net0", "")) }},
			{"removed as it is off", card, func(s *stand, _ *Client, n cluster.Node) {
				s.must(s.host.Stop(n.VMID))
				s.must(s.host.Edit(n.VMID, "net0", ""))
			}},
			{"disconnected", []cluster.VMField{cluster.FieldLink}, func(s *stand, _ *Client, n cluster.Node) {
				s.must(s.host.Edit(n.VMID, "net0", "virtio="+n.MAC+",bridge="+n.Bridge+",firewall=0,link_down=1"))
			}},
		} {
			t.Run(flavour+" "+c.what, func(t *testing.T) {
				onStand(t, flavour, func(t *testing.T, s *stand) {
					d, ctx := desired(1), context.Background()
					client := s.made(d)
					defer client.Close()
					n := d.Spec.Nodes[0]
					before := s.config(n)["net0"]
					c.lose(s, client, n)
					client.forget(n.VMID) // it is audited in its turn
					if differs, _ := s.hardware(client, d, n); differs == "" {
						t.Fatal("it is not seen")
					}
					s.must(client.Change(ctx, d, n, testHost, c.fields, nil))
					if differs, waits := s.hardware(client, d, n); differs != "" || waits || s.config(n)["net0"] != before {
						t.Errorf("%s, waits %v, %s", differs, waits, s.config(n)["net0"])
					}
					s.checkRules()
				})
			})
		}
	}
}

// TestChangeWithFaults: whatever of a change is lost, its request or the answer, the next
// attempt ends it, and no disk is made twice.
func TestChangeWithFaults(t *testing.T) {
	for _, op := range []string{putOp, resizeOp, "POST /nodes/{node}/qemu/{vmid}/config"} {
		for _, kind := range []world.FaultKind{world.LoseRequest, world.LoseReply} {
			t.Run(fmt.Sprint(op, " ", kind), func(t *testing.T) {
				onStand(t, "9.2", func(t *testing.T, s *stand) {
					d, ctx := desired(1), context.Background()
					c := s.made(d)
					defer c.Close()
					n := d.Spec.Nodes[0]
					n.Cores, n.DiskBytes = 3, 12<<30
					n.Disks = []cluster.Disk{{Name: "b", Serial: "talos-b", Datastore: "local-lvm", Bytes: 2 << 30}}
					d.Spec.Nodes[0] = n
					fields := []cluster.VMField{cluster.FieldCores, cluster.FieldSystemSize, cluster.FieldDisk("talos-b")}
					s.world.Inject(world.Fault{System: "pve", Op: op, Kind: kind, Times: 1})
					if err := c.Change(ctx, d, n, testHost, fields, nil); err != nil {
						synctest.Wait()
						s.must(c.Change(ctx, d, n, testHost, fields, nil))
					}
					if differs, _ := s.hardware(c, d, n); differs != "" {
						t.Error(differs)
					}
					disks := 0
					for _, v := range s.host.Volumes(testHost, "local-lvm") {
						if strings.Contains(fmt.Sprint(v), "-disk-") {
							disks++
						}
					}
					if disks != 3 { // EFI variables, system, data
						t.Errorf("%d disks: %v", disks, s.host.Volumes(testHost, "local-lvm"))
					}
					s.checkRules()
				})
			})
		}
	}
}

// TestChangeDevices: devices of the host are given by mappings that the token may use, when the VM stops; what else root set of one
// stays, and one that root passes without a mapping is not changed.
func TestChangeDevices(t *testing.T) {
	for _, flavour := range flavours {
		t.Run(flavour, func(t *testing.T) {
			onStand(t, flavour, func(t *testing.T, s *stand) {
				d, ctx := desired(1), context.Background()
				c := s.made(d)
				defer c.Close()
				n := d.Spec.Nodes[0]
				s.host.Map("pci", "gpu", testHost)
				s.host.Map("usb", "dongle", testHost)
				give := func(options map[cluster.VMField]string) error {
					fields := []cluster.VMField{"PCI device hostpci0", "USB device usb0"}
					n.Options = options
					d.Spec.Nodes[0] = n
					return c.Change(ctx, d, n, testHost, fields, nil)
				}
				both := map[cluster.VMField]string{"PCI device hostpci0": "mapping=gpu,pcie=1", "USB device usb0": "mapping=dongle"}
				if err := give(both); err == nil || !strings.Contains(err.Error(), "/mapping/pci/gpu, Mapping.Use") || !strings.Contains(fault.HintOf(err), "give Mapping.Use on /mapping/pci/gpu to the user") {
					t.Errorf("without the privilege: %v (%s)", err, fault.HintOf(err))
				}
				for _, who := range []string{"talos-agent@pve", "talos-agent@pve!pve1"} {
					s.host.Grant(who, "PVEMappingUser", "/mapping/pci/gpu")
					s.host.Grant(who, "PVEMappingUser", "/mapping/usb/dongle")
				}
				s.must(give(both))
				if differs, waits := s.hardware(c, d, n); differs != "" || !waits {
					t.Errorf("given: %s, waits %v", differs, waits)
				}
				s.must(s.host.Stop(n.VMID))
				s.must(c.ShutDown(ctx, d, n, nil))
				s.must(s.host.Edit(n.VMID, "hostpci0", s.config(n)["hostpci0"]+",x-vga=1"))
				s.must(c.Start(ctx, d, n, nil))
				s.must(s.host.Stop(n.VMID))
				s.must(give(map[cluster.VMField]string{"PCI device hostpci0": "mapping=gpu,rombar=0"}))
				if has := s.config(n); has["hostpci0"] != "mapping=gpu,rombar=0,x-vga=1" || has["usb0"] != "" {
					t.Errorf("hostpci0 %s, usb0 %s", has["hostpci0"], has["usb0"])
				}
				s.host.Map("pci", "gpu", "pve9")
				if err := c.Start(ctx, d, n, nil); err == nil || !strings.Contains(err.Error(), "PCI device mapping not found for 'gpu'") {
					t.Errorf("without a device on the host: %v", err)
				}
				s.must(s.host.Edit(n.VMID, "hostpci0", "host=0000:01:00.0"))
				if err := give(nil); err == nil || !strings.Contains(err.Error(), "only root can set 'hostpci0' config for non-mapped devices") {
					t.Errorf("root's: %v", err)
				}
				s.checkRules()
			})
		})
	}
}

// TestOffers: what a host has of the mappings that nodes ask for is seen as far as the token may, once for each device; of a
// cluster that asks for none nothing is asked.
func TestOffers(t *testing.T) {
	onStand(t, "9.2", func(t *testing.T, s *stand) {
		d := desired(1)
		c := s.made(d)
		defer c.Close()
		s.host.Map("pci", "gpu", testHost, testHost, "pve9")
		s.host.Map("pci", "hidden", testHost)
		s.host.Map("usb", "dongle", testHost)
		for _, who := range []string{"talos-agent@pve", "talos-agent@pve!pve1"} {
			s.host.Grant(who, "PVEMappingUser", "/mapping/pci/gpu")
		}
		offers := func() map[string]cluster.Seen[[]string] {
			var o cluster.Observed
			observeLater(context.Background(), c, d, &o)
			return o.Hosts[testHost].Offers
		}
		if got := offers(); got != nil {
			t.Errorf("unasked: %v", got)
		}
		d.Spec.Nodes[0].Devices.PCI = []device.PCI{{Mapping: "gpu"}}
		want := map[string]cluster.Seen[[]string]{device.PCIMapping: cluster.Saw([]string{"gpu", "gpu"})}
		if got := offers(); !reflect.DeepEqual(got, want) {
			t.Errorf("%v", got)
		}
		d.Spec.Nodes[0].Options = map[cluster.VMField]string{cluster.FieldMachinePin: "pc-q35-9.2"}
		if got := offers()[device.Machine]; !got.Known || !slices.Contains(got.Value, "pc-q35-9.2") || slices.Contains(got.Value, "pc-q35-10.1") {
			t.Errorf("machine versions: %v", got)
		}
		s.must(c.Change(context.Background(), d, d.Spec.Nodes[0], testHost, []cluster.VMField{cluster.FieldMachinePin}, nil))
		if got := offers(); len(got) != 1 {
			t.Errorf("asked for a version that it has: %v", got)
		}
		s.host.ChangeBridge(testHost, "vmbr1", pve.Bridge{Ports: "nic1", MTU: 9000})
		for option, field := range map[string]cluster.VMField{"1400": cluster.FieldMTU, "virtio=BC:24:11:0C:96:40,bridge=vmbr1,mtu=9000": "network card net1"} {
			d.Spec.Nodes[0].Options = map[cluster.VMField]string{field: option}
			if got := offers()[device.BridgeMTU]; !got.Known || !slices.Equal(got.Value, []string{"vmbr1=9000"}) { // those that the token may use
				t.Errorf("bridges: %v", got)
			}
		}
		s.host.ChangeBridge(testHost, "vmbr1", pve.Bridge{Ports: "nic1", PortsMTU: 9000})
		if got := offers()[device.BridgeMTU]; !got.Known || len(got.Value) > 0 {
			t.Errorf("a bridge that takes the MTU of its ports: %v", got)
		}
		d.Spec.Nodes[0].Options = map[cluster.VMField]string{"network card net1": "virtio=BC:24:11:0C:96:40,bridge=vmbr1,mtu=1"}
		if got := offers(); len(got) != 1 {
			t.Errorf("asked for an MTU that is the bridge's: %v", got)
		}
		d.Spec.Nodes[0].Devices.USB = []device.USB{{Mapping: "dongle"}}
		s.world.Inject(world.Fault{System: "pve", Op: "GET /cluster/mapping/pci", Kind: world.Answer, Status: 500, Text: "no answer", Times: 9})
		got := offers()
		if pci := got[device.PCIMapping]; pci.Known || pci.Why == "" {
			t.Errorf("not answered: %v", pci)
		}
		if usb := got[device.USBMapping]; !usb.Known || len(usb.Value) > 0 {
			t.Errorf("one that the token may not see: %v", usb)
		}
	})
}

// TestChangeRefuses: nothing is changed of a VM that is locked, or not ours.
func TestChangeRefuses(t *testing.T) {
	onStand(t, "9.2", func(t *testing.T, s *stand) {
		d, ctx := desired(1), context.Background()
		c := s.made(d)
		defer c.Close()
		n := d.Spec.Nodes[0]
		n.Cores = 4
		s.must(s.host.Edit(n.VMID, "lock", "backup"))
		if err := c.Change(ctx, d, n, testHost, []cluster.VMField{cluster.FieldCores}, nil); !errors.Is(err, errLocked) {
			t.Errorf("%v", err)
		}
		s.must(s.host.Edit(n.VMID, "lock", ""))
		s.must(s.host.Edit(n.VMID, "smbios1", "uuid=00000000-0000-4000-8000-000000000001"))
		s.calls()
		if err := c.Change(ctx, d, n, testHost, []cluster.VMField{cluster.FieldCores}, nil); !errors.As(err, new(*notOurs)) {
			t.Errorf("%v", err)
		}
		if err := c.ShutDown(ctx, d, n, nil); !errors.As(err, new(*notOurs)) {
			t.Errorf("%v", err)
		}
		for _, r := range s.world.Calls() {
			if r.Mutating {
				t.Errorf("%+v", r)
			}
		}
	})
}

// TestWhoChangedIt: what somebody did in a task is known to be theirs, once: until the
// agent has changed the VM itself.
func TestWhoChangedIt(t *testing.T) {
	onStand(t, "9.2", func(t *testing.T, s *stand) {
		d, ctx := desired(1), context.Background()
		c := s.made(d)
		defer c.Close()
		n := d.Spec.Nodes[0]
		admin := s.wide()
		defer admin.Close()
		who := func() string {
			time.Sleep(20 * time.Second) // pvestatd has looked again
			for _, by := range observe(c, d).VMs[n.Name].ChangedBy {
				if !by.Ours {
					return by.Type + " " + by.User
				}
			}
			return ""
		}
		if got := who(); got != "" {
			t.Errorf("a new vm was changed by %s", got)
		}
		s.must(admin.power(ctx, admin.identityOf(d, n.VMID, n.Name), toStop, admin.confirm, nil, defaultProgress(nil)))
		if got := who(); got != "qmstop root@pam!admin" {
			t.Errorf("stopped by %q", got)
		}
		if got := who(); got != "qmstop root@pam!admin" {
			t.Errorf("a pass later by %q", got)
		}
		s.must(c.Start(ctx, d, n, nil))
		if got := who(); got != "" {
			t.Errorf("started by the agent, and changed by %q", got)
		}
		s.must(s.host.Remove(n.VMID))
		if got := who(); !strings.HasPrefix(got, "qmdestroy ") && got != "" {
			t.Errorf("removed by %q", got)
		}
	})
}

// config is the configuration of a node's VM.
func (s *stand) config(n cluster.Node) map[string]string {
	vm, ok := s.host.VM(n.VMID)
	if !ok {
		s.t.Fatalf("no vm %d", n.VMID)
	}
	return vm.Config
}

// TestOffersToSuccessor: what a VM has is asked of the hosts all the same while another is to be made in its place: of its own,
// and of that where the other is to be.
func TestOffersToSuccessor(t *testing.T) {
	inBubble(t, pve.Config{Hosts: []pve.Host{{Name: testHost}, {Name: "pve2"}}}, func(t *testing.T, s *stand) {
		d := desired(1)
		n := &d.Spec.Nodes[0]
		n.Replace, n.Options = "1", map[cluster.VMField]string{cluster.FieldMachinePin: "pc-q35-9.2", cluster.FieldMTU: "1400"}
		c := s.made(d)
		defer c.Close()
		for _, at := range []struct {
			what, replace, pin string
			dead               bool
			asked              []string
		}{
			{what: "it stays", replace: "1", pin: testHost},
			{what: "without a token", pin: testHost},
			{what: "another machine", replace: "2", pin: testHost, asked: []string{testHost}},
			{what: "on another host", replace: "2", pin: "pve2", asked: []string{testHost, "pve2"}},
			{what: "it is dead", replace: "1", pin: testHost, dead: true, asked: []string{testHost}},
		} {
			n.Replace, n.Placement.Pin = at.replace, at.pin
			var o cluster.Observed
			if at.dead {
				o.DeadSince = map[string]time.Time{n.Name: time.Now()}
			}
			observeLater(context.Background(), c, d, &o)
			if vm := o.VMs[n.Name]; vm.Owner != cluster.Ours || vm.Hardware.Value.Options[cluster.FieldMachinePin] != "pc-q35-9.2" {
				t.Fatalf("%s: %+v", at.what, vm)
			}
			var asked []string
			for _, name := range []string{testHost, "pve2"} {
				if offers := o.Hosts[name].Offers; offers[device.Machine].Known && offers[device.BridgeMTU].Known {
					asked = append(asked, name)
				} else if len(offers) > 0 {
					t.Errorf("%s: %s: %v", at.what, name, offers)
				}
			}
			if !slices.Equal(asked, at.asked) {
				t.Errorf("%s: asked of %v", at.what, asked)
			}
		}
	})
}
