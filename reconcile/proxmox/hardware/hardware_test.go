package hardware

import (
	"maps"
	"reflect"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/pveconf"
)

func TestHardware(t *testing.T) {
	ours := cluster.Hardware{CPUType: "x86-64-v2-AES", Cores: 2, MemoryMiB: 2048, Machine: "q35", BIOS: "ovmf", SCSIHardware: "virtio-scsi-single",
		MAC: "BC:24:11:00:00:11", Bridge: "vmbr1", System: cluster.DiskSeen{Datastore: "vmdata", Bytes: 10 << 30},
		Data: map[string]cluster.DiskSeen{"talos-data0": {Datastore: "vmdata", Bytes: 2 << 30}}, Boot: cluster.BootSystemDisk, Address: "10.78.0.11/24,gw=10.78.0.1", OnBoot: true}
	base := func() pveconf.Options {
		return pveconf.Options{"vga": "std", "sockets": "1", "cores": "2", "memory": "2048", "scsihw": "virtio-scsi-single", "balloon": "0", "machine": "q35", "bios": "ovmf",
			"scsi0": "vmdata:410/vm-410-disk-1.qcow2,discard=on,iothread=1,serial=talos-sys,size=10G,ssd=1", "net0": "virtio=BC:24:11:00:00:11,bridge=vmbr1,firewall=0",
			"scsi1": "vmdata:410/vm-410-disk-2.raw,discard=on,iothread=1,serial=talos-data0,size=2G,ssd=1", "cpu": "x86-64-v2-AES", "onboot": "1",
			"efidisk0": "vmdata:410/vm-410-disk-0.raw,efitype=4m,pre-enrolled-keys=0,size=528K", "ipconfig0": "ip=10.78.0.11/24,gw=10.78.0.1", "agent": "0",
			"ide2": "vmdata:410/vm-410-cloudinit.qcow2,media=cdrom", "boot": "order=scsi0"}
	}
	for _, tc := range []struct {
		name, key string
		value     pveconf.Scalar
		change    func(*cluster.Hardware)
	}{
		{"as made", "numa", "0", nil},
		{"cpu with flags", "cpu", "flags=+aes,cputype=host", func(h *cluster.Hardware) { h.CPUType = "host" }},
		{"no cpu", "cpu", "", func(h *cluster.Hardware) { h.CPUType = "kvm64" }},
		{"two sockets", "sockets", "2", func(h *cluster.Hardware) { h.Cores = 4 }},
		{"memory in the new spelling", "memory", "current=4096", func(h *cluster.Hardware) { h.MemoryMiB = 4096 }},
		{"no memory", "memory", "", func(h *cluster.Hardware) { h.MemoryMiB = 512 }},
		{"no balloon option", "balloon", "", func(h *cluster.Hardware) { h.Balloon = true }},
		{"pinned machine", "machine", "pc-q35-9.0+pve1,viommu=virtio", nil},
		{"machine with options", "machine", "type=q35,aw-bits=48", nil},
		{"i440fx", "machine", "pc-i440fx-9.0", func(h *cluster.Hardware) { h.Machine = "pc" }},
		{"no machine", "machine", "", func(h *cluster.Hardware) { h.Machine = "pc" }},
		{"no bios", "bios", "", func(h *cluster.Hardware) { h.BIOS = "seabios" }},
		{"no scsihw", "scsihw", "", func(h *cluster.Hardware) { h.SCSIHardware = "lsi" }},
		{"mac in small letters, other order", "net0", "bridge=vmbr2,tag=20,virtio=bc:24:11:00:00:11", func(h *cluster.Hardware) { h.Bridge, h.VLAN = "vmbr2", 20 }},
		{"mac by name", "net0", "model=e1000,macaddr=bc:24:11:00:00:12,bridge=vmbr1", func(h *cluster.Hardware) { h.MAC = "BC:24:11:00:00:12" }},
		{"no card", "net0", "", func(h *cluster.Hardware) { h.MAC, h.Bridge = "", "" }},
		{"agent", "agent", "enabled=1,fstrim_cloned_disks=1", func(h *cluster.Hardware) { h.Agent = true }},
		{"agent as a number", "agent", "1", func(h *cluster.Hardware) { h.Agent = true }},
		{"dhcp", "ipconfig0", "ip=dhcp", func(h *cluster.Hardware) { h.Address = "" }},
		{"address in another order", "ipconfig0", "gw=10.78.0.1,ip=10.78.0.11/24", nil},
		{"address with v6", "ipconfig0", "gw=10.78.0.1,ip=10.78.0.11/24,ip6=auto", func(h *cluster.Hardware) { h.Address += ",ip6=auto" }},
		{"not at boot", "onboot", "0", func(h *cluster.Hardware) { h.OnBoot = false }},
		{"other devices behind its system disk", "boot", "order=scsi0;ide2;net0", nil},
		{"the network before its system disk", "boot", "order=net0;scsi0", func(h *cluster.Hardware) { h.Boot = "net0" }},
		{"no device to boot from", "boot", " ", func(h *cluster.Hardware) { h.Boot = "" }},
		{"no boot order", "boot", "", func(h *cluster.Hardware) { h.Boot = "" }},
		{"a boot order of letters", "boot", "cdn", func(h *cluster.Hardware) { h.Boot = "cdn" }},
		{"a storage driver's disk", "scsi9", "vmdata:9999/vm-9999-pvc-1.raw,serial=x,size=1G", nil},
		{"a disk moved to another bus", "scsi1", "", func(h *cluster.Hardware) { h.Data = map[string]cluster.DiskSeen{} }},
		{"one more of ours", "virtio3", "fast:vm-410-disk-7,serial=talos-more,size=1T", func(h *cluster.Hardware) {
			h.Data["talos-more"] = cluster.DiskSeen{Datastore: "fast", Bytes: 1 << 40}
		}},
		{"a TPM", "tpmstate0", "vmdata:410/vm-410-disk-3.raw,size=4M,version=v2.0", func(h *cluster.Hardware) { h.TPM = "v2.0" }},
		{"an installation medium of ours", "ide0", "local:iso/talos-v1.14.1-376567988ad3-nocloud-amd64-secureboot.iso,media=cdrom,size=300M", func(h *cluster.Hardware) { h.Medium = "ide0" }},
		{"somebody's medium", "ide0", "local:iso/virtio-win.iso,media=cdrom,size=300M", nil},
		{"a medium that was taken out", "ide0", "none,media=cdrom", nil},
		{"a TPM without a version", "tpmstate0", "vmdata:410/vm-410-disk-3.raw,size=4M", func(h *cluster.Hardware) { h.TPM = "v1.2" }},
		{"options of later versions", "efidisk0", "vmdata:410/vm-410-disk-0.raw,efitype=4m,ms-cert=2023k,size=528K", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o, want := base(), ours
			want.Data = maps.Clone(ours.Data)
			o[tc.key] = tc.value
			if tc.change != nil {
				tc.change(&want)
			}
			got := Of(o)
			want.Model, want.LinkDown, want.Options = got.Model, got.LinkDown, got.Options // of which other tests are
			if !reflect.DeepEqual(got, want) {
				t.Errorf("\n got %+v\nwant %+v", got, want)
			}
		})
	}
}

