package agent_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab/pve"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// handMAC begins a MAC that somebody gave a network card; the agent's begin with BC:24:11.
const handMAC = "02:66:66"

// foreignDrive is where somebody adds a disk of their own.
const foreignDrive = "scsi7"

// byHand has a person make a call, which is not the agent's. One of the agent's at the same instant
// may be mistaken for it.
func (g *guard) byHand(c world.Call, do func() error) error {
	g.mu.Lock()
	g.hands[c]++
	g.mu.Unlock()
	err := do()
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.hands, c)
	return err
}

// isByHand reports whether a call is the one that a person makes now.
func (g *guard) isByHand(c world.Call) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.hands[c] == 0 {
		return false
	}
	g.hands[c]--
	return true
}

// setOptions has somebody change options of a VM in Proxmox VE's web interface. A VM that runs takes
// some of them at its next stop, and an answer that is lost does not show whether it did.
func (l *life) setOptions(t target, form url.Values) error {
	const op = "PUT /nodes/{node}/qemu/{vmid}/config"
	return l.guard.byHand(world.Call{System: "pve", Op: op, Subject: fmt.Sprint(t.id)}, func() error {
		answer, err := l.tryAsRoot(http.MethodPut, fmt.Sprintf("/nodes/%s/qemu/%d/config", t.vm.Host, t.id), form.Encode())
		if err == nil && !strings.HasPrefix(answer, "200 ") {
			return fmt.Errorf("set %v: %s", form, answer)
		}
		return err
	})
}

// option is what somebody sets of a VM by hand.
type option struct {
	key   string
	value func(was string) string // "" removes it
	stops bool                    // a VM that runs takes it when it stops, and has to be stopped to lose it then
}

// handOptions are what people edit of a VM. The agent puts all of them back by itself.
var handOptions = []option{
	{"cores", func(string) string { return "3" }, true},
	{"memory", func(string) string { return "3072" }, true},
	{"cpu", func(string) string { return "kvm64" }, true},
	{"net0", func(was string) string { return strings.Replace(was, "virtio=", "e1000=", 1) }, true},
	{"net0", func(was string) string { return strings.Replace(was, "BC:24:11", handMAC, 1) }, true},
	{"net0", func(was string) string { return was + ",rate=10" }, false}, // is left
	{"onboot", func(string) string { return "0" }, false},
	{"onboot", func(string) string { return "0" }, false},
	{"description", func(string) string { return "mine" }, false},
	{"description", func(string) string { return "" }, false},
	{"boot", func(string) string { return "order=net0" }, false},
}

// setByHand has somebody edit an option of a VM, which stays as it is until the agent puts it back.
func (l *life) setByHand(t target) {
	o := handOptions[l.rnd.IntN(len(handOptions))]
	l.plan("somebody sets %s of vm %d in the web interface", o.key, t.id)
	if !t.isOurs() {
		return
	}
	value := o.value(t.vm.Config[o.key])
	form := url.Values{o.key: {value}}
	if value == "" {
		form = url.Values{"delete": {o.key}}
	}
	l.guard.correct(t.name)
	l.plan("it answers %v", l.setOptions(t, form))
	l.guard.noteEdit(t.name, t.vm.Config["vmgenid"], o.key, o.stops)
	l.later(func() bool { return true })
}

// replug has somebody move the network card of a VM to another bridge, where nothing answers. When it
// is back, its machine answers again.
func (l *life) replug(t target) {
	l.plan("somebody moves vm %d to another bridge", t.id)
	card := t.vm.Config["net0"]
	if !t.isOurs() || !strings.Contains(card, "bridge="+l.wishes.bridge) || t.n < l.size.ControlPlanes && l.size.ControlPlanes > 1 && !l.spendPlane(t) {
		return
	}
	l.guard.touch(t.name)
	l.guard.correct(t.name)
	l.permitNew(t.name) // it may be replaced because it is dead
	if l.setOptions(t, url.Values{"net0": {strings.Replace(card, "bridge="+l.wishes.bridge, "bridge=vmbr9", 1)}}) == nil {
		_ = l.Lab.Talos.Partition(t.id, true) // one that is off does not notice
		l.guard.noteEdit(t.name, t.vm.Config["vmgenid"], "net0", false)
		l.lock.Lock()
		l.unplugged[t.id] = t.vm.Config["vmgenid"]
		l.lock.Unlock()
		l.later(func() bool { return true })
	}
}

