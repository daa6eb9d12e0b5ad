package agent_test

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// push changes something that the inventory has.
func (l *life) push(t target) { l.pushOne(t, "") }

// pushOne changes what the inventory has of one thing; "": of any.
func (l *life) pushOne(t target, name string) {
	w, other := &l.wishes, func(now, a, b int) int {
		if now == a {
			return b
		}
		return a
	}
	changes := map[string]func(){
		"memory of the control planes":        func() { w.cpRAM = other(w.cpRAM, 8192, 9216); l.permitAll(true, false) },
		"memory of the workers":               func() { w.wkRAM = other(w.wkRAM, 8192, 9216); l.permitAll(false, true) },
		"cores of the workers":                func() { w.wkCores = other(w.wkCores, 4, 6); l.permitAll(false, true) },
		"cores of the control planes":         func() { w.cpCores = other(w.cpCores, 4, 6); l.permitAll(true, false) },
		"larger disks":                        func() { w.wkDisk += 10; l.permitAll(false, true) },
		"a data disk":                         func() { w.wkData = max(w.wkData, 10) },
		"a larger data disk":                  l.growData,
		"cpu type of the workers":             func() { w.cpuType = map[string]string{"": "host", "host": ""}[w.cpuType]; l.permitAll(false, true) },
		"a bridge":                            func() { w.bridge = map[string]string{"vmbr1": "vmbr0", "vmbr0": "vmbr1"}[w.bridge] },
		"a VLAN":                              func() { w.vlan = other(w.vlan, 0, 20) },
		"tags":                                func() { w.tag = map[string]string{"": "team-a", "team-a": ""}[w.tag] },
		"an addon":                            func() { w.web = []string{"100m", "200m"}[l.rnd.IntN(2)] },
		"an addon that does not become ready": l.failAddon,
		"an addon less":                       l.dropAddon,
		"a label":                             func() { w.zones[t.name] = []string{"", "a", "b"}[l.rnd.IntN(3)] },
		"a taint":                             func() { w.dedicated[t.name] = !w.dedicated[t.name] },
		"a sysctl":                            func() { w.sysctl++ },
		"the environment":                     l.setEnvironment,
		"pods of a kubelet":                   func() { w.pods = other(w.pods, 150, 200) },
		"values of an addon":                  func() { w.replicas = other(w.replicas, 1, 2) },
		"how many at once":                    func() { w.unavailable = other(w.unavailable, 1, 2) },
		"one worker more":                     l.addWorker,
		"one worker less":                     l.dropWorker,
		"other control planes":                l.scalePlanes,
		"an even number":                      l.setEven,
		"an endpoint for all":                 func() { w.vip = true },
		"a protected node":                    func() { l.protect(t) },
		"how pods leave":                      l.setDrain,
		"a replacement":                       func() { l.replace(t) },
		"a lock":                              func() { l.lockNode(t) },
		"a window":                            l.setWindow,
		"who approves":                        l.setApply,
		"who heals":                           l.setHeal,
		"what becomes of the dead":            func() { w.replaceDead = !w.replaceDead },
		"a firewall":                          l.setFirewall,
		"an image of the kubelet":             l.setKubelet,
	}
	if name == "" {
		names := slices.Sorted(maps.Keys(changes))
		name = names[l.rnd.IntN(len(names))]
	}
	l.plan("pushed: %s (%s)", name, t.name)
	changes[name]()
	l.ask(name)
}

// permitAll notes a reason to take nodes of a role down.
func (l *life) permitAll(planes, workers bool) {
	for n := range l.size.ControlPlanes + l.size.Workers {
		if n < l.size.ControlPlanes && planes || n >= l.size.ControlPlanes && workers {
			l.guard.permit(l.size.Name(n))
		}
	}
}

// permitNew notes that a node which is made may have to go down for what the others do not
// have yet: it is given the machine config that they run.
func (l *life) permitNew(name string) {
	if l.wishes.env > 0 {
		l.guard.permit(name)
	}
}

func (l *life) addWorker() {
	l.permitNew(l.size.Name(l.size.ControlPlanes + l.size.Workers))
	l.size.Workers++
}

func (l *life) dropWorker() {
	if l.size.Workers > 1 {
		l.size.Workers--
		l.guard.permit(l.size.Name(l.size.ControlPlanes + l.size.Workers))
	}
}

// growData has larger data disks, or a first one.
func (l *life) growData() {
	if l.wishes.wkData > 0 {
		l.permitAll(false, true)
	}
	l.wishes.wkData += 10
}

// failAddon has an addon ask for more than any node has, so that an upgrade is rolled back, until
// it asks for less.
func (l *life) failAddon() {
	l.wishes.web = "64"
	l.later(func() bool {
		if l.wishes.web == "64" {
			l.wishes.web = "100m"
			l.ask("an addon that fits")
		}
		return true
	})
}

