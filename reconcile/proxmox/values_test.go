package proxmox

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

func TestTextTakesEveryType(t *testing.T) {
	var o options
	raw := `{"a":1,"b":"1","c":true,"d":false,"e":null,"f":1.5,"g":{"x":1},"h":[1,2],"i":"q\"u\\ü","j":1795225798,"k":12884901888}`
	if err := json.Unmarshal([]byte(raw), &o); err != nil {
		t.Fatal(err)
	}
	want := options{"a": "1", "b": "1", "c": "1", "d": "0", "e": "", "f": "1.5", "g": `{"x":1}`, "h": "[1,2]", "i": `q"u\ü`, "j": "1795225798", "k": "12884901888"}
	if !maps.Equal(o, want) {
		t.Errorf("got %v", o)
	}
	if n := o["k"].number(); n != 12884901888 {
		t.Errorf("got %d", n)
	}
	if n := o["f"].number(); n != 1 {
		t.Errorf("got %d", n)
	}
	for _, bad := range []scalar{"", "x", "NaN", "1e400", "Inf"} {
		if n := bad.number(); n != 0 {
			t.Errorf("%q is %d", bad, n)
		}
	}
}

func TestSizes(t *testing.T) {
	for s, want := range map[string]int64{"10G": 10 << 30, "1246M": 1246 << 20, "528K": 528 << 10, "4194304": 4 << 20, "1.5G": 1536 << 20, "2T": 2 << 40,
		"": 0, "G": 0, "x": 0, "-1G": 0, "1e30G": 0, "NaN": 0, "9999999999999T": 0} {
		if got := parseSize(s); got != want {
			t.Errorf("%q: got %d, want %d", s, got, want)
		}
	}
	for n, want := range map[int64]string{10 << 30: "10G", 1536 << 20: "1536M", 2 << 40: "2048G", 528 << 10: "528K", 1000: "1000"} {
		if got := formatSize(n); got != want || parseSize(got) != n {
			t.Errorf("%d: got %q, want %q", n, got, want)
		}
	}
}

func TestHardware(t *testing.T) {
	ours := cluster.Hardware{CPUType: "x86-64-v2-AES", Cores: 2, MemoryMiB: 2048, Machine: "q35", BIOS: "ovmf", SCSIHardware: "virtio-scsi-single",
		MAC: "BC:24:11:00:00:11", Bridge: "vmbr1", System: cluster.DiskSeen{Datastore: "vmdata", Bytes: 10 << 30},
		Data: map[string]cluster.DiskSeen{"talos-data0": {Datastore: "vmdata", Bytes: 2 << 30}}, Address: "10.78.0.11/24,gw=10.78.0.1", OnBoot: true}
	base := func() options {
		return options{"vga": "std", "sockets": "1", "cores": "2", "memory": "2048", "scsihw": "virtio-scsi-single", "balloon": "0", "machine": "q35", "bios": "ovmf",
			"scsi0": "vmdata:410/vm-410-disk-1.qcow2,discard=on,iothread=1,serial=talos-sys,size=10G,ssd=1", "net0": "virtio=BC:24:11:00:00:11,bridge=vmbr1,firewall=0",
			"scsi1": "vmdata:410/vm-410-disk-2.raw,discard=on,iothread=1,serial=talos-data0,size=2G,ssd=1", "cpu": "x86-64-v2-AES", "onboot": "1",
			"efidisk0": "vmdata:410/vm-410-disk-0.raw,efitype=4m,pre-enrolled-keys=0,size=528K", "ipconfig0": "ip=10.78.0.11/24,gw=10.78.0.1", "agent": "0",
			"ide2": "vmdata:410/vm-410-cloudinit.qcow2,media=cdrom"}
	}
	for _, tc := range []struct {
		name, key string
		value     scalar
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
		{"a storage driver's disk", "scsi9", "vmdata:9999/vm-9999-pvc-1.raw,serial=x,size=1G", nil},
		{"a disk moved to another bus", "scsi1", "", func(h *cluster.Hardware) { h.Data = map[string]cluster.DiskSeen{} }},
		{"one more of ours", "virtio3", "fast:vm-410-disk-7,serial=talos-more,size=1T", func(h *cluster.Hardware) {
			h.Data["talos-more"] = cluster.DiskSeen{Datastore: "fast", Bytes: 1 << 40}
		}},
		{"options of later versions", "efidisk0", "vmdata:410/vm-410-disk-0.raw,efitype=4m,ms-cert=2023k,size=528K", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o, want := base(), ours
			want.Data = maps.Clone(ours.Data)
			o[tc.key] = tc.value
			if tc.change != nil {
				tc.change(&want)
			}
			if got := hardwareOf(o); !sameHardware(got, want) {
				t.Errorf("\n got %+v\nwant %+v", got, want)
			}
		})
	}
}

