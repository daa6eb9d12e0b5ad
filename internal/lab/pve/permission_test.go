package pve

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// TestPermissions: what somebody may do is listed with whether it holds below, and
// the VMs of a pool by themselves, with what the pool gives there, which does not.
// As a real host answers, and as RPCEnvironment.pm of pve-access-control has it.
func TestPermissions(t *testing.T) {
	inBubble(t, Config{}, func(l *testLab) {
		for _, who := range []string{"talos-agent@pve", "talos-agent@pve!pve1"} {
			l.pve.mu.Lock()
			kind := map[bool]string{true: "token", false: "user"}[who != "talos-agent@pve"]
			l.pve.setACL(acl{path: "/", ugid: who, kind: kind, role: "TalosAgentHost"}, false)
			// One of both that does not propagate is enough.
			l.pve.setACL(acl{path: "/nodes/pve1", ugid: who, kind: kind, role: "TalosAgentHost", propagate: kind == "user"}, false)
			l.pve.mu.Unlock()
		}
		l.ok("POST", "/nodes/pve1/qemu", "vmid=410&pool=talos")
		may := l.call("GET", "/access/permissions", "").data.(map[string]any)
		one := func(v float64) map[string]any { return map[string]any{"Sys.Audit": v} }
		for path, want := range map[string]any{"/": one(0), "/nodes/pve1": one(0), "/nodes": nil} {
			if !reflect.DeepEqual(may[path], want) {
				l.t.Errorf("%s: %v, want %v", path, may[path], want)
			}
		}
		pool, member := may["/pool/talos"].(map[string]any), may["/vms/410"].(map[string]any)
		if pool["VM.Allocate"] != 1.0 || member["VM.Allocate"] != 0.0 || len(pool) != len(member) {
			l.t.Errorf("the pool has %v, its member %v", pool, member)
		}
	})
}

// TestDevicesOfHosts: a token passes devices by mappings that it may use, and sees those; one without a mapping it neither
// passes, changes nor removes. A VM starts where its host has a device that no other one that runs has.
func TestDevicesOfHosts(t *testing.T) {
	inBubble(t, Config{}, func(l *testLab) {
		l.ok("POST", "/nodes/pve1/qemu", "vmid=410&pool=talos")
		l.ok("POST", "/nodes/pve1/qemu", "vmid=411&pool=talos")
		l.pve.Map("pci", "gpu", "pve1")
		l.pve.Map("usb", "key")
		const config = "/nodes/pve1/qemu/410/config"
		l.refused("PUT", config, "hostpci0=mapping%3Dgpu", 403, "Permission check failed (/mapping/pci/gpu, Mapping.Use)")
		l.refused("POST", "/nodes/pve1/qemu", "vmid=412&pool=talos&usb0=mapping%3Dkey", 403, "Permission check failed (/mapping/usb/key, Mapping.Use)")
		if got := l.ok("GET", "/cluster/mapping/pci", "").([]any); len(got) > 0 {
			t.Errorf("unprivileged: %v", got)
		}
		for _, who := range []string{"talos-agent@pve", defaultAgent} {
			l.pve.Grant(who, "PVEMappingUser", "/mapping/pci/gpu")
			l.pve.Grant(who, "PVEMappingUser", "/mapping/usb/key")
		}
		if got := fmt.Sprint(l.ok("GET", "/cluster/mapping/pci", "")); !strings.Contains(got, "node=pve1,path=0000:01:00") {
			t.Error(got)
		}
		if got := fmt.Sprint(l.ok("GET", "/cluster/mapping/usb", "")); !strings.Contains(got, "id:key map:[]") {
			t.Error(got)
		}
		for _, token := range []string{l.token, l.admin} {
			l.as(token).refused("PUT", config, "hostpci0=0000:01:00.0", 500, "only root can set 'hostpci0' config for non-mapped devices")
			l.as(token).refused("PUT", config, "usb0=host%3D1050:0407", 500, "only root can set 'usb0' config for real devices")
		}
		l.refused("PUT", config, "usb0=usb3%3D1", 500, "either 'host' or 'mapping' must be set.")
		l.ok("PUT", config, "hostpci0=mapping%3Dgpu,pcie%3D1&usb1=spice")
		l.ok("PUT", "/nodes/pve1/qemu/411/config", "hostpci3=mapping%3Dgpu")
		if got := l.exit("POST", "/nodes/pve1/qemu/410/status/start", ""); got != "OK" {
			t.Error(got)
		}
		if got := l.exit("POST", "/nodes/pve1/qemu/411/status/start", ""); got != "PCI device '0000:01:00' already in use by VMID '410'" {
			t.Error(got)
		}
		l.ok("PUT", "/nodes/pve1/qemu/411/config", "delete=hostpci3&usb0=mapping%3Dkey")
		if got := l.exit("POST", "/nodes/pve1/qemu/411/status/start", ""); got != "USB device mapping not found for 'key'" {
			t.Error(got)
		}
		if err := l.pve.Edit(411, "hostpci0", "host=0000:02:00.0"); err != nil {
			t.Fatal(err)
		}
		for _, change := range []string{"delete=hostpci0", "hostpci0=mapping%3Dgpu"} {
			l.refused("PUT", "/nodes/pve1/qemu/411/config", change, 500, "only root can set 'hostpci0' config for non-mapped devices")
		}
	})
}