// dropAddon has an addon leave the inventory, to be uninstalled or not; in the end it is.
func (l *life) dropAddon() {
	l.wishes.web, l.wishes.prune = "", l.rnd.IntN(2) == 0
	l.later(func() bool {
		if l.wishes.web == "" && !l.wishes.prune {
			l.wishes.prune = true
			l.ask("uninstall it")
		}
		return true
	})
}

func (l *life) replace(t target) {
	if t.n < l.size.ControlPlanes && !l.spendPlane(t) {
		return
	}
	l.guard.permit(t.name)
	l.permitNew(t.name)
	l.wishes.tokens[t.name] = fmt.Sprintf("t%d", len(l.plans))
}

// lockNode has a node be left alone, until it is not any longer.
func (l *life) lockNode(t target) {
	l.wishes.locked[t.name] = true
	l.later(func() bool {
		if l.wishes.locked[t.name] {
			delete(l.wishes.locked, t.name)
			l.ask("unlocked")
		}
		return true
	})
}

// setWindow has a window that opens soon, or one that is open and closes soon, for some minutes
// of the day; in the end one that opens soon and stays open.
func (l *life) setWindow() {
	minutes := func(n int) time.Time { return time.Now().UTC().Add(time.Duration(n) * time.Minute) }
	opens := l.rnd.IntN(6) - 2
	l.wishes.window = span{minutes(opens), minutes(max(opens, 0) + 1 + l.rnd.IntN(5))}
	l.later(func() bool {
		l.wishes.window = span{minutes(2), minutes(20 * 60)}
		l.ask("a window that stays open")
		return true
	})
}

// setApply has changes wait for an approval, or for better times, which come in the end.
func (l *life) setApply() {
	l.wishes.apply = []string{"auto", "approve", "approve", "off"}[l.rnd.IntN(4)]
	if l.wishes.apply == "off" {
		l.later(func() bool {
			if l.wishes.apply == "off" {
				l.wishes.apply = []string{"auto", "approve"}[l.rnd.IntN(2)]
				l.ask("apply it")
			}
			return true
		})
	}
}

// setHeal has what somebody changes be left as it is, until it is to be corrected again.
func (l *life) setHeal() {
	l.wishes.observe = true
	l.later(func() bool {
		if l.wishes.observe {
			l.wishes.observe = false
			l.ask("heal again")
		}
		return true
	})
}

// setEnvironment changes what takes a reboot. A mistake is not pushed beside it: what takes a
// reboot cannot be on trial, and a node that does not come up with it is not rebooted again. Nor with two control
// planes: an etcd of two can spare none, so that it waits for a third one.
func (l *life) setEnvironment() {
	if l.size.ControlPlanes != 2 && l.wishes.firewall != blockIngress && l.wishes.kubelet != kubeletNowhere {
		l.wishes.env++
		l.permitAll(true, true)
	}
}

// setFirewall has a firewall that lets the agent in, or none; or one that locks everybody out, which
// is taken back.
func (l *life) setFirewall() {
	before, good := l.wishes.firewall, blockIngress+admitBridge
	switch {
	case l.isSettled() && l.rnd.IntN(2) == 0:
		l.plan("it locks everybody out")
		l.mistake(&l.wishes.firewall, blockIngress, good, "a firewall that lets the agent in")
	case before == "":
		l.wishes.firewall = good
	default:
		l.wishes.firewall = ""
	}
}

// mistake has a bad wish, which is taken back later: for a good one, or for none.
func (l *life) mistake(wish *string, bad, good, what string) {
	*wish = bad
	l.later(func() bool {
		if *wish == bad {
			*wish = []string{"", good}[l.rnd.IntN(2)]
			l.ask(what)
		}
		return true
	})
}

// isSettled reports whether the nodes have all that the repository has.
func (l *life) isSettled() bool {
	st := l.Status()
	return l.grown && st.Condition == cluster.Ready && st.Applied.Commit() == l.Head()
}

// Registries have the one, and not the other.
const kubeletThere, kubeletNowhere = "registry.example.org/kubelet", "registry.k8s.io/kubelet"

// setKubelet has the kubelet of another registry, or of one that does not have it, which is
// taken back.
func (l *life) setKubelet() {
	switch l.rnd.IntN(3) {
	case 0:
		l.wishes.kubelet = ""
	case 1:
		l.wishes.kubelet = kubeletThere
	default:
		if !l.isSettled() {
			return // the first nodes would not come with it
		}
		l.plan("no registry has it")
		l.mistake(&l.wishes.kubelet, kubeletNowhere, kubeletThere, "an image that is there")
	}
}
