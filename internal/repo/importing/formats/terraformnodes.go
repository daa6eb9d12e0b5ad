package formats

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/repo/importing/draft"
)

// maxNodes is how many nodes are written one by one.
const maxNodes = 1000

// terraformNodes makes nodes out of the variables that count them.
type terraformNodes struct {
	r            *reading
	count, first map[cluster.Role]variable
	limits       map[string]variable // of VMIDs, by controlplane_min and the like
	distribution *variable           // of nodes over hosts
	placement    *variable           // how nodes are spread
	vip          *variable
	listed       *variable // nodes one by one
	dhcp, noVIP  bool
}

var roles = []cluster.Role{cluster.ControlPlane, cluster.Worker}

// take takes a variable that is about nodes, or about what nodes need; false if it is none.
func (t *terraformNodes) take(v variable) bool {
	name := v.path
	refuse := func(message string) bool {
		t.r.d.Leave(v.origin, v.path, message, hintByHand)
		return true
	}
	for _, group := range []string{"node_config.", "cluster_config.", "network_config."} {
		name = strings.TrimPrefix(name, group)
	}
	isNumber := v.value.kind <= number && isLiteral(v.value.text)
	switch name {
	case "controlplane_ip_start", "control_plane_ip_start", "worker_ip_start":
		if !isNumber {
			return refuse("is no number from 0 on")
		}
		role := cluster.ControlPlane
		if name == "worker_ip_start" {
			role = cluster.Worker
		}
		t.first[role] = v
	case "control_plane_count", "controlplane_count":
		t.count[cluster.ControlPlane] = v
	case "worker_count":
		t.count[cluster.Worker] = v
	case "vip.ip", "control_plane_vip", "cluster_vip", "vip":
		t.vip = &v
	case "vip.enabled", "enable_vip", "enable_dhcp", "dhcp":
		yes, err := strconv.ParseBool(v.value.text)
		switch {
		case err != nil:
			return refuse("is neither true nor false")
		case strings.HasSuffix(name, "dhcp"):
			t.dhcp = yes
		default:
			t.noVIP = !yes
		}
	case "node_distribution":
		t.distribution = &v
	case "placement.strategy":
		t.placement = &v
	case "pve_capacity":
		if v.value.kind != mapping {
			return refuse("is no mapping of hosts")
		}
		t.takeCapacity(v)
	case "talos.iso":
		t.r.takeISO(v)
	case "resource_config.cpu_type", "cpu_type":
		if v.value.kind != text {
			return refuse("is no text")
		}
		for _, role := range roles {
			putInto(t.r.d, t.r.d.Cluster, v.origin, draft.Text(v.value.text), "profiles", string(role), "cpu_type")
		}
	default:
		return t.takeVMIDs(v)
	}
	return true
}

// takeVMIDs takes a bound of a range of VMIDs.
func (t *terraformNodes) takeVMIDs(v variable) bool {
	name, grouped := strings.CutPrefix(v.path, "vm_id_ranges.")
	if !grouped {
		var flat bool
		if name, flat = v.path, strings.Contains(v.path, "_vm_id_"); !flat {
			return false
		}
		name = strings.Replace(name, "_vm_id_", "_", 1)
	}
	name = strings.NewReplacer(".", "_", "control_plane", "controlplane").Replace(name)
	if !slices.Contains([]string{"controlplane_min", "controlplane_max", "worker_min", "worker_max"}, name) {
		return false
	}
	t.limits[name] = v
	return true
}

// takeCapacity takes what VMs may use of each host.
func (t *terraformNodes) takeCapacity(v variable) {
	s := newSection(t.r.d, v.origin.File, "pve_capacity", v.value)
	for _, e := range v.value.keys {
		host := s.section(e.key)
		if host == nil {
			continue
		}
		for key, names := range map[string][]string{"cpu": {"cpu", "vcpu", "cores", "cpus"}, "ram": {"memory", "memory_mb", "ram", "mem"}} {
			for _, name := range names {
				if n, ok := host.number(name); ok {
					putInto(t.r.d, t.r.d.Cluster, draft.Origin{File: v.origin.File, Line: e.line}, draft.Number(n), "pve_capacity", e.key, key)
				}
			}
		}
		host.rest(nil)
	}
}

