package agent_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// observes reports whether every order that may be in force has what somebody else has changed of
// a node be left, and the node is made, and not being changed or made again. The lock is held.
func (g *guard) observes(node string) bool {
	vms := g.s.Lab.PVE.VMs()
	return g.made && len(g.had[node]) > 0 && len(g.orders) > 0 && !g.isInTurn(node) && !slices.ContainsFunc(g.orders, func(o order) bool {
		_, replaced := o.pending(vms, node)
		_, stays := o.of[node]
		return !o.observe || replaced || !stays
	})
}

// judgeUndone judges a machine config that the agent gives to a machine that runs, or is to boot,
// one that somebody has edited: where that is to be left, none is given, whatever was pushed. The lock is held.
func (g *guard) judgeUndone(c world.GivenConfig) {
	if g.isEdited(c.VMID) && !c.First && g.observes(c.Node) {
		g.s.Lab.World.Violate("switches", "%s is given a machine config: heal is observe, and somebody has edited the one it has", c.Node)
	}
}

// isEdited reports whether somebody has edited the machine config that a machine runs, or is to boot.
func (g *guard) isEdited(vmid int) bool {
	running, saved := g.s.Lab.Talos.ConfigsOf(vmid)
	return strings.Contains(running+saved, handMark)
}

// halt notes that somebody switches a machine off.
func (g *guard) halt(machine string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.halted == nil {
		g.halted = map[string]bool{}
	}
	g.halted[machine] = true
}

// judgeStart judges that the agent starts a VM: one that somebody has switched off stays off where
// that is to be left, whatever was pushed.
func (g *guard) judgeStart(vm vmView) {
	name, machine := vm.Config["name"], vm.Config["vmgenid"]
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.halted[machine] && g.observes(name) {
		g.s.Lab.World.Violate("switches", "%s is started: heal is observe, and somebody has switched it off", name)
	}
	delete(g.halted, machine)
}

// TestGuardOfEdits: with heal: observe it is objected to that an edited machine config is
// overwritten, or a machine started that somebody has switched off, also when something was pushed
// meanwhile; and to neither where edits are corrected.
func TestGuardOfEdits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGuarded(t, size{ControlPlanes: 1, Workers: 1})
		defer g.Close()
		edit := func() {
			g.guard.correct("dev-wk-1")
			must(g.talosctl("10.10.0.41", machineapi.ApplyConfigurationRequest_NO_REBOOT))
		}
		stop := func() {
			vmid := g.vmidOf("dev-wk-1")
			g.guard.touch("dev-wk-1")
			g.guard.halt(g.guard.machines()[vmid])
			must(g.Lab.PVE.Stop(vmid))
		}
		for _, observe := range []bool{false, true} {
			for _, pushed := range []bool{false, true} {
				for hand, words := range map[*func()]string{&edit: "is given a machine config: heal is observe, and somebody has edited the one it has", &stop: "is started: heal is observe, and somebody has switched it off"} {
					believed := g.asked
					believed.observe = observe
					g.push(believed)
					g.untilReady()
					(*hand)()
					if pushed {
						g.asked.sysctl++
						believed.sysctl++
						g.push(believed)
					}
					g.Until(10*time.Minute, "seen", func(st cluster.Status) bool { return st.Condition != cluster.Ready })
					g.untilReady()
					if !observe {
						words = ""
					}
					g.want(fmt.Sprintf("observe %v, pushed %v", observe, pushed), words)
				}
			}
		}
		g.Halt()
	})
}
