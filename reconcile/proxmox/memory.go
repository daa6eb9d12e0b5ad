package proxmox

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/hardware"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/pveconf"
)

// facts are what was read of one VM itself, and the row that went with it. As
// long as the row stays the same they need not be read again until their turn.
type facts struct {
	row    row // without what always changes
	uptime int64

	power   cluster.Power // unknown: only the configuration was read
	halted  string        // why it is paused, if not by a person
	up      time.Duration
	lock    string
	read    time.Time // when the configuration was read
	looked  time.Time // when the state was
	name    string
	uuid    string
	mark    cluster.Mark
	marked  bool
	guarded bool // Proxmox VE's protection
	seeded  bool // it has a cloud-init drive
	managed bool // by Proxmox VE's HA
	others  cluster.Drives
	tags    []string
	hw      cluster.Hardware
	active  *cluster.Hardware // nil: nothing waits for the next start
}

// steady is a row without what changes all the time.
func (r row) steady() row {
	r.Uptime, r.Disk, r.MaxDisk = "", "", ""
	return r
}

// still reports whether a row is unchanged, and the VM was not started again.
func (f facts) still(r row) bool { return f.row == r.steady() && r.Uptime.Number() >= f.uptime }

// configured takes over a configuration, and the one that a VM runs with.
func (f *facts) configured(o, active pveconf.Options, vmid int, now time.Time) {
	f.active = nil
	if active != nil {
		hw := hardware.Of(active)
		f.active = &hw
	}
	f.others = hardware.ListOthersVolumes(o, strconv.Itoa(vmid))
	f.read = now
	f.name = o.Get("name", "")
	f.uuid = hardware.UUIDOf(o)
	f.mark, f.marked = cluster.ParseMark(string(o["description"]))
	f.guarded, f.seeded = o["protection"].On(), o.HasSeed()
	f.tags = pveconf.SplitTags(string(o["tags"]))
	f.lock = string(o["lock"])
	f.hw = hardware.Of(o)
}

// memory is what a Client remembers between passes, to ask less. Nothing is
// ever changed on the strength of it.
type memory struct {
	facts map[int]facts // by VMID
	// touched counts the changes we made to a VM: what was read before one is
	// not remembered after it.
	touched  map[int]int
	clusters map[string]attention // by ID
	// changes are the last changes of VMs that were not ours.
	changes map[int]change
	// untagged are VMs of ours that Proxmox VE refuses to tag.
	untagged map[int]bool

	version   string
	versionAt time.Time
	// noQuorum is until when not to ask for quorum, because it was forbidden.
	noQuorum time.Time
	quorum   cluster.Seen[bool]
}

// attention is how a cluster is looked at.
type attention struct {
	looked, audited time.Time // the last time
	pushed          cluster.Revision
	pushedAt        time.Time // when that was seen first
	// outdated: what was read before is not shown, for several may look at once.
	outdated time.Time
}

func newMemory() memory {
	return memory{facts: map[int]facts{}, touched: map[int]int{}, clusters: map[string]attention{}, untagged: map[int]bool{}, changes: map[int]change{}}
}

// recall returns what is remembered of a VM.
func (c *Client) recall(vmid int) (f facts, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f, ok = c.memory.facts[vmid]
	return f, ok
}

// touches returns how often a VM was changed by us, to be given to remember and to
// attribute. It is taken before anything of the VM is read or recalled.
func (c *Client) touches(vmid int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.memory.touched[vmid]
}

// remember keeps what was read of a VM, unless we changed it since.
func (c *Client) remember(vmid, touches int, f facts) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.memory.touched[vmid] == touches {
		c.memory.facts[vmid] = f
	}
}

// forget drops what is known of a VM, because it is about to be changed or was.
func (c *Client) forget(vmid int) {
	c.recent.Taken(vmid)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.memory.touched[vmid]++
	delete(c.memory.facts, vmid)
	delete(c.memory.changes, vmid)
}

