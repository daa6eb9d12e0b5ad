package pve

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
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
			used += memoryMiB(v.conf.base) << 20
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

// deviceOption matches the options that pass a device of the host to a VM.
var deviceOption = regexp.MustCompile(`^(?:host)?(pci|usb)[0-9]+$`)

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
				device := fmt.Sprintf("id=10de:1eb8,iommugroup=%d,node=%s,path=%s", 14+i, host, addressOf(i))
				if kind == "usb" {
					device = fmt.Sprintf("id=1050:0407,node=%s,path=1-%d", host, i+1)
				}
				devices = append(devices, device)
			}
			out = append(out, row{"id": name, "type": kind, "map": devices})
		}
		return out, nil
	}
}

// addressOf is the address of the i-th device of a mapping.
func addressOf(i int) string { return fmt.Sprintf("0000:%02x:00", i+1) }

// mayPass checks what it takes to pass a device of the host to a VM, or not any more: of one without a mapping, root.
//
// Source: Proxmox VE 9.2, qemu-server, check_hostpci_perm and check_usb_perm. s.mu is held.
func (s *Server) mayPass(c *call, id int, pool, key, text string) error {
	if err := s.needVM(c.who, id, pool, "VM.Config.HWType"); err != nil {
		return err
	}
	kind := deviceOption.FindStringSubmatch(key)[1]
	d := options.ParseDrive(text)
	raw := d["file"] + d["host"]
	switch {
	case raw != "" && kind == "pci":
		return perlError("only root can set '%s' config for non-mapped devices", key)
	case raw != "" && !strings.EqualFold(raw, "spice"):
		return perlError("only root can set '%s' config for real devices", key)
	case raw != "":
		return nil
	case d["mapping"] == "":
		return perlError("either 'host' or 'mapping' must be set.")
	}
	return s.needPrivileges(c.who, "/mapping/"+kind+"/"+d["mapping"], "Mapping.Use")
}

// mayTouchDevices checks the same of the devices that a VM has, which a request changes or removes. s.mu is held.
func (s *Server) mayTouchDevices(c *call, id int, keys []string) error {
	v := s.vms[id]
	if v == nil || c.who.isRoot() {
		return nil
	}
	for _, k := range keys {
		if text := v.conf.base[k]; deviceOption.MatchString(k) && text != "" {
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
		m := deviceOption.FindStringSubmatch(k)
		if m == nil {
			continue
		}
		kind, name := m[1], options.ParseDrive(values[k])["mapping"]
		devices := slices.DeleteFunc(slices.Clone(s.mappings[kind][name]), func(on string) bool { return on != h.name })
		switch {
		case name == "":
		case len(devices) == 0:
			return perlError("%s device mapping not found for '%s'", strings.ToUpper(kind), name)
		case kind == "pci" && s.countPassed(h, id, name) >= len(devices):
			return perlError("PCI device '%s' already in use by VMID '%d'", addressOf(0), s.otherWith(h, id, name))
		}
	}
	return nil
}

// passes reports whether a VM that runs on a host has a device of a PCI mapping. s.mu is held.
func (v *vm) passes(h *host, name string) bool {
	for k, text := range v.conf.base {
		if strings.HasPrefix(k, "hostpci") && options.ParseDrive(text)["mapping"] == name {
			return v.running && v.host == h
		}
	}
	return false
}

// countPassed is how many other VMs that run on a host have a device of a PCI mapping. s.mu is held.
func (s *Server) countPassed(h *host, id int, name string) int {
	n := 0
	for _, v := range s.vms {
		if v.id != id && v.passes(h, name) {
			n++
		}
	}
	return n
}

// otherWith is the first of them. s.mu is held.
func (s *Server) otherWith(h *host, id int, name string) int {
	for _, other := range sortedKeys(s.vms) {
		if other != id && s.vms[other].passes(h, name) {
			return other
		}
	}
	return 0
}

// listMachines answers GET /nodes/{node}/capabilities/qemu/machines.
func listMachines(c *call) (any, error) {
	out := []row{}
	for _, t := range options.MachineTypes(c.s.flavour.nine) {
		kind, version, _ := strings.Cut(t, "-")
		r := row{"id": "pc-" + t, "type": kind, "version": version}
		if text := options.MachineChanges[version]; text != "" {
			r["changes"] = text
		}
		out = append(out, r)
	}
	return out, nil
}

// mayEmulate refuses to start a VM with a machine type that the QEMU of a host does not have.
// Source: Proxmox VE 9.2, qemu-server: the newer one is refused before QEMU is started, any other by that.
func (s *Server) mayEmulate(t *task, h *host, values map[string]string) error {
	m := options.ParseDrive(values["machine"])
	name, ok := strings.CutPrefix(cmp.Or(m["type"], m["file"]), "pc-")
	if !ok || slices.Contains(options.MachineTypes(s.flavour.nine), name) {
		return nil
	}
	_, version, _ := strings.Cut(name, "-")
	if options.IsLaterMachine(version, s.flavour.qemu) {
		return perlError("Installed QEMU version '%s' is too old to run machine type 'pc-%s', please upgrade node '%s'", s.flavour.qemu, name, h.name)
	}
	t.log = append(t.log, fmt.Sprintf("kvm: unsupported machine type: \"pc-%s\"", name))
	return perlError("start failed: QEMU exited with code 1")
}
