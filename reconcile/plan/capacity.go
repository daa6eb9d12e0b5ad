package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/drift"
)

// leastFree is how much of a thin storage must be free for one VM more, in percent of
// its size: what is promised there is written some day, and a thin storage without
// room stops every VM on it.
const leastFree = 10

// room is what is left of one host's memory, or of one storage. Bytes.
type room struct {
	known    bool
	limit    int64 // that may be promised
	promised int64
	vms      int  // that it is promised to
	used     bool // more is in use than was seen to be promised
}

// judgeCapacity decides for which of the nodes without a VM there is room, and for what of
// those that have one is to become larger: in the order of the inventory, as far as hosts
// and storages are seen. A node that is out of service for its turn comes first, or what it was
// drained for would be another one's. What is there already is counted and never judged.
func (m *planner) judgeCapacity() {
	m.lacks, m.short = map[string][]cluster.Block{}, map[string][]string{}
	m.memory, m.disks = map[string]*room{}, map[string]*room{}
	fresh := true
	begun := func(n cluster.Node) bool { return m.o.Nodes.Value[n.Name].Turn != "" }
	first := slices.DeleteFunc(slices.Clone(m.d.Spec.Nodes), func(n cluster.Node) bool { return !begun(n) })
	for _, n := range slices.Concat(first, slices.DeleteFunc(slices.Clone(m.d.Spec.Nodes), begun)) {
		made := m.isMade(n)
		fresh = fresh && !made
		if made {
			m.judgeGrowth(n)
			continue
		}
		host := m.placeNode(n)
		h := m.o.Hosts[host]
		if n.Locked || !h.Known {
			continue
		}
		lacks := append(lacksCores(n, h), m.lacksMemory(n, host)...)
		needs := n.DiskUse()
		for _, name := range slices.Sorted(maps.Keys(needs)) {
			if b := m.lacksDisk(n, host, name, needs[name], text.GiB(needs[name])); b.Reason != "" {
				lacks = append(lacks, b)
			}
		}
		if len(lacks) > 0 {
			m.lacks[n.Name] = lacks
			continue
		}
		m.memoryLeft(host).take(n.MemoryMiB << 20)
		for name, bytes := range needs {
			m.diskLeft(host, name).take(bytes)
		}
	}
	m.tooLarge = fresh && len(m.lacks) > 0
}

// judgeGrowth decides what of a VM that is there may become larger, and reports what may
// not: nothing is taken down for that, and whatever needs no room is changed all the same.
func (m *planner) judgeGrowth(n cluster.Node) {
	vm := m.o.VMs[n.Name]
	host := vm.Carrier(n)
	h := m.o.Hosts[host]
	if !h.Known || n.Locked || vm.Owner != cluster.Ours || vm.Deleting || !vm.Hardware.Known || m.isGrowing(n) || drift.IsReplaced(n, vm, m.o.Facts) || m.isDead(n.Name) {
		return
	}
	lack := func(b cluster.Block, fields ...string) {
		if b.Reason != "" && !m.isRunning(cluster.ChangeVM, n.Name) {
			m.short[n.Name] = append(m.short[n.Name], fields...)
			m.block(b)
		}
	}
	if n.Cores != vm.Hardware.Value.Cores {
		for _, b := range lacksCores(n, h) {
			lack(b, string(cluster.FieldCores))
		}
	}
	if more := (n.MemoryMiB - vm.Hardware.Value.MemoryMiB) << 20; more > 0 {
		if r := m.memoryLeft(host); r.lacks(more) {
			lack(m.blockMemory(n, host, r, fmt.Sprintf("it needs %s more memory", text.GiB(more))), string(cluster.FieldMemory))
		} else {
			r.promised += more
		}
	}
	more, fields := map[string]int64{}, map[string][]string{} // by storage
	for _, g := range n.Growth(vm.Hardware.Value) {
		more[g.Datastore] += g.Bytes
		fields[g.Datastore] = append(fields[g.Datastore], string(g.Field))
	}
	for _, store := range slices.Sorted(maps.Keys(more)) {
		if !m.storesUsable(n, host, h, []need{{store, "images", "datastore of a disk"}}, more) {
			m.short[n.Name] = append(m.short[n.Name], fields[store]...)
			continue
		}
		b := m.lacksDisk(n, host, store, more[store], text.GiB(more[store])+" more")
		if lack(b, fields[store]...); b.Reason == "" {
			m.diskLeft(host, store).promised += more[store]
		}
	}
}

// fitDrifts is what of some drifts of a VM there is room for.
func (m *planner) fitDrifts(n cluster.Node, drifts []drift.Drift) []drift.Drift {
	return slices.DeleteFunc(drifts, func(dr drift.Drift) bool { return slices.Contains(m.short[n.Name], dr.Field) })
}

