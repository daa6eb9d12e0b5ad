package agent_test

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab/talos"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// approval is what root has approved with one plan.
type approval struct {
	commit   string
	machines map[string]bool // that may be deleted
	over     time.Time       // when another one came; zero: not yet
}

// approve notes that root approves a plan, which ends what was approved before. What it
// returns takes that back, where it was refused.
func (g *guard) approve(f cluster.Forecast) (takeBack func()) {
	machines := g.machines()
	g.mu.Lock()
	defer g.mu.Unlock()
	a := approval{commit: f.Revision.Commit(), machines: map[string]bool{}}
	for _, id := range f.VMs {
		if machine := machines[id]; machine != "" {
			a.machines[machine] = true
		}
	}
	var noted []func()
	for node, of := range g.asked[a.commit].of {
		if had := g.had[node]; had != nil && !had[of] {
			had[of] = true
			noted = append(noted, func() { delete(had, of) })
		}
	}
	before := g.approvals
	g.approvals = nil
	for _, old := range before {
		if old.over.IsZero() {
			old.over = time.Now()
		}
		if time.Since(old.over) < underWay {
			g.approvals = append(g.approvals, old)
		}
	}
	g.approvals = append(g.approvals, a)
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.approvals = before
		for _, undo := range noted {
			undo()
		}
	}
}

// isApproved reports whether the changes of a commit may be approved, or the deletion of a
// machine. The lock is held.
func (g *guard) isApproved(commit, machine string) bool {
	commits := map[string]bool{} // it, and those before that ask for the same
	for ; commit != "" && !commits[commit]; commit = g.same[commit] {
		commits[commit] = true
	}
	for _, a := range g.approvals {
		if (a.over.IsZero() || time.Since(a.over) < underWay) && (commits[a.commit] || a.machines[machine]) {
			return true
		}
	}
	return false
}

// endApprovals ends what was approved of machines that nothing asks to delete any more: later
// their deletion is approved anew. The lock is held.
func (g *guard) endApprovals() {
	if len(g.orders) != 1 {
		return // what the agent has read is not known
	}
	vms := g.s.Lab.PVE.VMs()
	for _, vm := range vms {
		name, machine := vm.Config["name"], vm.Config["vmgenid"]
		_, silent := g.silent[machine]
		if _, may := g.orders[0].pending(vms, name); !may && !silent && !g.lost[machine] {
			for _, a := range g.approvals {
				delete(a.machines, machine)
			}
		}
	}
}

// forbidsChange is why an order does not let a node be changed that is there; "": it does. Where
// the inventory has the same as before, the change is a correction; where it has not, it may be
// one of what somebody has edited. That the deletion of its machine is approved is no reason to
// change it. The lock is held.
func (g *guard) forbidsChange(o order, node string) string {
	had, known := g.had[node]
	same := known && had[o.of[node]]
	switch {
	case o.locked[node]:
		return "it is locked"
	case o.observe && same && len(had) == 1:
		return "heal is observe"
	case o.apply == "auto", !o.observe && !g.corrected[node].IsZero():
		return ""
	case o.apply == "off" || !g.isApproved(o.commit, ""):
		return "apply is " + o.apply + ", and it is not approved"
	}
	return ""
}

// judgeConfig judges a machine config that the agent gives: the switches that may be in force
// let the node be changed, unless it is in its turn, which is ended in any case. That takes no
// node down, so that no window holds it. The first config of a machine needs the node in the
// inventory, and no more. No node that works is given one whose kubelet no registry has.
func (g *guard) judgeConfig(c world.GivenConfig) {
	if strings.Contains(string(c.Config), handMark) {
		return // somebody has edited it
	}
	if c.Reboots {
		g.judge(c.Node, false)
	}
	g.judgeLocked(c.Node, "is given a machine config")
	g.look()
	_, works := g.machineOf(c.Node)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.judgeUndone(c)
	if works && strings.Contains(string(c.Config), kubeletNowhere+":") {
		g.s.Lab.World.Violate("images", "%s works, and is given a machine config whose kubelet no registry has", c.Node)
	}
	why := "no order has it"
	for _, o := range g.orders {
		_, asked := o.of[c.Node]
		switch {
		case !asked:
		case c.First, !g.made, g.had[c.Node] == nil, g.isInTurn(c.Node):
			return
		default:
			if why = g.forbidsChange(o, c.Node); why == "" || g.isEdited(c.VMID) && !o.observe {
				return
			}
		}
	}
	if len(g.orders) > 0 {
		g.s.Lab.World.Violate("switches", "%s is given a machine config: %s", c.Node, why)
	}
}

// isInTurn reports whether a node is in its turn, or was a moment ago. The lock is held.
func (g *guard) isInTurn(node string) bool {
	_, down := g.down[node]
	return down || time.Since(g.turned[node]) < underWay
}

// noteReady notes that the cluster is Ready with all that a commit asks for, so that its nodes
// are made, and what was edited by hand before is corrected.
func (g *guard) noteReady(commit string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.made = true
	o, ok := g.asked[commit]
	if !ok {
		return
	}
	for node, of := range o.of {
		g.had[node] = map[string]bool{of: true}
	}
	later := false
	for _, next := range g.orders {
		for node, had := range g.had {
			if later && (next.apply == "auto" || g.isApproved(next.commit, "")) {
				had[next.of[node]] = true
			}
		}
		later = later || next.commit == commit
	}
	for node, edited := range g.corrected {
		if time.Since(edited) > underWay {
			delete(g.corrected, node)
		}
	}
}

// lookEvery is how often the world is looked at for what ends by itself.
const lookEvery = 5 * time.Second

// lookAgain looks at the world now and then.
func (g *guard) lookAgain() {
	g.mu.Lock()
	due := time.Since(g.looked) >= lookEvery
	g.mu.Unlock()
	if due {
		g.look()
	}
}

// look sees which nodes work, which ends what was noted of machines that do not, and which are in
// their turns.
func (g *guard) look() {
	g.outOfService()
	machines, marked := g.machineByName(), g.marked()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.looked = time.Now()
	for node := range marked {
		g.turned[node] = g.looked
		if g.markedAt[node].IsZero() {
			g.markedAt[node] = g.looked
		}
	}
	maps.DeleteFunc(g.markedAt, func(node string, _ time.Time) bool { return marked[node] == "" })
	for _, o := range g.orders {
		g.drains[o.drain] = g.looked
	}
	if !g.isServed() {
		g.served = time.Time{}
	} else if g.served.IsZero() {
		g.served = g.looked
	}
	for node, machine := range machines {
		m, works := g.machineOf(node)
		since, worked := g.works[machine]
		if _, idle := g.idle[machine]; works {
			delete(g.idle, machine)
		} else if !idle {
			g.idle[machine] = g.looked
		}
		switch {
		case works && !worked:
			g.works[machine] = g.looked
			delete(g.silent, machine)
			delete(g.halted, machine)
		case works && time.Since(since) > underWay && (!m.Control || m.Etcd != ""): // one that has left etcd does not come back
			delete(g.lost, machine)
		case !works && worked:
			g.silent[machine] = g.looked
			delete(g.works, machine)
		}
	}
	g.judgeMoves()
	g.judgeEdits()
	g.endApprovals()
}

// isServed reports whether a kube-apiserver answers: a control plane works whose etcd has a quorum.
func (g *guard) isServed() bool {
	return slices.ContainsFunc(g.s.Lab.Talos.Machines(), func(m talos.MachineView) bool {
		return m.Control && m.Ready && m.Stage == "running" && !m.Partition && m.Healthy && m.Up > m.Voters/2
	})
}
