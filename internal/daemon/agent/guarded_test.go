package agent_test

import (
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

func newGuarded(t *testing.T, sz size) *guarded {
	g := &guarded{sim: newSim(t, sz, lab.Config{}), size: sz, asked: newWishes(sz)}
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
		must(g.Lab.Talos.Partition(third, true))
		time.Sleep(2 * justTouched)
		judge("dev-cp-3", false)
		g.want("one that does not work, and neither do others", "dev-cp-3 goes down, and 0 other voters of 3 answer")
	})
}

// TestGuardForgets: what is let pass for a reason is not when the reason has ended.
func TestGuardForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuarded(t, size{ControlPlanes: 1, Workers: 1})
		defer g.Close()
		w := g.asked
		forbids := func() string {
			g.guard.mu.Lock()
			defer g.guard.mu.Unlock()
			return g.guard.forbids("dev-wk-1", g.generations()["dev-wk-1"])
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
		under("approve")
		if g.guard.approve(old); forbids() == "" {
			t.Error("what was approved is an older commit")
		}
		g.guard.approve(cluster.Forecast{Revision: g.Status().Revision})
		if why := forbids(); why != "" {
			t.Errorf("it is approved: %s", why)
		}

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
		g.guard.loses(machine, true)
		g.untilReady()
		g.guard.mu.Lock()
		if g.guard.lost[machine] {
			t.Error("a machine that works is taken for lost")
		}
		g.guard.mu.Unlock()
		g.want("nothing was done", "")
		g.Halt()
	})
}
