package proxmox

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/dualstack"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/hardware"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/pveconf"
)

// TestNothingIsSmuggled: whatever strings an inventory holds, the request that
// makes a VM either is refused in words or has exactly the options, properties
// and volumes it should have, each with the one value of its field.
func TestNothingIsSmuggled(t *testing.T) {
	nasty := rapid.SampledFrom([]string{
		"x,import-from=/etc/shadow", "x=y", "a;b", "a b", "a\nargs: -foo", "local:0", "../../x", "x\x00", "ü", "", "-x", strings.Repeat("a", 500), "a%2Cb", "a,b",
		"$(id)", "vmbr0,tag=5", "host,flags=+aes", "BC:24:11:00:00:01,bridge=vmbr0", "talos-x,file=y", "none", "/dev/sda", "x/../y", "1.qcow2", "a&args=b", "\"", "\u2028",
	})
	// A value often has the alphabet of names, so that some are taken.
	word := rapid.OneOf(nasty, rapid.String(), rapid.StringMatching(`[a-zA-Z0-9.,=;:/ _-]{1,12}`), rapid.StringMatching(`[a-z][a-z0-9-]{0,8}[a-z0-9]`))
	good := desired(1)
	if _, err := hardware.CreateParams(good, good.Spec.Nodes[0], testPool, good.Image); err != nil {
		t.Fatalf("everything is refused: %v", err)
	}
	taken := 0
	rapid.Check(t, func(t *rapid.T) {
		d := desired(1)
		n, pool := d.Spec.Nodes[0], testPool
		n.Disks = []cluster.Disk{{Name: "data", Serial: "talos-data", Datastore: "local-lvm", Bytes: 5 << 30}}
		cache := ""
		fields := []*string{&n.Name, &n.UUID, &n.MAC, &n.Bridge, &n.Datastore, &n.ImageDatastore, &n.CloudInitDatastore, &n.SCSIHardware, &n.CPUType,
			&d.Spec.Name, &d.Image.Name, &d.Spec.ID, &pool, &n.Disks[0].Name, &n.Disks[0].Serial, &n.Disks[0].Datastore}
		for range rapid.IntRange(0, 2).Draw(t, "how many are bad") {
			*rapid.SampledFrom(fields).Draw(t, "which") = word.Draw(t, "word")
		}
		if rapid.Bool().Draw(t, "a cache mode") {
			cache = rapid.OneOf(rapid.SampledFrom([]string{"directsync", "unsafe"}), word).Draw(t, "cache")
			n.Options = map[cluster.VMField]string{cluster.FieldDiskOption(n.Disks[0].Serial, cluster.DiskCache): cache}
		}
		if hardware.UUIDPattern.MatchString(d.Spec.ID) && n.UUID == desired(1).Spec.Nodes[0].UUID {
			n.UUID = cluster.NodeUUID(d.Spec.ID, n.Name)
		}
		n.VMID = rapid.SampledFrom([]int{411, 411, 411, 411, 99, -1, 1_000_000_000}).Draw(t, "vmid")
		d.Spec.Network.VLAN = rapid.SampledFrom([]int{0, 0, 20, 20, -1, 5000}).Draw(t, "vlan")
		gw := d.Spec.Network.Gateway
		d.Spec.Network.Gateway = rapid.SampledFrom([]netip.Addr{gw, gw, gw, {}, netip.MustParseAddr("fe80::1%eth0,gw=x")}).Draw(t, "gateway")

		d.Spec.SecureBoot = rapid.Bool().Draw(t, "secure boot")
		if d.Image.ISO = rapid.Bool().Draw(t, "from a medium"); d.Image.ISO {
			d.Image.Name = strings.TrimSuffix(d.Image.Name, ".qcow2") + ".iso"
		}

		p, err := hardware.CreateParams(d, n, pool, d.Image)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\x00\r") {
				t.Fatalf("the refusal is not words: %q", err)
			}
			return
		}
		taken++
		keys := slices.Sorted(maps.Keys(p))
		want := strings.Fields("agent balloon bios boot citype cores cpu description efidisk0 ide2 ipconfig0 machine memory name nameserver net0 numa onboot ostype pool protection rng0 scsi0 scsi1 scsihw serial0 smbios1 sockets vga vmid")
		if pool == "" {
			want = slices.DeleteFunc(want, func(k string) bool { return k == "pool" })
		}
		if d.Image.ISO {
			want = append(want, "ide0")
		}
		drives := map[string]map[string]string{}
		if d.Spec.SecureBoot {
			want = append(want, "tpmstate0")
			drives["tpmstate0"] = map[string]string{"": n.Datastore + ":1", "version": "v2.0"}
		}
		if slices.Sort(want); !slices.Equal(keys, want) {
			t.Fatalf("options %v, want %v", keys, want)
		}
		maps.Copy(drives, map[string]map[string]string{
			"efidisk0": {"": n.Datastore + ":1", "efitype": "4m", "pre-enrolled-keys": "0"},
			"scsi0":    {"": n.Datastore + ":0", "import-from": n.ImageDatastore + ":import/" + d.Image.Name, "discard": "on", "ssd": "1", "serial": "talos-sys"},
			"scsi1":    {"": n.Disks[0].Datastore + ":5", "discard": "on", "ssd": "1", "serial": n.Disks[0].Serial},
			"ide2":     {"": n.CloudInitDatastore + ":cloudinit"},
			"net0":     {"virtio": n.MAC, "bridge": n.Bridge, "firewall": "0"},
			"cpu":      {"": n.CPUType}, "name": {"": n.Name}, "smbios1": {"uuid": n.UUID},
			"ipconfig0": {"ip": "10.10.0.11/16", "gw": "10.10.0.1"},
		})
		if d.Image.ISO {
			drives["ide0"] = map[string]string{"": n.ImageDatastore + ":iso/" + d.Image.Name, "media": "cdrom"}
			drives["scsi0"][""] = n.Datastore + ":10"
			delete(drives["scsi0"], "import-from")
		}
		for key, want := range drives {
			if n.SCSIHardware == cluster.SingleController && strings.HasPrefix(key, "scsi") {
				want["iothread"] = "1"
			}
			if d.Spec.Network.VLAN == 20 && key == "net0" {
				want["tag"] = "20"
			}
			if cache != "" && cache != "none" && key == "scsi1" {
				want["cache"] = cache
			}
			if key == "ide2" && n.CloudInitDatastore == "" {
				want[""] = n.Datastore + ":cloudinit"
			}
			if got := pveconf.Properties(pveconf.ParseProperties(p[key])); !maps.Equal(got, want) || strings.Count(p[key], ",") != len(want)-1 {
				t.Fatalf("%s is %q: %v, want %v", key, p[key], got, want)
			}
			if strings.ContainsAny(p[key], "\n\r;\x00") {
				t.Fatalf("%s is %q", key, p[key])
			}
		}
		if m, ok := cluster.ParseMark(p["description"]); !ok || m != (cluster.Mark{Version: 1, Cluster: d.Spec.ID, Node: n.Name}) || strings.Count(p["description"], "\n") != 1 {
			t.Fatalf("description %q", p["description"])
		}
	})
	t.Logf("%d were taken", taken) // few checks may meet none
}