// TestBootDiskOfOld: without a list of devices Proxmox VE goes by letters, of which c stands for the
// disk that bootdisk names, and for none without it.
func TestBootDiskOfOld(t *testing.T) {
	for _, tc := range []struct{ boot, disk, want string }{
		{"", "scsi0", cluster.BootSystemDisk},
		{"cdn", "scsi0", cluster.BootSystemDisk},
		{"legacy=c", "scsi0", cluster.BootSystemDisk},
		{"", "scsi1", "scsi1"},
		{"ndc", "scsi0", "ndc"},
		{"legacy=d", "scsi0", "d"},
		{" ", "scsi0", ""},
		{"order=net0", "scsi0", "net0"},
	} {
		o := pveconf.Options{"scsi0": "a:vm-410-disk-0,serial=talos-sys", "scsi1": "a:vm-410-disk-1", "boot": pveconf.Scalar(tc.boot), "bootdisk": pveconf.Scalar(tc.disk)}
		if got := readBoot(o); got != tc.want {
			t.Errorf("boot %q, bootdisk %q: %q, want %q", tc.boot, tc.disk, got, tc.want)
		}
	}
}

func TestOthersVolumes(t *testing.T) {
	for value, others := range map[string]bool{
		"local-lvm:vm-410-disk-1,serial=talos-sys":                        false,
		"local-lvm:vm-410-disk-1,size=1G":                                 true,
		"local:410/vm-410-disk-1.qcow2":                                   true,
		"local:104/base-104-disk-0.qcow2/410/vm-410-disk-0.qcow2,size=1G": true,
		"local-lvm:vm-411-disk-1":                                         false, // another VM's: stays
		"ceph:vm-9999-pvc-0a":                                             false,
		"none,media=cdrom":                                                false,
		"local:iso/x.iso,media=cdrom":                                     false,
		"local-lvm:vm-410-cloudinit,media=cdrom":                          false,
		"/dev/disk/by-id/x":                                               true, // whose it is cannot be known
		"file=local-lvm:vm-410-disk-4":                                    true,
	} {
		for _, key := range []string{"scsi3", "ide0", "sata1", "virtio2"} {
			if got := len(ListOthersVolumes(pveconf.Options{key: pveconf.Scalar(value)}, "410")) > 0; got != others {
				t.Errorf("%s: %s: others' %v, want %v", key, value, got, others)
			}
		}
	}
	if got := ListOthersVolumes(pveconf.Options{"efidisk0": "a:vm-410-disk-0", "tpmstate0": "a:vm-410-disk-1", "unused1": "a:vm-410-disk-2", "name": "x"}, "410"); len(got) != 1 {
		t.Errorf("got %v", got)
	}
}

