package inventory

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/yamlschema"
	"github.com/talos-agent/talos-agent/sources/inventory/subnets"
)

// draft is a node on its way from the files to the spec.
type draft struct {
	field   string // where it is written
	ipField string // and its address
	role    cluster.Role
	name    string
	ip, ip6 netip.Addr
	offset  int // of ip from the address of the nodes' network; 0: ip itself is written
	vmid    int
	mac     string
	ordinal int  // in a counted row; -1: listed
	leased  bool // it has no address here, and need not
	outside bool // its row goes on beyond the network, which is reported
	hardware
	scheduling
}

// resolveNodes expands, completes and checks the nodes.
func (l *loader) resolveNodes() {
	drafts := l.drafts()
	ranges := l.ranges()
	for _, d := range drafts {
		l.spec.Nodes = append(l.spec.Nodes, l.node(d, ranges[d.role]))
	}
	l.checkCount()
	l.checkCollisions(drafts, ranges)
	l.reportRows()
	l.checkCanary()
	l.checkPinned()
}

// drafts lists all nodes: control planes in inventory order, then workers in
// inventory order.
func (l *loader) drafts() []draft {
	var out []draft
	room := l.spend.room()
	tooMany := func(field string) {
		message, hint := l.spend.whyNoRoom()
		l.Wrong(field, hint, "%s", message)
	}
	add := func(role cluster.Role, field string, nodes []listed) {
		for i, n := range nodes {
			at := yamlschema.Element(field, i)
			if len(out) == room {
				tooMany(at)
				break
			}
			from := l.startOf(at, role, n)
			out = append(out, draft{field: at, ipField: from.field, role: role, name: n.Name, ip: from.ip, ip6: n.IP6.Addr, offset: from.offset, vmid: n.VMID, mac: n.MAC,
				ordinal: -1, leased: from.leased, hardware: n.hardware, scheduling: n.scheduling})
		}
	}
	add(cluster.ControlPlane, "nodes.controlplane", l.nodes.ControlPlane)
	workers := make([]listed, len(l.nodes.Workers))
	for i, w := range l.nodes.Workers {
		workers[i] = listed(w)
	}
	add(cluster.Worker, "nodes.workers", workers)
	for i, c := range l.nodes.Counted {
		at := yamlschema.Element("nodes.counted", i)
		if len(out)+c.Count > room {
			tooMany(at + ".count")
			break
		}
		from := l.startOfRow(at, c)
		outside := l.overruns(at, c.Count, from)
		for n := range c.Count {
			d := l.draftOf(at, c, from, n)
			d.outside = outside
			out = append(out, d)
		}
	}
	l.spend.takeNodes(len(out))
	slices.SortStableFunc(out, func(a, b draft) int { return cmp.Compare(a.role, b.role) })
	return out
}

// rowProblem is what is wrong with several nodes of a counted row: it is one
// mistake, and reported once.
type rowProblem struct {
	field, hint, message string
	format               string // of the message: of all nodes of the row that have the problem
	more                 int
}

// wrongOf records an error of a node, for a row at its first node that has it.
func (l *loader) wrongOf(d draft, field, hint, format string, args ...any) {
	if d.ordinal < 0 {
		l.Wrong(field, hint, format, args...)
		return
	}
	at := slices.IndexFunc(l.rows, func(r rowProblem) bool { return r.field == field && r.hint == hint && r.format == format })
	if at >= 0 {
		l.rows[at].more++
		return
	}
	l.rows = append(l.rows, rowProblem{field: field, hint: hint, format: format, message: fmt.Sprintf(format, args...)})
}

// reportRows records what is wrong with rows.
func (l *loader) reportRows() {
	for _, r := range l.rows {
		if r.more > 0 {
			r.message += fmt.Sprintf(", and likewise for %d more of the row", r.more)
		}
		l.Wrong(r.field, r.hint, "%s", r.message)
	}
}

// draftOf makes the n-th node of a row, n from 0.
func (l *loader) draftOf(at string, c counted, from start, n int) draft {
	d := draft{field: at, ipField: from.field, role: cluster.Role(c.Role), ordinal: n, leased: from.leased, hardware: c.hardware, scheduling: c.scheduling}
	d.name = c.nameOf(n)
	if len(d.name) > formats["label"].Max {
		l.wrongOf(d, at+".name", "shorten it", "%s is longer than %d characters", yamlschema.Quote(d.name), formats["label"].Max)
		d.name = ""
	}
	if c.FirstVMID > 0 {
		d.vmid = c.FirstVMID + n
	}
	if from.offset > 0 {
		d.offset = from.offset + n
	}
	if from.ip.IsValid() {
		ip, ok := subnets.After(from.ip, n)
		if !ok {
			l.wrongOf(d, d.ipField, "", "there is no address %d after %s", n, from.ip)
		}
		d.ip = ip
	}
	return d
}

