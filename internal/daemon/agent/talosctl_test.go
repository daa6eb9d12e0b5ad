package agent_test

import (
	"context"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/constants"

	"github.com/talos-agent/talos-agent/internal/lab/pve"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// useTalos has somebody use talosctl on a node: a call that is not the agent's, by the name of its
// method. No Talos may answer.
func (l *life) useTalos(t target, method string, do func(context.Context, *client.Client) error) error {
	l.guard.touch(t.name)
	return l.guard.byHand(world.Call{System: "talos", Op: "machine.MachineService/" + method, Subject: t.name}, func() error {
		return l.askTalos(l.address(t.n), do)
	})
}

// restart has somebody restart a node with talosctl.
func (l *life) restart(t target) {
	l.plan("somebody restarts %s with talosctl", t.name)
	if l.Agent != nil && t.isOurs() {
		_ = l.useTalos(t, "Reboot", func(ctx context.Context, c *client.Client) error { return c.Reboot(ctx) })
	}
}

// shutDown has somebody shut a node down with talosctl: its VM is off then, which the agent starts
// again, unless that is to be left.
func (l *life) shutDown(t target) {
	l.plan("somebody shuts %s down with talosctl", t.name)
	if l.Agent == nil || !t.isOurs() {
		return
	}
	if l.useTalos(t, "Shutdown", func(ctx context.Context, c *client.Client) error { return c.Shutdown(ctx) }) == nil {
		l.later(func() bool { return true })
	}
}

// resetNode has somebody reset a node with talosctl, all but its image: it is in maintenance mode
// then, and gets its machine config as a new one. A control plane leaves etcd first where it is asked
// to; where it cannot, it comes back as it was. A worker may be wiped with its image: nothing boots
// then, and it is to get another machine in the end.
func (l *life) resetNode(t target) {
	l.plan("somebody resets %s with talosctl", t.name)
	if l.Agent == nil || !t.isOurs() || t.n < l.size.ControlPlanes && !l.spendPlane(t) {
		return
	}
	wipe := []*machineapi.ResetPartitionSpec{{Label: constants.StatePartitionLabel, Wipe: true}, {Label: constants.EphemeralPartitionLabel, Wipe: true}}
	l.permitNew(t.name)
	if t.n >= l.size.ControlPlanes && l.rnd.IntN(3) == 0 {
		l.plan("it is wiped")
		wipe = nil
		l.later(func() bool { return l.replaceWiped(t) })
	}
	if l.useTalos(t, "Reset", func(ctx context.Context, c *client.Client) error {
		return c.ResetGeneric(ctx, &machineapi.ResetRequest{Graceful: true, Reboot: true, SystemPartitionsToWipe: wipe})
	}) == nil {
		l.later(func() bool { return true })
	}
}

// replaceWiped has a node get another machine where that of a target has nothing to boot, and reports
// whether it has, or that machine works or is another one.
func (l *life) replaceWiped(t target) (done bool) {
	m, works := l.guard.machineOf(t.name)
	vm, ok := l.Lab.PVE.VM(t.id)
	switch {
	case !ok || works || vm.Config["vmgenid"] != t.vm.Config["vmgenid"]:
		return true
	case vm.Power != pve.Running || m.Stage != "":
		return false
	}
	if t.n < l.size.ControlPlanes+l.size.Workers && l.size.Name(t.n) == t.name {
		l.replace(t)
		l.ask("another machine for the one that was wiped")
	}
	return true
}

// leaveEtcd has somebody have the etcd of a control plane leave the others with talosctl. It does not
// join again before its machine boots, which the agent has it do. One whose address is the endpoint of the
// cluster would not find the others again.
func (l *life) leaveEtcd(t target) {
	if t.n >= l.size.ControlPlanes {
		t = l.targetOf(l.rnd.IntN(l.size.ControlPlanes))
	}
	l.plan("somebody has the etcd of %s leave", t.name)
	if l.Agent == nil || !t.isOurs() || l.size.ControlPlanes < 3 || !l.isWhole() || !l.spendPlane(t) {
		return
	}
	l.guard.correct(t.name)
	l.guard.leaves(t.name)
	l.guard.permit(t.name)
	l.permitNew(t.name)
	_ = l.useTalos(t, "EtcdLeaveCluster", func(ctx context.Context, c *client.Client) error {
		_, err := c.MachineClient.EtcdLeaveCluster(ctx, &machineapi.EtcdLeaveClusterRequest{})
		return err
	})
	l.later(func() bool { return true })
}

// leaves notes that somebody has the etcd of a control plane leave the others.
func (g *guard) leaves(node string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.left[node] = time.Now()
}

// hasLeftEtcd reports whether somebody has had the etcd of a node leave, so long ago that it may be
// restarted for that at any time, and it is no member now. The lock is held.
func (g *guard) hasLeftEtcd(node string) bool {
	at, ok := g.left[node]
	m, _ := g.machineOf(node)
	return ok && m.Etcd == "" && time.Since(at) > deadFor-justTouched
}
