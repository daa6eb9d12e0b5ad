package proxmox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/availability"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/hardware"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/pveconf"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/recent"
)

// Observe looks at the hosts and VMs of a cluster and fills in o.Hosts, o.VMs,
// o.Orphans and o.Availability. It never fails: what it could not see is unknown, with the
// reason.
//
// A pass over a cluster in which nothing happens asks for the list of everything, the running tasks of every host, and the
// configurations of ten VMs, or of one in AuditEvery where that is more. A VM is looked at directly when it is new, is not
// running, has a task, was changed by us, or its line in the list is not what it was. A running VM that pauses is noticed only then.
func (c *Client) Observe(ctx context.Context, d cluster.Desired, o *cluster.Observed) {
	c.accessLog.CheckOnce()
	l := &look{c: c, ctx: recent.With(ctx), d: d, destroying: o.Facts.Destroying(), dead: o.DeadSince, since: o.Facts.Looked, now: time.Now(),
		guests: map[int]row{}, tasks: map[string]hostTasks{}, vms: map[int]seen{}}
	if err := l.list(); err != nil {
		o.Hosts, o.VMs, o.Orphans = l.unknownAll(err)
		if d.Spec.Availability {
			o.Availability = cluster.Unseen[availability.Manager](o.Orphans.Why)
		}
		return
	}
	l.askTasks()
	l.nodes()
	o.Orphans = l.findOrphans()
	o.VMs = map[string]cluster.VM{}
	for i, n := range d.Spec.Nodes {
		o.VMs[n.Name] = l.found[i]
	}
	o.Hosts = l.hosts()
	o.Availability = l.availability(o)
	if o.Orphans.Known {
		c.prune(l.guests)
	}
}

// look is one pass of observation.
type look struct {
	c          *Client
	ctx        context.Context
	d          cluster.Desired
	destroying bool
	dead       map[string]time.Time // nodes that look dead, as the pass before had it
	since      time.Time            // until then an earlier process saw all changes; zero: not known
	now        time.Time

	rows   []row
	guests map[int]row
	names  []string // of the hosts that matter
	tasks  map[string]hostTasks

	found []cluster.VM // by index of the node
	quiet bool         // every node's VM runs as it ran before

	mu  sync.Mutex
	vms map[int]seen // what was read directly, by VMID
}

type hostTasks struct {
	running []task
	err     error
}

// seen is what reading a VM came to.
type seen struct {
	facts facts
	err   error
}

// list reads the one list everything else starts from.
func (l *look) list() error {
	if err := l.c.get(l.ctx, "/cluster/resources", nil, &l.rows); err != nil {
		return err
	}
	// Every host is in the list, whatever a token may see: one without any is
	// not the whole list.
	if !slices.ContainsFunc(l.rows, func(r row) bool { return r.Type == "node" }) {
		return errors.New("GET /cluster/resources: the list has no host in it, so that it cannot be complete")
	}
	hosts := map[string]bool{}
	ids := map[int]bool{}
	for _, n := range l.d.Spec.Nodes {
		ids[n.VMID] = true
		for _, host := range n.Placement.Hosts() {
			hosts[host] = true
		}
	}
	pools := l.pools()
	for _, r := range l.rows {
		if !r.isGuest() {
			continue
		}
		vmid := int(r.VMID.Number())
		l.guests[vmid] = r
		if ids[vmid] || pools[string(r.Pool)] {
			hosts[string(r.Node)] = true
		}
	}
	delete(hosts, "")
	l.names = slices.Sorted(maps.Keys(hosts))
	return nil
}

// pools are the pools in which VMs of the cluster may lie.
func (l *look) pools() map[string]bool {
	pools := map[string]bool{l.c.pool: true}
	for _, n := range l.d.Spec.Nodes {
		pools[l.c.poolOf(n)] = true
	}
	return pools
}

// identity is who the VM of a node of the inventory must be.
func (l *look) identity(n cluster.Node) identity {
	return identity{vmid: n.VMID, pool: l.c.poolOf(n), uuid: cluster.NodeUUID(l.d.Spec.ID, n.Name), node: n.Name}
}

// unknownAll returns what is seen when the list cannot be read: nothing.
func (l *look) unknownAll(err error) (map[string]cluster.Host, map[string]cluster.VM, cluster.Seen[[]cluster.VM]) {
	why := "Proxmox VE cannot be asked: " + formatReason(err)
	hosts, vms := map[string]cluster.Host{}, map[string]cluster.VM{}
	for _, n := range l.d.Spec.Nodes {
		for _, host := range n.Placement.Hosts() {
			hosts[host] = cluster.Host{Name: host, Why: why, Quorate: cluster.Unseen[bool](why), Storages: cluster.Unseen[map[string]cluster.Storage](why),
				Images: cluster.Unseen[map[string]int64](why), Tasks: cluster.Unseen[[]cluster.Task](why)}
		}
		host := n.Placement.Pin
		if len(n.Placement.Among) > 0 { // where it was seen last
			before, _ := l.c.recall(n.VMID)
			host = string(before.row.Node)
		}
		vms[n.Name] = cluster.VM{VMID: n.VMID, Node: n.Name, Host: host, Why: why, Hardware: cluster.Unseen[cluster.Hardware](why)}
	}
	return hosts, vms, cluster.Unseen[[]cluster.VM](why)
}

