package agent_test

import (
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/window"
)

// order is what one push asks for, as far as it bounds what may be done to nodes. Which of
// them is in force depends on what the agent has fetched: the last one that it is known to
// have read, or any later one.
type order struct {
	commit string
	size   size
	window window.Window
	apply  string
	tokens map[string]string // by node that is to be replaced
	locked map[string]bool   // by node that is left alone
	// observe: what somebody else has changed stays. replaceDead: nodes that are dead get new
	// machines.
	observe, replaceDead bool
	allowEven            bool              // a control plane may leave an even number of them behind
	protected            map[string]bool   // by node whose VM is kept
	drain                drain             // what becomes of pods that may not be evicted
	unavailable          int               // how many workers may be out of service at once
	of                   map[string]string // by node, what it asks for of its VM and its machine config
	over                 time.Time         // when a later one was read; zero: not yet
}

// underWay is how long what was decided may be on its way: what it is decided on is looked
// at before, a call may take 90 s, and one that fails is tried again.
const underWay = 3 * time.Minute

// deadFor is for how long a node is dead, where it is to be replaced then.
const deadFor = 10 * time.Minute

// orderNext notes what is asked for next.
func (g *guard) orderNext(o order) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.noteKept(o)
	g.orders = append(g.orders, o)
	g.pushes++
	for node := range g.had {
		if of, ok := o.of[node]; !ok {
			delete(g.had, node) // it is made again when it is asked for again
		} else if o.apply == "auto" {
			g.had[node][of] = true
		}
	}
}

// named gives the newest order its commit. Where one that may be in force asks for the same, what is
// approved of that holds for this one.
func (g *guard) named(commit string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	last := len(g.orders) - 1
	g.orders[last].commit = commit
	g.asked[commit] = g.orders[last]
	for _, o := range g.orders[:last] {
		if o.over.IsZero() && o.asksSame(g.orders[last]) {
			g.same[commit] = o.commit
		}
	}
}

// asksSame reports whether two orders ask for the same.
func (o order) asksSame(other order) bool {
	o.commit, o.over = other.commit, other.over
	return reflect.DeepEqual(o, other)
}

// read notes the newest commit that the agent has read. One whose inventory is invalid ends
// nothing.
func (g *guard) read(commit string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range slices.IndexFunc(g.orders, func(o order) bool { return o.commit == commit }) {
		if g.orders[i].over.IsZero() {
			g.orders[i].over = time.Now()
		}
	}
	g.orders = slices.DeleteFunc(g.orders, func(o order) bool { return !o.over.IsZero() && time.Since(o.over) > underWay })
}

// correct notes that somebody edits a node by hand, so that it may be corrected.
func (g *guard) correct(node string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.corrected[node] = time.Now()
}

// loses notes that root takes the machine of a node for lost. What it returns takes that back, where
// it was refused; what was accepted before is in force all the same.
func (g *guard) loses(machine string) (takeBack func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	before := g.lost[machine]
	g.lost[machine] = true
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if !before {
			delete(g.lost, machine)
		}
	}
}

// isTouched reports whether people have just had a hand in a node.
func (g *guard) isTouched(node string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return time.Since(g.touched[node]) < justTouched
}

// machines identifies the VMs that are there, by VMID: another one has another id.
func (g *guard) machines() map[int]string {
	out := map[int]string{}
	for _, vm := range g.s.Lab.PVE.VMs() {
		out[vm.VMID] = vm.Config["vmgenid"]
	}
	return out
}

// forbids is why no order that may be in force lets a node that is up be taken out of service, to
// lose its machine or to be changed; "": one does. The lock is held.
func (g *guard) forbids(node, machine string, toLose bool) (why string) {
	vms := g.s.Lab.PVE.VMs()
	_, works := g.machineOf(node)
	for _, o := range g.orders {
		isDead := toLose && !works && (g.lost[machine] || g.isDead(o, machine))
		switch {
		case !isDead && !o.isOpen(time.Now()) && (toLose || !g.isLongIdle(machine) && !g.hasLeftEtcd(node)):
			why = fmt.Sprintf("the window is %s", o.window)
		case !g.made: // nothing but the window holds back what is being made
			return ""
		case toLose:
			if why = g.forbidsLoss(o, vms, node, machine, works); why == "" {
				return ""
			}
		default:
			if why = g.forbidsChange(o, node); why == "" {
				return ""
			}
		}
	}
	return why
}

// isLongIdle reports whether a machine has not worked for so long that its node may be given another
// machine config at any time. The lock is held.
func (g *guard) isLongIdle(machine string) bool {
	since, idle := g.idle[machine]
	return idle && time.Since(since) > deadFor-justTouched
}

