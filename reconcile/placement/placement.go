// Package placement chooses on which host the VM of a node is made where the inventory leaves it several.
// It is pure, and remembers nothing: a VM that is there is where it is, whoever moved it, and the others are
// placed again in every pass, control planes first. Where a VM is made is an action's; whether there is room for
// all is the planner's.
package placement

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/usage"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/capacity"
)

// Resolve returns what is desired with a host for each node: Placement.Pin is where its VM is, or is to be made.
//
// No two control planes are on one host while another host could have one of them: a host that is not seen
// now is waited for. Workers are spread by their number, so that each host has its first before any has its second, as
// far as there is room; where hosts have as many, the one with fewer control planes is next, then one on which work does
// not wait noticeably, and then the one with more memory left.
func Resolve(d cluster.Desired, o cluster.Observed, p cluster.Policy) cluster.Desired {
	if !slices.ContainsFunc(d.Spec.Nodes, isSpread) {
		return d
	}
	c := &chooser{d: d, o: o, on: map[cluster.Role]map[string]int{cluster.ControlPlane: {}, cluster.Worker: {}}}
	d.Spec.Nodes = slices.Clone(d.Spec.Nodes)
	placed := map[string]bool{}
	for i := range d.Spec.Nodes {
		n := &d.Spec.Nodes[i]
		if isSpread(*n) {
			n.Placement = cluster.Placement{Pin: c.locate(*n), Among: n.Placement.Among}
		}
		if host := n.Placement.Pin; host != "" {
			placed[n.Name] = true
			c.on[n.Role][host]++
		}
	}
	c.ledger = capacity.NewLedger(d, o, p, func(n cluster.Node) bool { return placed[n.Name] && isMade(n, o) }, func(cluster.Node) bool { return false })
	for _, n := range d.Spec.Nodes {
		if placed[n.Name] && !isMade(n, o) { // pinned, and not there yet: its room is not for others
			c.ledger.TakeVM(n, n.Placement.Pin)
		}
	}
	for _, role := range []cluster.Role{cluster.ControlPlane, cluster.Worker} {
		for i := range d.Spec.Nodes {
			if n := &d.Spec.Nodes[i]; n.Role == role && !placed[n.Name] {
				n.Placement = c.choose(*n)
			}
		}
	}
	return d
}

// isSpread reports whether the inventory leaves a node several hosts.
func isSpread(n cluster.Node) bool { return len(n.Placement.Among) > 0 }

// isMade reports whether a node has a VM, may have one, or is getting one.
func isMade(n cluster.Node, o cluster.Observed) bool {
	return o.VMs[n.Name].Presence != cluster.Absent || slices.ContainsFunc(o.Running, func(r cluster.Running) bool {
		return r.Kind == cluster.CreateVM && r.Subject == n.Name
	})
}

// chooser chooses hosts for the VMs of a cluster, one after the other.
type chooser struct {
	d      cluster.Desired
	o      cluster.Observed
	ledger *capacity.Ledger
	on     map[cluster.Role]map[string]int // nodes of a role, by host
}

// locate returns the host on which the VM of a node is, or is being made; "" while there is none.
func (c *chooser) locate(n cluster.Node) string {
	for _, r := range c.o.Running {
		if r.Kind != cluster.CreateVM || r.Subject != n.Name {
			continue
		}
		for _, host := range n.Placement.Among {
			if slices.ContainsFunc(r.Claims, func(c cluster.Claim) bool { return c.Resource() == cluster.ClaimStorage(host, n.Datastore) }) {
				return host
			}
		}
	}
	if vm := c.o.VMs[n.Name]; vm.Presence != cluster.Absent {
		return vm.Host
	}
	return ""
}

// How far a host can carry a VM: the less, the better.
const (
	hasRoom   = iota
	notSeen   // so that it may have
	hasNoRoom // or not the storages
)

// option is a host that a VM may be made on.
type option struct {
	host  string
	state int
	left  int64  // memory, in bytes; math.MaxInt64 where it is not known
	waits string // what work on it waits for noticeably, "for I/O 12 %"; "": nothing, or it is not known
}