// connect has what is plugged into the right bridge again be reached.
func (l *life) connect() {
	l.lock.Lock()
	defer l.lock.Unlock()
	for id, machine := range maps.Clone(l.unplugged) {
		vm, ok := l.Lab.PVE.VM(id)
		if !ok || vm.Config["vmgenid"] != machine || !strings.Contains(vm.Config["net0"], "bridge=vmbr9") {
			_ = l.Lab.Talos.Partition(id, false)
			delete(l.unplugged, id)
		}
	}
}

// setTags has somebody replace all tags of a VM with one of theirs, which stays.
func (l *life) setTags(t target) {
	l.plan("somebody has vm %d have no tags but one of their own", t.id)
	if t.isOurs() && l.setOptions(t, url.Values{"tags": {"keep-me"}}) == nil {
		l.guard.correct(t.name)
		l.lock.Lock()
		l.edited[t.id] = t.vm.Config["vmgenid"]
		l.lock.Unlock()
		l.later(func() bool { return true })
	}
}

// addDisk has somebody add a disk of their own to a VM, which is not deleted with it; in the end they
// remove it again.
func (l *life) addDisk(t target) {
	l.plan("somebody adds a disk to vm %d", t.id)
	if !t.isOurs() || t.vm.Config[foreignDrive] != "" {
		return
	}
	l.plan("it answers %v", l.setOptions(t, url.Values{foreignDrive: {"local-lvm:1"}})) // it may be there though the answer is lost
	l.later(func() bool {
		now := t
		if now.vm, now.exists = l.Lab.PVE.VM(t.id); !now.exists || now.vm.UUID != t.vm.UUID || now.vm.Maker == "root@pam" {
			return true
		}
		var drives []string
		for key, text := range now.vm.Config {
			if key == foreignDrive || strings.HasPrefix(key, "unused") && strings.Contains(text, fmt.Sprintf("vm-%d-disk", t.id)) {
				drives = append(drives, key)
			}
		}
		if len(drives) == 0 {
			return true
		}
		slices.Sort(drives)
		_ = l.setOptions(now, url.Values{"delete": {drives[0]}, "force": {"1"}})
		return false
	})
}

// judgeForeign: the VM of a node is not deleted with a disk that somebody has added.
func (g *guard) judgeForeign(vm vmView) {
	if vm.Config[foreignDrive] != "" {
		g.s.Lab.World.Violate("foreign", "the machine of %s is deleted, and somebody has a disk in it", vm.Config["name"])
	}
}

// handEdit is an option of a VM that somebody has edited.
type handEdit struct {
	machine, value string
	stops          bool // see option
	taken          bool // the VM has run with it
	at             time.Time
}

// editOf is what somebody has edited, of which node.
type editOf struct{ node, key string }

// noteEdit notes what somebody has just set of a VM.
func (g *guard) noteEdit(node, machine, key string, stops bool) {
	for _, vm := range g.s.Lab.PVE.VMs() {
		if vm.Config["name"] == node && vm.Config["vmgenid"] == machine {
			g.mu.Lock()
			g.edits[editOf{node, key}] = handEdit{machine, vm.Config[key], stops, false, time.Now()}
			delete(g.cards, node) // its card is not as the agent left it
			g.mu.Unlock()
		}
	}
}

// judgeEdits: what somebody has edited of a VM stays so where every order has that which may be in
// force, and nothing else is asked for of its node. Who edits it last is not known where two people do.
// What a VM runs with is a reason to take it down once.
// The lock is held.
func (g *guard) judgeEdits() {
	vms := g.s.Lab.PVE.VMs()
	for of, e := range maps.Clone(g.edits) {
		i := slices.IndexFunc(vms, func(vm vmView) bool { return vm.Config["vmgenid"] == e.machine })
		if i >= 0 && vms[i].Config[of.key] == e.value {
			if _, waits := vms[i].Pending[of.key]; !waits && e.stops && !e.taken && vms[i].Power == pve.Running {
				e.taken = true
				g.edits[of] = e
				g.reasons[of.node]++
			}
			continue
		}
		delete(g.edits, of)
		isOther := func(o order) bool { return !g.had[of.node][o.of[of.node]] }
		if i >= 0 && g.observes(of.node) && len(g.had[of.node]) == 1 && !slices.ContainsFunc(g.orders, isOther) && !g.corrected[of.node].After(e.at) {
			g.s.Lab.World.Violate("switches", "%s: %s is put back from %q to %q: heal is observe", of.node, of.key, e.value, vms[i].Config[of.key])
		}
	}
}