// formatReason puts an error and its hint into one line, for reasons of things not
// seen.
func formatReason(err error) string {
	hint := fault.HintOf(err)
	if hint == "" && errors.Is(err, syscall.ECONNREFUSED) {
		hint = "does it run? `systemctl status pveproxy`; proxmox.url of the host config says where it is asked"
	}
	if hint != "" {
		return fmt.Sprintf("%s (%s)", sanitize(err.Error()), hint)
	}
	return sanitize(err.Error())
}

// askTasks asks every host what runs on it.
func (l *look) askTasks() {
	out := make([]hostTasks, len(l.names))
	runEach(len(l.names), func(i int) {
		if !hardware.HostPattern.MatchString(l.names[i]) {
			out[i].err = fmt.Errorf("%q is no name of a host", l.names[i])
			return
		}
		tasks, err := l.c.activeTasks(l.ctx, l.names[i])
		tasks = slices.DeleteFunc(tasks, func(t task) bool { return !t.running })
		l.readLogs(tasks)
		out[i] = hostTasks{running: tasks, err: err}
	})
	for i, name := range l.names {
		l.tasks[name] = out[i]
	}
}

// readLogs reads the end of the log of each task of ours that takes long, for people: what cannot be read is not shown.
func (l *look) readLogs(tasks []task) {
	for i, t := range tasks {
		if !l.c.ours(t.upid) || l.now.Sub(t.started) < logAfter {
			continue
		}
		tail, err := l.c.taskLog(l.ctx, t.upid)
		if err != nil {
			l.c.log.Debug("cannot read the log of a task", logging.UPID, t.text, logging.Err, err)
			continue
		}
		tasks[i].log = tail
	}
}

// silentEvery is how often the VM of a machine that does not answer is looked at directly:
// a paused one is listed as running.
const silentEvery = 10 * time.Second

// nodes looks at the VMs of the inventory's nodes: those that are settled by the list and by what is remembered, all others directly.
func (l *look) nodes() {
	nodes := l.d.Spec.Nodes
	l.found = make([]cluster.VM, len(nodes))
	known, ages := map[int]facts{}, map[int]time.Time{}
	var direct []int
	for i, n := range nodes {
		if f, ok := l.settled(n.VMID); ok && !(slices.Contains(l.d.Silent, n.Name) && l.now.Sub(f.looked) >= silentEvery) {
			known[n.VMID], ages[n.VMID] = f, f.read
		} else {
			direct = append(direct, i)
		}
	}
	l.quiet = len(direct) == 0 && !l.destroying
	audits := l.audits(ages)
	runEach(len(direct)+len(audits), func(j int) {
		if j >= len(direct) {
			l.audit(audits[j-len(direct)])
			return
		}
		l.found[direct[j]] = l.directly(nodes[direct[j]])
	})
	for i, n := range nodes {
		f, ok := known[n.VMID]
		if !ok {
			continue
		}
		// An audit that was not answered leaves what is known as it is.
		if s, ok := l.vms[n.VMID]; ok && s.err == nil {
			f = s.facts
		}
		l.found[i] = l.describe(f, l.guests[n.VMID], l.identity(n))
	}
}

// settled returns what is remembered of a VM that need not be looked at: it was running when it was, nothing happens on it, and
// its row is what it was. Nor need one that we switch on or off: nothing is planned for it before that task has ended, and then
// it is forgotten.
func (l *look) settled(vmid int) (facts, bool) {
	r, listed := l.guests[vmid]
	f, ok := l.c.recall(vmid)
	host := string(r.Node)
	if !listed || !ok || r.Lock != "" || l.destroying || !f.still(r) || l.tasks[host].err != nil {
		return facts{}, false // what is to be deleted is looked at itself
	}
	if t := l.taskOn(vmid, host); t != nil {
		return f, t.Ours && (t.Type == "qmstart" || t.Type == "qmshutdown")
	}
	return f, r.Status == "running" && f.power == cluster.PowerRunning
}