// In how much of a minute, in percent, some of the work on a host waits for a resource if it waits noticeably. Pressure differs from
// minute to minute, so that hosts are compared by these and not by it: a plan is to be the same in the next pass. A wait for a core
// is the shortest, and usual where hosts are used well; one for memory is for memory to be freed, which may take a disk.
const (
	waitsForIO     = 10
	waitsForMemory = 5
	waitsForCores  = 25
)

// describeWaits is what work on a host waits for noticeably; "": nothing, or it is not known.
func describeWaits(p *usage.Pressure) string {
	if p == nil {
		return ""
	}
	var waits []string
	for _, w := range []struct {
		of           string
		percent, min float64
	}{{"I/O", p.IO, waitsForIO}, {"memory", p.Memory, waitsForMemory}, {"a core", p.CPU, waitsForCores}} {
		if w.percent >= w.min {
			waits = append(waits, fmt.Sprintf("for %s %.0f %%", w.of, w.percent))
		}
	}
	return strings.Join(waits, " and ")
}

// choose chooses the host for the VM of a node, and takes the room for it.
func (c *chooser) choose(n cluster.Node) cluster.Placement {
	var options []option
	for _, host := range n.Placement.Among {
		options = append(options, option{host, c.state(n, host), c.left(host), describeWaits(c.o.Hosts[host].Pressure)})
	}
	same, others := c.on[n.Role], c.on[cluster.ControlPlane]
	byRoomAndSpread := func(a, b option) int {
		room := cmp.Compare(a.state, b.state)
		if n.Role == cluster.ControlPlane { // to share a host is worse than to wait for one that is not seen
			room = cmp.Compare(a.state/hasNoRoom, b.state/hasNoRoom)
		}
		return cmp.Or(room, cmp.Compare(same[a.host], same[b.host]), cmp.Compare(a.state, b.state), cmp.Compare(others[a.host], others[b.host]))
	}
	slices.SortStableFunc(options, func(a, b option) int {
		return cmp.Or(byRoomAndSpread(a, b), cmp.Compare(min(len(a.waits), 1), min(len(b.waits), 1)), cmp.Compare(b.left, a.left))
	})
	best := options[0]
	why := c.describe(n, best, slices.DeleteFunc(options, func(o option) bool { return byRoomAndSpread(o, best) != 0 }))
	if best.state == hasRoom {
		c.ledger.TakeVM(n, best.host)
	}
	same[best.host]++
	n.Placement.Pin, n.Placement.Why, n.Placement.Full = best.host, why, best.state == hasNoRoom
	return n.Placement
}

// state judges how far a host can carry the VM of a node.
func (c *chooser) state(n cluster.Node, host string) int {
	h := c.o.Hosts[host]
	if !h.Known || h.Quorate.Known && !h.Quorate.Value || h.Maintained {
		return notSeen
	}
	waits, blocks := capacity.JudgeStores(c.d.Spec.Name, n, host, h, capacity.NeedsOf(c.d.Spec, n), n.DiskUse())
	switch {
	case len(blocks) > 0 || len(c.ledger.LackVM(n, host)) > 0:
		return hasNoRoom
	case len(waits) > 0:
		return notSeen
	}
	return hasRoom
}

// left is how much memory of a host is left to promise.
func (c *chooser) left(host string) int64 {
	if left, known := c.ledger.MemoryLeft(host); known {
		return left
	}
	return math.MaxInt64
}

// describe is why a host was chosen among those that are equal in room and spread, itself included, for people.
func (c *chooser) describe(n cluster.Node, o option, equal []option) string {
	what := map[cluster.Role]string{cluster.ControlPlane: "control planes", cluster.Worker: "workers"}[n.Role]
	why := fmt.Sprintf("it has %d of %d %s", c.on[n.Role][o.host], c.count(n.Role), what)
	if o.left != math.MaxInt64 {
		why += fmt.Sprintf(" and %s of memory left", text.GiB(max(0, o.left)))
	}
	for _, e := range equal {
		if e.waits != "" {
			why += fmt.Sprintf("; work on %s waits %s of the time", e.host, e.waits)
		}
	}
	return why
}

// count is how many nodes of a role the inventory has.
func (c *chooser) count(role cluster.Role) int {
	count := 0
	for _, n := range c.d.Spec.Nodes {
		if n.Role == role {
			count++
		}
	}
	return count
}
