package agent_test

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// guarded is a simulation with a guard that is given orders of its own: an agent that does as
// its repository has it breaks them.
type guarded struct {
	*sim
	size  size
	guard *guard
	asked wishes // by the repository
	seen  int    // how many violations there were
}

func newGuarded(t *testing.T, sz size, changes ...func(*wishes)) *guarded {
	g := &guarded{sim: newSim(t, sz, lab.Config{}), size: sz, asked: newWishes(sz)}
	for _, change := range changes {
		change(&g.asked)
	}
	g.guard = newGuard(g.sim, sz)
	g.Lab.World.OnCall(func(c world.CallRecord) { g.Witness(c); g.guard.watch(c) })
	g.Lab.World.OnConfig(g.guard.judgeConfig)
	g.push(g.asked)
	g.Boot()
	g.untilReady()
	return g
}

// push pushes what the repository asks for, and has the guard believe that it asks for
// something else.
func (g *guarded) push(believed wishes) {
	g.T.Helper()
	g.guard.orderNext(believed.order(g.size))
	g.asked.again++
	g.Push(g.asked.files(g.size), "as asked")
	g.guard.named(g.Head())
}

// untilReady has the guard see what the agent does until the cluster is Ready, and longer than
// anything is under way.
func (g *guarded) untilReady() {
	g.T.Helper()
	ready := time.Time{}
	g.Until(2*time.Hour, "Ready", func(st cluster.Status) bool {
		g.guard.read(st.Revision.Commit())
		g.guard.lookAgain()
		if st.Condition != cluster.Ready || st.Revision != st.Applied || st.Revision.Commit() != g.Head() {
			ready = time.Time{}
			return false
		}
		if g.guard.noteReady(g.Head()); ready.IsZero() {
			ready = time.Now()
		}
		return time.Since(ready) > 2*underWay
	})
}

// want checks what was objected to since the last time; "": to nothing.
func (g *guarded) want(what, words string) {
	g.T.Helper()
	all := g.Lab.World.Violations()
	text := strings.Join(all[g.seen:], "\n")
	if g.seen = len(all); (words == "") != (text == "") || !strings.Contains(text, words) {
		g.T.Errorf("%s: the guard objects %q, want %q", what, text, words)
	}
}

// TestGuardOfConfigs: a config that takes no reboot is objected to where the switches of the
// newest push do not let a node be changed, and only there.
func TestGuardOfConfigs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGuarded(t, size{ControlPlanes: 1, Workers: 1})
		defer g.Close()
		edit := func() {
			t.Helper()
			g.guard.correct("dev-wk-1")
			must(g.talosctl("10.10.0.41", machineapi.ApplyConfigurationRequest_NO_REBOOT))
			g.Until(10*time.Minute, "seen", func(st cluster.Status) bool { return st.Condition != cluster.Ready })
			g.untilReady()
		}
		change := func(apply string, observe bool) {
			t.Helper()
			g.asked.sysctl++
			believed := g.asked
			believed.apply, believed.observe = apply, observe
			g.push(believed)
			g.untilReady()
		}
		change("auto", false)
		g.want("a change", "")
		change("auto", true)
		g.want("a change under heal: observe", "")
		change("off", false)
		g.want("a change under apply: off", "is given a machine config: apply is off")
		edit()
		g.want("a correction under apply: off", "")
		change("approve", false)
		g.want("a change under apply: approve", "is given a machine config: apply is approve, and it is not approved")

		believed := g.asked
		believed.observe = true
		g.push(believed)
		g.untilReady()
		edit()
		g.want("a correction under heal: observe", "is given a machine config: heal is observe")
		g.Halt()
	})
}

