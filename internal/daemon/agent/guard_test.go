package agent_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab/talos"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// guard judges what is done to nodes that work, by what the world shows at that instant
// and not by what an agent believes, over agents that come and go: none is taken down that
// was not drained, beside others that are out of service, at the cost of etcd's quorum, or
// more often than there was a reason for. Where people have just had a hand in a node,
// what was read a moment before may be out of date.
type guard struct {
	s *sim

	mu      sync.Mutex
	size    size                       // that the inventory has
	touched map[string]time.Time       // by node, when people had a hand in it last
	reasons map[string]int             // by node, how many there were to take it down
	boots   map[string]map[string]bool // by node, in which boots it was taken down
	down    map[string]string          // by node that was taken down and does not work again yet, the boot
	out     map[string]bool            // the nodes that the agent was seen to have out of service last
	misled  time.Time                  // when a list of pods was not what is there last

	orders    []order
	asked     map[string]order           // every order, by commit
	same      map[string]string          // by commit, one before that asks for the same
	made      bool                       // the cluster was Ready: its nodes are there, and no longer being made
	removals  int                        // how many machines may be deleted at once without approval
	approvals []approval                 // the last one is in force
	corrected map[string]time.Time       // by node, when it was edited by hand last
	had       map[string]map[string]bool // by node, what of it the inventory may have had when it last was so
	begins    map[string]beginning       // by node, until it is seen to be taken out of service
	deletable map[string]deletable       // machines, when one could be deleted last
	replaced  map[string]time.Time       // machines that were deleted because they were dead, since when
	idle      map[string]time.Time       // machines that do not work, whether they ever did or not, since when
	votes     map[string]vote            // by node that people have had a hand in, what it was of etcd
	downs     map[string]time.Time       // by node that is in down, since when
	served    time.Time                  // since when a kube-apiserver answers; zero: none does
	pushes    int                        // how many orders there were
	lost      map[string]bool            // machines that root takes for lost
	silent    map[string]time.Time       // machines that worked and do not, since when
	wentDown  map[string]descent         // by node with the agent's mark, when it went down
	works     map[string]time.Time       // machines that work, since when
	turned    map[string]time.Time       // by node, when it was in a turn last
	looked    time.Time                  // when the world was looked at last
	halted    map[string]bool            // machines that somebody has switched off
	kept      map[string]bool            // nodes that were protected or locked when they left the inventory
	drains    map[drain]time.Time        // of the orders, when each may have been in force last
	markedAt  map[string]time.Time       // by node with the agent's mark, since when
	hands     map[world.Call]int         // calls that people make now
	edits     map[editOf]handEdit        // what somebody has edited of its VM last
	cards     map[string]networkCard     // by node, how its VM was plugged in when it was looked at last
	moves     map[string][]networkMove   // by role, those of a moment ago
	left      map[string]time.Time       // by node whose etcd somebody has had leave, since when
}

// justTouched is how long it may take until what people do is seen: a kubelet that is
// silent is noticed after 40 s.
const justTouched = time.Minute

// misledFor is how long after a list of pods that was not true a node may go down that was
// drained by it.
const misledFor = 10 * time.Minute

func newGuard(s *sim, sz size) *guard {
	s.hops.guarded = true
	return &guard{s: s, size: sz, touched: map[string]time.Time{}, reasons: map[string]int{}, boots: map[string]map[string]bool{}, down: map[string]string{}, out: map[string]bool{},
		removals: max(s.Removals, 1), asked: map[string]order{}, same: map[string]string{}, corrected: map[string]time.Time{}, had: map[string]map[string]bool{}, begins: map[string]beginning{},
		deletable: map[string]deletable{}, replaced: map[string]time.Time{}, idle: map[string]time.Time{}, votes: map[string]vote{}, downs: map[string]time.Time{}, lost: map[string]bool{}, silent: map[string]time.Time{}, wentDown: map[string]descent{}, works: map[string]time.Time{}, turned: map[string]time.Time{},
		kept: map[string]bool{}, drains: map[drain]time.Time{}, markedAt: map[string]time.Time{}, hands: map[world.Call]int{}, edits: map[editOf]handEdit{}, cards: map[string]networkCard{}, moves: map[string][]networkMove{}, left: map[string]time.Time{}}
}