// audits chooses whose configuration is read although nothing seems to have
// changed: some of the settled nodes, whose ages are given, and of the guests
// in our pools without an owner.
func (l *look) audits(ages map[int]time.Time) []int {
	nodes := map[int]bool{}
	for _, n := range l.d.Spec.Nodes {
		nodes[n.VMID] = true
	}
	for vmid, r := range l.candidates() {
		if nodes[vmid] {
			continue
		}
		if f, ok := l.c.recall(vmid); ok && f.still(r) && !provenOthers(f, l.d.Spec.ID) {
			ages[vmid] = f.read
		}
	}
	return l.c.due(l.d.Spec.ID, l.d.Revision, ages, l.now)
}

// audit reads a configuration again and keeps the rest of what is known.
func (l *look) audit(vmid int) {
	r, touches := l.guests[vmid], l.c.touches(vmid)
	f, _ := l.c.recall(vmid)
	asked := time.Now() // a Forget that came after the pass began is met by this read
	conf, active, err := l.c.config(l.ctx, string(r.Node), vmid)
	switch {
	case err == nil:
		before := f
		f.configured(conf, active, vmid, l.c.recent.Asked(asked, vmPath(string(r.Node), vmid, "pending")))
		l.findChanger(vmid, touches, []string{string(r.Node)}, before, f)
		l.c.remember(vmid, touches, f)
	case isAnswered(err):
		l.c.forget(vmid)
	}
	l.keep(vmid, f, err)
}

func (l *look) keep(vmid int, f facts, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.vms[vmid] = seen{f, err}
}

// directly looks at the VM of a node itself.
func (l *look) directly(n cluster.Node) cluster.VM {
	id := l.identity(n)
	r, listed := l.guests[n.VMID]
	hosts := n.Placement.Hosts()
	if listed {
		hosts = []string{string(r.Node)}
	}
	host, task := l.taskAmong(n.VMID, hosts)
	if !listed {
		before, known := l.c.recall(n.VMID)
		if known { // whether its VMID is free is asked again
			l.c.forget(n.VMID)
			l.c.recent.Clear()
		}
		was := hosts
		if at := string(before.row.Node); at != "" {
			was = []string{at}
		}
		l.findChanger(n.VMID, l.c.touches(n.VMID), was, before, facts{})
	}
	changed := l.c.lastChange(n.VMID)
	vm := cluster.VM{VMID: n.VMID, Node: n.Name, Host: host, Task: task, ChangedBy: changed.by, ChangedWith: changed.with, ChangedAfter: changed.after}
	if listed && wrongPlace(r, id) == "" {
		return l.inspect(r, id)
	}
	if vm.Task != nil && vm.Task.Type == "qmcreate" {
		return l.inTheMaking(vm)
	}
	if listed && (r.Type != "qemu" || r.Pool != "") {
		return l.outside(vm, r, id)
	}
	h, err := l.c.behind(l.ctx, id, hosts...)
	vm.Host = cmp.Or(h.host, vm.Host)
	switch {
	case err != nil:
		if listed {
			vm.Presence = cluster.Present
		}
		vm.Why = formatReason(err)
	case h.is == nothing && listed:
		vm.Why = "it went away while it was looked at"
	case h.is == nothing:
		vm.Presence = cluster.Absent
	case h.is == movedOut && listed:
		return l.outside(vm, r, id)
	case h.is == movedOut: // a list that is older than the answer
		vm.Why = h.why
	case h.is == beingMade:
		describeTask := l.c.describeTask(h.task)
		vm.Task = &describeTask
		return l.inTheMaking(vm)
	case h.is == justMade:
		return l.inspect(h.row, id)
	case h.is == leftLocked:
		vm.Presence, vm.Owner, vm.Power, vm.Lock, vm.Why = cluster.Present, cluster.Ours, cluster.Stopped, "create", h.why
	default:
		vm.Presence, vm.Owner, vm.Why = cluster.Present, cluster.Foreign, h.why
		vm.Disproven = disproves(l.factsOf(h.conf, n.VMID), id, l.d.Spec.ID)
		if listed {
			vm.Why = wrongPlace(r, id)
		}
	}
	return l.unread(vm, vm.Why)
}

// outside describes a guest with the VMID of a node in another pool than the node's. It
// is not ours to touch, even if it was: by its UUID it is known again.
func (l *look) outside(vm cluster.VM, r row, id identity) cluster.VM {
	vm.Presence, vm.Owner, vm.Why = cluster.Present, cluster.Foreign, wrongPlace(r, id)
	if r.Type != "qemu" {
		vm.Disproven = true
		return l.unread(vm, vm.Why)
	}
	var conf pveconf.Options
	if l.c.get(l.ctx, vmPath(vm.Host, id.vmid, "config"), nil, &conf) == nil {
		f := l.factsOf(conf, id.vmid)
		vm.Disproven = disproves(f, id, l.d.Spec.ID)
		if f.uuid == id.uuid {
			vm.Moved, vm.Pool = true, string(r.Pool)
		}
	}
	return l.unread(vm, vm.Why)
}