// finish makes the nodes, and what of the network depends on them.
func (t *terraformNodes) finish() {
	t.setVIP()
	t.setVMIDs()
	if t.listed != nil {
		t.takeListed(*t.listed)
	}
	if t.dhcp {
		for _, key := range []string{"cidr", "gateway"} {
			if t.r.d.Cluster.Get("network", key) != nil {
				t.r.d.Cluster.Set(draft.Origin{Name: "enable_dhcp"}, draft.Text("dhcp-reservation"), "network", "address_mode")
			}
		}
	}
	if t.r.d.HasNodes() {
		t.leaveCounts()
		return
	}
	if t.distribution != nil {
		t.distribute()
		return
	}
	several := t.isSpread()
	if several && !t.isPinned() {
		from := draft.Origin{}
		if t.placement != nil {
			from = t.placement.origin
		}
		t.r.d.Cluster.Set(from, draft.Text("spread"), "placement")
	}
	for _, role := range roles {
		if v, ok := t.count[role]; ok {
			t.addNodes(role, v, several && t.isPinned())
		}
	}
}

// leaveCounts reports counts of nodes that another file lists.
func (t *terraformNodes) leaveCounts() {
	for _, role := range roles {
		if v, ok := t.count[role]; ok {
			t.r.d.Leave(v.origin, v.path, "counts nodes that another file lists", "keep those that are right in nodes.yaml")
		}
	}
}

// isSpread reports whether there are several hosts that nodes may be on.
func (t *terraformNodes) isSpread() bool {
	return slices.ContainsFunc(t.r.vars, func(v variable) bool {
		hosts, ok := v.texts()
		return targets[v.path].form == asHosts && ok && len(hosts) > 1 && t.r.d.Cluster.Get("proxmox", "nodes") != nil
	})
}

func (t *terraformNodes) setVIP() {
	if t.vip == nil || t.noVIP || t.vip.value.kind == text && t.vip.value.text == "" {
		return
	}
	a, _, ok := parseIPv4(t.vip.value.text)
	if !ok || t.vip.value.kind != text {
		t.r.d.Leave(t.vip.origin, t.vip.path, "is no IPv4 address", "write network.vip, a free address of the nodes' network")
		return
	}
	putInto(t.r.d, t.r.d.Cluster, t.vip.origin, draft.Text(a.String()), "network", "vip")
}

func (t *terraformNodes) setVMIDs() {
	for _, role := range roles {
		low, ok := t.limits[string(role)+"_min"]
		high, both := t.limits[string(role)+"_max"]
		switch {
		case ok && both && isLiteral(low.value.text) && isLiteral(high.value.text):
			o := low.origin
			o.Name += ", " + string(role) + "_max"
			putInto(t.r.d, t.r.d.Cluster, o, draft.Text(low.value.text+"-"+high.value.text), "proxmox", "vmid_ranges", string(role))
		case ok || both:
			for _, v := range []variable{low, high} {
				if v.value != nil {
					t.r.d.Leave(v.origin, v.path, "is no range of VMIDs", "write proxmox.vmid_ranges: {"+string(role)+": FIRST-LAST}")
				}
			}
		}
	}
}

// distribute makes the nodes that each host is to have. Terraform sorts the keys of a map.
func (t *terraformNodes) distribute() {
	s := newSection(t.r.d, t.distribution.origin.File, "node_distribution", t.distribution.value)
	if t.distribution.value.kind != mapping {
		t.r.d.Leave(t.distribution.origin, t.distribution.path, "is no mapping of hosts", "write the nodes into nodes.yaml")
		return
	}
	byHost := map[string]*section{}
	for _, e := range t.distribution.value.keys {
		byHost[e.key] = s.section(e.key)
	}
	hosts := sortedKeys(byHost)
	if c := t.r.d.Cluster; c.Get("proxmox", "node") == nil && c.Get("proxmox", "nodes") == nil {
		t.r.setHosts(*t.distribution, hosts)
	} else if len(hosts) > 1 {
		t.r.d.Leave(t.distribution.origin, t.distribution.path, "names hosts besides", "see that proxmox.nodes lists all of them, and remove proxmox.node")
	}
	for _, role := range roles {
		index := 0
		for _, host := range hosts {
			if byHost[host] == nil {
				continue
			}
			key := string(role) + "_count"
			n, _ := byHost[host].number(key)
			if index+n > maxNodes {
				byHost[host].leave(key, "is more nodes than can be listed", "write a row of `counted` into nodes.yaml")
				n = 0
			}
			for range n {
				t.addNode(role, index, host)
				index++
			}
		}
	}
	for _, host := range hosts {
		if byHost[host] != nil {
			byHost[host].rest(nil)
		}
	}
	for _, role := range roles {
		if v, ok := t.count[role]; ok {
			t.r.d.Leave(v.origin, v.path, "counts nodes that node_distribution has by host", "those of node_distribution were written")
		}
	}
}

