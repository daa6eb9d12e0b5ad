package formats

import (
	"slices"
	"strconv"

	"github.com/talos-agent/talos-agent/internal/repo/importing/draft"
)

// listedNodes are the variables that repositories list their nodes in: a mapping by name, or a
// list of mappings with names.
var listedNodes = []string{"nodes", "talos_nodes", "vms", "talos_vms"}

// listedKeys are what nodes have there, by the key of the inventory.
var listedKeys = []struct {
	key   string
	form  form
	names []string
}{
	{"ip", asText, []string{"ip", "ip_address", "ip_addr", "address"}},
	{"mac", asText, []string{"mac_address", "mac"}},
	{"vmid", asNumber, []string{"vm_id", "vmid", "id"}},
	{"cpu", asNumber, []string{"cpu", "cpu_cores", "cores"}},
	{"ram", asNumber, []string{"ram_dedicated", "memory", "memory_dedicated", "ram"}},
	{"disk", asDisk, []string{"disk_size", "os_disk_size", "disk"}},
	{"node", asText, []string{"host_node", "node", "target_node", "node_name", "host"}},
}

// takeListed takes nodes that are listed one by one, and the hosts that they name.
func (t *terraformNodes) takeListed(v variable) {
	all := newSection(t.r.d, v.origin.File, "", &value{kind: mapping, line: v.origin.Line, keys: []entry{{v.path, v.origin.Line, v.value}}})
	var hosts []string
	if v.value.kind == list {
		for _, n := range all.sections(v.path) {
			hosts = append(hosts, t.addListed(n, n.text("name")))
		}
	} else if byName := all.section(v.path); byName != nil {
		for _, e := range byName.value.keys {
			if n := byName.section(e.key); n != nil {
				n.taken["name"] = true
				hosts = append(hosts, t.addListed(n, e.key))
			}
		}
	}
	hosts = slices.Compact(slices.Sorted(slices.Values(slices.DeleteFunc(hosts, func(s string) bool { return s == "" }))))
	if c := t.r.d.Cluster; c.Get("proxmox", "node") == nil && c.Get("proxmox", "nodes") == nil {
		t.r.setHosts(v, hosts)
	}
}

// addListed adds one node, and returns the host that it names.
func (t *terraformNodes) addListed(n *section, name string) (host string) {
	role := roleOf(n.text("machine_type"), name)
	if written := n.text("role"); written != "" {
		role = roleOf(written, name)
	}
	switch {
	case name == "":
		n.leave("name", "a node without a name", "write it into nodes.yaml")
		return ""
	case role == "":
		n.leave("machine_type", "a node whose role is not known", "write it under controlplane or workers in nodes.yaml")
		return ""
	}
	node := draft.Mapping()
	node.Set(draft.Origin{}, draft.Text(name), "name")
	for _, k := range listedKeys {
		for _, from := range k.names {
			if v := t.takeOf(n, from, k.form); v != nil {
				putInto(t.r.d, node, draft.Origin{File: n.file, Line: n.origin(from).Line}, v, k.key)
			}
		}
	}
	node.Ask("the address of the node", "ip")
	n.rest(nil)
	t.r.d.AddNode(role, node)
	return node.Get("node").String()
}

// takeOf takes a value of a node in the form that it has here; nil where there is none.
func (t *terraformNodes) takeOf(n *section, key string, f form) *draft.Value {
	if n.value.get(key) == nil {
		return nil
	}
	if f == asNumber {
		if number, ok := n.number(key); ok {
			return draft.Number(number)
		}
		return nil
	}
	s := n.text(key)
	switch size, err := strconv.Atoi(s); {
	case s == "":
		return nil
	case f == asDisk && err == nil && size > 0:
		return draft.Text(s + "G")
	}
	if a, _, ok := parseIPv4(s); ok && key != "mac" {
		return draft.Text(a.String()) // without the length of its network
	}
	return draft.Text(s)
}