// networkCard is the network that the VM of a node was seen in.
type networkCard struct {
	boot, network string
	works         bool
}

// networkMove is a node whose VM the agent has moved to another network as it ran.
type networkMove struct {
	node string
	at   time.Time
}

// judgeMoves: of the nodes of a role that work one is moved to another network at a time, and of workers as
// many as may be unavailable, and the next when those were watched; and no control plane without which etcd has no quorum. What is moved by hand
// is noted as that. The lock is held.
func (g *guard) judgeMoves() {
	const watched = 50 * time.Second // a minute, but for how often the world is looked at
	for _, vm := range g.s.Lab.PVE.VMs() {
		name := vm.Config["name"]
		m, works := g.machineOf(name)
		if vm.Maker == "root@pam" || m.BootID == "" {
			continue
		}
		var network []string
		for _, part := range strings.Split(vm.Config["net0"], ",") {
			if strings.HasPrefix(part, "bridge=") || strings.HasPrefix(part, "tag=") {
				network = append(network, part)
			}
		}
		now := networkCard{m.BootID, strings.Join(network, ","), works}
		was, seen := g.cards[name]
		g.cards[name] = now
		if !seen || !g.made || was.boot != now.boot || was.network == now.network || !was.works {
			continue
		}
		role := name[:len("dev-cp-")]
		most := map[bool]int{true: 1, false: g.mostWorkers()}[role == "dev-cp-"]
		g.moves[role] = slices.DeleteFunc(g.moves[role], func(m networkMove) bool { return m.node == name || time.Since(m.at) >= watched })
		if len(g.moves[role]) >= most {
			g.s.Lab.World.Violate("moves", "%s is moved from %s to %s, and %v were a moment ago, and %d may be", name, was.network, now.network, g.moves[role], most)
		}
		g.moves[role] = append(g.moves[role], networkMove{name, time.Now()})
		g.judgeEtcd(name, false)
	}
}

// tryNode has somebody use kubectl on a Node object for what takes no node out of service.
func (l *life) tryNode(t target, body string) error {
	if l.Agent == nil {
		return nil
	}
	c := world.Call{System: "kube", Op: "PATCH /api/v1/nodes/{name}", Subject: t.name}
	return l.guard.byHand(c, func() error {
		return l.tryKubectl(netip.MustParseAddr(l.address(l.rnd.IntN(l.size.ControlPlanes))), http.MethodPatch, "/api/v1/nodes/"+t.name, body)
	})
}

// label has somebody change a label that the inventory has, or may have, or add one that it has not,
// which stays.
func (l *life) label(t target) {
	mine := l.rnd.IntN(2) == 0
	l.plan("somebody labels %s, with one of their own: %v", t.name, mine)
	n := l.guard.nodeObject(t.name)
	switch {
	case n == nil:
	case !mine && l.wishes.zones[t.name] != "":
		_ = l.tryNode(t, []string{`{"metadata":{"labels":{"zone":"hand"}}}`, `{"metadata":{"labels":{"zone":null}}}`}[l.rnd.IntN(2)])
	case l.tryNode(t, `{"metadata":{"labels":{"mine":"1"}}}`) == nil:
		l.lock.Lock()
		l.labelled[t.name] = string(n.GetUID())
		l.lock.Unlock()
	}
}

