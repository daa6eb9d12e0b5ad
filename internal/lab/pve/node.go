package pve

import (
	"maps"
	"strings"
	"time"
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
		if b.VLANAware {
			r["bridge_vlan_aware"], r["bridge_vids"] = 1, "2-4094"
		}
		out = append(out, r)
	}
	return out, nil
}