// TestGuardOfEtcd: a control plane that goes down is judged by what is left of etcd, whether its
// node is Ready or not; one that people have just had a hand in counts as it was before, and no
// other for it.
func TestGuardOfEtcd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGuarded(t, size{ControlPlanes: 3, Workers: 1})
		defer g.Close()
		second, third := g.vmidOf("dev-cp-2"), g.vmidOf("dev-cp-3")
		g.Halt()
		judge := func(name string, forGood bool) {
			g.guard.mu.Lock()
			defer g.guard.mu.Unlock()
			g.guard.judgeEtcd(name, forGood)
		}
		judge("dev-cp-1", false)
		g.want("one of three", "")
		judge("dev-cp-1", true)
		g.want("a member for good", "is a member of etcd")
		g.guard.touch("dev-cp-2")
		must(g.Lab.Talos.Kill(second))
		judge("dev-cp-2", false)
		g.want("one that hangs, beside two", "")
		judge("dev-cp-1", false)
		g.want("just after one hangs", "")
		time.Sleep(2 * justTouched)
		judge("dev-cp-1", false)
		g.want("the second of three", "dev-cp-1 goes down, and 1 other voters of 3 answer")
		g.guard.touch("dev-wk-1")
		judge("dev-cp-3", false)
		g.want("the second of three, beside a worker", "dev-cp-3 goes down, and 1 other voters of 3 answer")
		g.guard.touch("dev-cp-2")
		judge("dev-cp-3", false)
		g.want("the second of three, beside one that hung long ago", "dev-cp-3 goes down, and 1 other voters of 3 answer")
		must(g.Lab.PVE.Remove(second))
		g.guard.touch("dev-cp-2")
		judge("dev-cp-3", false)
		g.want("the second of three, beside one that was deleted", "dev-cp-3 goes down, and 1 other voters of 3 answer")
		must(g.Lab.Talos.Partition(third, true))
		time.Sleep(2 * justTouched)
		judge("dev-cp-3", false)
		g.want("one that does not work, and neither do others", "dev-cp-3 goes down, and 0 other voters of 3 answer")
	})
}

