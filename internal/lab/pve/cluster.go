package pve

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/lab/pve/schema"
)

// gatherStatistics is pvestatd: every so often it writes down what
// /cluster/resources shows until the next time.
func (s *Server) gatherStatistics() {
	tick := time.NewTicker(s.world.Scale(statisticsEvery))
	defer tick.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
			s.updateStatistics()
		}
	}
}

func (s *Server) updateStatistics() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.vms {
		now := s.statusRow(v)
		r := row{"template": encodeBit(v.isTemplate()), "maxcpu": now["cpus"], "diskread": 0, "diskwrite": 0}
		for _, k := range []string{"name", "status", "cpu", "mem", "memhost", "maxmem", "disk", "maxdisk", "uptime", "netin", "netout"} {
			if value, ok := now[k]; ok {
				r[k] = value
			}
		}
		v.stats = r
	}
}

// resourceRow is a VM in /cluster/resources: what the last round of statistics
// saw, which is nothing for a VM that is newer, and what its configuration holds
// of tags and locks now, and the manager of high availability of states. s.mu is held.
func (s *Server) resourceRow(v *vm) row {
	r := row{"id": fmt.Sprintf("qemu/%d", v.id), "node": v.host.name, "type": "qemu", "vmid": v.id, "status": "unknown"}
	maps.Copy(r, v.stats)
	for _, k := range []string{"tags", "lock"} {
		if text := v.conf.base[k]; text != "" {
			r[k] = text
		}
	}
	if pool := s.member[v.id]; pool != "" {
		r["pool"] = pool
	}
	if state := s.ShownState(sidOf(v.id)); state != "" { // PVE 9.2 pve-manager: of a VM that is managed no more, too
		r["hastate"] = state
	}
	return r
}

// listResources answers GET /cluster/resources.
func listResources(c *call) (any, error) {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	kind, out := c.str("type"), []row{}
	is := func(k string) bool { return kind == "" || kind == k }
	if is("pool") {
		for _, name := range sortedKeys(s.pools) {
			if s.hasPrivileges(c.who, "/pool/"+name, false, "Pool.Audit") {
				out = append(out, row{"id": "/pool/" + name, "pool": name, "type": "pool"})
			}
		}
	}
	if is("vm") {
		out = append(out, s.resourceVMs(c.who)...)
	}
	for _, h := range s.hosts {
		if is("node") {
			out = append(out, s.resourceNode(c.who, h))
		}
		if is("storage") {
			out = append(out, s.resourceStorages(c.who, h)...)
		}
		if (is("sdn") || is("network")) && s.hasPrivileges(c.who, "/sdn/zones/localnetwork", true, "SDN.Audit", "SDN.Allocate") {
			out = append(out, s.resourceNetwork(h))
		}
	}
	return out, nil
}

func (s *Server) resourceVMs(who identity) []row {
	out := []row{}
	for _, id := range sortedKeys(s.vms) {
		if !s.hasPrivileges(who, fmt.Sprintf("/vms/%d", id), false, "VM.Audit") {
			continue
		}
		r := s.resourceRow(s.vms[id])
		if pool, ok := r["pool"].(string); ok && !s.hasPrivileges(who, "/pool/"+pool, false, "Pool.Audit") {
			delete(r, "pool")
		}
		out = append(out, r)
	}
	return out
}

func (s *Server) resourceNode(who identity, h *host) row {
	r := row{"id": "node/" + h.name, "node": h.name, "type": "node", "status": "online", "level": "", "cgroup-mode": 2}
	if s.hasPrivileges(who, "/nodes/"+h.name, false, "Sys.Audit") {
		maps.Copy(r, s.nodeStatistics(h))
	}
	return r
}

func (s *Server) resourceStorages(who identity, h *host) []row {
	out := []row{}
	for _, st := range h.storages {
		if s.mayReadVolume(who, st) != nil {
			continue
		}
		out = append(out, row{
			"id": "storage/" + h.name + "/" + st.name, "type": "storage", "node": h.name, "storage": st.name, "status": "available",
			"shared": encodeBit(st.shared), "content": strings.Join(st.content, ","), "plugintype": st.kind, "maxdisk": st.total, "disk": st.usedBytes(),
		})
	}
	return out
}

func (s *Server) resourceNetwork(h *host) row {
	if s.flavour.nine {
		return row{"id": "network/" + h.name + "/zone/localnetwork", "network": "localnetwork", "network-type": "zone", "node": h.name,
			"status": "ok", "type": "network"}
	}
	return row{"id": "sdn/" + h.name + "/localnetwork", "sdn": "localnetwork", "node": h.name, "status": "ok", "type": "sdn"}
}

// readClusterStatus answers GET /cluster/status. A host by itself has no
// quorum and has nothing about one.
func readClusterStatus(c *call) (any, error) {
	out := []row{}
	if n := len(c.s.hosts); n > 1 {
		out = append(out, row{"type": "cluster", "id": "cluster", "name": "lab", "version": n, "nodes": n, "quorate": encodeBit(!c.s.noQuorum.Load())})
	}
	for _, h := range c.s.hosts {
		id := h.id
		if len(c.s.hosts) == 1 {
			id = 0
		}
		out = append(out, row{"type": "node", "id": "node/" + h.name, "name": h.name, "nodeid": id, "ip": h.address(), "online": 1,
			"local": encodeBit(h == c.s.askedHost(c.r)), "level": ""})
	}
	return out, nil
}

// address is the host's own address, for what prints one.
func (h *host) address() string { return fmt.Sprintf("10.77.0.%d", h.id+1) }

// readOptions answers GET /cluster/options, of which everybody sees the tags
// in use and only auditors the rest.
func readOptions(c *call) (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	tags := set{}
	for id, v := range c.s.vms {
		if c.s.hasPrivileges(c.who, fmt.Sprintf("/vms/%d", id), false, "VM.Audit") {
			for _, t := range schema.SplitList(v.conf.base["tags"]) {
				tags[t] = true
			}
		}
	}
	r := row{"allowed-tags": append([]string{}, sortedKeys(tags)...)}
	if c.s.hasPrivileges(c.who, "/", false, "Sys.Audit") {
		r["mac_prefix"], r["description"] = "BC:24:11", ""
	}
	return r, nil
}

// readFirewallOptions answers with the options of a firewall nobody set up.
func readFirewallOptions(c *call) (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if _, err := c.s.vmAt(c.node, c.vmid()); err != nil {
		return nil, err
	}
	return row{"digest": newConfig(nil).digest()}, nil
}

func readVersion(c *call) (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	f := c.s.flavour
	return row{"version": cmp.Or(c.s.called, f.version), "release": f.name, "repoid": "private0000000000"}, nil
}

// hashCertificate is a certificate's SHA-256 as Proxmox VE prints it.
func hashCertificate(der []byte) string {
	sum := sha256.Sum256(der)
	return strings.ReplaceAll(fmt.Sprintf("% X", sum), " ", ":")
}
