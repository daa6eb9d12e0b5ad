package agent_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/talos-agent/talos-agent/internal/lab/pve"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// target is the node that something happens to.
type target struct {
	n      int
	name   string
	id     int
	vm     pve.VMView
	exists bool
}

// isOurs reports whether the VM is there, the agent's, and not locked.
func (t target) isOurs() bool { return t.exists && t.vm.Maker != "root@pam" && t.vm.Lock == "" }

// drawTarget draws a node of those that the inventory has.
func (l *life) drawTarget() target {
	return l.targetOf(l.rnd.IntN(l.size.ControlPlanes + l.size.Workers))
}

// targetOf is the nth node. While Proxmox VE has no quorum there is no VM to change.
func (l *life) targetOf(n int) target {
	t := target{n: n, name: l.size.Name(n), id: l.vmid(n)}
	if t.vm, t.exists = l.Lab.PVE.VM(t.id); l.noQuorum {
		t.exists = false
	}
	return t
}

// interfere is one thing that people or the house do.
func (l *life) interfere() {
	acts := []func(target){
		func(target) { l.plan("the agent is killed"); l.Die() },
		l.stop, l.edit, l.tag, l.backUp,
		func(t target) { l.plan("%s falls dark", l.address(t.n)); l.darken(l.address(t.n)) },
		func(target) { l.plan("Proxmox VE falls dark"); l.darken("pve.lab") },
		func(target) { l.plan("the repository falls dark"); l.darken("git.lab") },
		l.breakInventory, l.destroyVM, l.pause,
		l.cordon, l.uncordon, l.deleteNode, l.editDeployment, l.kill, l.partition,
		l.setByHand, l.setByHand, l.setByHand, l.replug, l.setTags, l.addDisk,
		l.label, l.taint, l.restart, l.shutDown, l.resetNode, l.leaveEtcd, l.loseQuorum, l.fillStorage,
		l.approve, l.approve, l.forget, l.lose, l.editConfig, l.editConfig, l.pushInTheMiddle,
		l.push, l.push, l.push, l.push, l.push, l.push, l.push, l.push, l.push, l.push, l.push, l.push, l.push, l.push,
	}
	acts[l.rnd.IntN(len(acts))](l.drawTarget())
}

// drawTheme draws what happens more often than else in a life. Half of the lives have a theme.
func (l *life) drawTheme() func(target) {
	pick := func(acts ...func(target)) func(target) {
		return func(t target) { acts[l.rnd.IntN(len(acts))](t) }
	}
	push := func(names ...string) func(target) {
		return func(t target) { l.pushOne(t, names[l.rnd.IntN(len(names))]) }
	}
	themes := []func(target){nil, nil, nil, nil,
		pick(push("a window", "who approves"), push("cores of the workers", "memory of the control planes", "the environment"), l.approve),
		pick(push("what becomes of the dead", "a replacement", "one worker less"), l.lose, l.forget, l.approve),
		pick(push("a firewall", "an image of the kubelet"), push("a sysctl", "the environment", "memory of the workers"), l.editConfig, l.editConfig),
		pick(push("one worker less", "a replacement", "one worker more", "who approves"), l.approve, l.approve),
		pick(push("who approves", "who heals", "a sysctl", "a label"), l.editConfig, l.approve),
		pick(push("other control planes", "an even number"), push("an endpoint for all", "memory of the control planes"), l.approve),
		pick(push("how pods leave"), push("memory of the workers", "one worker less", "a replacement"), l.pushInTheMiddle),
		pick(push("a protected node", "a lock", "what becomes of the dead"), push("a replacement", "one worker less"), l.lose, l.forget, l.approve),
		pick(push("memory of the workers", "the environment", "a replacement"), l.pushInTheMiddle, l.approve),
		pick(push("who heals", "memory of the workers", "a sysctl"), l.setByHand, l.setByHand, l.replug, l.setTags),
		pick(push("a replacement", "one worker less"), l.addDisk, l.setByHand),
		pick(push("a bridge", "a VLAN", "memory of the workers"), l.replug, l.setByHand),
		pick(push("a data disk", "a larger data disk", "larger disks", "one worker more"), l.fillStorage, l.loseQuorum),
		pick(push("memory of the control planes", "a window", "who heals"), l.leaveEtcd, l.resetNode, l.restart, l.shutDown),
		pick(push("an addon", "an addon that does not become ready", "an addon less"), l.editDeployment),
	}
	n := l.rnd.IntN(len(themes))
	l.plan("theme %d", n)
	return themes[n]
}

// later has somebody who got in the way undo it when the world is healed; what cannot be
// undone then is tried again.
func (l *life) later(f func() (done bool)) {
	l.lock.Lock()
	defer l.lock.Unlock()
	l.interfered++
	l.undo = append(l.undo, f)
}

func (l *life) stop(t target) {
	l.plan("somebody stops vm %d", t.id)
	if t.exists && t.vm.Lock == "" {
		l.guard.touch(t.name)
		if l.Lab.PVE.Stop(t.id) == nil { // it may be busy; then nothing was done to it
			l.guard.halt(t.vm.Config["vmgenid"])
		}
	}
}

