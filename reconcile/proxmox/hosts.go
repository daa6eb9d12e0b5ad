package proxmox

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/pveconf"
)

// staysFor is how long the answers to questions stay good whose answers hardly
// ever change: the version of Proxmox VE, and that quorum may not be asked for.
const staysFor = time.Hour

// hosts reports the state of the hosts that matter to the cluster. Quorum,
// exact storage and images are asked for only while something may have to be
// changed.
func (l *look) hosts() map[string]cluster.Host {
	version, quorum := l.version(), l.quorum()
	list := make([]cluster.Host, len(l.names))
	runEach(len(list), func(i int) { list[i] = l.host(l.names[i], version, quorum) })
	out := map[string]cluster.Host{}
	for _, h := range list {
		out[h.Name] = h
	}
	l.seeOffers(out)
	return out
}

func (l *look) host(name, version string, quorum cluster.Seen[bool]) cluster.Host {
	h := cluster.Host{Name: name, PVE: version, Quorate: quorum, Storages: cluster.Saw(l.listedStorages(name))}
	i := slices.IndexFunc(l.rows, func(r row) bool { return r.Type == "node" && string(r.Node) == name })
	tasks := l.tasks[name]
	switch {
	case i < 0:
		h.Why = "Proxmox VE knows no host " + name
	case l.rows[i].Status == "offline":
		h.Why = "it is offline"
	case tasks.err != nil:
		h.Why = formatReason(tasks.err)
	default:
		h.Known = true
	}
	if i >= 0 {
		// Both are missing without Sys.Audit on the host.
		h.Maintained = l.rows[i].HA == "maintenance" // PVE 8.2 pve-manager: GET /cluster/resources
		h.Cores, h.MemoryBytes = int(l.rows[i].MaxCPU.Number()), l.rows[i].MaxMem.Number()
	}
	h.Guests = l.guestsOn(name)
	if tasks.err != nil {
		h.Tasks = cluster.Unseen[[]cluster.Task](formatReason(tasks.err))
	} else {
		var describeTask []cluster.Task
		for _, t := range tasks.running {
			describeTask = append(describeTask, l.c.describeTask(t))
		}
		h.Tasks = cluster.Saw(describeTask)
	}
	l.forMaking(&h)
	if h.Known && h.Cores > 0 && l.isChoice(name) { // without Sys.Audit on the host its history is not shown either
		h.Pressure = l.c.pressure.Pressure(l.ctx, l.c.getQuery, name)
	}
	return h
}

// isChoice reports whether a host is one of several on which a VM of the cluster may be made that is not there.
func (l *look) isChoice(host string) bool {
	for i, n := range l.d.Spec.Nodes {
		if !l.destroying && l.found[i].Presence == cluster.Absent && len(n.Placement.Among) > 1 && slices.Contains(n.Placement.Among, host) {
			return true
		}
	}
	return false
}

// guestsOn are the guests on a host that the token may see.
func (l *look) guestsOn(host string) []cluster.Guest {
	var out []cluster.Guest
	for _, vmid := range slices.Sorted(maps.Keys(l.guests)) {
		r := l.guests[vmid]
		if string(r.Node) == host && !r.Template.On() {
			out = append(out, cluster.Guest{VMID: vmid, MemoryBytes: r.MaxMem.Number(), Running: r.Status == "running", Agent: slices.Contains(pveconf.SplitTags(string(r.Tags)), cluster.OwnTag)})
		}
	}
	return out
}

// forMaking looks closer at a host on which a VM has to be made, and at its storages where a
// disk has to be added or to grow.
func (l *look) forMaking(h *cluster.Host) {
	store, making := "", false
	disks := map[string]bool{} // storages of what has to be made
	for i, n := range l.d.Spec.Nodes {
		if at := l.found[i].Host; at != h.Name && (at != "" || !slices.Contains(n.Placement.Among, h.Name)) {
			continue
		}
		for _, g := range n.Growth(l.found[i].Hardware.Value) {
			disks[g.Datastore] = true
		}
		// The image store is one for all nodes of a cluster. One that is to be replaced, or whose place
		// another one has, keeps that machine until it is seen what the next is made from, and where.
		vm, dead := l.found[i], !l.dead[n.Name].IsZero()
		if vm.Presence == cluster.Absent || dead || n.Replace != "" && (vm.Owner == cluster.Foreign || vm.Owner == cluster.Ours && n.Replace != vm.Replace) {
			store, making = n.ImageDatastore, true
			disks[n.Datastore] = true
			for _, d := range n.Disks {
				disks[cmp.Or(d.Datastore, n.Datastore)] = true
			}
		}
	}
	if h.Known && len(disks) > 0 {
		h.Storages = l.storages(h.Name)
		for name := range disks {
			if st, ok := h.Storages.Value[name]; ok && st.Active {
				st.Volumes = l.volumes(h.Name, name)
				h.Storages.Value[name] = st
			}
		}
	}
	switch {
	case !h.Known:
		h.Images = cluster.Unseen[map[string]int64](h.Why)
	case making: // else they are not looked at, without a reason
		h.Images = l.images(h.Name, store)
	}
}