// memoryLeft is the memory of a host, less what was promised since the planner began.
func (m *planner) memoryLeft(host string) *room {
	if m.memory[host] == nil {
		m.memory[host] = m.memoryOf(host)
	}
	return m.memory[host]
}

// diskLeft is the room on a storage, less what was promised since the planner began.
func (m *planner) diskLeft(host, name string) *room {
	key, st := m.storeOf(host, name)
	if m.disks[key] == nil {
		m.disks[key] = m.roomOn(host, name, st)
	}
	return m.disks[key]
}

// take promises so much to one VM more.
func (r *room) take(bytes int64) {
	r.promised += bytes
	r.vms++
}

// lacks reports whether so much more cannot be promised.
func (r *room) lacks(bytes int64) bool { return r.known && r.promised+bytes > r.limit }

// holdCapacity reports whether a node has to wait because there is no room for it, or,
// while nothing of its cluster is there, for another node: half a cluster is of no
// use, and takes the room of another one.
func (m *planner) holdCapacity(n cluster.Node) bool {
	for _, b := range m.lacks[n.Name] {
		m.block(b)
	}
	if len(m.lacks[n.Name]) > 0 {
		return true
	}
	if m.tooLarge {
		m.wait(cluster.Wait{Subject: n.Name, Reason: cluster.WaitingForCapacity, Message: "waits until there is room for all nodes: no part of a new cluster is made before"})
	}
	return m.tooLarge
}

// isMade reports whether a node has a VM, or may have one, or is getting one.
func (m *planner) isMade(n cluster.Node) bool {
	return m.plan.Phases[n.Name] != cluster.PhaseAbsent || m.isRunning(cluster.CreateVM, n.Name)
}

func lacksCores(n cluster.Node, h cluster.Host) []cluster.Block {
	if h.Cores == 0 || n.Cores <= h.Cores {
		return nil
	}
	return []cluster.Block{{Subject: n.Name, Reason: cluster.HostTooSmall, About: "cores", Message: fmt.Sprintf("it wants %d cores, and %s has %d; Proxmox VE would not start it", n.Cores, h.Name, h.Cores),
		Hint: fmt.Sprintf("set cpu to %d or less", h.Cores)}}
}

// memoryOf is the memory of a host: what it has, less the reserve, or what the
// inventory gives it, if that is less. Promised is what guests are configured with
// that run, or that are the agent's and may run any time; guests that the agent's
// token does not see are not in it.
func (m *planner) memoryOf(host string) *room {
	h := m.o.Hosts[host]
	r := &room{known: h.MemoryBytes > 0, limit: h.MemoryBytes - m.p.Capacity.Reserve()}
	if bound := m.d.Spec.Capacity[host].MemoryMiB << 20; bound > 0 && (!r.known || bound < r.limit) {
		r.known, r.limit = true, bound
	}
	ours := map[int]bool{} // by VMID: whether the node is made
	for _, n := range m.d.Spec.Nodes {
		ours[n.VMID] = m.isMade(n)
	}
	listed := map[int]bool{}
	for name, other := range m.o.Hosts {
		for _, g := range other.Guests {
			listed[g.VMID] = true
			made, own := ours[g.VMID]
			if own && !made {
				continue // it was deleted, and the list is a little old
			}
			if name == host && (made || g.Running || g.Agent) {
				r.take(g.MemoryBytes)
			}
		}
	}
	for _, n := range m.d.Spec.Nodes {
		if vm := m.o.VMs[n.Name]; m.isMade(n) && !listed[n.VMID] && vm.Carrier(n) == host {
			r.take(cmp.Or(vm.Hardware.Value.MemoryMiB, n.MemoryMiB) << 20)
		}
	}
	for _, vm := range m.o.Orphans.Value {
		if !listed[vm.VMID] && vm.Host == host {
			r.take(vm.Hardware.Value.MemoryMiB << 20)
		}
	}
	return r
}

func (m *planner) lacksMemory(n cluster.Node, host string) []cluster.Block {
	r := m.memoryLeft(host)
	if !r.lacks(n.MemoryMiB << 20) {
		return nil
	}
	return []cluster.Block{m.blockMemory(n, host, r, fmt.Sprintf("it needs %s of memory", text.GiB(n.MemoryMiB<<20)))}
}

// blockMemory is the block for a node that a host has too little memory for.
func (m *planner) blockMemory(n cluster.Node, host string, r *room, needs string) cluster.Block {
	h := m.o.Hosts[host]
	has := fmt.Sprintf("%s has %s, of which %s are reserved and %s", host, text.GiB(h.MemoryBytes), text.GiB(m.p.Capacity.Reserve()), r)
	hint := "give it less ram, or another host; capacity.memory_reserve in the host's policy is what is reserved"
	if bound := m.d.Spec.Capacity[host].MemoryMiB << 20; bound == r.limit {
		has = fmt.Sprintf("pve_capacity gives %s %s, of which %s", host, text.GiB(bound), r)
		hint = "give it less ram, or another host, or correct pve_capacity"
	}
	return cluster.Block{Subject: n.Name, Reason: cluster.HostMemoryShort, About: host, Message: needs + ": " + has, Hint: hint}
}

