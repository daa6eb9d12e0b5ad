package inventory

import (
	"fmt"
	"net/netip"
	"strconv"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/sources/inventory/subnets"
)

// rowOffsets are the host parts of the first addresses of counted rows that have neither
// first_ip nor offset: of all rows of a role alike, so that none depends on another one.
var rowOffsets = map[cluster.Role]int{cluster.ControlPlane: 10, cluster.Worker: 20}

// start is where the address of a node, or of the first node of a row, comes from.
type start struct {
	field  string     // where it is written, or would be
	ip     netip.Addr // invalid where it is not known, which is reported
	offset int        // of ip from the address of the nodes' network; 0: ip itself is written
	leased bool       // it is not in the inventory, and need not be
}

// startOf finds the address of a listed node.
func (l *loader) startOf(at string, role cluster.Role, n listed) start {
	ip, offset := at+".ip", at+".offset"
	written := l.Has(ip) || l.Misspelt(ip) || l.Has(offset) || l.Misspelt(offset)
	switch {
	case n.Offset > 0 && !l.Has(ip):
		return l.countFrom(offset, n.Offset, "ip", "")
	case written, role == cluster.ControlPlane: // which needs one, or is reported
		return start{field: ip, ip: n.IP}
	case l.leases(role):
		return start{field: ip, leased: true}
	case !l.clusterRead || l.Misspelt("network.address_mode") || l.Has("network.address_mode") && l.cluster.Network.AddressMode == "":
		// Whether it needs one is not known.
	default:
		l.Wrong(ip, "write ip: 10.0.10.21, or offset: 21", "is missing")
	}
	return start{field: ip}
}

// leases reports whether nodes of a role may be without an address.
func (l *loader) leases(role cluster.Role) bool {
	return l.spec.Network.Mode == cluster.AddressDiscovered && role == cluster.Worker
}

// startOfRow finds the first address of a counted row.
func (l *loader) startOfRow(at string, c counted) start {
	first, offset := at+".first_ip", at+".offset"
	fallback := rowOffsets[cluster.Role(c.Role)]
	switch {
	case l.Has(first) || l.Misspelt(first) || l.Misspelt(offset):
		return start{field: first, ip: c.FirstIP}
	case c.Offset > 0:
		return l.countFrom(offset, c.Offset, "first_ip", "")
	case l.Has(offset): // which is wrong, and reported
		return start{field: offset}
	case l.leases(cluster.Role(c.Role)):
		return start{field: first, leased: true}
	case !l.spec.Network.CIDR.IsValid():
		l.withoutNetwork(first, "first_ip", "is missing: there is no network.cidr that the row could begin in")
		return start{field: first}
	case fallback == 0: // the role is wrong, and reported
		return start{field: offset}
	}
	return l.countFrom(offset, fallback, "first_ip", ", where a "+c.Role+" row without offset begins,")
}

// countFrom finds the address that lies so far behind that of the nodes' network. instead is
// the key that an address itself is written with; why is put behind the offset in messages.
func (l *loader) countFrom(field string, offset int, instead, why string) start {
	cidr := l.spec.Network.CIDR
	if !cidr.IsValid() {
		l.withoutNetwork(field, instead, fmt.Sprintf("offset %d needs network.cidr, which is not written", offset))
		return start{field: field}
	}
	broadcast := 1<<(32-cidr.Bits()) - 1
	switch {
	case broadcast < 3: // no room for nodes, which is reported
		return start{field: field}
	case offset > broadcast:
		l.Wrong(field, fmt.Sprintf("write an offset from 1 to %d", broadcast-1), "offset %d%s is beyond network.cidr %s", offset, why, cidr)
		return start{field: field}
	case offset == broadcast:
		l.Wrong(field, fmt.Sprintf("write an offset from 1 to %d", broadcast-1), "offset %d%s is the broadcast address of network.cidr %s", offset, why, cidr)
		return start{field: field}
	}
	ip, _ := subnets.After(cidr.Addr(), offset) // which is inside
	return start{field: field, ip: ip, offset: offset}
}

// withoutNetwork reports what needs the nodes' network, where none is written.
func (l *loader) withoutNetwork(field, instead, message string) {
	if !l.clusterRead || l.unread("network.cidr") {
		return
	}
	l.Wrong(field, "write "+instead+": 10.0.10.31, or the nodes' network as network.cidr", "%s", message)
}