// TestDiskOptions: every disk of ours has all of its options, in one spelling each; those of others have none.
func TestDiskOptions(t *testing.T) {
	const system, data = cluster.SystemDiskSerial, "talos-data0"
	for _, tc := range []struct {
		drive string
		want  string // ssd discard iothread cache aio backup
	}{
		{"vmdata:vm-410-disk-1,discard=on,iothread=1,size=10G,ssd=1", "on on on none default on"},
		{"vmdata:vm-410-disk-1,size=10G", "off off off none default on"},
		{"vmdata:vm-410-disk-1,discard=ignore,iothread=0,ssd=0,backup=0,cache=writethrough,aio=native,size=10G", "off off off writethrough native off"},
		{"file=vmdata:vm-410-disk-1,backup=1,cache=none,aio=io_uring", "off off off none io_uring on"},
	} {
		for serial, key := range map[string]string{system: "scsi0", data: "virtio3"} {
			got := Of(pveconf.Options{key: pveconf.Scalar(tc.drive + ",serial=" + serial), "scsi9": "vmdata:vm-9999-pvc-1,serial=x,cache=unsafe"}).Options
			var words []string
			for _, o := range cluster.DiskOptions {
				words = append(words, got[cluster.FieldDiskOption(serial, o)])
			}
			maps.DeleteFunc(got, func(field cluster.VMField, _ string) bool { return !strings.Contains(string(field), "disk ") })
			if text := strings.Join(words, " "); text != tc.want || len(got) != len(cluster.DiskOptions) {
				t.Errorf("%s: %s, want %s (%v)", tc.drive, text, tc.want, got)
			}
		}
	}
}

