package capacity

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
)

// Ledger counts what is promised of the memory of hosts and the room on storages, from what
// is seen, and what is promised by it since.
type Ledger struct {
	d cluster.Desired
	o cluster.Observed
	p cluster.Policy

	made    map[string]bool  // nodes that have a VM, may have one, or are getting one
	growing map[string]bool  // nodes whose disks may not have their size yet
	given   map[string]bool  // nodes whose VMs are to have all options of theirs, beside those that they have
	memory  map[string]*room // by host
	cores   map[string]*room // by host: of the nodes of the cluster, not bytes
	disks   map[string]*room // by storage
}

// NewLedger opens the ledger of what is seen. isMade reports whether a node has a VM, may have
// one, or is getting one; isGrowing, whether the disks of its VM may not have their size yet.
func NewLedger(d cluster.Desired, o cluster.Observed, p cluster.Policy, isMade, isGrowing func(cluster.Node) bool) *Ledger {
	l := &Ledger{d: d, o: o, p: p, made: map[string]bool{}, growing: map[string]bool{}, given: map[string]bool{}, memory: map[string]*room{}, cores: map[string]*room{}, disks: map[string]*room{}}
	for _, n := range d.Spec.Nodes {
		l.made[n.Name], l.growing[n.Name] = isMade(n), isGrowing(n)
	}
	return l
}

// TakeVM promises what the VM of a node needs of a host, when there is room for all of it;
// else it returns what there is too little of.
func (l *Ledger) TakeVM(n cluster.Node, host string) (lacks []cluster.Block) {
	if lacks = l.LackVM(n, host); len(lacks) > 0 {
		return lacks
	}
	l.memoryLeft(host).take(n.MemoryMiB << 20)
	l.coresLeft(host).take(int64(n.Cores))
	for store, bytes := range n.DiskUse() {
		l.diskLeft(host, store).take(bytes)
	}
	l.made[n.Name], l.growing[n.Name] = true, true // for who asks what another one leaves
	return nil
}

// LackVM returns what there is too little of on a host for the VM of a node; none: it may be made there.
func (l *Ledger) LackVM(n cluster.Node, host string) (lacks []cluster.Block) {
	add := func(b cluster.Block) {
		if b.Reason != "" {
			lacks = append(lacks, b)
		}
	}
	memory, needs := n.MemoryMiB<<20, n.DiskUse()
	add(l.LackCores(n, host))
	if r := l.coresLeft(host); r.lacks(int64(n.Cores)) {
		add(cluster.Block{Subject: n.Name, Reason: cluster.HostTooSmall, About: "cores", Message: fmt.Sprintf("it wants %d cores, and of the %d that pve_capacity gives on %s, nodes of the cluster have %d", n.Cores, r.limit, host, r.promised),
			Hint: "give it fewer cores, or another host, or correct pve_capacity"})
	}
	if r := l.memoryLeft(host); r.lacks(memory) {
		add(l.blockMemory(n, host, r, fmt.Sprintf("it needs %s of memory", text.GiB(memory))))
	}
	for _, b := range l.LackOptions(n, host, n.Options) {
		add(b)
	}
	for _, store := range slices.Sorted(maps.Keys(needs)) {
		add(l.lackDisk(n, host, store, needs[store], text.GiB(needs[store])))
	}
	return lacks
}

// MemoryLeft returns how much memory of a host is left to promise, in bytes, where that is known. It is below
// zero where more is promised already.
func (l *Ledger) MemoryLeft(host string) (bytes int64, known bool) {
	r := l.memoryLeft(host)
	return r.limit - r.promised, r.known
}

// LackCores is the block for a node that wants more cores than its host has; no Reason: it
// does not.
func (l *Ledger) LackCores(n cluster.Node, host string) cluster.Block {
	h := l.o.Hosts[host]
	if h.Cores == 0 || n.Cores <= h.Cores {
		return cluster.Block{}
	}
	return cluster.Block{Subject: n.Name, Reason: cluster.HostTooSmall, About: "cores", Message: fmt.Sprintf("it wants %d cores, and %s has %d; Proxmox VE would not start it", n.Cores, h.Name, h.Cores),
		Hint: fmt.Sprintf("set cpu to %d or less", h.Cores)}
}

// TakeMemory promises more memory to the VM of a node, in bytes, or returns why not.
func (l *Ledger) TakeMemory(n cluster.Node, host string, more int64) cluster.Block {
	r := l.memoryLeft(host)
	if r.lacks(more) {
		return l.blockMemory(n, host, r, fmt.Sprintf("it needs %s more memory", text.GiB(more)))
	}
	r.promised += more
	return cluster.Block{}
}

// TakeDisk promises more of a storage to the VM of a node, in bytes, or returns why not.
func (l *Ledger) TakeDisk(n cluster.Node, host, store string, more int64) cluster.Block {
	b := l.lackDisk(n, host, store, more, text.GiB(more)+" more")
	if b.Reason == "" {
		l.diskLeft(host, store).promised += more
	}
	return b
}

// memoryLeft is the memory of a host, less what is promised of it.
func (l *Ledger) memoryLeft(host string) *room {
	if l.memory[host] == nil {
		l.memory[host] = l.memoryOf(host)
	}
	return l.memory[host]
}