// vote is what a node was of an etcd.
type vote struct {
	etcd string
	at   time.Time
}

// touch notes that people have a hand in a node, before they have, and that it has a vote in etcd.
func (g *guard) touch(node string) {
	m, _ := g.machineOf(node)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.touched[node] = time.Now()
	if m.Etcd != "" && !m.Learner && m.Healthy {
		g.votes[node] = vote{m.Etcd, time.Now()}
	}
}

// permit notes a reason to take nodes down once.
func (g *guard) permit(nodes ...string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, n := range nodes {
		g.reasons[n]++
	}
}

// resize notes what the inventory has.
func (g *guard) resize(sz size) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.size = sz
}

// watch looks at every call but those of people.
func (g *guard) watch(c world.CallRecord) {
	if g.isByHand(c.Call) {
		return
	}
	_, op, _ := strings.Cut(c.Op, "/")
	op = op[strings.LastIndex(op, "/")+1:]
	if isLie(c) {
		g.mu.Lock()
		g.misled = time.Now()
		g.mu.Unlock()
	}
	switch {
	case c.System == "kube" && c.Op == "DELETE /api/v1/namespaces/{namespace}/pods/{name}":
		g.judgePod(c.Subject)
	case c.System == "kube" && c.Op == "PATCH /api/v1/nodes/{name}":
		g.judgeBudget("")
		g.watchBeginnings(c.Subject)
	case c.System == "kube" && g.awaitsBeginnings():
		g.judgeBudget("")
		g.watchBeginnings("")
	case c.System == "pve" && c.Mutating && strings.Contains(c.Op, "/qemu/{vmid}"):
		for _, vm := range g.s.Lab.PVE.VMs() {
			if fmt.Sprint(vm.VMID) == c.Subject && vm.Maker != "root@pam" {
				g.judgeLocked(vm.Config["name"], "has its VM changed ("+op+")")
				deletes := op == "stop" || strings.HasPrefix(c.Op, "DELETE ")
				g.watchDeletion(vm, deletes)
				if deletes {
					g.judgeForeign(vm)
					g.judgeEndpoint(vm.Config["name"])
				}
				if op == "start" {
					g.judgeStart(vm)
				}
				if strings.HasPrefix(c.Op, "POST ") && slices.Contains([]string{"shutdown", "stop", "reboot", "reset"}, op) {
					g.judge(vm.Config["name"], op == "stop")
				}
			}
		}
	case c.System == "talos" && slices.Contains([]string{"Reboot", "Reset", "Shutdown"}, op):
		g.judge(c.Subject, op == "Reset")
	}
}

// judgeLocked: nothing is done to a node that each order has locked which may be in force, but
// what root wants where it takes the machine for lost.
func (g *guard) judgeLocked(name, what string) {
	machine := g.machineByName()[name]
	g.mu.Lock()
	defer g.mu.Unlock()
	isFree := func(o order) bool { return !o.locked[name] }
	if len(g.orders) > 0 && !slices.ContainsFunc(g.orders, isFree) && !g.lost[machine] {
		g.s.Lab.World.Violate("locked", "%s %s, and is locked", name, what)
	}
}

// machineOf is the machine of a node; ok: it works.
func (g *guard) machineOf(name string) (found talos.MachineView, ok bool) {
	for _, m := range g.s.Lab.Talos.Machines() {
		if m.Node == name {
			return m, m.Stage == "running" && m.NodeReady && !m.Partition
		}
	}
	return talos.MachineView{}, false
}