// TestOptionsOfNewVM: each option that an inventory may have is in the request that makes a VM, and nothing of it is
// there without it; what is no value of it is refused.
func TestOptionsOfNewVM(t *testing.T) {
	plain, err := hardware.CreateParams(desired(1), desired(1).Spec.Nodes[0], testPool, desired(1).Image)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		field       cluster.VMField
		value       string
		key, option string // "": as without it
	}{
		{"cpu flags", "none", "", ""}, {"cpu flags", "-aes;+pcid", "cpu", "x86-64-v2-AES,flags=-aes;+pcid"},
		{"cpu limit", "none", "cpulimit", "0"}, {"cpu limit", "2", "cpulimit", "2"},
		{"cpu units", "50", "cpuunits", "50"},
		{"numa", "off", "", ""}, {"numa", "on", "numa", "1"},
		{"balloon minimum (MiB)", "none", "", ""}, {"balloon minimum (MiB)", "1024", "balloon", "1024"},
		{"network card firewall", "off", "", ""}, {"network card firewall", "on", "net0", "virtio=BC:24:11:0C:96:39,bridge=vmbr1,firewall=1"},
		{"display", "std", "", ""}, {"display", "serial0", "vga", "serial0"}, {"display", "none", "vga", "none"},
		{"mtu", "none", "", ""}, {"mtu", "9000", "net0", "virtio=BC:24:11:0C:96:39,bridge=vmbr1,firewall=0,mtu=9000"},
		{"network card net1", "none", "", ""}, {"network card net1", "virtio=BC:24:11:0C:96:40,bridge=vmbr2", "net1", "virtio=BC:24:11:0C:96:40,bridge=vmbr2"},
		{"network card net7", "e1000=BC:24:11:0C:96:40,bridge=vmbr2,firewall=1,mtu=1,tag=30", "net7", "e1000=BC:24:11:0C:96:40,bridge=vmbr2,firewall=1,mtu=1,tag=30"},
		{"PCI device hostpci0", "none", "", ""}, {"PCI device hostpci7", "mapping=gpu,pcie=1,rombar=0", "hostpci7", "mapping=gpu,pcie=1,rombar=0"},
		{"USB device usb0", "mapping=dongle,usb3=1", "usb0", "mapping=dongle,usb3=1"},
		{"machine version", "q35", "", ""}, {"machine version", "pc-q35-9.2+pve1", "machine", "pc-q35-9.2+pve1"},
	} {
		d := desired(1)
		n := d.Spec.Nodes[0]
		n.Options = map[cluster.VMField]string{c.field: c.value}
		want := maps.Clone(plain)
		if c.key != "" {
			want[c.key] = c.option
		}
		if got, err := hardware.CreateParams(d, n, testPool, d.Image); err != nil || !maps.Equal(got, want) {
			t.Errorf("%s %s: %v, %v", c.field, c.value, got, err)
		}
		for _, bad := range []string{"host=0000:01:00.0", c.value + ",x=1", "x y", c.value + ";", "", "x_1"} {
			n.Options = map[cluster.VMField]string{c.field: bad}
			if _, err := hardware.CreateParams(d, n, testPool, d.Image); err == nil {
				t.Errorf("%s %q is taken", c.field, bad)
			}
		}
	}
}