// TestGuardForgets: what is let pass for a reason is not when the reason has ended.
func TestGuardForgets(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGuarded(t, size{ControlPlanes: 1, Workers: 1})
		defer g.Close()
		w := g.asked
		forbids := func() string {
			g.guard.mu.Lock()
			defer g.guard.mu.Unlock()
			return g.guard.forbids("dev-wk-1", g.generations()["dev-wk-1"], false)
		}
		deletes := func() string {
			g.guard.mu.Lock()
			defer g.guard.mu.Unlock()
			return g.guard.forbids("dev-wk-1", g.generations()["dev-wk-1"], true)
		}
		under := func(apply string) {
			t.Helper()
			w.apply = apply
			g.push(w)
			g.untilReady()
		}
		under("off")
		if forbids() == "" {
			t.Error("nothing is edited, and apply is off")
		}
		g.guard.correct("dev-wk-1")
		if why := forbids(); why != "" {
			t.Errorf("it may not be corrected: %s", why)
		}
		w.wkCores = 6
		under("off")
		if forbids() == "" {
			t.Error("it is changed, not corrected, and apply is off")
		}
		w.wkCores = 4
		under("off")
		if forbids() == "" {
			t.Error("it was corrected long ago, and apply is off")
		}

		// What root approves, by the commit that was shown.
		w.wkCores = 6
		under("approve")
		old := cluster.Forecast{Revision: g.Status().Revision}
		takeBack := g.guard.approve(old)
		if why := forbids(); why != "" {
			t.Errorf("it is approved: %s", why)
		}
		if takeBack(); forbids() == "" {
			t.Error("the approval was refused")
		}
		had := func() int {
			g.guard.mu.Lock()
			defer g.guard.mu.Unlock()
			return len(g.guard.had["dev-wk-1"])
		}
		w.wkCores = 8
		g.push(w)
		before := had()
		takeBack = g.guard.approve(cluster.Forecast{Revision: cluster.Revision("main@sha1:" + g.Head())})
		if n := had(); n != before+1 {
			t.Errorf("it is approved, and the node may have had %d things, before %d", n, before)
		}
		if takeBack(); had() != before {
			t.Error("the approval was refused, and what it was of is taken for what the node had")
		}
		g.untilReady() // so that it was in force
		w.wkCores = 6
		under("approve")
		if g.guard.approve(old); forbids() == "" {
			t.Error("what was approved is an older commit, and another one was in force since")
		}
		under("approve")
		if g.guard.approve(cluster.Forecast{Revision: g.Status().Revision}); forbids() != "" {
			t.Error("what was approved is this commit")
		}
		under("approve")
		if why := forbids(); why != "" {
			t.Errorf("what was approved asks for the same: %s", why)
		}
		g.guard.approve(cluster.Forecast{Revision: g.Status().Revision})
		if why := forbids(); why != "" {
			t.Errorf("it is approved: %s", why)
		}

		// The deletion of a machine, and no more.
		w.wkCores, w.tokens = 4, map[string]string{"dev-wk-1": "t1"}
		under("approve")
		if forbids() == "" || deletes() == "" {
			t.Error("nothing is approved")
		}
		g.guard.approve(cluster.Forecast{Revision: old.Revision, VMs: []int{g.vmidOf("dev-wk-1")}})
		if why := deletes(); why != "" {
			t.Errorf("its deletion is approved: %s", why)
		}
		if forbids() == "" {
			t.Error("its deletion is approved, and no change")
		}
		w.tokens = nil

		// How many workers may be out of service at once.
		w.unavailable = 2
		under("auto")
		w.unavailable = 1
		under("auto")
		g.guard.mu.Lock()
		if most := g.guard.mostWorkers(); most != 1 {
			t.Errorf("%d workers may be out of service", most)
		}
		g.guard.mu.Unlock()

		// A machine that was lost, and works.
		machine := g.generations()["dev-wk-1"]
		isLost := func() bool {
			g.guard.mu.Lock()
			defer g.guard.mu.Unlock()
			return g.guard.lost[machine]
		}
		takeBack = g.guard.loses(machine)
		if takeBack(); isLost() {
			t.Error("that a machine is lost was refused")
		}
		g.guard.loses(machine)
		takeBack = g.guard.loses(machine)
		if takeBack(); !isLost() {
			t.Error("that a machine is lost was accepted, and refused only the second time")
		}
		g.untilReady()
		if isLost() {
			t.Error("a machine that works is taken for lost")
		}
		g.want("nothing was done", "")
		g.Halt()
	})
}

// machineVMID is the VMID of the VM of a node, whether an agent runs or not.
func (g *guarded) machineVMID(node string) int {
	g.T.Helper()
	for _, vm := range g.Lab.PVE.VMs() {
		if vm.Config["name"] == node {
			return vm.VMID
		}
	}
	g.T.Fatalf("there is no vm of %s", node)
	return 0
}

// isolate cuts a node off, and has the guard see the world for so long.
func (g *guarded) isolate(node string, d time.Duration) {
	g.T.Helper()
	if node != "" {
		must(g.Lab.Talos.Partition(g.machineVMID(node), true))
	}
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(lookEvery) {
		g.guard.lookAgain()
	}
}