// judge looks at the world when a node is about to go down, for good or not. One that does not work
// is judged by its etcd and its drain where it loses its machine; where it is up, and is to come
// back, by all that one is which works. What is asked for again in the same boot is not judged again.
func (g *guard) judge(name string, forGood bool) {
	m, works := g.machineOf(name)
	g.mu.Lock()
	isUp := works || !forGood && m.Configured && m.Stage != "" && !g.boots[name][m.BootID]
	g.mu.Unlock()
	if isUp {
		g.judgeBudget(name)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.judgeEdits()
	g.judgeEtcd(name, forGood)
	recently := time.Since(g.touched[name]) < justTouched
	if !recently && (isUp || forGood) {
		g.judgeDrain(name, m, works)
	}
	if !isUp {
		return
	}
	if !recently {
		g.judgeSwitches(name, m, forGood)
		g.judgeStaged(name, m.VMID)
	}
	if g.boots[name] == nil {
		g.boots[name] = map[string]bool{}
	}
	g.boots[name][m.BootID] = true
	if n := len(g.boots[name]); n > g.reasons[name] {
		g.s.Lab.World.Violate("turns", "%s is taken down the %d. time, and there were %d reasons", name, n, g.reasons[name])
	}
	if g.down[name] != m.BootID {
		g.down[name], g.downs[name] = m.BootID, time.Now()
	}
}

// isUndrainable reports whether a node that does not work cannot be drained, or has nothing to be
// drained of: no kube-apiserver answers, or its kubelet has not reported since it booted, for long.
// The lock is held.
func (g *guard) isUndrainable(n *unstructured.Unstructured, m talos.MachineView) bool {
	boot, _, _ := unstructured.NestedString(n.Object, "status", "nodeInfo", "bootID")
	machine := g.machines()[m.VMID]
	return g.served.IsZero() || time.Since(g.served) < underWay || boot == "" || boot != m.BootID && g.isLongIdle(machine)
}

// judgeDrain: a node that goes down is cordoned, and nothing is on it that could be
// somewhere else. Pods of one that does not work may be ending. The lock is held.
func (g *guard) judgeDrain(name string, m talos.MachineView, works bool) {
	n := g.nodeObject(name)
	if n == nil {
		return // somebody has deleted it, and nothing can be drained
	}
	if !works && g.isUndrainable(n, m) {
		return
	}
	if cordoned, _, _ := unstructured.NestedBool(n.Object, "spec", "unschedulable"); !cordoned {
		g.s.Lab.World.Violate("drain", "%s goes down, and is not cordoned", name)
	}
	for _, p := range g.s.Lab.Kube.Objects("", schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "") {
		stays := toleratesCordons(p) || slices.ContainsFunc(p.GetOwnerReferences(), func(o metav1.OwnerReference) bool { return o.Kind == "DaemonSet" || o.Kind == "Node" })
		stays = stays || !works && p.GetDeletionTimestamp() != nil
		if on, _, _ := unstructured.NestedString(p.Object, "spec", "nodeName"); on == name && !stays && time.Since(g.misled) > misledFor {
			g.s.Lab.World.Violate("drain", "%s goes down, and pod %s is on it", name, p.GetName())
		}
	}
}

// toleratesCordons reports whether a pod that was evicted may come back to a node that is
// cordoned, as Cilium's operator does.
func toleratesCordons(pod unstructured.Unstructured) bool {
	all, _, _ := unstructured.NestedSlice(pod.Object, "spec", "tolerations")
	return slices.ContainsFunc(all, func(t any) bool {
		m, _ := t.(map[string]any)
		return m["operator"] == "Exists" && (m["key"] == nil || m["key"] == "node.kubernetes.io/unschedulable")
	})
}

// descent is a node that goes down.
type descent struct {
	boot, turn string // turn: what for, by the agent's mark
	pushes     int    // how many orders there were
	at         time.Time
}

// judgeSwitches: a node that goes down was begun to be taken out of service when that was not
// forbidden, and goes down once for that: it does not go down again in the same turn, where there is
// no other order, and no person has intervened. The lock is held.
func (g *guard) judgeSwitches(name string, m talos.MachineView, forGood bool) {
	machine := g.machines()[m.VMID]
	why := g.forbids(name, machine, forGood)
	turn := g.marked()[name]
	before, now := g.wentDown[name], descent{m.BootID, turn, g.pushes, time.Now()}
	again := turn != "" && before.boot != "" && before.boot != now.boot
	if !again && before.boot == now.boot {
		now.at = before.at
	}
	if g.wentDown[name] = now; why != "" && (turn == "" || again) {
		g.s.Lab.World.Violate("switches", "%s goes down, for %q, again %v: %s", name, turn, again, why)
	}
	if again && before.turn == turn && before.pushes == now.pushes && !forGood && before.at.After(g.corrected[name]) && before.at.After(g.touched[name]) {
		g.s.Lab.World.Violate("turns", "%s goes down a second time in its turn", name)
	}
}

// judgeStaged: a node that goes down does not boot what somebody has staged. The lock is held.
func (g *guard) judgeStaged(name string, vmid int) {
	if running, saved := g.s.Lab.Talos.ConfigsOf(vmid); strings.Contains(saved, handMark) && !strings.Contains(running, handMark) {
		g.s.Lab.World.Violate("staged", "%s goes down, and boots what somebody has staged", name)
	}
}

// judgeEtcd: without a control plane that goes down, whether it works or not, those voters of
// its etcd that answer are a majority, unless it is the only one; and one that goes for good is no
// member. Voters that people have just had a hand in count as they may have been before. The
// lock is held.
func (g *guard) judgeEtcd(name string, forGood bool) {
	m, _ := g.machineOf(name)
	if m.Etcd != "" && forGood {
		g.s.Lab.World.Violate("quorum", "%s is deleted, and is a member of etcd", name)
	}
	if m.Etcd == "" || m.Learner || m.Voters == 1 {
		return
	}
	had := func(node string) bool { // a vote, a moment ago
		v := g.votes[node]
		return v.etcd == m.Etcd && time.Since(v.at) < justTouched
	}
	others, off, on := 0, m.Voters, map[string]bool{}
	for _, o := range g.s.Lab.Talos.Machines() {
		if on[o.Node] = true; o.Etcd != m.Etcd || o.Learner {
			continue
		}
		if off--; o.Node != name && (o.Healthy || had(o.Node)) {
			others++
		}
	}
	for node := range g.votes { // those that are off, or deleted, and still voters
		if off > 0 && !on[node] && had(node) {
			others, off = others+1, off-1
		}
	}
	if others < m.Voters/2+1 {
		g.s.Lab.World.Violate("quorum", "%s goes down, and %d other voters of %d answer", name, others, m.Voters)
	}
}

// judgeBudget counts the nodes that the agent has out of service, with one that goes down
// now. Where fewer may be than were, those that are out of service by then go down one after the
// other.
func (g *guard) judgeBudget(going string) {
	out, marked := g.outOfService(), g.marked()
	g.mu.Lock()
	defer g.mu.Unlock()
	if going != "" {
		out[going] = true
	}
	for prefix, most := range map[string]int{"dev-cp-": 1, "dev-wk-": g.mostWorkers()} {
		isOther := func(n string) bool { return !strings.HasPrefix(n, prefix) }
		names := slices.DeleteFunc(slices.Sorted(maps.Keys(out)), isOther)
		added := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return g.out[n] })
		isNew, had := len(added) > 0, func(string) bool { return false }
		if !slices.ContainsFunc(added, func(n string) bool { _, works := g.machineOf(n); return works }) {
			had = func(n string) bool { // its time to come up, after which the next one that does not work may go
				at, down := g.downs[n]
				return n != going && down && marked[n] == "" && time.Since(at) > deadFor-underWay
			}
		}
		names = slices.DeleteFunc(names, had)
		if going == "" { // to cordon what does not work takes nothing out of service yet
			idle := func(n string) bool { _, works := g.machineOf(n); return slices.Contains(added, n) && !works }
			names = slices.DeleteFunc(names, idle)
			maps.DeleteFunc(out, func(n string, _ bool) bool { return idle(n) })
			isNew = slices.ContainsFunc(names, func(n string) bool { return slices.Contains(added, n) })
		}
		if len(names) > most && isNew && (going == "" || strings.HasPrefix(going, prefix)) {
			g.s.Lab.World.Violate("budget", "%v are out of service by the agent, and %d may be (%q goes down)", names, most, going)
		}
		down := slices.DeleteFunc(slices.Sorted(maps.Keys(g.down)), func(n string) bool {
			m, _ := g.machineOf(n)
			return isOther(n) || n == going || had(n) || m.BootID == g.down[n] // it may be up still, when the request was lost
		})
		if len(down) >= most && strings.HasPrefix(going, prefix) {
			g.s.Lab.World.Violate("budget", "%s goes down, %v are down by the agent, and %d may be", going, down, most)
		}
	}
	g.out = out
}