// isOpen reports whether the window of an order is open, or was a moment ago.
func (o order) isOpen(at time.Time) bool {
	for ago := time.Duration(0); ago <= underWay; ago += 30 * time.Second {
		if o.window.IsOpen(at.Add(-ago)) {
			return true
		}
	}
	return false
}

// beginning is a call that may take a node out of service.
type beginning struct {
	at     time.Time // the newest one
	change verdict   // if it is for a change
	loss   verdict   // if it is for another machine, or none
}

// verdict is whether something that is asked for again and again is forbidden.
type verdict struct {
	lawful time.Time // when it was not last
	why    string    // it is now
}

// next is the verdict of now.
func (v verdict) next(why string) verdict {
	if v.why = why; why == "" {
		v.lawful = time.Now()
	}
	return v
}

// watchBeginnings judges which nodes are begun to be taken out of service: their Node objects
// have the agent's mark after a call of which it knows that they may be. patched: what a call
// is about.
func (g *guard) watchBeginnings(patched string) {
	machines, marked := g.machineByName(), g.marked()
	g.mu.Lock()
	defer g.mu.Unlock()
	if patched != "" && marked[patched] == "" {
		b := g.begins[patched]
		b.at = time.Now()
		b.change = b.change.next(g.forbids(patched, machines[patched], false))
		why := ""
		if machines[patched] != "" { // else it has lost it already
			why = g.forbids(patched, machines[patched], true)
		}
		b.loss = b.loss.next(why)
		g.begins[patched] = b
	}
	for name, b := range g.begins {
		turn, isMarked := marked[name]
		if isMarked {
			delete(g.wentDown, name)
			v := b.change
			if turn == cluster.TurnRemoval {
				v = b.loss
			}
			if v.why != "" && b.at.Sub(v.lawful) > underWay && time.Since(g.touched[name]) > justTouched {
				g.s.Lab.World.Violate("switches", "%s is taken out of service: %s", name, v.why)
			}
		}
		if isMarked || time.Since(b.at) > underWay {
			delete(g.begins, name)
		}
	}
}

// marked are the nodes that carry the agent's mark, with what for.
func (g *guard) marked() map[string]string {
	out := map[string]string{}
	for _, n := range g.nodes() {
		if turn := n.GetAnnotations()[cluster.AnnotationTurn]; turn != "" {
			out[n.GetName()] = turn
		}
	}
	return out
}

// machineByName identifies the VMs of nodes.
func (g *guard) machineByName() map[string]string {
	out := map[string]string{}
	for _, vm := range g.s.Lab.PVE.VMs() {
		if vm.Maker != "root@pam" {
			out[vm.Config["name"]] = vm.Config["vmgenid"]
		}
	}
	return out
}

// watchDeletion judges whether the machine of a node may be deleted, whose VM is changed in some
// way: the node is not in the inventory, or is to have another machine, and no more machines
// are to be deleted than may be without approval. What has begun may end.
func (g *guard) watchDeletion(vm vmView, deletes bool) {
	name, machine := vm.Config["name"], vm.Config["vmgenid"]
	_, works := g.machineOf(name)
	g.mu.Lock()
	defer g.mu.Unlock()
	why, asDead := g.forbidsDeletion(name, machine, works)
	last, ever := g.deletable[machine]
	mark, _ := cluster.ParseMark(vm.Config["description"])
	switch {
	case why == "":
		last = deletable{time.Now(), asDead}
		g.deletable[machine] = last
	case !deletes, ever && time.Since(last.at) < underWay, ever && mark.Deleting:
	default:
		g.s.Lab.World.Violate("deletion", "the machine of %s is deleted: %s", name, why)
	}
	if deletes && last.asDead {
		g.watchReplacement(name, machine)
	}
}

// deletable is when a machine could be deleted last.
type deletable struct {
	at     time.Time
	asDead bool // for no other reason than that
}

// watchReplacement judges when a machine is deleted for no other reason than that it is dead: no other
// one was within the hour. The lock is held.
func (g *guard) watchReplacement(name, machine string) {
	if _, ok := g.replaced[machine]; ok {
		return // it has begun
	}
	for _, at := range g.replaced {
		if ago := time.Since(at); ago < time.Hour {
			g.s.Lab.World.Violate("dead", "the machine of %s is deleted because it is dead, and that of another node was %v ago", name, ago)
		}
	}
	g.replaced[machine] = time.Now()
}