// TestGuardOfIdleNodes: a node that does not work and is up goes down as one that works does: drained,
// in its window, where the budget has room, and once; but for the window when it has not worked for
// long, and for a drain that cannot be.
func TestGuardOfIdleNodes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGuarded(t, size{ControlPlanes: 1, Workers: 3})
		defer g.Close()
		believed := g.asked
		now := time.Now().UTC()
		believed.window = span{now.Add(5 * time.Hour), now.Add(6 * time.Hour)}
		g.push(believed)
		g.untilReady()
		api := netip.MustParseAddr("10.10.0.11")
		patch := func(node, turn string, cordon bool) {
			t.Helper()
			g.kubectl(api, http.MethodPatch, "/api/v1/nodes/"+node, fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}},"spec":{"unschedulable":%v}}`, cluster.AnnotationTurn, turn, cordon))
			g.isolate("", 2*time.Minute) // until it is seen
		}
		judge := func(node, what string, words ...string) {
			t.Helper()
			g.guard.permit(node)
			g.guard.judge(node, false)
			text := strings.Join(g.Lab.World.Violations()[g.seen:], "\n")
			for _, w := range words {
				if !strings.Contains(text, w) {
					t.Errorf("%s: the guard objects %q, want %q", what, text, w)
				}
			}
			if len(words) == 0 && text != "" {
				t.Errorf("%s: the guard objects %q", what, text)
			}
			g.seen = len(g.Lab.World.Violations())
		}
		g.isolate("dev-wk-1", 2*time.Minute)
		judge("dev-wk-1", "one that has not worked for two minutes", "dev-wk-1 goes down, and is not cordoned", "the window is")
		judge("dev-wk-1", "the same once more, before it is down")
		if n := g.guard.countDowns(); n != 1 {
			t.Errorf("nodes went down %d times", n)
		}
		g.isolate("dev-wk-2", 12*time.Minute)
		patch("dev-wk-2", "now", true)
		judge("dev-wk-2", "one that has not worked for long, and is drained")
		g.isolate("dev-wk-3", 2*time.Minute)
		patch("dev-wk-3", "now", true)
		judge("dev-wk-3", "a second one at once", "are out of service by the agent, and 1 may be")
		g.Halt()
		must(g.Lab.Talos.Partition(g.machineVMID("dev-wk-2"), false))
		must(g.Lab.Talos.Reboot(g.machineVMID("dev-wk-2")))
		g.isolate("", 2*time.Minute)
		judge("dev-wk-2", "a second time in its turn", "dev-wk-2 goes down a second time in its turn")
	})
}

// TestGuardOfTheDead: the machine of a node that is dead is deleted where the inventory has it so,
// one within an hour, and none while more than a third of the nodes does not work, or no other
// one on its host does.
func TestGuardOfTheDead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGuarded(t, size{ControlPlanes: 1, Workers: 5})
		defer g.Close()
		believed := g.asked
		believed.replaceDead = true
		g.push(believed)
		g.untilReady()
		g.Halt()
		remove := func(node string) {
			t.Helper()
			vm, ok := g.Lab.PVE.VM(g.machineVMID(node))
			if !ok {
				t.Fatalf("no vm of %s", node)
			}
			g.guard.watchDeletion(vm, true)
		}
		g.isolate("dev-wk-1", 2*time.Minute)
		remove("dev-wk-1")
		g.want("one that has just died", "the machine of dev-wk-1 is deleted: the inventory has it")
		g.isolate("dev-wk-2", 10*time.Minute)
		remove("dev-wk-1")
		g.want("a dead one", "")
		remove("dev-wk-2")
		g.want("another one at once", "the machine of dev-wk-2 is deleted because it is dead, and that of another node was 0s ago")
		remove("dev-wk-2")
		g.want("the same, which has begun", "")
		g.isolate("dev-wk-3", 65*time.Minute)
		remove("dev-wk-3")
		g.want("three of six", "it is dead, and 3 of 6 nodes do not work")

		g.guard.mu.Lock()
		defer g.guard.mu.Unlock()
		vms := g.Lab.PVE.VMs()
		for i := range vms {
			if vms[i].Config["name"] == "dev-wk-1" {
				vms[i].Host = "pve2"
			}
		}
		o := g.guard.orders[0]
		if why := g.guard.sparesDead(o, vms, "dev-wk-1"); !strings.Contains(why, "3 of 6") {
			t.Errorf("spared: %q", why)
		}
		must(g.Lab.Talos.Partition(g.machineVMID("dev-wk-3"), false))
		time.Sleep(5 * time.Minute)
		if why := g.guard.sparesDead(o, vms, "dev-wk-1"); !strings.Contains(why, "no other node on its host works") {
			t.Errorf("the only one of its host: %q", why)
		}
		if why := g.guard.sparesDead(o, g.Lab.PVE.VMs(), "dev-wk-1"); why != "" {
			t.Errorf("two of six: %q", why)
		}
	})
}

// TestGuardOfLocked: what is done to a node that is locked is objected to, and what is done to
// the others is not.
func TestGuardOfLocked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGuarded(t, size{ControlPlanes: 1, Workers: 2})
		defer g.Close()
		locks := func(node string) wishes {
			w := g.asked
			w.locked = map[string]bool{node: true}
			return w
		}
		do := func(node, what, words string, change func()) {
			t.Helper()
			g.push(locks(node))
			g.untilReady()
			change()
			g.push(locks(node))
			g.untilReady()
			g.want(what+" with "+node+" locked", words)
		}
		edit := func() { must(g.Lab.PVE.Edit(g.vmidOf("dev-wk-1"), "description", "mine")) }
		do("dev-wk-2", "dev-wk-1 is marked", "", edit)
		do("dev-wk-1", "dev-wk-1 is marked", "dev-wk-1 has its VM changed (config), and is locked", edit)
		do("dev-wk-1", "every node gets a sysctl", "dev-wk-1 is given a machine config, and is locked", func() { g.asked.sysctl++ })
		g.Halt()
	})
}

// TestGuardOfWhatIsKept: a machine is not deleted that is protected, or was when its node left the
// inventory, or without which an even number of control planes is left where that is not to be; none
// whose address others have as the endpoint; and no pod where none is to be deleted.
func TestGuardOfWhatIsKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGuarded(t, size{ControlPlanes: 3, Workers: 3}, func(w *wishes) {
			w.vip, w.budget, w.drain = false, tightest, drain{time.Minute, true}
		})
		defer g.Close()
		for n := range 6 {
			g.guard.permit(g.size.Name(n))
		}
		do := func(what, words string, believe func(*wishes)) {
			t.Helper()
			believed := g.asked
			believe(&believed)
			g.guard.resize(g.size)
			g.push(believed)
			g.untilReady()
			g.want(what, words)
		}
		asAsked := func(*wishes) {}

		busy := g.nodeOf("stuck")
		g.asked.tokens[busy] = "t1"
		do("a pod is deleted, as it is to be", "", asAsked)
		stops := func(w *wishes) { w.drain.deletes = false }
		do("nothing is done", "", stops)
		time.Sleep(longestDrain)
		busy = g.nodeOf("stuck")
		g.guard.permit(busy)
		g.asked.tokens = map[string]string{busy: "t2"}
		do("no pod is to be deleted", "and no order has that", stops)

		g.asked.tokens, g.asked.protected = map[string]string{}, map[string]bool{}
		protects := func(w *wishes) { w.protected = map[string]bool{"dev-wk-2": true, "dev-wk-3": true} }
		g.asked.tokens["dev-wk-2"] = "t3"
		g.guard.permit("dev-wk-2")
		do("a protected one is replaced", "the machine of dev-wk-2 is deleted: it is protected", protects)
		g.size.Workers = 2
		do("one that was protected leaves", "the machine of dev-wk-3 is deleted: it was protected or locked when it left", asAsked)

		g.size.ControlPlanes, g.asked.allowEven = 2, true
		do("two are left", "dev-cp-3 is taken out of service: 2 control planes are left, and an even number is not to be", func(w *wishes) { w.allowEven = false })

		g.Halt()
		endpoint := func(sz size) {
			g.guard.mu.Lock()
			g.guard.orders = []order{g.asked.order(sz)}
			g.guard.mu.Unlock()
			g.guard.judgeEndpoint("dev-cp-1")
		}
		endpoint(g.size)
		g.want("the endpoint stays", "")
		endpoint(size{ControlPlanes: 1, Workers: 2, Left: 1})
		g.want("the endpoint leaves", "the machine of dev-cp-1 is deleted, and dev-cp-2 has its address as the endpoint")
	})
}