// mostWorkers is how many workers may be out of service at once, by the orders that may be in
// force. The lock is held.
func (g *guard) mostWorkers() int {
	most := 1
	for _, o := range g.orders {
		most = max(most, o.unavailable)
	}
	return most
}

// outOfService are the nodes that the agent has taken out of service: those that carry its
// mark and a cordon, and those that it took down and that do not work again. What root took
// for lost, or is dead, was out of service before.
func (g *guard) outOfService() map[string]bool {
	out, machines := map[string]bool{}, g.machineByName()
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, n := range g.nodes() {
		if cordoned, _, _ := unstructured.NestedBool(n.Object, "spec", "unschedulable"); cordoned && n.GetAnnotations()[cluster.AnnotationTurn] != "" && !g.hasLeft(n.GetName()) && !g.isGivenUp(n.GetName(), machines[n.GetName()]) {
			out[n.GetName()] = true
		}
	}
	for name, boot := range g.down {
		m, works := g.machineOf(name)
		switch {
		case works && m.BootID != boot:
			delete(g.down, name)
			delete(g.downs, name)
			g.turned[name] = time.Now()
		case g.hasLeft(name):
			delete(g.down, name)
			delete(g.downs, name)
		case m.BootID != boot: // it may be up still, when the request was lost
			out[name] = true
		}
	}
	return out
}