// TestPathsAreNotSmuggled: hosts, storages and images that are no names do not
// reach a path.
func TestPathsAreNotSmuggled(t *testing.T) {
	onStand(t, "9.2", func(t *testing.T, s *stand) {
		c := s.client()
		defer c.Close()
		ctx := t.Context()
		for _, bad := range []string{"", "..", "a/../b", "x?y", "x#y", "pve1/qemu/900", "a b", "x\n"} {
			d := desired(1)
			n := d.Spec.Nodes[0]
			n.Placement.Pin = bad
			for what, err := range map[string]error{
				"host of a creation":    c.Create(ctx, d, n, n.Placement.Pin, d.Image, nil),
				"host of a deletion":    c.Delete(ctx, d, cluster.VM{VMID: 411, Node: "dev-cp-1", Host: bad}, nil),
				"node of a deletion":    c.Delete(ctx, d, cluster.VM{VMID: 411, Node: bad, Host: testHost}, nil),
				"host of an upload":     c.Upload(ctx, bad, "local", imageName, 1, strings.NewReader("x"), nil),
				"storage of an upload":  c.Upload(ctx, testHost, bad, imageName, 1, strings.NewReader("x"), nil),
				"filename of an upload": c.Upload(ctx, testHost, "local", bad, 1, strings.NewReader("x"), nil),
			} {
				if err == nil {
					t.Errorf("%s %q is taken", what, bad)
				}
			}
		}
		tags := desired(1)
		tags.Spec.Nodes[0].Tags = []string{"a;b"}
		if err := c.Create(ctx, tags, tags.Spec.Nodes[0], tags.Spec.Nodes[0].Placement.Pin, tags.Image, nil); err == nil || !strings.Contains(err.Error(), `tag "a;b"`) {
			t.Errorf("got %v", err)
		}
		if calls := s.calls(); len(calls) != 0 {
			t.Errorf("asked: %v", calls)
		}
	})
}