// pause has somebody halt a VM, which is why nothing in it answers.
func (l *life) pause(t target) {
	l.plan("somebody pauses vm %d", t.id)
	if t.exists && t.vm.Lock == "" {
		l.guard.touch(t.name)
		_ = l.Lab.PVE.Suspend(t.id) // it may be busy, or off
	}
}

// edit changes something the inventory fixes, until it is changed back.
func (l *life) edit(t target) {
	key, value := "memory", "3072"
	if l.rnd.IntN(2) == 0 {
		key, value = "description", "mine now"
	}
	l.plan("somebody sets %s of vm %d", key, t.id)
	if !t.isOurs() {
		return
	}
	old := t.vm.Config[key]
	l.guard.correct(t.name)
	l.guard.permit(t.name, t.name) // for what is set, and for what it was before
	must(l.Lab.PVE.Edit(t.id, key, value))
	l.later(func() bool {
		// What was asked for meanwhile is not taken back.
		if now, ok := l.Lab.PVE.VM(t.id); ok && now.UUID == t.vm.UUID && now.Config[key] == value {
			l.guard.correct(t.name)
			must(l.Lab.PVE.Edit(t.id, key, old))
		}
		return true
	})
}

func (l *life) tag(t target) {
	l.plan("somebody adds a tag to vm %d", t.id)
	if t.isOurs() {
		must(l.Lab.PVE.Edit(t.id, "tags", t.vm.Config["tags"]+";keep-me"))
		l.lock.Lock()
		l.edited[t.id] = t.vm.Config["vmgenid"]
		l.lock.Unlock()
	}
}

func (l *life) backUp(t target) {
	l.plan("a backup of vm %d runs", t.id)
	if t.exists && t.vm.Lock == "" {
		must(l.Lab.PVE.Lock(t.id, "backup"))
		l.later(func() bool { _ = l.Lab.PVE.Unlock(t.id); return true })
	}
}

func (l *life) darken(host string) {
	net := l.Lab.World.Net.(*world.Memory)
	net.Darken(host, true)
	l.later(func() bool { net.Darken(host, false); return true })
}

func (l *life) breakInventory(target) {
	l.plan("a broken inventory is pushed, and corrected later")
	files := l.wishes.files(l.size)
	files["inventory/dev/nodes.yaml"] = append(slices.Clone(files["inventory/dev/nodes.yaml"]), []byte("- nonsense\n")...)
	l.Push(files, "break it")
	l.later(func() bool { l.ask("correct it"); return true })
}

// destroyVM removes a VM by hand. A control plane can be lost where etcd can spare it.
func (l *life) destroyVM(t target) {
	foreign := l.rnd.IntN(2) == 0
	l.plan("somebody removes vm %d, and makes another one of its number: %v", t.id, foreign)
	if !t.isOurs() || t.n < l.size.ControlPlanes && !l.spendPlane(t) {
		return
	}
	l.guard.touch(t.name)
	l.permitNew(t.name)
	if l.remove(t.id) && foreign && t.n >= l.size.ControlPlanes {
		l.foreign(t.id)
	}
}

// useNode has somebody use kubectl on a Node object; no API may answer, and what was done
// is not known when an answer is lost.
func (l *life) useNode(t target, method, body string) error {
	if l.Agent == nil {
		return errors.New("nobody has credentials")
	}
	l.guard.touch(t.name)
	return l.tryKubectl(netip.MustParseAddr(l.address(l.rnd.IntN(l.size.ControlPlanes))), method, "/api/v1/nodes/"+t.name, body)
}

func (l *life) cordon(t target) {
	l.plan("somebody cordons %s", t.name)
	_ = l.useNode(t, http.MethodPatch, `{"spec":{"unschedulable":true}}`)
	l.later(func() bool {
		return !slices.Contains(l.cordoned(), t.name) || l.useNode(t, http.MethodPatch, `{"spec":{"unschedulable":false}}`) == nil
	})
}

func (l *life) uncordon(t target) {
	l.plan("somebody uncordons %s", t.name)
	_ = l.useNode(t, http.MethodPatch, `{"spec":{"unschedulable":false}}`)
}

// deleteNode deletes a Node object. Its kubelet registers again when it is started.
func (l *life) deleteNode(t target) {
	l.plan("somebody deletes the node %s", t.name)
	_ = l.useNode(t, http.MethodDelete, "")
	l.later(func() bool {
		if !slices.Contains(l.nodeObjects(), t.name) {
			l.guard.touch(t.name)
			_ = l.Lab.Talos.Reboot(t.id) // one that is off registers when it boots
		}
		return true
	})
}

func (l *life) editDeployment(target) {
	replicas := l.rnd.IntN(3)
	l.plan("somebody deletes podinfo, or wants %d of it", replicas)
	if l.Agent == nil {
		return
	}
	method, body := http.MethodPatch, fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas)
	if replicas == 2 {
		method, body = http.MethodDelete, ""
	}
	_ = l.tryKubectl(netip.MustParseAddr(l.address(0)), method, "/apis/apps/v1/namespaces/apps/deployments/podinfo", body)
}