// overruns reports a row that begins in the nodes' network and ends beyond it.
func (l *loader) overruns(at string, count int, from start) bool {
	cidr := l.spec.Network.CIDR
	if !cidr.IsValid() || !from.ip.IsValid() || !cidr.Contains(from.ip) {
		return false
	}
	room := 1<<(32-cidr.Bits()) - 1 - subnets.HostPart(from.ip, cidr) // the last one is for broadcasts
	last, ok := subnets.After(from.ip, count-1)
	if count <= room || room < 1 || !ok {
		return false
	}
	earlier := "an earlier first_ip"
	if from.offset > 0 {
		earlier = "a smaller offset"
	}
	l.Wrong(at+".count", fmt.Sprintf("write a count of %d or less, %s, or a larger network.cidr", room, earlier),
		"%d nodes from %s on end at %s, beyond network.cidr %s", count, from.ip, last, cidr)
	return true
}

// showIP is the address of a node for messages, with whose it is where no line has it.
func (d draft) showIP() string {
	if d.offset == 0 {
		return d.ip.String()
	}
	return fmt.Sprintf("%s of %s (offset %d)", d.ip, d.name, d.offset)
}

// moveHint is what to write for a node whose address is taken; otherwise is what that is where
// the address itself is written. Where a row can go is found once, and kept in moves.
func (l *loader) moveHint(d draft, drafts []draft, moves map[string]string, otherwise string) string {
	switch {
	case d.offset == 0:
		return otherwise
	case d.ordinal < 0:
		return "write another offset"
	}
	hint, known := moves[d.field]
	if !known {
		hint = "write an offset for the row that has room for it, or a larger network.cidr"
		if free, ok := l.freeOffset(d.field, drafts); ok {
			hint = fmt.Sprintf("write an offset for the row whose addresses are free, like offset: %d", free)
		}
		moves[d.field] = hint
	}
	return hint
}

// roomToGrow is how many addresses are looked for at least for a row that has to move.
const roomToGrow = 10

// freeOffset finds an offset for a row whose addresses are nobody's: a multiple of ten, as the
// defaults are.
func (l *loader) freeOffset(row string, drafts []draft) (int, bool) {
	n := l.spec.Network
	taken, count := map[int]bool{}, 0
	take := func(a netip.Addr) {
		if a.IsValid() && n.CIDR.Contains(a) {
			taken[subnets.HostPart(a, n.CIDR)] = true
		}
	}
	take(n.Gateway)
	take(n.VIP)
	for _, d := range drafts {
		take(d.ip)
		if d.field == row {
			count++
		}
	}
	last := 1<<(32-n.CIDR.Bits()) - 2
	for from := 10; from+count-1 <= last; from += 10 {
		to := min(last, from+max(count, roomToGrow)-1)
		for to >= from && !taken[to] {
			to--
		}
		if to < from {
			return from, true
		}
		from = to / 10 * 10
	}
	return 0, false
}

// misplaced is why an address cannot be a machine's in the nodes' network; ""
// where it can.
func (l *loader) misplaced(a netip.Addr) (message, hint string) {
	cidr := l.spec.Network.CIDR
	switch {
	case a.IsUnspecified() || a.IsMulticast() || a.IsLinkLocalUnicast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return fmt.Sprintf("%s cannot be the address of a machine", a), ""
	case !cidr.IsValid():
		for _, other := range l.inner() {
			if other.prefix.IsValid() && other.prefix.Contains(a) {
				return fmt.Sprintf("%s lies in the %s %s: a node takes its own address for one of theirs and never comes up", a, other.what, other.prefix),
					"choose another address or another " + other.field
			}
		}
	case !cidr.Contains(a):
		return fmt.Sprintf("%s is not in network.cidr %s", a, cidr), "choose one inside it"
	case a == cidr.Addr():
		return fmt.Sprintf("%s is the address of the network itself", a), "choose another one"
	case subnets.HostPart(a, cidr) == 1<<(32-cidr.Bits())-1:
		return fmt.Sprintf("%s is the broadcast address of %s", a, cidr), "choose another one"
	}
	return "", ""
}

// idByAddress derives the VMID of a listed node from its address alone. A host part that is
// larger than the range begins again at the first VMID of it: nodes that meet there are reported,
// and one of them needs a vmid of its own.
func idByAddress(ids cluster.Range, host int) int { return ids.First + host%width(ids) }

// showVMID is the VMID of a node for messages, with how it was derived where the host part of the
// node's address alone does not show that.
func (l *loader) showVMID(d draft, id int, ids cluster.Range) string {
	if d.ordinal < 0 && d.vmid == 0 && d.ip.IsValid() {
		if host := subnets.HostPart(d.ip, l.spec.Network.CIDR); host >= width(ids) {
			return fmt.Sprintf("%d (host part %d of its address, modulo the %d VMIDs of %d-%d)", id, host, width(ids), ids.First, ids.Last)
		}
	}
	return strconv.Itoa(id)
}

// width is how many VMIDs a range has.
func width(ids cluster.Range) int { return ids.Last - ids.First + 1 }