// forbidsDeletion is why no order that may be in force lets the machine of a node be deleted;
// "": one does. asDead: because it is dead, and for no other reason. The lock is held.
func (g *guard) forbidsDeletion(name, machine string, works bool) (why string, asDead bool) {
	vms := g.s.Lab.PVE.VMs()
	switch {
	case len(g.orders) == 0:
		return "", false
	case g.isProtected(name):
		return "it is protected", false
	case g.lost[machine] && !works:
		return "", false
	}
	lawful := false
	for _, o := range g.orders {
		refused := g.forbidsLoss(o, vms, name, machine, works)
		if refused != "" {
			why = refused
			continue
		}
		lawful = true
		if asDead = g.isReplacedAsDead(o, vms, name, machine, works); !asDead {
			return "", false
		}
	}
	if lawful {
		return "", true
	}
	return why, false
}

// isReplacedAsDead reports whether an order asks for another machine of a node that is dead, and for
// no other reason. The lock is held.
func (g *guard) isReplacedAsDead(o order, vms []vmView, name, machine string, works bool) bool {
	_, may := o.pending(vms, name)
	mayChange := o.apply == "auto" || o.apply == "approve" && g.isApproved("", machine)
	return !works && g.isDead(o, machine) && !(may && mayChange)
}

// forbidsLoss is why an order does not let a node lose its machine; "": it does. The lock is held.
func (g *guard) forbidsLoss(o order, vms []vmView, name, machine string, works bool) string {
	pending, may := o.pending(vms, name)
	dead := !works && g.isDead(o, machine)
	switch {
	case g.lost[machine] && !works:
		return ""
	case o.locked[name]:
		return "it is locked"
	case o.protected[name]:
		return "it is protected"
	case o.leavesEven(name) && g.isVoter(name):
		return fmt.Sprintf("%d control planes are left, and an even number is not to be", o.size.ControlPlanes)
	case o.of[name] == "" && g.kept[name] && !g.isApproved("", machine):
		return "it was protected or locked when it left the inventory, and that it goes is not approved"
	case g.isReplacedAsDead(o, vms, name, machine, works) && g.sparesDead(o, vms, name) != "":
		return g.sparesDead(o, vms, name)
	case !may && !dead:
		return "the inventory has it"
	case !dead && (o.apply == "off" || o.apply == "approve" && !g.isApproved("", machine)):
		return "apply is " + o.apply + ", and it is not approved"
	case len(pending) > g.removals && !g.isApproved("", machine):
		return fmt.Sprintf("%v are to be deleted, %d may be, and that is not approved", pending, g.removals)
	}
	return ""
}

// isDead reports whether a machine that worked has not for so long that its node gets another one by
// an order. The lock is held.
func (g *guard) isDead(o order, machine string) bool {
	since, silent := g.silent[machine]
	return o.replaceDead && !o.observe && silent && time.Since(since) > deadFor-justTouched
}

// sparesDead is why a node that is dead keeps its machine: more than a third of the nodes of an order
// do not work, or no other one on its host does, so that it may not be the node. Those that have just
// come to a halt may still seem to work. "": nothing. The lock is held.
func (g *guard) sparesDead(o order, vms []vmView, dead string) string {
	hosts, machines := map[string]string{}, map[string]string{}
	for _, vm := range vms {
		if vm.Maker != "root@pam" {
			hosts[vm.Config["name"]], machines[vm.Config["name"]] = vm.Host, vm.Config["vmgenid"]
		}
	}
	total, down, neighbours := o.size.ControlPlanes+o.size.Workers, 0, 0
	for n := range total {
		name := o.size.Name(n)
		_, works := g.machineOf(name)
		since, idle := g.idle[machines[name]]
		seems := name != dead && (works || time.Since(g.touched[name]) < justTouched || idle && time.Since(since) < underWay)
		switch {
		case !seems:
			down++
		case hosts[name] == hosts[dead] || hosts[name] == "":
			neighbours++
		}
	}
	switch {
	case 3*down > total:
		return fmt.Sprintf("it is dead, and %d of %d nodes do not work", down, total)
	case neighbours == 0:
		return "it is dead, and no other node on its host works"
	}
	return ""
}

// pending are the nodes whose machines are to be deleted, and whether one of that name may be
// among them: what somebody has written over a VM's mark does not show which token it has.
func (o order) pending(vms []vmView, node string) (out []string, may bool) {
	var names []string
	for n := range o.size.ControlPlanes + o.size.Workers {
		names = append(names, o.size.Name(n))
	}
	for _, vm := range vms {
		name := vm.Config["name"]
		mark, shown := cluster.ParseMark(vm.Config["description"])
		other := o.tokens[name] != "" && mark.Replace != o.tokens[name]
		switch {
		case vm.Maker == "root@pam":
		case !slices.Contains(names, name), other && shown:
			out, may = append(out, name), may || name == node
		case other:
			may = may || name == node
		}
	}
	slices.Sort(out)
	return out, may
}

// awaitsBeginnings reports whether a call may have taken a node out of service.
func (g *guard) awaitsBeginnings() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.begins) > 0
}
