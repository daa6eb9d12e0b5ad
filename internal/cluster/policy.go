package cluster

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster/window"
)

// Policy is what the host allows. It comes from a file that only root of the host can change, so that whoever may push to the
// repository can choose only inside it.
type Policy struct {
	File       string
	Pool       string
	VMIDs      []Range
	Datastores []string // empty: any
	Bridges    []string // empty: any
	// CPUUnits is the greatest weight of a VM among those that want the same cores; 0: the default.
	CPUUnits int
	HA       bool                // VMs may be Proxmox VE's HA manager's
	Firewall bool                // the firewall of Proxmox VE is on for all network cards
	Mappings map[string][]string // of devices that VMs may have, by kind as in package device; none: none
	Forwards []int               // ports of the host that may lead to nodes; nil: any, which no policy file has
	MACs     []string            // that begin those of nodes, in upper case; empty: any
	Networks []netip.Prefix      // that addresses of nodes and VIPs lie in; empty: any
	// Taken are addresses of this host and of its routers, as they are seen: no file has
	// them, and no node and no VIP may be one of them.
	Taken    []netip.Addr
	Limits   Limits
	Capacity Capacity
	Switches               // narrow those of every cluster
	Window   window.Window // that must be open besides that of a cluster
	// MaxUnavailable is how many workers of a cluster may be out of service at once at most, whatever it asks for; 0: as many as it asks for.
	MaxUnavailable int
	// DrainStops: a drain never deletes pods that may not leave, whatever a cluster asks for.
	DrainStops bool
	// DrainWithin is how long the pods of a node may take to leave at most, whatever a cluster asks for; 0: as long as it asks for.
	DrainWithin time.Duration
	// Removals is how many nodes of a cluster may be removed at once without approval; 0: one, negative: none.
	Removals  int
	Factories []string // image factories by URL; empty: any
	Charts    []string // chart repositories and registries by URL, or ChartsInRepository; empty: any
	// Lines maps a field ("limits.nodes") to its line in File.
	Lines map[string]int
	// Problems are why it is not known what the host allows now: its file is missing, unreadable or invalid. The rest is what it
	// allowed before, to show what would be done; nothing is done. nil: it is known.
	Problems Problems
}

// Switches are what the agent may do about nodes that are there. The zero value is everything.
type Switches struct {
	// ObserveOnly: what somebody changed behind the inventory's back is reported, and
	// stays as it is.
	ObserveOnly bool
	// ApplyOff: what the inventory has changed of a node that is there is reported, and
	// not done.
	ApplyOff bool
	// ApplyApproved: it is done when an administrator has approved it.
	ApplyApproved bool
	// Upgrade is when nodes get other versions of Talos or Kubernetes, besides what holds for
	// every change of the inventory.
	Upgrade UpgradeMode
}

// UpgradeMode is when nodes get other versions of Talos or Kubernetes. A greater one is stricter.
type UpgradeMode int

// The modes of upgrades, from the least strict on.
const (
	// UpgradeAuto: as any other change of the inventory.
	UpgradeAuto UpgradeMode = iota
	// UpgradeInWindow: only where there is a window, while it is open.
	UpgradeInWindow
	// UpgradeApproved: when an administrator has approved it.
	UpgradeApproved
	// UpgradeOff: it is reported, and not done.
	UpgradeOff
)

// upgradeModes are the names of the modes in files.
var upgradeModes = []string{"auto", "window", "approve", "off"}

// ParseUpgradeMode returns the mode of a name in a file, and whether there is one. "" is UpgradeAuto.
func ParseUpgradeMode(name string) (UpgradeMode, bool) {
	if name == "" {
		return UpgradeAuto, true
	}
	i := slices.Index(upgradeModes, name)
	return UpgradeMode(max(i, 0)), i >= 0
}

// String is the mode as files have it.
func (m UpgradeMode) String() string {
	if m < 0 || int(m) >= len(upgradeModes) {
		return fmt.Sprintf("UpgradeMode(%d)", int(m))
	}
	return upgradeModes[m]
}

// ChartsInRepository is the entry of Policy.Charts that allows charts which lie in the
// repository itself.
const ChartsInRepository = "repository"

// Range is an inclusive range of VMIDs.
type Range struct{ First, Last int }

// Contains reports whether the range includes id.
func (r Range) Contains(id int) bool { return r.First <= id && id <= r.Last }

// String prints the range as it is written.
func (r Range) String() string {
	if r.First == r.Last {
		return fmt.Sprint(r.First)
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

// Limits are the most that all clusters of the agent together may use. Zero
// means no limit.
type Limits struct {
	Nodes     int
	Cores     int
	MemoryMiB int64
	DiskBytes int64
}

// Capacity is how far hosts and storages may be filled. Zero means the default.
type Capacity struct {
	MemoryReserveMiB int64 // of each host, that no VM gets
	ThinPercent      int   // how much the disks on a thin storage may promise together, in percent of its size
	CopiesPerStorage int   // how many VMs' disks may be copied onto a storage of a host at once
}

// Reserve is the memory of a host that no VM gets, in bytes: by default what Proxmox VE itself asks for.
func (c Capacity) Reserve() int64 { return cmp.Or(c.MemoryReserveMiB, 2048) << 20 }

// Thin is how much a thin storage may promise, in percent of its size: by default no more than it has.
func (c Capacity) Thin() int { return cmp.Or(c.ThinPercent, 100) }

// Copies is how many VMs' disks may be copied onto a storage at once: by default two, because one
// copy reads and writes in turn, and leaves the storage idle meanwhile.
func (c Capacity) Copies() int { return cmp.Or(c.CopiesPerStorage, 2) }

// AllowsAddress reports whether addresses of nodes and VIPs may lie where this one does.
func (p Policy) AllowsAddress(a netip.Addr) bool {
	return len(p.Networks) == 0 || slices.ContainsFunc(p.Networks, func(n netip.Prefix) bool { return n.Contains(a) })
}

// AllowsForward reports whether a port of the host may lead to nodes.
func (p Policy) AllowsForward(port int) bool {
	return p.Forwards == nil || slices.Contains(p.Forwards, port)
}

// RemovalLimit is how many nodes of a cluster may be removed at once without approval.
func (p Policy) RemovalLimit() int { return max(0, cmp.Or(p.Removals, 1)) }

// Line names the place of a rule for people: "/etc/talos-agent/policy.yaml:4".
func (p Policy) Line(field string) string {
	file := p.File
	if file == "" {
		file = "policy.yaml"
	}
	if n := p.Lines[field]; n > 0 {
		return fmt.Sprintf("%s:%d", file, n)
	}
	return file
}