// factsOf is what a configuration shows.
func (l *look) factsOf(conf pveconf.Options, vmid int) facts {
	var f facts
	f.configured(conf, nil, vmid, l.now)
	return f
}

// inTheMaking is a VM that a task of ours creates: until that ends nothing else can be seen of it.
func (l *look) inTheMaking(vm cluster.VM) cluster.VM {
	vm.Presence, vm.Why = cluster.Present, "it is being created"
	return l.unread(vm, vm.Why)
}

func (l *look) unread(vm cluster.VM, why string) cluster.VM {
	vm.Hardware = cluster.Unseen[cluster.Hardware](why)
	return vm
}

// inspect reads the state and the configuration of a VM that lies in the right pool.
func (l *look) inspect(r row, id identity) cluster.VM {
	f, err := l.readVM(r, id.vmid)
	if err != nil {
		vm := cluster.VM{VMID: id.vmid, Node: id.node, Host: string(r.Node), Presence: cluster.Present, Why: formatReason(err), Task: l.taskOn(id.vmid, string(r.Node))}
		return l.unread(vm, vm.Why)
	}
	return l.describe(f, r, id)
}

// config reads the configuration of a VM as it is from its next start on, and the one it runs with, where changes wait for that; nil: none do.
func (c *Client) config(ctx context.Context, host string, vmid int) (next, active pveconf.Options, err error) {
	var rows pveconf.Pending
	if err := c.get(ctx, vmPath(host, vmid, "pending"), nil, &rows); err != nil {
		return nil, nil, err
	}
	next, active = rows.Options()
	return next, active, nil
}

// readVM reads all there is to know of a VM, and remembers it.
func (l *look) readVM(r row, vmid int) (facts, error) {
	host, touches := string(r.Node), l.c.touches(vmid)
	s, err := l.c.current(l.ctx, host, vmid)
	if err != nil {
		return facts{}, err
	}
	conf, active, err := l.c.config(l.ctx, host, vmid)
	if err != nil {
		return facts{}, err
	}
	asked := l.c.recent.Asked(l.now, vmPath(host, vmid, "status", "current"), vmPath(host, vmid, "pending"))
	f := facts{row: r.steady(), uptime: r.Uptime.Number(), power: powerOf(s), halted: s.Halt(), up: time.Duration(s.Uptime.Number()) * time.Second, managed: s.HA.Managed.On(), looked: asked}
	f.configured(conf, active, vmid, asked)
	before, _ := l.c.recall(vmid)
	l.findChanger(vmid, touches, []string{host}, before, f)
	l.c.remember(vmid, touches, f)
	l.keep(vmid, f, nil)
	return f, nil
}

// describe puts what is known of a VM in the right pool into the terms of the
// observed world.
func (l *look) describe(f facts, r row, id identity) cluster.VM {
	changed := l.c.lastChange(id.vmid)
	vm := cluster.VM{
		VMID: id.vmid, Node: id.node, Presence: cluster.Present, Name: f.name, Host: string(r.Node),
		Power: f.power, Halted: f.halted, Uptime: f.up, Lock: f.lock, HA: sanitize(string(r.HA)), Protected: f.guarded, Managed: f.managed, Others: f.others, Tags: f.tags, Task: l.taskOn(id.vmid, string(r.Node)),
		ChangedBy: changed.by, ChangedWith: changed.with, ChangedAfter: changed.after,
		Hardware: cluster.Saw(f.hw), Active: f.active, ConfigAge: l.now.Sub(f.read),
	}
	if up := time.Duration(r.Uptime.Number()) * time.Second; up > vm.Uptime && f.power == cluster.PowerRunning {
		vm.Uptime = up
	}
	switch {
	case f.uuid == id.uuid:
		vm.Owner, vm.Deleting = cluster.Ours, f.marked && f.mark.Deleting
		if f.marked {
			vm.Replace = f.mark.Replace
		}
		vm.Unmarked, vm.Untaggable, vm.Seedless = !f.marked || f.mark.Cluster != l.d.Spec.ID || f.mark.Node != id.node, l.c.isUntagged(id.vmid), !f.seeded
		// A tag that Proxmox VE refuses is not missing: the VM is as complete
		// as it can get.
		if l.c.isUntagged(id.vmid) && !slices.Contains(vm.Tags, cluster.OwnTag) {
			vm.Tags = append(slices.Clone(vm.Tags), cluster.OwnTag)
		}
	case f.uuid == "" && f.lock != "":
		vm.Why = fmt.Sprintf("it is locked (%s), and shows nothing of itself meanwhile", f.lock)
		vm.Hardware = cluster.Unseen[cluster.Hardware](vm.Why)
	default:
		vm.Owner, vm.Why = cluster.Foreign, wrongUUID(f.uuid, id)
		vm.Disproven = disproves(f, id, l.d.Spec.ID)
	}
	return vm
}