// isGivenUp reports whether root takes the machine of a node for lost, or it is dead and to be replaced
// for that. The lock is held.
func (g *guard) isGivenUp(name, machine string) bool {
	_, works := g.machineOf(name)
	return g.lost[machine] || !works && slices.ContainsFunc(g.orders, func(o order) bool { return g.isDead(o, machine) })
}

// hasLeft reports whether a node is not in the inventory by an order that may be in force, and its VM
// was deleted: it does not come back by that. A push that has it again may not have been read. The lock
// is held.
func (g *guard) hasLeft(name string) bool {
	stays := func(sz size) bool {
		for n := range sz.ControlPlanes + sz.Workers {
			if sz.Name(n) == name {
				return true
			}
		}
		return false
	}
	leaves := !stays(g.size) || slices.ContainsFunc(g.orders, func(o order) bool { return !stays(o.size) })
	return leaves && !slices.ContainsFunc(g.s.Lab.PVE.VMs(), func(vm vmView) bool { return vm.Config["name"] == name })
}

// nodes are the Node objects.
func (g *guard) nodes() []unstructured.Unstructured {
	return g.s.Lab.Kube.Objects("", schema.GroupVersionResource{Version: "v1", Resource: "nodes"}, "")
}

// countDowns counts how often nodes were taken down.
func (g *guard) countDowns() (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, boots := range g.boots {
		n += len(boots)
	}
	return n
}

// nodeObject is the Node object of a node; nil: there is none.
func (g *guard) nodeObject(name string) *unstructured.Unstructured {
	for _, n := range g.nodes() {
		if n.GetName() == name {
			return &n
		}
	}
	return nil
}

// wantInService checks that no node is left out of service.
func (g *guard) wantInService() {
	g.s.T.Helper()
	if got := g.s.cordoned(); len(got) > 0 {
		g.s.T.Errorf("left cordoned: %v", got)
	}
	for name := range g.outOfService() {
		g.s.T.Errorf("%s was taken down and does not work again", name)
	}
}