func sameHardware(a, b cluster.Hardware) bool {
	same := maps.Equal(a.Data, b.Data)
	a.Data, b.Data = nil, nil
	type flat struct {
		cpu, machine, bios, scsi, mac, bridge, address string
		cores, vlan                                    int
		memory                                         int64
		balloon, agent, onboot                         bool
		system                                         cluster.DiskSeen
	}
	f := func(h cluster.Hardware) flat {
		return flat{h.CPUType, h.Machine, h.BIOS, h.SCSIHardware, h.MAC, h.Bridge, h.Address, h.Cores, h.VLAN, h.MemoryMiB, h.Balloon, h.Agent, h.OnBoot, h.System}
	}
	return same && f(a) == f(b)
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
			if got := len(othersVolumes(options{key: scalar(value)}, "410")) > 0; got != others {
				t.Errorf("%s: %s: others' %v, want %v", key, value, got, others)
			}
		}
	}
	if got := othersVolumes(options{"efidisk0": "a:vm-410-disk-0", "tpmstate0": "a:vm-410-disk-1", "unused1": "a:vm-410-disk-2", "name": "x"}, "410"); len(got) != 1 {
		t.Errorf("got %v", got)
	}
}

func TestUPID(t *testing.T) {
	u, err := parseUPID("UPID:pve:0000020E:0008D741:6B00F8C6:qmcreate:410:talos-agent@pve!agent:")
	if err != nil || u.host != "pve" || u.kind != "qmcreate" || u.vmid() != 410 || u.user != "talos-agent@pve!agent" || !u.started.Equal(time.Unix(0x6B00F8C6, 0)) {
		t.Errorf("%+v, %v", u, err)
	}
	if u, err = parseUPID("UPID:pve:000001C1:0008D6DF:6B00F8C5:imgcopy::talos-agent@pve!agent:"); err != nil || u.vmid() != 0 {
		t.Errorf("%+v, %v", u, err)
	}
	for _, bad := range []string{"", "UPID", "UPID:a:b:c:d:e:f:g:", "UPID:pve:0000020E:0008D741:6B00F8C6:qmcreate:410:talos-agent@pve", "UPID:../x:0000020E:0008D741:6B00F8C6:qmcreate:410:u:"} {
		if u, err := parseUPID(bad); err == nil {
			t.Errorf("%q is %+v", bad, u)
		}
	}
}

func FuzzUPID(f *testing.F) {
	f.Add("UPID:pve:0000020E:0008D741:6B00F8C6:qmcreate:410:talos-agent@pve!agent:")
	f.Add("UPID:pve:000001C1:0008D6DF:6B00F8C5:imgcopy::talos-agent@pve!agent:")
	f.Fuzz(func(t *testing.T, s string) {
		u, err := parseUPID(s)
		if err == nil && (u.text != s || u.host == "" || u.kind == "" || u.user == "" || strings.ContainsAny(u.host, "/.?#")) {
			t.Errorf("%q is %+v", s, u)
		}
	})
}

// FuzzConfig: no configuration of Proxmox VE, whatever is in it, makes the
// reading of it panic or an owner appear from nowhere.
func FuzzConfig(f *testing.F) {
	f.Add([]byte(`{"smbios1":"uuid=6F3A0F3E-8c1e-5d2b-9c3f-0a1b2c3d4e5f","scsi0":"a:vm-1-disk-0,serial=talos-sys,size=1.5T","net0":"virtio=BC:24:11:00:00:11,bridge=vmbr1","cores":4,"agent":1,"tags":"a;b"}`))
	f.Add([]byte(`{"lock":"create","digest":"a7e9"}`))
	f.Add([]byte(`{"description":"talos-agent: {\"v\":1,\"cluster\":\"x\",\"node\":\"n\",\"deleting\":true}\nhi","ide2":"none,media=cdrom","cpu":{},"memory":[]}`))
	id := cluster.ClusterID("talos-agent", "dev")
	f.Fuzz(func(t *testing.T, raw []byte) {
		var o options
		if json.Unmarshal(raw, &o) != nil {
			return
		}
		var fs facts
		fs.configured(o, 411, time.Time{})
		othersVolumes(o, "410")
		if name := orphanOf(fs, id); name != "" && !strings.EqualFold(fs.uuid, cluster.NodeUUID(id, name)) {
			t.Errorf("%s is an orphan: %+v", name, fs)
		}
		provenOthers(fs, id)
		if fs.hw.System.Bytes < 0 || fs.hw.Cores < 1 {
			t.Errorf("%+v", fs.hw)
		}
	})
}

// FuzzRows: no list makes the reading of it panic.
func FuzzRows(f *testing.F) {
	f.Add([]byte(`[{"vmid":410,"type":"qemu","status":"running","pool":"talos-dev","uptime":10,"maxcpu":2,"tags":"a;b","node":"pve"},{"type":"node","node":"pve","maxcpu":16}]`))
	f.Add([]byte(`[{"vmid":"410","status":"unknown"},{"upid":"UPID:pve:0000020E:0008D741:6B00F8C6:qmcreate:410:u@pve:","status":"RUNNING"}]`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var rows []row
		if json.Unmarshal(raw, &rows) == nil {
			for _, r := range rows {
				wrongPlace(r, identity{vmid: 410, pool: "x"})
				if !(facts{row: r.steady(), uptime: r.Uptime.number()}).still(r) {
					t.Errorf("%+v is not what it is", r)
				}
			}
		}
		var tasks []taskRow
		if json.Unmarshal(raw, &tasks) == nil {
			if _, err := tasksOf(tasks); err != nil && err.Error() == "" {
				t.Error("an error without words")
			}
		}
	})
}