// String is how much is promised, and to how many.
func (r *room) String() string {
	switch {
	case r.used:
		return text.GiB(r.promised) + " are in use or promised"
	case r.vms == 1:
		return text.GiB(r.promised) + " are promised to 1 VM"
	case r.vms > 1:
		return fmt.Sprintf("%s are promised to %d VMs", text.GiB(r.promised), r.vms)
	}
	return "nothing is promised"
}

// storeOf returns a storage of a host, and its name among all: a shared one is the
// same on every host.
func (m *planner) storeOf(host, name string) (key string, st cluster.Storage) {
	st = m.o.Hosts[host].Storages.Value[name]
	if st.Shared {
		return name, st
	}
	return host + "/" + name, st
}

// roomOn is the room on a storage. A thin one may promise more than it has, as far as
// the host's policy goes; of any other what is free is left, less what disks that are
// being made still take.
func (m *planner) roomOn(host, name string, st cluster.Storage) *room {
	r := &room{known: st.TotalBytes > 0, limit: st.FreeBytes}
	if st.Thin {
		r.limit = st.TotalBytes / 100 * int64(m.p.Capacity.Thin())
	}
	pending := map[int]int64{} // by VMID: disks of nodes that are made, as large as they are or become at once
	for _, n := range m.d.Spec.Nodes {
		bytes := n.DiskUse()[name]
		if hw := m.o.VMs[n.Name].Hardware; hw.Known && !m.isGrowing(n) {
			bytes = hw.Value.DiskUse()[name]
		}
		if !m.isMade(n) || bytes == 0 || !st.Shared && m.o.VMs[n.Name].Carrier(n) != host {
			continue
		}
		if st.Thin || m.isGrowing(n) {
			pending[n.VMID] = bytes
		}
	}
	for vmid, bytes := range st.Volumes.Value {
		switch {
		case st.Thin:
			r.take(max(bytes, pending[vmid]))
		case pending[vmid] > bytes:
			r.take(pending[vmid] - bytes)
		}
		delete(pending, vmid)
	}
	for _, bytes := range pending {
		r.take(bytes)
	}
	// What others have written, whose disks are not seen, is taken as well.
	if used := st.TotalBytes - st.FreeBytes; st.Thin && used > r.promised {
		r.promised, r.used = used, true
	}
	return r
}

// isGrowing reports whether the disks of a node's VM may not have their size yet.
func (m *planner) isGrowing(n cluster.Node) bool {
	return m.plan.Phases[n.Name] == cluster.PhaseCreating || m.isRunning(cluster.CreateVM, n.Name) || Unfinished(m.o.VMs[n.Name])
}

// lacksDisk is the block for a node that a storage has too little room for; no Reason: it
// has enough.
func (m *planner) lacksDisk(n cluster.Node, host, name string, bytes int64, wants string) cluster.Block {
	_, st := m.storeOf(host, name)
	r := m.diskLeft(host, name)
	b := cluster.Block{Subject: n.Name, Reason: cluster.StorageShort, About: host + "/" + name, Hint: "give it smaller disks, or another storage"}
	if m.isMade(n) {
		b.Hint = "give it smaller disks, or make room on the storage"
	}
	where := fmt.Sprintf("storage %s on %s", name, host)
	needs := fmt.Sprintf("it needs %s on %s: ", wants, name)
	switch {
	case r.lacks(bytes) && !st.Thin:
		b.Message = needs + fmt.Sprintf("%s has %s free", where, text.GiB(st.FreeBytes))
		if r.promised > 0 {
			b.Message += fmt.Sprintf(", of which %s and not taken yet", r)
		}
	case r.lacks(bytes):
		b.Message = needs + fmt.Sprintf("%s has %s, of which %s", where, text.GiB(st.TotalBytes), r)
		if percent := m.p.Capacity.Thin(); percent != 100 {
			b.Message += fmt.Sprintf(", and may promise %s (host policy, %s: capacity.thin_overcommit)", text.GiB(r.limit), m.p.Line("capacity.thin_overcommit"))
		}
		b.Hint += "; capacity.thin_overcommit in the host's policy is how much a thin storage may promise"
	case st.Thin && r.known && st.FreeBytes < st.TotalBytes/100*leastFree:
		b.Message = needs + fmt.Sprintf("%s is nearly full: %s of %s are free, and %d %% must be", where, text.GiB(st.FreeBytes), text.GiB(st.TotalBytes), leastFree)
		b.Hint = "make room on it: a thin storage without room stops every VM on it"
	default:
		return cluster.Block{}
	}
	return b
}