// TestMachineVersions: a VM starts with a machine type that its host has, and with no other.
func TestMachineVersions(t *testing.T) {
	inBubble(t, Config{}, func(l *testLab) {
		l.ok("POST", "/nodes/pve1/qemu", "vmid=410&pool=talos")
		for machine, want := range map[string]string{
			"q35": "OK", "pc-q35-9.2": "OK", "type=pc-q35-9.2%2Bpve1": "OK", "pc-q35-9.1%2Bpve0": "OK",
			"pc-q35-10.1": "Installed QEMU version '10.0.13' is too old to run machine type 'pc-q35-10.1', please upgrade node 'pve1'",
			"pc-q35-9.3":  "start failed: QEMU exited with code 1",
		} {
			l.ok("PUT", "/nodes/pve1/qemu/410/config", "machine="+machine)
			if got := l.exit("POST", "/nodes/pve1/qemu/410/status/start", ""); got != want {
				t.Errorf("%s: %s", machine, got)
			}
			l.ok("POST", "/nodes/pve1/qemu/410/status/stop", "")
		}
	})
}

// TestMTUOfBridge: a network card has at most the MTU of its bridge, or the VM does not start.
func TestMTUOfBridge(t *testing.T) {
	inBubble(t, Config{}, func(l *testLab) {
		l.ok("POST", "/nodes/pve1/qemu", "vmid=410&pool=talos")
		for _, c := range []struct {
			mtu, bridge string
			want        string
		}{
			{"mtu=1500", "vmbr1", "OK"}, {"mtu=1", "vmbr1", "OK"}, {"firewall=0", "vmbr1", "OK"},
			{"mtu=1501", "vmbr1", "netdev net1: MTU '1501' is bigger than the bridge MTU '1500'"},
			{"mtu=500", "vmbr1", "netdev net1: MTU '500' is smaller than the IP minimum MTU '576'"},
		} {
			l.ok("PUT", "/nodes/pve1/qemu/410/config", "net1=virtio,bridge%3D"+c.bridge+","+strings.Replace(c.mtu, "=", "%3D", 1))
			if got := l.exit("POST", "/nodes/pve1/qemu/410/status/start", ""); got != c.want {
				t.Errorf("%s: %s", c.mtu, got)
			}
			l.ok("POST", "/nodes/pve1/qemu/410/status/stop", "")
		}
		l.pve.ChangeBridge("pve1", "vmbr1", Bridge{Ports: "nic1", MTU: 9000})
		if got := fmt.Sprint(l.ok("GET", "/nodes/pve1/network", "")); !strings.Contains(got, "mtu:9000") {
			t.Error(got)
		}
		l.ok("PUT", "/nodes/pve1/qemu/410/config", "net1=virtio,bridge%3Dvmbr1,mtu%3D9000")
		if got := l.exit("POST", "/nodes/pve1/qemu/410/status/start", ""); got != "OK" {
			t.Error(got)
		}
		l.ok("POST", "/nodes/pve1/qemu/410/status/stop", "")
		l.pve.ChangeBridge("pve1", "vmbr1", Bridge{Ports: "nic1", PortsMTU: 9000}) // nothing is written of the bridge
		if got := fmt.Sprint(l.ok("GET", "/nodes/pve1/network", "")); strings.Contains(got, "mtu") {
			t.Error(got)
		}
		if got := l.exit("POST", "/nodes/pve1/qemu/410/status/start", ""); got != "OK" {
			t.Error(got)
		}
	})
}