// nameOf is the name of the n-th node of a row, n from 0.
func (c counted) nameOf(n int) string { return strings.ReplaceAll(c.Name, "{n}", strconv.Itoa(n+1)) }

// ranges are the VMIDs of nodes that name none; nil where they are not known.
func (l *loader) ranges() map[cluster.Role]cluster.Range {
	if !l.clusterRead {
		return nil
	}
	cp, wk := l.cluster.Proxmox.VMIDRanges.ControlPlane, l.cluster.Proxmox.VMIDRanges.Worker
	if cp == (cluster.Range{}) {
		cp = cluster.Range{First: 401, Last: 499}
	}
	if wk == (cluster.Range{}) {
		wk = cluster.Range{First: 501, Last: 599}
	}
	if cp.First <= wk.Last && wk.First <= cp.Last {
		l.Wrong("proxmox.vmid_ranges", "write ranges that share no VMID", "controlplane %d-%d and worker %d-%d overlap", cp.First, cp.Last, wk.First, wk.Last)
	}
	return map[cluster.Role]cluster.Range{cluster.ControlPlane: cp, cluster.Worker: wk}
}

// node completes one node.
func (l *loader) node(d draft, ids cluster.Range) cluster.Node {
	p := l.cluster.Proxmox
	n := cluster.Node{
		Name: d.name, Role: d.role, IP: d.ip, IP6: l.address6(d), Leased: d.leased,
		Placement:          l.place(d),
		Pool:               orDefault(p.Pool, l.opts.Pool),
		Bridge:             orDefault(p.Bridge, "vmbr0"),
		Datastore:          orDefault(p.Datastore, "local-lvm"),
		ImageDatastore:     orDefault(p.ImageDatastore, orDefault(l.opts.ImageDatastore, "local")),
		CloudInitDatastore: orDefault(p.CloudInitDatastore, orDefault(p.Datastore, "local-lvm")),
		SCSIHardware:       orDefault(p.SCSIHardware, "virtio-scsi-single"),
		VMID:               l.vmid(d, ids),
		Labels:             d.Labels,
		Annotations:        d.Annotations,
		Replace:            d.Replace,
		Protect:            d.Protect,
		Locked:             d.Locked,
	}
	if message, hint := l.misplaced(d.ip); d.ip.IsValid() && message != "" && !d.outside {
		l.wrongOf(d, d.ipField, hint, "%s", message)
	}
	if l.spec.ID != "" && n.Name != "" {
		n.UUID = cluster.NodeUUID(l.spec.ID, n.Name)
		n.MAC = cluster.NodeMAC(l.macPrefix(), l.spec.ID, n.Name, 0)
	}
	if d.mac != "" {
		n.MAC = strings.ToUpper(d.mac)
		l.checkMAC(d.field+".mac", n.MAC)
	}
	l.equip(&n, d)
	n.Tags = l.tags(d)
	l.checkLabels(d)
	l.checkAnnotations(d)
	n.Taints = l.taints(d)
	if at := "nodes." + n.Name; n.Name != "" && !l.Has(at) {
		// For checks that know the node but not where it is written.
		l.Where[at] = l.Place(d.field)
	}
	return n
}

// spread is the strategy that leaves the host of a node to the agent.
const spread = "spread"

// place returns on which hosts a node's VM may be made.
func (l *loader) place(d draft) cluster.Placement {
	all := l.hosts()
	host, field := d.Node, d.field+".node"
	if pinned := l.cluster.Placement.Pinned[d.name]; pinned != "" && d.name != "" {
		if host != "" && host != pinned {
			l.Wrong("placement.pinned."+d.name, "write one of them", "%s is pinned to %s, and names %s itself", d.name, pinned, host)
		}
		host, field = pinned, "placement.pinned."+d.name
	}
	switch {
	case len(all) == 0: // which is reported
	case host != "" && !slices.Contains(all, host):
		l.Wrong(field, "add it to proxmox.nodes, or write one of "+strings.Join(all, ", "), "%s is not among the cluster's hosts", host)
	case host != "":
	case len(all) == 1:
		host = all[0]
	case l.strategy(d.role) == spread:
		return cluster.Placement{Among: all}
	case !l.Has(d.field + ".node"):
		l.Wrong(d.field+".node", "write node: and one of "+strings.Join(all, ", ")+", or placement: spread in "+ClusterFile, "is missing: the cluster has several hosts")
	}
	return cluster.Placement{Pin: host}
}