// nameOf is the name of the n-th node of a role, n from 1, or the pattern of all of them.
func (t *terraformNodes) nameOf(role cluster.Role, n string) string {
	short := map[cluster.Role]string{cluster.ControlPlane: "-cp-", cluster.Worker: "-wk-"}[role]
	name := t.r.d.Name()
	if name == "" {
		name = "dev"
	}
	return name + short + n
}

// groupedStart is where the addresses of nodes begin in the network in repositories with the
// group node_config, unless it has another start.
var groupedStart = map[cluster.Role]int{cluster.ControlPlane: 10, cluster.Worker: 20}

// addressOf is the address of the n-th node of a role, n from 0; "" where it is not known.
func (t *terraformNodes) addressOf(role cluster.Role, n int) (address, name string) {
	start, from := 0, ""
	if v, ok := t.first[role]; ok && isLiteral(v.value.text) {
		from = v.path
		start, _ = strconv.Atoi(v.value.text) // it is a number
	} else if count := t.count[role]; !ok && strings.HasPrefix(count.path, "node_config.") {
		start = groupedStart[role]
		from = fmt.Sprintf("%d, the default of node_config", start)
	}
	cidr, known := t.r.cidrOf()
	a, inside := offsetAddress(cidr, start+n)
	if from == "" || !known || t.dhcp || !inside {
		return "", ""
	}
	return a.String(), cidr.String() + " + " + from
}

// addNodes adds the nodes of a role: a row, or one by one where each is on a host of its own.
func (t *terraformNodes) addNodes(role cluster.Role, v variable, pinned bool) {
	n, err := strconv.Atoi(v.value.text)
	if err != nil || n < 0 || n > maxNodes {
		t.r.d.Leave(v.origin, v.path, "is no number of nodes up to "+strconv.Itoa(maxNodes), "write the nodes into nodes.yaml")
		return
	}
	if n == 0 {
		return
	}
	names := t.nameOf(role, "1")
	if n > 1 {
		names += " to " + t.nameOf(role, strconv.Itoa(n))
	}
	t.r.d.Leave(v.origin, v.path, "counts nodes without names: here they are "+names, "rename them before the cluster is made: another name is another node")
	if pinned {
		for i := range n {
			t.addNode(role, i, "")
		}
		return
	}
	row := draft.Mapping()
	row.Set(draft.Origin{}, draft.Text(string(role)), "role")
	row.Set(v.origin, draft.Number(n), "count")
	row.Set(draft.Origin{}, draft.Text(t.nameOf(role, "{n}")), "name")
	if address, from := t.addressOf(role, 0); address != "" {
		row.Set(draft.Origin{Name: from}, draft.Text(address), "first_ip")
	}
	switch c := t.r.d.Cluster; {
	case row.Get("first_ip") != nil:
	case c.Get("network", "cidr") != nil:
		t.r.d.Leave(v.origin, v.path, "has no addresses: those of the row begin at 10 in network.cidr for control planes, at 20 for workers", "write `offset` or first_ip where they are others")
	default:
		row.Ask("the address of the first node, which the others follow; "+v.origin.File+" has none", "first_ip")
	}
	t.r.d.AddRow(row)
}

// isPinned reports whether nodes are on the hosts that a list has for them.
func (t *terraformNodes) isPinned() bool {
	return t.placement != nil && t.placement.value.text == "pin"
}

// addNode adds one node, n from 0. Without a host it is asked for.
func (t *terraformNodes) addNode(role cluster.Role, n int, host string) {
	node := draft.Mapping()
	node.Set(draft.Origin{}, draft.Text(t.nameOf(role, strconv.Itoa(n+1))), "name")
	if address, from := t.addressOf(role, n); address != "" {
		node.Set(draft.Origin{Name: from}, draft.Text(address), "ip")
	}
	node.Ask("the address of the node", "ip")
	if host == "" {
		node.Ask("the host that carries it, as placement.pinned has it", "node")
	} else {
		node.Set(draft.Origin{}, draft.Text(host), "node")
	}
	t.r.d.AddNode(role, node)
}
