package pve

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/lab/pve/options"
)

// nodeStatistics is how busy a host is. s.mu is held.
func (s *Server) nodeStatistics(h *host) row {
	disk, total := int64(8<<30), int64(100<<30)
	if len(h.storages) > 0 {
		disk, total = h.storages[0].usedBytes(), h.storages[0].total
	}
	return row{"cpu": 0.03, "maxcpu": h.cores, "mem": s.memoryInUse(h), "maxmem": h.memory, "disk": disk, "maxdisk": total, "uptime": s.uptime()}
}

// memoryInUse is what the host itself and its running VMs take. s.mu is held.
func (s *Server) memoryInUse(h *host) int64 {
	used := min(int64(2<<30), h.memory/4)
	for _, v := range s.vms {
		if v.host == h && v.running {
			used += options.MemoryMiB(v.conf.base) << 20
		}
	}
	return min(used, h.memory)
}

func (s *Server) uptime() int64 { return int64(time.Since(s.boot).Seconds()) }

// listNodes answers GET /nodes; how busy a host is only auditors see.
func listNodes(c *call) (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	out := []row{}
	for _, h := range c.s.hosts {
		r := row{"node": h.name, "id": "node/" + h.name, "type": "node", "status": "online", "level": "", "ssl_fingerprint": h.fingerprint}
		if c.s.hasPrivileges(c.who, "/nodes/"+h.name, false, "Sys.Audit") {
			maps.Copy(r, c.s.nodeStatistics(h))
		}
		out = append(out, r)
	}
	return out, nil
}

func readNodeStatus(c *call) (any, error) {
	s, h := c.s, c.node
	s.mu.Lock()
	defer s.mu.Unlock()
	used := s.memoryInUse(h)
	stats := s.nodeStatistics(h)
	disk, total := stats["disk"].(int64), stats["maxdisk"].(int64)
	memory := row{"total": h.memory, "used": used, "free": h.memory - used}
	cpu := row{
		"model": "AMD EPYC", "cpus": h.cores, "cores": max(1, h.cores/2), "sockets": 1, "mhz": "2600.000", "user_hz": 100,
		// A string on every real host; as a number it breaks go-proxmox.
		"hvm": "1", "flags": "fpu de pse tsc msr pae mce cx8 apic sep cx16 sse4_1 sse4_2 x2apic popcnt aes",
	}
	if s.flavour.nine {
		memory["available"] = h.memory - used
		cpu["vendor"], cpu["family"] = "AuthenticAMD", "26"
	}
	const release = "6.14.11-1-pve"
	return row{
		"pveversion": "pve-manager/" + s.flavour.version + "/private0000000000", "uptime": s.uptime(), "cpu": 0.03, "wait": 0, "idle": 0,
		"loadavg": []string{"0.10", "0.10", "0.10"}, "cpuinfo": cpu, "memory": memory,
		"swap": row{"total": 0, "used": 0, "free": 0}, "ksm": row{"shared": 0},
		"rootfs":   row{"total": total, "used": disk, "free": total - disk, "avail": total - disk},
		"kversion": "Linux " + release + " #1 SMP PREEMPT_DYNAMIC PMX", "boot-info": row{"mode": "legacy-bios"},
		"current-kernel": row{"sysname": "Linux", "machine": "x86_64", "release": release, "version": "#1 SMP PREEMPT_DYNAMIC PMX"},
	}, nil
}

// listNetwork answers GET /nodes/{node}/network: bridges, which is all a host
// has here. One may see those one may use or audit.
func listNetwork(c *call) (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	out := []row{}
	for i, bridge := range c.node.bridges {
		if t := c.str("type"); t != "" && t != "bridge" && !strings.HasPrefix(t, "any_") && t != "include_sdn" {
			continue
		}
		if !c.s.hasPrivileges(c.who, "/sdn/zones/localnetwork/"+bridge, true, "SDN.Audit", "SDN.Use") {
			continue
		}
		b := c.node.bridge(bridge)
		r := row{
			"iface": bridge, "type": "bridge", "method": "manual", "method6": "manual", "families": []string{"inet"}, "autostart": 1,
			"bridge_ports": b.Ports, "bridge_stp": "off", "bridge_fd": "0", "priority": 3 + i,
		}
		if address, bits, ok := strings.Cut(b.Address, "/"); ok {
			r["method"], r["address"], r["netmask"], r["cidr"] = "static", address, bits, b.Address
		}
		if !b.Down {
			r["active"] = 1
		}
		if b.MTU != 0 {
			r["mtu"] = strconv.Itoa(b.MTU)
		}
		if b.VLANAware {
			r["bridge_vlan_aware"], r["bridge_vids"] = 1, "2-4094"
		}
		out = append(out, r)
	}
	return out, nil
}