// kill has a machine hang until somebody switches it off and on.
func (l *life) kill(t target) {
	l.plan("the machine of %s hangs", t.name)
	if !t.exists {
		return
	}
	if l.guard.touch(t.name); l.Lab.Talos.Kill(t.id) == nil {
		l.later(func() bool {
			vm, ok := l.Lab.PVE.VM(t.id)
			if !ok || vm.Config["vmgenid"] != t.vm.Config["vmgenid"] || vm.Power == pve.Stopped {
				return true
			}
			if vm.Power != pve.Running { // paused, it hangs still when it goes on
				return false
			}
			if vm.Lock != "" || l.Lab.PVE.Stop(t.id) != nil {
				return false
			}
			_ = l.Lab.PVE.Start(t.id) // the agent may be faster
			return true
		})
	}
}

func (l *life) partition(t target) {
	l.plan("%s is cut off from the network", t.name)
	if l.guard.touch(t.name); l.Lab.Talos.Partition(t.id, true) == nil {
		l.later(func() bool { _ = l.Lab.Talos.Partition(t.id, false); return true })
	}
}

// ambush draws whether somebody swaps a worker's VM for one of their own in the
// instant before the agent reads its config: what was known of the VM a moment
// ago is of no use then.
func (l *life) ambush() func(world.CallRecord) {
	if l.rnd.IntN(3) != 0 {
		return func(world.CallRecord) {}
	}
	n := l.size.ControlPlanes + l.rnd.IntN(l.size.Workers)
	id, name := l.vmid(n), l.size.Name(n)
	var left atomic.Int64
	left.Store(1 + l.rnd.Int64N(8))
	l.plan("somebody swaps vm %d as it is read the %d. time", id, left.Load())
	return func(c world.CallRecord) {
		if c.Op != "GET /nodes/{node}/qemu/{vmid}/config" || c.Subject != fmt.Sprint(id) || !l.chaotic.Load() || left.Add(-1) != 0 {
			return
		}
		if vm, ok := l.Lab.PVE.VM(id); ok && vm.Maker != "root@pam" {
			l.guard.touch(name)
			l.guard.permit(name) // as permitNew
			if l.remove(id) {
				l.foreignIn(id, "talos")
			}
		}
	}
}

// remove takes a VM away with all that was ever done to it.
func (l *life) remove(id int) bool {
	if l.Lab.PVE.Remove(id) != nil {
		return false
	}
	l.lock.Lock()
	defer l.lock.Unlock()
	delete(l.edited, id)
	return true
}

// foreign puts somebody else's VM on a VMID of ours.
func (l *life) foreign(id int) {
	l.plan("somebody makes a vm %d of their own", id)
	l.foreignIn(id, []string{"", "talos"}[l.rnd.IntN(2)])
}

func (l *life) foreignIn(id int, pool string) {
	if l.Lab.PVE.CreateForeign(id, pve.Foreign{Pool: pool, Config: map[string]string{"name": "precious"}}) != nil {
		return // the agent was faster
	}
	l.later(func() bool {
		vm, ok := l.Lab.PVE.VM(id)
		if !ok || vm.Maker != "root@pam" || vm.Config["name"] != "precious" {
			l.T.Errorf("somebody's vm %d did not survive", id)
			return true
		}
		must(l.Lab.PVE.Remove(id))
		return true
	})
}

// heal lifts every fault and has people clean up after themselves.
func (l *life) heal() {
	l.chaotic.Store(false)
	l.Lab.World.Heal()
	l.cleanUp()
	// A machine that never came up is switched off and on, as its Wait says.
	for _, vm := range l.Lab.PVE.VMs() {
		if vm.Power == pve.Running && vm.Dead {
			must(l.Lab.PVE.Stop(vm.VMID))
			must(l.Lab.PVE.Start(vm.VMID))
		}
	}
}

// cleanUp undoes what is to be undone, the last first, and keeps what cannot be yet.
func (l *life) cleanUp() {
	l.lock.Lock()
	undo := l.undo
	l.undo = nil
	l.lock.Unlock()
	var left []func() bool
	for _, f := range slices.Backward(undo) {
		if !f() {
			left = append(left, f)
		}
	}
	slices.Reverse(left)
	l.lock.Lock()
	defer l.lock.Unlock()
	l.undo = append(left, l.undo...)
}

// cleanUpAgain undoes now and then what could not be undone before, and reports whether
// everything is.
func (l *life) cleanUpAgain(every time.Duration) (done func() bool) {
	last := time.Now()
	return func() bool {
		if time.Since(last) >= every && l.Agent != nil && !l.IsDead() {
			last = time.Now()
			l.cleanUp()
			l.helpOut()
		}
		l.lock.Lock()
		defer l.lock.Unlock()
		return len(l.undo) == 0
	}
}

// isLie reports whether a call has a drain believe that a node is empty.
func isLie(c world.CallRecord) bool {
	return c.System == "kube" && c.Fault == world.EmptyList && strings.Contains(c.Op, "pods")
}
