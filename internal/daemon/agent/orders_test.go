package agent_test

import (
	"fmt"
	"slices"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// order is what one push asks for, as far as it bounds what may be done to nodes. Which of
// them is in force depends on what the agent has fetched: the last one that it is known to
// have read, or any later one.
type order struct {
	commit string
	size   size
	window cluster.Window
	apply  string
	tokens map[string]string // by node that is to be replaced
	// observe: what somebody else has changed stays. replaceDead: nodes that are dead get new
	// machines.
	observe, replaceDead bool
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
	g.orders = append(g.orders, o)
	for node := range g.had {
		if of, ok := o.of[node]; !ok {
			delete(g.had, node) // it is made again when it is asked for again
		} else if o.apply == "auto" {
			g.had[node][of] = true
		}
	}
}

// named gives the newest order its commit.
func (g *guard) named(commit string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.orders[len(g.orders)-1].commit = commit
	g.asked[commit] = g.orders[len(g.orders)-1]
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

// loses notes that root takes the machine of a node for lost, or that this was refused.
func (g *guard) loses(machine string, accepted bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.lost[machine] = true; !accepted {
		delete(g.lost, machine)
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

// forbids is why no order that may be in force lets a node that works be taken out of
// service; "": one does. The lock is held.
func (g *guard) forbids(node string, machine string) (why string) {
	for _, o := range g.orders {
		switch {
		case !o.isOpen(time.Now()):
			why = fmt.Sprintf("the window is %s", o.window)
		case !g.made: // nothing but the window holds back what is being made
			return ""
		default:
			if why = g.forbidsChange(o, node, machine); why == "" {
				return ""
			}
		}
	}
	return why
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
	lawful time.Time // the newest one that was not forbidden
	why    string    // the newest one is
}

// watchBeginnings judges which nodes are begun to be taken out of service: their Node objects
// have the agent's mark after a call of which it knows that they may be. patched: what a call
// is about.
func (g *guard) watchBeginnings(patched string) {
	machines, marked := g.machineByName(), g.marked()
	g.mu.Lock()
	defer g.mu.Unlock()
	if patched != "" && !marked[patched] {
		b := g.begins[patched]
		b.at, b.why = time.Now(), g.forbids(patched, machines[patched])
		if b.why == "" {
			b.lawful = b.at
		}
		g.begins[patched] = b
	}
	for name, b := range g.begins {
		if marked[name] {
			delete(g.wentDown, name)
			if b.why != "" && b.at.Sub(b.lawful) > underWay && time.Since(g.touched[name]) > justTouched {
				g.s.Lab.World.Violate("switches", "%s is taken out of service: %s", name, b.why)
			}
		}
		if marked[name] || time.Since(b.at) > underWay {
			delete(g.begins, name)
		}
	}
}

// marked are the nodes that carry the agent's mark.
func (g *guard) marked() map[string]bool {
	out := map[string]bool{}
	for _, n := range g.nodes() {
		if n.GetAnnotations()[cluster.AnnotationTurn] != "" {
			out[n.GetName()] = true
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
	why := g.forbidsDeletion(name, machine, works)
	last, ever := g.deletable[machine]
	mark, _ := cluster.ParseMark(vm.Config["description"])
	switch {
	case why == "":
		g.deletable[machine] = time.Now()
	case !deletes, ever && time.Since(last) < underWay, ever && mark.Deleting:
	default:
		g.s.Lab.World.Violate("deletion", "the machine of %s is deleted: %s", name, why)
	}
}

// forbidsDeletion is why no order that may be in force lets the machine of a node be deleted;
// "": one does. The lock is held.
func (g *guard) forbidsDeletion(name, machine string, works bool) (why string) {
	vms := g.s.Lab.PVE.VMs()
	if len(g.orders) == 0 || g.lost[machine] && !works {
		return ""
	}
	for _, o := range g.orders {
		pending, may := o.pending(vms, name)
		since, silent := g.silent[machine]
		dead := o.replaceDead && !o.observe && !works && silent && time.Since(since) > deadFor-justTouched
		switch {
		case !may && !dead:
			why = "the inventory has it"
		case !dead && (o.apply == "off" || o.apply == "approve" && !g.isApproved("", machine)):
			why = "apply is " + o.apply + ", and it is not approved"
		case len(pending) > g.removals && !g.isApproved("", machine):
			why = fmt.Sprintf("%v are to be deleted, %d may be, and that is not approved", pending, g.removals)
		default:
			return ""
		}
	}
	return why
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