// taint has somebody remove a taint, as kubectl does: the list without it, of the version that was read.
func (l *life) taint(t target) {
	l.plan("somebody removes the taint dedicated of %s, or adds one of their own", t.name)
	n := l.guard.nodeObject(t.name)
	if n == nil {
		return
	}
	taints := taintsOf(n)
	had := len(taints)
	taints = slices.DeleteFunc(taints, func(m map[string]any) bool { return m["key"] == "dedicated" || m["key"] == "mine" })
	if had == len(taints) {
		taints = append(taints, map[string]any{"key": "mine", "value": "1", "effect": "PreferNoSchedule"})
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": n.GetResourceVersion()}, "spec": map[string]any{"taints": taints}})
	must(err)
	_ = l.tryNode(t, string(body))
}

// checkLabels looks for the labels that people have added: they stay as long as their Node object.
func (l *life) checkLabels() {
	for node, uid := range l.labelled {
		if n := l.guard.nodeObject(node); n != nil && string(n.GetUID()) == uid && n.GetLabels()["mine"] != "1" {
			l.T.Errorf("the label that somebody gave %s was removed", node)
		}
	}
}

// TestGuardOfHands: calls of people are not judged, and what becomes of their edits is: with
// heal: observe they stay, a disk of theirs is not deleted, and of the nodes of a role one is moved to
// another network at a time.
func TestGuardOfHands(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGuarded(t, size{ControlPlanes: 1, Workers: 2})
		defer g.Close()
		edit := func(key, value string) {
			t.Helper()
			vm, ok := g.Lab.PVE.VM(g.vmidOf("dev-wk-1"))
			if !ok {
				t.Fatal("dev-wk-1 has no VM")
			}
			g.guard.correct("dev-wk-1")
			must(g.Lab.PVE.Edit(vm.VMID, key, value))
			g.guard.noteEdit("dev-wk-1", vm.Config["vmgenid"], key, key == "cores")
			g.Until(10*time.Minute, "put back", func(cluster.Status) bool {
				g.guard.lookAgain()
				now, ok := g.Lab.PVE.VM(vm.VMID)
				return ok && now.Config[key] != value
			})
			g.untilReady()
		}
		edit("onboot", "0")
		g.want("an edit that is put back", "")
		edit("cores", "3")
		g.want("an edit that takes it down once", "")
		believed := g.asked
		believed.observe = true
		g.push(believed)
		g.untilReady()
		edit("onboot", "0")
		g.want("an edit under heal: observe", `dev-wk-1: onboot is put back from "0" to "1": heal is observe`)

		g.asked.bridge = "vmbr0"
		g.push(g.asked)
		g.untilReady()
		g.want("all nodes are moved", "")
		g.Halt()
		for _, node := range []string{"dev-wk-1", "dev-wk-2"} {
			vm, _ := g.Lab.PVE.VM(g.machineVMID(node))
			must(g.Lab.PVE.Edit(vm.VMID, "net0", strings.Replace(vm.Config["net0"], "vmbr0", "vmbr1", 1)))
			g.isolate("", lookEvery)
		}
		g.want("two at once", "dev-wk-2 is moved from bridge=vmbr0 to bridge=vmbr1, and [{dev-wk-1 ")

		vm, _ := g.Lab.PVE.VM(g.machineVMID("dev-wk-1"))
		g.guard.judgeForeign(vm)
		g.want("a machine without a disk of anybody's", "")
		must(g.Lab.PVE.Edit(vm.VMID, foreignDrive, "local-lvm:vm-541-disk-9,size=1G"))
		vm, _ = g.Lab.PVE.VM(vm.VMID)
		g.guard.judgeForeign(vm)
		g.want("one with a disk of somebody's", "the machine of dev-wk-1 is deleted, and somebody has a disk in it")

		reboot := world.Call{System: "talos", Op: "machine.MachineService/Reboot", Subject: "dev-wk-1"}
		must(g.guard.byHand(reboot, func() error { g.guard.watch(world.CallRecord{Call: reboot, Mutating: true}); return nil }))
		g.want("somebody reboots a node", "")
		g.guard.watch(world.CallRecord{Call: reboot, Mutating: true})
		g.want("the agent does", "dev-wk-1 goes down, and is not cordoned")

		leaves := func(ago time.Duration) bool {
			g.guard.mu.Lock()
			defer g.guard.mu.Unlock()
			g.guard.left["dev-wk-1"] = time.Now().Add(-ago) // a worker is no member
			return g.guard.hasLeftEtcd("dev-wk-1")
		}
		if leaves(time.Minute) || !leaves(deadFor) {
			t.Error("it may be restarted at any time at once, or never")
		}
	})
}
