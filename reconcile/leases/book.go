package leases

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// Seen is what was seen of addresses on the networks of this host.
type Seen struct {
	// Addresses are those of each MAC, in upper case, the likeliest first. What is not there may have any.
	Addresses map[string][]netip.Addr
	// Where is where that was looked for, for people, and Unread what of it could not be read; "": all was.
	Where, Unread string
}

// Book is which addresses nodes of one cluster have, as far as is known. The zero value knows none. It may be used
// by several goroutines.
type Book struct {
	mu    sync.Mutex
	nodes map[string]entry // by name
}

// entry is what is known of the address of one node.
type entry struct {
	uuid, mac string     // of the node that it is about
	ip        netip.Addr // at which it is looked for; invalid: at none
	proven    netip.Addr // at which its own machine was seen last
	// tried is when the node's own machine was not found at an address.
	tried map[netip.Addr]time.Time
	other netip.Addr // at which another machine answered last
}

// tryAgain is how long an address is not tried again at which the node's own machine was not found, while
// there is another one or another machine has it.
const tryAgain = time.Minute

// Complete returns a spec whose leased nodes have the addresses that are known.
func (b *Book) Complete(s cluster.Spec) cluster.Spec {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.ContainsFunc(s.Nodes, func(n cluster.Node) bool { return n.Leased }) {
		return s
	}
	s.Nodes = slices.Clone(s.Nodes)
	for i, n := range s.Nodes {
		if n.Leased {
			s.Nodes[i].IP = b.of(n).ip
		}
	}
	return s
}

// of is the entry of a node: of one that has another identity now nothing is known. b.mu is held.
func (b *Book) of(n cluster.Node) entry {
	if e := b.nodes[n.Name]; e.uuid == n.UUID && strings.EqualFold(e.mac, n.MAC) {
		return e
	}
	return entry{uuid: n.UUID, mac: n.MAC}
}

// Learn takes in what was seen: the addresses of MACs, and at those of d which machines answer. It has the status
// of a node that is not found name why in o.Machines, and reports whether a node is looked for at
// another address from now on.
func (b *Book) Learn(d cluster.Desired, o *cluster.Observed, seen Seen, p cluster.Policy) (changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	old := b.nodes
	next := map[string]entry{}
	for _, n := range d.Spec.Nodes {
		if n.Leased {
			next[n.Name] = b.of(n).judge(n, o.Machines[n.Name], o.Now)
		}
	}
	b.nodes = next
	for _, n := range d.Spec.Nodes {
		if !n.Leased {
			continue
		}
		e := next[n.Name]
		e.ip = e.choose(b.candidates(d, n, seen, p), o.Machines[n.Name].Reach)
		next[n.Name] = e
		changed = changed || e.ip != old[n.Name].ip
		if m := o.Machines[n.Name]; !n.IP.IsValid() || m.Reach == cluster.Unexpected && e.proven != n.IP {
			o.Machines[n.Name] = cluster.Machine{Why: e.explain(seen), Since: m.Since}
		}
	}
	return changed
}

// judge takes in what answers where a node was looked for.
func (e entry) judge(n cluster.Node, m cluster.Machine, now time.Time) entry {
	tried := map[netip.Addr]time.Time{}
	for ip, at := range e.tried {
		if age := now.Sub(at); age >= 0 && age < tryAgain { // by a clock that was set back it would be held for ever
			tried[ip] = at
		}
	}
	e.tried = tried
	if !n.IP.IsValid() {
		return e
	}
	switch m.Reach {
	case cluster.Maintenance, cluster.Configured:
		e.proven, e.other = n.IP, netip.Addr{}
		delete(e.tried, n.IP)
	case cluster.Unexpected:
		if m.OtherAuthority && e.proven == n.IP {
			break // somebody gave its own machine other keys, by all that is known
		}
		e.tried[n.IP], e.other = now, n.IP
		if e.proven == n.IP {
			e.proven = netip.Addr{} // it is another machine's now
		}
	case cluster.Silent:
		e.tried[n.IP] = now
	}
	return e
}

// choose returns where a node is looked for next. One whose own machine answers stays; one that is silent is looked for
// at each of its other addresses, too, and stays where it is while it has none: nothing that answers is
// no proof that the address is not its own.
func (e entry) choose(candidates []netip.Addr, reach cluster.Reach) netip.Addr {
	switch {
	case reach == cluster.Maintenance, reach == cluster.Configured:
		return e.ip
	case e.ip.IsValid() && e.tried[e.ip].IsZero() && slices.Contains(candidates, e.ip):
		return e.ip // there is no answer yet
	}
	for _, ip := range candidates {
		if e.tried[ip].IsZero() {
			return ip
		}
	}
	if reach == cluster.Silent && slices.Contains(candidates, e.ip) {
		return e.ip
	}
	return netip.Addr{}
}

// candidates are the addresses that a node may have, the likeliest first. What is another's by the inventory, or
// lies where the host allows nothing, is none of them. b.mu is held.
func (b *Book) candidates(d cluster.Desired, n cluster.Node, seen Seen, p cluster.Policy) (out []netip.Addr) {
	net := d.Spec.Network
	for _, ip := range append(slices.Clone(seen.Addresses[strings.ToUpper(n.MAC)]), b.nodes[n.Name].proven) {
		switch {
		case !ip.IsValid(), slices.Contains(out, ip):
		case ip == net.VIP, ip == net.Gateway, net.CIDR.IsValid() && !net.CIDR.Contains(ip), !Allows(p, ip):
		case slices.ContainsFunc(d.Spec.Nodes, func(other cluster.Node) bool { return other.Name != n.Name && b.holds(other, ip) }):
		default:
			out = append(out, ip)
		}
	}
	return out
}

// Allows reports whether the host lets a node have an address: not one of its own, and where its policy has networks
// one of these.
func Allows(p cluster.Policy, ip netip.Addr) bool {
	return !slices.Contains(p.Taken, ip) && p.AllowsAddress(ip)
}

// holds reports whether an address is that of a node: by the inventory, or proven. b.mu is held.
func (b *Book) holds(n cluster.Node, ip netip.Addr) bool {
	if n.Leased {
		return b.nodes[n.Name].proven == ip
	}
	return n.IP == ip
}

// explain is why the machine of a node is not found.
func (e entry) explain(seen Seen) string {
	why := fmt.Sprintf("its address is not known: no address of %s that it could have is in %s", e.mac, seen.Where)
	switch {
	case seen.Where == "":
		why = "its address is not known: the agent does not look for addresses here"
	case e.other.IsValid():
		why = fmt.Sprintf("its address is not known: another machine answers at %s, which %s had by what was seen in %s; nothing secret was sent to it", e.other, e.mac, seen.Where)
	case e.ip.IsValid():
		why = fmt.Sprintf("it is looked for at %s", e.ip)
	}
	if seen.Unread != "" {
		why += "; " + seen.Unread
	}
	return why
}

// Proven reports whether the machine of every leased node was proven at the address at which it is looked for.
func (b *Book) Proven(s cluster.Spec) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !slices.ContainsFunc(s.Nodes, func(n cluster.Node) bool {
		e := b.of(n)
		return n.Leased && (!e.ip.IsValid() || e.ip != e.proven || !e.tried[e.ip].IsZero())
	})
}