// hosts are the hosts of the cluster; none where what is written about them is wrong, which is reported.
func (l *loader) hosts() []string {
	p := l.cluster.Proxmox
	switch {
	case p.Node != "" && l.Has("proxmox.nodes"):
		l.Wrong("proxmox.nodes", "keep one of them", "node and nodes are both written")
		return nil
	case p.Node != "":
		return []string{p.Node}
	case !l.Has("proxmox.nodes") && !l.Has("proxmox.node") && l.Has("proxmox") && !l.Misspelt("proxmox.nodes") && !l.Misspelt("proxmox.node"):
		l.Wrong("proxmox.node", "write the name of the Proxmox VE host, like node: pve1", "is missing")
		return nil
	}
	return p.Nodes
}

// strategy is the strategy of placement for a role.
func (l *loader) strategy(role cluster.Role) string {
	p := l.cluster.Placement
	own := p.Worker
	if role == cluster.ControlPlane {
		own = p.ControlPlane
	}
	return cmp.Or(own, p.Strategy)
}

// checkPinned reports hosts of nodes that are not there.
func (l *loader) checkPinned() {
	for _, name := range slices.Sorted(maps.Keys(l.cluster.Placement.Pinned)) {
		if !slices.ContainsFunc(l.spec.Nodes, func(n cluster.Node) bool { return n.Name == name }) {
			l.Wrong("placement.pinned."+name, "write the name of a node in "+NodesFile+", or remove it", "there is no node %s", yamlschema.Quote(name))
		}
	}
}

// vmid is the VMID of a node: written, or derived from what is written about
// it alone.
func (l *loader) vmid(d draft, ids cluster.Range) int {
	switch {
	case d.vmid > yamlschema.MaxVMID:
		l.wrongOf(d, d.field+".first_vmid", "write a lower one", "%d is more than the largest VMID %d", d.vmid, yamlschema.MaxVMID)
		return 0
	case d.vmid > 0:
		return d.vmid
	case ids.First == 0 || l.Has(d.field+".vmid") || l.Has(d.field+".first_vmid"):
		return 0 // the role or the VMID itself is wrong and reported
	case d.ordinal >= 0:
		id := ids.First + d.ordinal
		if id > ids.Last {
			l.Wrong(d.field+".count", "widen proxmox.vmid_ranges, or write first_vmid", "more nodes than VMIDs in %d-%d", ids.First, ids.Last)
			return 0
		}
		return id
	case d.leased:
		l.Wrong(d.field+".vmid", "write one, like vmid: 520, or list the node in a row of counted", "is missing: it is derived from the address, and %s has none here", yamlschema.Quote(d.name))
		return 0
	case !d.ip.IsValid():
		return 0
	}
	return idByAddress(ids, subnets.HostPart(d.ip, l.spec.Network.CIDR))
}

func (l *loader) macPrefix() string {
	prefix := l.cluster.Network.MACPrefix
	if prefix == "" {
		return cluster.ProxmoxMACs
	}
	l.checkMAC("network.mac_prefix", strings.ToUpper(prefix)+":00:00:01")
	return prefix
}

// checkMAC refuses addresses that are no single machine's.
func (l *loader) checkMAC(field, mac string) {
	first, err := strconv.ParseUint(mac[:2], 16, 8)
	if err != nil || first&1 == 1 {
		l.Wrong(field, "write an even first byte, like BC", "%s is a multicast address", mac)
	} else if mac == "00:00:00:00:00:00" {
		l.Wrong(field, "write one like "+formats["mac"].Write, "%s is not the address of one interface", mac)
	}
}

// checkCount checks how many control planes there are.
func (l *loader) checkCount() {
	n := len(l.spec.ControlPlanes())
	switch {
	case !l.nodesRead, l.Misspelt("nodes.controlplane"), l.Misspelt("nodes.counted"): // which is reported already
	case n == 0:
		l.Wrong("nodes.controlplane", "add one under controlplane:, or a counted row with role: controlplane", "a cluster needs at least one control plane")
	case l.spec.HA && (n < 3 || n%2 == 0):
		l.Wrong("ha_enabled", "make it 3 or 5, or write ha_enabled: false", "needs an odd number of control planes, at least 3; the inventory has %d", n)
	case n%2 == 0:
		l.Warn("nodes.controlplane", "use an odd number", "%d control planes bear no more failures than %d", n, n-1)
	}
	if six := l.spec.Network.IPv6; six.On() && len(l.spec.Nodes) > six.RoomForNodes() {
		l.Warn("network.pod_cidr6", "write a larger network", "%s has room for %d nodes with a /64 each, and there are %d", six.Pods, six.RoomForNodes(), len(l.spec.Nodes))
	}
	pods := l.spec.Network.PodCIDR
	if pods.IsValid() && pods.Bits() <= 24 {
		if room := 1 << (24 - pods.Bits()); len(l.spec.Nodes) > room {
			l.Warn("network.pod_cidr", "write a larger network", "%s has room for %d nodes with a /24 each, and there are %d", pods, room, len(l.spec.Nodes))
		}
	}
}