// missing lists the remembered VMs that a listing does not have.
func (c *Client) missing(listed map[int]row) []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(slices.Sorted(maps.Keys(c.memory.facts)), func(vmid int) bool { _, ok := listed[vmid]; return ok })
}

// prune forgets the VMs a complete listing does not have.
func (c *Client) prune(listed map[int]row) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.memory.facts, func(vmid int, _ facts) bool { _, ok := listed[vmid]; return !ok })
}

// Forget implements reconcile.Forgetter. What is remembered stays until it is
// read: a VM that is missing from a list must be missed.
func (c *Client) Forget(clusterID string) {
	c.recent.Clear()
	c.mu.Lock()
	defer c.mu.Unlock()
	of := c.memory.clusters[clusterID]
	of.outdated = time.Now()
	c.memory.clusters[clusterID] = of
	clear(c.memory.untagged) // what refused may have been changed: it is tried again
}

// A cluster of so many VMs is seen whole within one interval: so often are configs read
// again, so many at a time whatever their share, unless they were read since. Proxmox VE shows no
// change of a config in any list.
const (
	alwaysAudited = 10
	auditPause    = 50 * time.Second // passes of a quiet cluster are a minute apart by default
	staleAfter    = 45 * time.Second // less: an audit is read in the time after the pass has begun
	pushedFor     = 10 * time.Second // after a push larger clusters have none read, unless one was left out
)

// due chooses which of some remembered VMs have their configuration read again in this
// pass, those first that waited longest: as many as make each of them come up once in
// AuditEvery passes of a quiet cluster, or in one where they are few. While something
// goes on there are passes every second, which are no reason to read more. Where they are many,
// the passes right after a push read none: what was pushed does not wait for as many answers.
func (c *Client) due(clusterID string, pushed cluster.Revision, known map[int]time.Time, now time.Time) []int {
	c.mu.Lock()
	of := c.memory.clusters[clusterID]
	if of.pushed != pushed {
		of.pushed, of.pushedAt = pushed, now
	}
	stale, outdated := 0, 0
	for _, read := range known {
		if now.Sub(read) >= staleAfter {
			stale++
		}
		if read.Before(of.outdated) {
			outdated++
		}
	}
	most, n := max((len(known)+c.auditEvery-1)/c.auditEvery, min(len(known), alwaysAudited)), 0
	waits := len(known) > alwaysAudited && now.Sub(of.pushedAt) < pushedFor
	if since := now.Sub(of.audited); stale > 0 && since >= auditPause && (!waits || since >= 2*auditPause) {
		n, of.audited = min(most, stale), now
	}
	of.looked = now
	c.memory.clusters[clusterID] = of
	maps.DeleteFunc(c.memory.clusters, func(_ string, of attention) bool {
		return now.Sub(of.looked) > time.Hour && now.Sub(of.outdated) > time.Hour
	})
	n = max(n, outdated)
	c.mu.Unlock()
	order := slices.SortedFunc(maps.Keys(known), func(a, b int) int {
		if d := known[a].Compare(known[b]); d != 0 {
			return d
		}
		return a - b
	})
	return order[:n]
}

// change is a change of a VM, and what may have made it.
type change struct {
	by    []cluster.Task    // newest first, as in cluster.VM
	with  []cluster.Request // newest first
	after time.Time         // when the VM was last seen as it was before
}

// attribute remembers a change of a VM, unless we changed it since: that may be what was seen.
func (c *Client) attribute(vmid, touches int, ch change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.memory.touched[vmid] == touches {
		c.memory.changes[vmid] = ch
	}
}

// lastChange is the last change of a VM that was seen.
func (c *Client) lastChange(vmid int) change {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.memory.changes[vmid]
}

// setUntagged remembers whether Proxmox VE refuses to tag a VM, and reports
// whether that is news.
func (c *Client) setUntagged(vmid int, refused bool) (news bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	news = c.memory.untagged[vmid] != refused
	if refused {
		c.memory.untagged[vmid] = true
	} else {
		delete(c.memory.untagged, vmid)
	}
	return news
}

func (c *Client) isUntagged(vmid int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.memory.untagged[vmid]
}