// coresLeft is what pve_capacity gives of the cores of a host, less what the nodes of the cluster on it have.
func (l *Ledger) coresLeft(host string) *room {
	if l.cores[host] == nil {
		r := &room{limit: int64(l.d.Spec.Capacity[host].Cores)}
		r.known = r.limit > 0
		for _, n := range l.d.Spec.Nodes {
			if vm := l.o.VMs[n.Name]; l.made[n.Name] && vm.Carrier(n) == host {
				r.take(int64(cmp.Or(vm.Hardware.Value.Cores, n.Cores)))
			}
		}
		l.cores[host] = r
	}
	return l.cores[host]
}

// diskLeft is the room on a storage, less what is promised of it.
func (l *Ledger) diskLeft(host, name string) *room {
	key, st := l.storeOf(host, name)
	if l.disks[key] == nil {
		l.disks[key] = l.roomOn(host, name, st)
	}
	return l.disks[key]
}

// memoryOf is the memory of a host: what it has, less the reserve, or what the
// inventory gives it, if that is less. Promised is what guests are configured with
// that run, or that are the agent's and may run any time; guests that the agent's
// token does not see are not in it.
func (l *Ledger) memoryOf(host string) *room {
	h := l.o.Hosts[host]
	r := &room{known: h.MemoryBytes > 0, limit: h.MemoryBytes - l.p.Capacity.Reserve()}
	if bound := l.d.Spec.Capacity[host].MemoryMiB << 20; bound > 0 && (!r.known || bound < r.limit) {
		r.known, r.limit = true, bound
	}
	ours := map[int]bool{} // by VMID: whether the node is made
	for _, n := range l.d.Spec.Nodes {
		ours[n.VMID] = l.made[n.Name]
	}
	listed := map[int]bool{}
	for name, other := range l.o.Hosts {
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
	for _, n := range l.d.Spec.Nodes {
		if vm := l.o.VMs[n.Name]; l.made[n.Name] && !listed[n.VMID] && vm.Carrier(n) == host {
			r.take(cmp.Or(vm.Hardware.Value.MemoryMiB, n.MemoryMiB) << 20)
		}
	}
	for _, vm := range l.o.Orphans.Value {
		if !listed[vm.VMID] && vm.Host == host {
			r.take(vm.Hardware.Value.MemoryMiB << 20)
		}
	}
	return r
}

// blockMemory is the block for a node that a host has too little memory for.
func (l *Ledger) blockMemory(n cluster.Node, host string, r *room, needs string) cluster.Block {
	h := l.o.Hosts[host]
	has := fmt.Sprintf("%s has %s, of which %s are reserved and %s", host, text.GiB(h.MemoryBytes), text.GiB(l.p.Capacity.Reserve()), r)
	hint := "give it less ram, or another host; capacity.memory_reserve in the host's policy is what is reserved"
	if bound := l.d.Spec.Capacity[host].MemoryMiB << 20; bound == r.limit {
		has = fmt.Sprintf("pve_capacity gives %s %s, of which %s", host, text.GiB(bound), r)
		hint = "give it less ram, or another host, or correct pve_capacity"
	}
	return cluster.Block{Subject: n.Name, Reason: cluster.HostMemoryShort, About: host, Message: needs + ": " + has, Hint: hint}
}

// storeOf returns a storage of a host, and its name among all: a shared one is the
// same on every host.
func (l *Ledger) storeOf(host, name string) (key string, st cluster.Storage) {
	st = l.o.Hosts[host].Storages.Value[name]
	if st.Shared {
		return name, st
	}
	return host + "/" + name, st
}

// roomOn is the room on a storage. A thin one may promise more than it has, as far as
// the host's policy goes; of any other what is free is left, less what disks that are
// being made still take.
func (l *Ledger) roomOn(host, name string, st cluster.Storage) *room {
	r := &room{known: st.TotalBytes > 0, limit: st.FreeBytes}
	if st.Thin {
		r.limit = st.TotalBytes / 100 * int64(l.p.Capacity.Thin())
	}
	pending := map[int]int64{} // by VMID: disks of nodes that are made, as large as they are or become at once
	for _, n := range l.d.Spec.Nodes {
		bytes := n.DiskUse()[name]
		if hw := l.o.VMs[n.Name].Hardware; hw.Known && !l.growing[n.Name] {
			bytes = hw.Value.DiskUse()[name]
		}
		if !l.made[n.Name] || bytes == 0 || !st.Shared && l.o.VMs[n.Name].Carrier(n) != host {
			continue
		}
		if st.Thin || l.growing[n.Name] {
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

// lackDisk is the block for a node that a storage has too little room for; no Reason: it
// has enough.
func (l *Ledger) lackDisk(n cluster.Node, host, name string, bytes int64, wants string) cluster.Block {
	_, st := l.storeOf(host, name)
	r := l.diskLeft(host, name)
	b := cluster.Block{Subject: n.Name, Reason: cluster.StorageShort, About: host + "/" + name, Hint: "give it smaller disks, or another storage"}
	if l.made[n.Name] {
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
		if percent := l.p.Capacity.Thin(); percent != 100 {
			b.Message += fmt.Sprintf(", and may promise %s (host policy, %s: capacity.thin_overcommit)", text.GiB(r.limit), l.p.Line("capacity.thin_overcommit"))
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
