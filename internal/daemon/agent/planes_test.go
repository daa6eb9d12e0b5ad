package agent_test

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// spendPlane reports whether a control plane can be lost, or get another machine, and notes that it
// is. One whose address is the endpoint of the cluster keeps its machine: another would not find
// the etcd of the others.
func (l *life) spendPlane(t target) bool {
	return (l.wishes.vip || t.n > 0) && l.spendPlanes(1)
}

// spendPlanes reports whether etcd can do without some control planes, with all that were lost or
// were to leave before, and notes that it is to: that their machines are made again may take as long
// as the life.
func (l *life) spendPlanes(n int) bool {
	up, voters := 0, 0
	for _, m := range l.Lab.Talos.Machines() {
		if m.Etcd != "" && !m.Learner && m.Healthy {
			up, voters = up+1, m.Voters
		}
	}
	if l.planesSpent+n > (l.size.ControlPlanes-1)/2 || up-n < voters/2+1 {
		return false
	}
	l.planesSpent += n
	return true
}

// mostPlanes is how many control planes a cluster has at most, with those that have left it in front.
const mostPlanes = 6

// scalePlanes has another number of control planes: the last ones leave or come, or the first ones,
// of which one has founded etcd, and has the address that is the endpoint where there is no VIP.
func (l *life) scalePlanes() {
	now := l.size
	switch next := 1 + l.rnd.IntN(5); {
	case next > now.ControlPlanes && now.Left > 0 && l.rnd.IntN(2) == 0:
		l.size.Left--
		l.size.ControlPlanes++
		l.permitNew(l.size.Name(0))
	case next > now.ControlPlanes && now.Left+next <= mostPlanes:
		l.size.ControlPlanes = next
		for n := now.ControlPlanes; n < next; n++ {
			l.permitNew(l.size.Name(n))
		}
	case next < now.ControlPlanes && l.planesSpent == 0 && l.isWhole():
		leave := now.ControlPlanes - next
		l.planesSpent += leave
		l.size.ControlPlanes = next
		first := next
		if l.rnd.IntN(2) == 0 {
			l.size.Left += leave
			first = 0
		}
		for n := range leave {
			l.guard.permit(now.Name(first + n))
		}
		if next%2 == 0 && l.rnd.IntN(3) > 0 {
			l.wishes.allowEven = true
		}
		l.later(l.allowEven)
	}
	l.plan("%v nodes, and an even number of control planes is fine: %v", l.size, l.wishes.allowEven)
}

// isWhole reports whether etcd has all control planes as voters, and each of them works.
func (l *life) isWhole() bool {
	up := 0
	for _, m := range l.Lab.Talos.Machines() {
		if m.Etcd != "" && !m.Learner && m.Healthy && m.Voters == l.size.ControlPlanes {
			up++
		}
	}
	return up == l.size.ControlPlanes
}

// setEven has an even number of control planes be left or not, until it is to be.
func (l *life) setEven() {
	l.wishes.allowEven = !l.wishes.allowEven
	l.later(l.allowEven)
}

// allowEven has a control plane leave that an even number would be left without.
func (l *life) allowEven() bool {
	if !l.wishes.allowEven && l.size.ControlPlanes%2 == 0 {
		l.wishes.allowEven = true
		l.ask("an even number is fine")
	}
	return true
}

// leavesEven reports whether an order has an even number of control planes be left without one,
// and does not have that be fine.
func (o order) leavesEven(name string) bool {
	return o.of[name] == "" && strings.HasPrefix(name, "dev-cp-") && !o.allowEven && o.size.ControlPlanes%2 == 0
}

// isVoter reports whether a node is a member of etcd.
func (g *guard) isVoter(name string) bool {
	m, _ := g.machineOf(name)
	return m.Etcd != ""
}

// judgeEndpoint: when the machine of a control plane is deleted that every order has leave which may
// be in force, no other node that works has its address as the endpoint of the cluster. Nodes in
// which people have just had a hand may have been given what they had.
func (g *guard) judgeEndpoint(name string) {
	address, ok := strings.CutPrefix(name, "dev-cp-")
	if !ok {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	stays := func(o order) bool { return o.of[name] != "" }
	if len(g.orders) == 0 || slices.ContainsFunc(g.orders, stays) {
		return
	}
	var n int
	if _, err := fmt.Sscan(address, &n); err != nil {
		panic(err)
	}
	for _, m := range g.s.Lab.Talos.Machines() {
		running, _ := g.s.Lab.Talos.ConfigsOf(m.VMID)
		works := m.Stage == "running" && m.NodeReady && !m.Partition
		_, asked := g.orders[len(g.orders)-1].of[m.Node]
		if m.Node != name && works && asked && time.Since(g.touched[m.Node]) > justTouched && strings.Contains(running, fmt.Sprintf("endpoint: https://10.10.0.%d:", 10+n)) {
			g.s.Lab.World.Violate("endpoint", "the machine of %s is deleted, and %s has its address as the endpoint", name, m.Node)
		}
	}
}

// protect has the VM of a node be kept, whatever else is asked of the node, until it need not be.
func (l *life) protect(t target) {
	l.wishes.protected[t.name] = true
	l.later(func() bool {
		if l.wishes.protected[t.name] {
			delete(l.wishes.protected, t.name)
			l.ask("it need not be kept")
		}
		return true
	})
}

// isProtected reports whether every order that may be in force has the VM of a node be kept. The lock is held.
func (g *guard) isProtected(name string) bool {
	return !slices.ContainsFunc(g.orders, func(o order) bool { return !o.protected[name] })
}

// noteKept notes which nodes leave the inventory with the next order that every order before has
// protected or locked. The lock is held.
func (g *guard) noteKept(next order) {
	if len(g.orders) == 0 {
		return
	}
	for name := range g.orders[len(g.orders)-1].of {
		isFree := func(o order) bool { return o.of[name] != "" && !o.protected[name] && !o.locked[name] }
		if next.of[name] == "" && !slices.ContainsFunc(g.orders, isFree) {
			g.kept[name] = true
		}
	}
	for name := range next.of {
		delete(g.kept, name)
	}
}

// pushInTheMiddle has somebody push something as soon as a node is being taken out of service: of the
// switches, of what is kept, of what becomes of its pods, or what takes back what it is out for.
func (l *life) pushInTheMiddle(t target) {
	names := []string{"who approves", "who approves", "who heals", "a window", "a lock", "a protected node", "how pods leave", "an even number", "memory of the workers", "one worker more", "other control planes"}
	name := names[l.rnd.IntN(len(names))]
	l.plan("to be pushed as soon as a node is being taken out of service: %s (%s)", name, t.name)
	l.trap = func() { l.pushOne(t, name) }
}