// TestOptions: every further option of a VM has a value in one spelling, also where Proxmox VE has none.
func TestOptions(t *testing.T) {
	unset := map[cluster.VMField]string{"cpu flags": "none", "cpu limit": "none", "cpu units": "100", "numa": "off", "balloon minimum (MiB)": "512", "machine version": "pc", "display": "std"}
	for _, tc := range []struct {
		key, value string
		field      cluster.VMField
		want       string
	}{
		{"cpu", "host", "cpu flags", "none"},
		{"cpu", "host,flags=+pcid;-aes", "cpu flags", "-aes;+pcid"},
		{"cpu", "cputype=host,flags=", "cpu flags", "none"},
		{"cpulimit", "0", "cpu limit", "none"},
		{"cpulimit", "0.0", "cpu limit", "none"},
		{"cpulimit", "0.5", "cpu limit", "0.5"},
		{"cpulimit", "2", "cpu limit", "2"},
		{"cpuunits", "1024", "cpu units", "1024"},
		{"numa", "1", "numa", "on"},
		{"numa", "0", "numa", "off"},
		{"balloon", "0", "balloon minimum (MiB)", "none"},
		{"balloon", "256", "balloon minimum (MiB)", "256"},
		{"memory", "current=2048", "balloon minimum (MiB)", "2048"},
		{"machine", "q35", "machine version", "q35"},
		{"machine", "pc-q35-9.2+pve1,viommu=virtio", "machine version", "pc-q35-9.2+pve1"},
		{"machine", "type=pc-q35-9.2", "machine version", "pc-q35-9.2"},
		{"net0", "virtio=BC:24:11:00:00:11,bridge=vmbr0", "mtu", "none"},
		{"net0", "virtio=BC:24:11:00:00:11,bridge=vmbr0,mtu=9000,firewall=0", "mtu", "9000"},
		{"net0", "e1000=BC:24:11:00:00:11,bridge=vmbr0,firewall=1", "network card firewall", "on"},
		{"net1", "bridge=vmbr2,tag=30,virtio=bc:24:11:00:00:12,rate=5,firewall=0", "network card net1", "virtio=BC:24:11:00:00:12,bridge=vmbr2,tag=30"},
		{"net7", "model=e1000,macaddr=BC:24:11:00:00:12,bridge=vmbr2,mtu=1,link_down=1,firewall=1", "network card net7", "e1000=BC:24:11:00:00:12,bridge=vmbr2,firewall=1,link_down=1,mtu=1"},
		{"hostpci0", "mapping=gpu", "PCI device hostpci0", "mapping=gpu"},
		{"hostpci0", "rombar=0,pcie=1,x-vga=1,mapping=gpu", "PCI device hostpci0", "mapping=gpu,pcie=1,rombar=0"},
		{"hostpci0", "mapping=gpu,rombar=1,pcie=0", "PCI device hostpci0", "mapping=gpu"},
		{"hostpci1", "0000:01:00.0,pcie=1", "PCI device hostpci1", "host=0000:01:00.0,pcie=1"},
		{"hostpci1", "host=0000:01:00.0", "PCI device hostpci1", "host=0000:01:00.0"},
		{"usb0", "mapping=dongle,usb3=1", "USB device usb0", "mapping=dongle,usb3=1"},
		{"usb0", "host=1050:0407", "USB device usb0", "host=1050:0407"},
		{"usb0", "spice", "USB device usb0", "host=spice"},
		{"net0", "", "numa", "off"},
		{"vga", "virtio", "display", "virtio"},
		{"vga", "type=qxl,memory=32", "display", "qxl"},
	} {
		want := maps.Clone(unset)
		want[tc.field] = tc.want
		if tc.key == "net0" && tc.value != "" {
			want = maps.Clone(want)
			for field, value := range map[cluster.VMField]string{"network card firewall": "off", "mtu": "none"} {
				if want[field] == "" {
					want[field] = value
				}
			}
		}
		if got := Of(pveconf.Options{tc.key: pveconf.Scalar(tc.value)}).Options; !maps.Equal(got, want) {
			t.Errorf("%s %s: %v", tc.key, tc.value, got)
		}
	}
}

func TestGibibytes(t *testing.T) {
	for bytes, want := range map[int64]string{1 << 30: "1", 20 << 30: "20", 1536 << 20: "1.5", 1 << 20: "0.0009765625", 1000 << 30: "1000", 100 << 20: "0.09765625"} {
		var c Checks
		if got := c.gibibytes("x", bytes); got != want || c.Err() != nil {
			t.Errorf("%d: got %q, %v; want %q", bytes, got, c.Err(), want)
		}
	}
	for _, bytes := range []int64{0, -1, 1, 1<<30 + 1} {
		var c Checks
		if c.gibibytes("x", bytes); c.Err() == nil {
			t.Errorf("%d is taken", bytes)
		}
	}
}

// TestMarkDescription: what people wrote into a description stays.
func TestMarkDescription(t *testing.T) {
	mark := cluster.Mark{Version: 1, Cluster: "c", Node: "n"}.String()
	old := cluster.Mark{Version: 1, Cluster: "other", Node: "n"}.String()
	wanted := mark + "\nNode n."
	for have, want := range map[string]string{
		"":                  wanted,
		"mine":              mark + "\nmine",
		old + "\nmine":      mark + "\nmine",
		mark + "\nmine":     mark + "\nmine",
		"mine\n\nand yours": mark + "\nmine\n\nand yours",
	} {
		if got := markDescription(have, wanted); got != want {
			t.Errorf("%q: %q, want %q", have, got, want)
		}
	}
}