// mappings are the resource mappings of devices, by kind (pci, usb) and name: the hosts that have a device of it, one for each
// device. The zero value has none.
type mappings map[string]map[string][]string

// Map makes a resource mapping of devices, or another of one that is there: of kind pci or usb, with one device on each host that
// is listed, and without hosts none at all.
func (s *Server) Map(kind, name string, hosts ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mappings == nil {
		s.mappings = mappings{"pci": {}, "usb": {}}
	}
	s.mappings[kind][name] = hosts
}

// listMappings answers GET /cluster/mapping/pci and usb: those that the caller may use or look at.
func listMappings(kind string) func(*call) (any, error) {
	return func(c *call) (any, error) {
		c.s.mu.Lock()
		defer c.s.mu.Unlock()
		out := []row{}
		for _, name := range sortedKeys(c.s.mappings[kind]) {
			if !c.s.hasPrivileges(c.who, "/mapping/"+kind+"/"+name, true, "Mapping.Modify", "Mapping.Use", "Mapping.Audit") {
				continue
			}
			devices := []string{}
			for i, host := range c.s.mappings[kind][name] {
				devices = append(devices, options.EncodeDevice(kind, host, i))
			}
			out = append(out, row{"id": name, "type": kind, "map": devices})
		}
		return out, nil
	}
}

// mayPass checks what it takes to pass a device of the host to a VM, or not any more: of one without a mapping, root.
//
// Source: Proxmox VE 9.2, qemu-server, check_hostpci_perm and check_usb_perm. s.mu is held.
func (s *Server) mayPass(c *call, id int, pool, key, text string) error {
	if err := s.needVM(c.who, id, pool, "VM.Config.HWType"); err != nil {
		return err
	}
	kind, mapping, refused := options.JudgeDevice(key, text)
	if refused != "" || mapping == "" {
		return asRefusal(refused)
	}
	return s.needPrivileges(c.who, "/mapping/"+kind+"/"+mapping, "Mapping.Use")
}

// mayTouchDevices checks the same of the devices that a VM has, which a request changes or removes. s.mu is held.
func (s *Server) mayTouchDevices(c *call, id int, keys []string) error {
	v := s.vms[id]
	if v == nil || c.who.isRoot() {
		return nil
	}
	for _, k := range keys {
		if text := v.conf.base[k]; options.IsDevice(k) && text != "" {
			if err := s.mayPass(c, id, "", k, text); err != nil {
				return err
			}
		}
	}
	return nil
}

// mayPassThrough refuses to start a VM whose devices its host does not have, or which other VMs that run have.
// Source: Proxmox VE 9.2, find_on_current_node and reserve_pci_usage. s.mu is held.
func (s *Server) mayPassThrough(h *host, id int, values map[string]string) error {
	for _, k := range sortedKeys(values) {
		if !options.IsDevice(k) {
			continue
		}
		kind, name, _ := options.JudgeDevice(k, values[k])
		devices := slices.DeleteFunc(slices.Clone(s.mappings[kind][name]), func(on string) bool { return on != h.name })
		switch {
		case name == "":
		case len(devices) == 0:
			return perlError("%s device mapping not found for '%s'", strings.ToUpper(kind), name)
		case kind == "pci" && len(s.othersWith(h, id, name)) >= len(devices):
			return perlError("PCI device '%s' already in use by VMID '%d'", options.DeviceAddress(0), s.othersWith(h, id, name)[0])
		}
	}
	return nil
}

// othersWith are the other VMs that run on a host with a device of a PCI mapping. s.mu is held.
func (s *Server) othersWith(h *host, id int, name string) (out []int) {
	for _, other := range sortedKeys(s.vms) {
		if v := s.vms[other]; other != id && v.running && v.host == h && options.PassesPCI(v.conf.base, name) {
			out = append(out, other)
		}
	}
	return out
}

// listMachines answers GET /nodes/{node}/capabilities/qemu/machines.
func listMachines(c *call) (any, error) { return options.ListMachines(c.s.flavour.nine), nil }

// mayEmulate refuses to start a VM with a machine type that the QEMU of a host does not have.
// Source: Proxmox VE 9.2, qemu-server: the newer one is refused before QEMU is started, any other by that.
func (s *Server) mayEmulate(t *task, h *host, values map[string]string) error {
	log, refused := options.JudgeMachine(values["machine"], s.flavour.nine, s.flavour.qemu, h.name)
	if log != "" {
		t.log = append(t.log, log)
	}
	return asRefusal(refused)
}

// asRefusal is a refusal in some words, nil without any.
func asRefusal(words string) error {
	if words == "" {
		return nil
	}
	return perlError("%s", words)
}