func TestCreateParams(t *testing.T) {
	d := desired(1)
	n := d.Spec.Nodes[0]
	n.Disks = []cluster.Disk{{Name: "a", Bytes: 20 << 30, Datastore: "fast", Serial: "talos-a"}, {Name: "b", Bytes: 1536 << 20, Datastore: "local-lvm", Serial: "talos-b"}}
	n.SCSIHardware = "virtio-scsi-pci"
	d.Spec.Network.VLAN = 20
	d.Spec.Network.Nameservers = append(d.Spec.Network.Nameservers, netip.MustParseAddr("9.9.9.9"))
	d.Spec.Schematic.Extensions = []string{"siderolabs/qemu-guest-agent"}
	p, err := hardware.CreateParams(d, n, testPool, d.Image)
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{
		"scsi0": "local-lvm:0,import-from=local:import/" + imageName + ",discard=on,ssd=1,serial=talos-sys",
		"scsi1": "fast:20,discard=on,ssd=1,serial=talos-a",
		"scsi2": "local-lvm:1.5,discard=on,ssd=1,serial=talos-b",
		"net0":  "virtio=" + n.MAC + ",bridge=vmbr1,firewall=0,tag=20",
		"agent": "1", "nameserver": "10.10.0.1 9.9.9.9", "tags": "",
	} {
		if p[key] != want {
			t.Errorf("%s is %q, want %q", key, p[key], want)
		}
	}
	six := d
	six.Spec.Network.IPv6 = dualstack.Networks{CIDR: netip.MustParsePrefix("fd00:10:10::/64")}
	dual := n
	dual.IP6 = netip.MustParseAddr("fd00:10:10::b")
	for gateway, want := range map[string]string{"": p["ipconfig0"] + ",ip6=fd00:10:10::b/64", "fe80::1": p["ipconfig0"] + ",ip6=fd00:10:10::b/64,gw6=fe80::1"} {
		if six.Spec.Network.IPv6.Gateway = (netip.Addr{}); gateway != "" {
			six.Spec.Network.IPv6.Gateway = netip.MustParseAddr(gateway)
		}
		q, err := hardware.CreateParams(six, dual, "", d.Image)
		if err != nil || q["ipconfig0"] != want {
			t.Errorf("with IPv6: %q, %v, want %q", q["ipconfig0"], err, want)
		}
		if got := pveconf.ParseProperties(q["ipconfig0"]).Address(); "ip="+got != want {
			t.Errorf("%q is seen as %q", q["ipconfig0"], got)
		}
	}
	for _, bad := range []string{"10.10.0.11", "::ffff:10.10.0.11", "fe80::1%eth0,gw=x"} {
		wrong := dual
		wrong.IP6 = netip.MustParseAddr(bad)
		if q, err := hardware.CreateParams(six, wrong, "", d.Image); err == nil {
			t.Errorf("%s is sent as %q", bad, q["ipconfig0"])
		}
	}
	d.Spec.Network.Mode = cluster.AddressDiscovered
	if q, err := hardware.CreateParams(d, n, "", d.Image); err != nil || q["ipconfig0"] != p["ipconfig0"] {
		t.Errorf("with a gateway and an address: %q, %v", q["ipconfig0"], err)
	}
	leased := n
	leased.Leased, leased.IP = true, netip.Addr{}
	if q, err := hardware.CreateParams(d, leased, "", d.Image); err != nil || q["ipconfig0"]+q["nameserver"] != "" {
		t.Errorf("without an address: %q, %v", q["ipconfig0"], err)
	}
	d.Spec.Network.Mode = cluster.AddressReserved
	if p, err = hardware.CreateParams(d, n, "", d.Image); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"ipconfig0", "nameserver", "pool", "tags"} {
		if v, ok := p[key]; ok {
			t.Errorf("%s is %q", key, v)
		}
	}
}

// TestRefusalsComeAllAtOnce: a person fixes everything in one go.
func TestRefusalsComeAllAtOnce(t *testing.T) {
	d := desired(1)
	n := d.Spec.Nodes[0]
	n.Bridge, n.CPUType, n.Datastore, n.Cores = "a,b", "x=y", "a b", 0
	_, err := hardware.CreateParams(d, n, "p,q", d.Image)
	for _, want := range []string{`bridge "a,b"`, `cpu type "x=y"`, `datastore "a b"`, "0 cores", `pool "p,q"`} {
		if !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%v lacks %s", err, want)
		}
	}
}