// checkCollisions finds nodes that cannot live beside each other.
func (l *loader) checkCollisions(drafts []draft, ranges map[cluster.Role]cluster.Range) {
	type holder struct {
		name  string
		field string
	}
	moves := map[string]string{}
	names, ips, ids, macs := map[string]holder{}, map[netip.Addr]holder{}, map[int]holder{}, map[string]holder{}
	for i, d := range drafts {
		n := l.spec.Nodes[i]
		me := holder{n.Name, d.field}
		if h, taken := names[n.Name]; taken && n.Name != "" {
			l.wrongOf(d, d.field+".name", "give every node a name of its own", "%s is the name of another node (%s)", n.Name, l.Cite(h.field))
			continue // the same name has the same MAC, which is no second mistake
		}
		names[n.Name] = me
		if n.IP.IsValid() {
			h, taken := ips[n.IP]
			if taken {
				l.wrongOf(d, d.ipField, l.moveHint(d, drafts, moves, "give every node an address of its own"), "%s is the address of %s (%s)", d.showIP(), h.name, l.Cite(h.field))
			}
			ips[n.IP] = me
			if h, also := ips[n.IP6]; also && !taken && n.IP6.IsValid() { // what follows from the same address is no second mistake
				l.wrongOf(d, d.field6(l), "write another ip6 for one of them", "%s is the IPv6 address of %s (%s)", n.IP6, h.name, l.Cite(h.field))
			}
			ips[n.IP6] = me
			l.checkReserved(d, func(otherwise string) string { return l.moveHint(d, drafts, moves, otherwise) })
		}
		if h, taken := ids[n.VMID]; taken && n.VMID > 0 {
			l.wrongOf(d, d.field+"."+d.vmidKey(), "write a vmid (first_vmid in a counted row) for one of them, or move a range of proxmox.vmid_ranges",
				"%s has VMID %s, which is that of %s (%s)", n.Name, l.showVMID(d, n.VMID, ranges[d.role]), h.name, l.Cite(h.field))
		}
		ids[n.VMID] = me
		if h, taken := macs[n.MAC]; taken && n.MAC != "" {
			l.wrongOf(d, d.field+".mac", "write another mac for one of them", "%s has MAC address %s, which is that of %s (%s)", n.Name, n.MAC, h.name, l.Cite(h.field))
		}
		macs[n.MAC] = me
		for i, c := range n.Devices.Cards {
			at := yamlschema.Element("nics", i)
			if h, taken := macs[c.MAC]; taken && c.MAC != "" {
				l.wrongOf(d, d.field+".name", "write another name for one of them", "%s of %s has MAC address %s, which is that of %s (%s)", at, n.Name, c.MAC, h.name, l.Cite(h.field))
			}
			macs[c.MAC] = me
			if a := c.Address.Addr(); a.IsValid() {
				if h, taken := ips[a]; taken {
					l.wrongOf(d, d.field+"."+at+".address", "give every network card an address of its own", "%s is the address of %s (%s)", a, h.name, l.Cite(h.field))
				}
				ips[a] = me
			}
		}
	}
}

// field6 is where the IPv6 address of a node comes from.
func (d draft) field6(l *loader) string {
	if at := d.field + ".ip6"; l.Has(at) {
		return at
	}
	return d.ipField
}

func (d draft) vmidKey() string {
	if d.ordinal >= 0 {
		return "first_vmid"
	}
	return "vmid"
}

// checkReserved compares a node's address with those that are not a node's.
func (l *loader) checkReserved(d draft, hint func(otherwise string) string) {
	switch n := l.spec.Network; d.ip {
	case n.Gateway:
		l.wrongOf(d, d.ipField, hint("choose another one"), "%s is the gateway", d.showIP())
	case n.VIP:
		l.wrongOf(d, d.ipField, hint("give the VIP an address that no node has"), "%s is the VIP", d.showIP())
	}
}