// listedStorages are the storages of a host as the list of everything has
// them: a little old, and without asking.
func (l *look) listedStorages(host string) map[string]cluster.Storage {
	out := map[string]cluster.Storage{}
	for _, r := range l.rows {
		if r.Type == "storage" && string(r.Node) == host {
			out[string(r.Storage)] = cluster.Storage{Active: r.Status == "available", Shared: r.Shared.On(), Content: pveconf.ListContent(r.Content),
				TotalBytes: r.MaxDisk.Number(), FreeBytes: r.MaxDisk.Number() - r.Disk.Number(), Thin: pveconf.IsThin(string(r.PluginType))}
		}
	}
	return out
}

// storages asks a host for its storages.
func (l *look) storages(host string) cluster.Seen[map[string]cluster.Storage] {
	states, err := l.c.Storages(l.ctx, host)
	if err != nil {
		return cluster.Unseen[map[string]cluster.Storage](formatReason(err))
	}
	out := map[string]cluster.Storage{}
	for name, st := range states {
		out[name] = cluster.Storage{Active: st.Active, Shared: st.Shared, Content: st.Content, TotalBytes: st.Total, FreeBytes: st.Free, Thin: pveconf.IsThin(st.Type)}
	}
	return cluster.Saw(out)
}

// volumes are the sizes of the disks on a storage, by VMID, as far as the token may
// see them.
func (l *look) volumes(host, store string) cluster.Seen[map[int]int64] {
	sizes, err := l.c.volumes(l.ctx, host, store)
	if err != nil {
		return cluster.Unseen[map[int]int64](formatReason(err))
	}
	return cluster.Saw(sizes)
}

// images lists the images that VMs of the cluster can be made from. While a task of ours
// copies one into place it may be there in part: nothing is known then.
func (l *look) images(host, store string) cluster.Seen[map[string]int64] {
	for _, t := range l.tasks[host].running {
		if t.kind == "imgcopy" && l.c.ours(t.upid) {
			return cluster.Unseen[map[string]int64]("an image is being copied into place by " + t.text)
		}
	}
	images, err := l.c.images(l.ctx, host, store, l.d.Spec.ImageContent())
	if err != nil {
		return cluster.Unseen[map[string]int64](formatReason(err))
	}
	return cluster.Saw(images)
}

// version is the version of Proxmox VE, "" when it is not known.
func (l *look) version() string {
	c := l.c
	c.mu.Lock()
	version, at := c.memory.version, c.memory.versionAt
	c.mu.Unlock()
	if version != "" && l.now.Sub(at) < staysFor {
		return version
	}
	var v struct{ Version pveconf.Scalar }
	if err := c.get(l.ctx, "/version", nil, &v); err != nil {
		c.log.Debug("cannot read the version of Proxmox VE", logging.Err, err)
		return version
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.memory.version, c.memory.versionAt = string(v.Version), l.now
	return string(v.Version)
}

// quorum reports whether the cluster of Proxmox VE can be written to. It takes a
// privilege the agent can do without, and matters only while something is to
// be changed; else it is what it was, unless it was lost: then nothing is changed before it is back.
func (l *look) quorum() cluster.Seen[bool] {
	c := l.c
	c.mu.Lock()
	last, not := c.memory.quorum, c.memory.noQuorum
	c.mu.Unlock()
	if l.now.Before(not) {
		return last
	}
	if l.quiet && (last.Value || !last.Known) {
		if !last.Known && last.Why == "" {
			last.Why = "not looked at, because nothing has to be changed"
		}
		return last
	}
	seen := l.askQuorum()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.memory.quorum = seen.Seen
	if seen.forbidden {
		c.memory.noQuorum = l.now.Add(staysFor)
	}
	return seen.Seen
}

type quorumSeen struct {
	cluster.Seen[bool]
	forbidden bool
}

func (l *look) askQuorum() quorumSeen {
	quorate, err := l.c.Quorate(l.ctx)
	if err != nil {
		return quorumSeen{cluster.Unseen[bool](formatReason(err)), errors.Is(err, errForbidden)}
	}
	return quorumSeen{Seen: cluster.Saw(quorate)}
}

// taskOn returns what runs on a VM; nil when nothing does. A creation by
// somebody else is not about a VM of ours, and who looks at its console, a person or
// the agent, keeps it from nothing.
func (l *look) taskOn(vmid int, host string) *cluster.Task {
	var found *cluster.Task
	for _, t := range l.tasks[host].running {
		described := l.c.describeTask(t)
		if t.vmid() != vmid || isConsole(described) || t.kind == "qmcreate" && !l.c.ours(t.upid) {
			continue
		}
		if found == nil || t.kind == "qmcreate" {
			found = &described
		}
	}
	return found
}

// taskAmong returns what runs on a VM that is on one of several hosts, and on which: "" where it is not known.
func (l *look) taskAmong(vmid int, hosts []string) (string, *cluster.Task) {
	for _, host := range hosts {
		if t := l.taskOn(vmid, host); t != nil || len(hosts) == 1 {
			return host, t
		}
	}
	return "", nil
}
