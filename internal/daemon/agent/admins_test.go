package agent_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/cosi-project/runtime/pkg/safe"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	talosresource "github.com/siderolabs/talos/pkg/machinery/resources/config"
	"google.golang.org/grpc"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab/pve"
)

// handMark is in a machine config that somebody has edited by hand.
const handMark = "kernel.by.hand"

// noPods is the context of a look at a plan that does not wait for which pods are lost by it.
var noPods = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// approve has root approve the plan that is shown, or one that was shown before. What is not
// shown any more is refused.
func (l *life) approve(target) {
	if l.Agent == nil {
		return
	}
	shown, err := l.Cluster().Forecast(noPods)
	if err != nil {
		return // nothing was read yet
	}
	meant := shown
	if l.shown.Digest != "" && l.rnd.IntN(3) == 0 {
		meant = l.shown
	}
	if l.shown = shown; l.rnd.IntN(4) == 0 {
		return // they think about it
	}
	l.plan("root approves a plan, shown now: %v, which waits: %v", meant.Digest == shown.Digest, shown.Unapproved)
	err = l.sendApproval(meant)
	after, failed := l.Cluster().Forecast(noPods)
	if err == nil && failed == nil && meant.Digest != shown.Digest && meant.Digest != after.Digest {
		l.Lab.World.Violate("approval", "a plan that is not shown any more was approved")
	}
}

// sendApproval has root approve a plan, and the guard know of that one, and of no other that may be
// shown by now.
func (l *life) sendApproval(meant cluster.Forecast) error {
	takeBack := l.guard.approve(meant)
	err := l.Cluster().Approve(meant.Digest)
	if reason := cluster.ReasonOf(err); reason == cluster.NotConfirmed || reason == cluster.NothingToAccept {
		takeBack()
	}
	return err
}

// forget has root take the machine of a node for lost, which is refused where it works.
func (l *life) forget(t target) {
	if l.Agent == nil || !t.exists {
		return
	}
	shown, err := l.Cluster().ForecastForget(t.name)
	if err != nil {
		return
	}
	l.plan("root takes the machine of %s for lost", t.name)
	_, works := l.guard.machineOf(t.name)
	recently := l.guard.isTouched(t.name)
	takeBack := l.guard.loses(t.vm.Config["vmgenid"])
	l.permitNew(t.name)
	if err := l.Cluster().Forget(t.name, shown.Unfenced); err != nil {
		if cluster.ReasonOf(err) != "" { // it was refused; else it may have been written down
			takeBack()
		}
		return
	}
	if t.n < l.size.ControlPlanes {
		l.planesSpent++
	}
	if works && !recently {
		l.Lab.World.Violate("forget", "%s works, and is taken for lost", t.name)
	}
}

// lose has a machine hang, or cut off from the network, for good: the agent replaces it where
// it is to replace what is dead, or root takes it for lost in the end.
func (l *life) lose(t target) {
	l.plan("the machine of %s is lost", t.name)
	if !t.isOurs() || t.vm.Power != pve.Running || t.n < l.size.ControlPlanes && !l.spendPlane(t) {
		return
	}
	l.guard.touch(t.name)
	l.permitNew(t.name)
	if l.rnd.IntN(2) == 0 {
		_ = l.Lab.Talos.Kill(t.id)
	} else {
		_ = l.Lab.Talos.Partition(t.id, true)
	}
	minutes := 0
	l.later(func() bool {
		vm, ok := l.Lab.PVE.VM(t.id)
		_, works := l.guard.machineOf(t.name)
		minutes++
		switch {
		case !ok || works || vm.Config["vmgenid"] != t.vm.Config["vmgenid"]:
			return true
		case minutes > 120 && vm.Lock == "": // it may not be replaced: it is switched off and on
			_ = l.Lab.Talos.Partition(t.id, false)
			return l.Lab.PVE.Stop(t.id) == nil && l.Lab.PVE.Start(t.id) == nil
		case minutes > 90 || !l.wishes.replaceDead:
			l.forget(t)
		}
		return false
	})
}

// editConfig has somebody edit the machine config of a node: at once, from its next boot on,
// on trial, or with a reboot. The mark of the agent's own config tells them apart.
func (l *life) editConfig(t target) {
	//lint:ignore SA1019 versions up to v1.13 take it
	const reboot = machineapi.ApplyConfigurationRequest_REBOOT
	modes := []machineapi.ApplyConfigurationRequest_Mode{machineapi.ApplyConfigurationRequest_STAGED, machineapi.ApplyConfigurationRequest_STAGED,
		machineapi.ApplyConfigurationRequest_NO_REBOOT, machineapi.ApplyConfigurationRequest_TRY, reboot}
	mode := modes[l.rnd.IntN(len(modes))]
	l.plan("somebody edits the machine config of %s: %s", t.name, mode)
	if l.Agent == nil || !t.isOurs() {
		return
	}
	l.guard.touch(t.name)
	l.guard.correct(t.name)
	if l.talosctl(l.address(t.n), mode) == nil {
		l.guard.permit(t.name) // a reboot that was to bring another one brings this
		l.later(func() bool { return true })
	}
}

// talosctl gives the machine at an address the config that it runs, with an edit.
func (s *sim) talosctl(address string, mode machineapi.ApplyConfigurationRequest_Mode) error {
	return s.askTalos(address, func(ctx context.Context, c *client.Client) error {
		found, err := safe.StateGetByID[*talosresource.MachineConfig](ctx, c.COSI, talosresource.ActiveID)
		if err != nil {
			return err
		}
		data, err := found.Provider().Bytes()
		must(err)
		edited := strings.Replace("\n"+string(data), "\nmachine:\n", "\nmachine:\n    sysfs:\n        "+handMark+": \"1\"\n", 1)
		if !strings.Contains(edited, handMark) {
			s.T.Errorf("the config of %s has no place for an edit:\n%s", address, data)
		}
		_, err = c.ApplyConfiguration(ctx, &machineapi.ApplyConfigurationRequest{Data: []byte(edited), Mode: mode})
		return err
	})
}

// askTalos is what a person does with a client of the machine at an address.
func (s *sim) askTalos(address string, do func(context.Context, *client.Client) error) error {
	file, err := s.Cluster().Talosconfig()
	if err != nil {
		return err
	}
	opened, err := clientconfig.FromBytes(file)
	must(err)
	return s.askTalosAs(opened, address, do)
}

// askTalosAs does so with another talosconfig than the agent's.
func (s *sim) askTalosAs(opened *clientconfig.Config, address string, do func(context.Context, *client.Client) error) error {
	ctx, cancel := context.WithTimeout(s.T.Context(), 10*time.Second)
	defer cancel()
	c, err := client.New(ctx, client.WithConfig(opened), client.WithEndpoints(address),
		client.WithGRPCDialOptions(grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return s.Lab.World.Net.DialContext(ctx, "tcp", addr)
		})))
	must(err)
	defer func() { must(c.Close()) }()
	return do(ctx, c)
}

// helpOut is what people do while the cluster is not as the inventory has it: they approve
// what waits for that, and push again where that is what it takes.
func (l *life) helpOut() {
	st := l.Status()
	if shown, err := l.Cluster().Forecast(noPods); err == nil && shown.Unapproved && st.Revision.Commit() == l.Head() {
		_ = l.sendApproval(shown) // it may be another one by now
	}
	for _, w := range st.Waiting { // a trial on top of the agent's own leaves what was never saved
		if w.Overdue && strings.Contains(w.Hint, "restart the node") {
			l.plan("somebody restarts %s", w.Subject)
			l.guard.touch(w.Subject)
			_ = l.Lab.Talos.Reboot(l.vmidOf(w.Subject))
		}
	}
	if isUntagged(st) { // it was refused while something was wrong
		l.plan("somebody has everything looked at again")
		must(l.Agent.Reconcile("dev"))
	}
	for _, b := range st.Blocked {
		if st.Revision.Commit() == l.Head() {
			l.takeHint(b)
		}
	}
	tried := slices.ContainsFunc(st.Blocked, func(b cluster.Block) bool {
		return b.Reason == cluster.ChangeNotTaken || b.Reason == cluster.ConfigRefused
	})
	if tried && l.pushes < 5 {
		l.pushes++
		l.plan("it is pushed again: %+v", st.Blocked)
		l.permitAll(true, true)
		l.wishes.again++
		l.ask("once more")
	}
}

// isUntagged reports whether a VM is without the agent's tags, which takes somebody to end.
func isUntagged(st cluster.Status) bool {
	return strings.Contains(st.Problems.Error(), "is without tags of the agent")
}

// advice identifies a block whose hint a person takes.
type advice struct {
	reason         cluster.Reason
	subject, about string
}

// takeHint does what the hint of a block has a person do, and once more where that has not helped for
// half an hour: a token that is pushed while somebody has edited the mark of the VM away is written there.
func (l *life) takeHint(b cluster.Block) {
	of := advice{b.Reason, b.Subject, b.About}
	switch {
	case time.Since(l.helped[of]) < 30*time.Minute:
		return
	case b.Reason == cluster.EtcdMemberStuck, b.Reason == cluster.EtcdMemberLost: // Talos makes no voter of it with the data that it has
		l.guard.permit(b.Subject)
		l.permitNew(b.Subject)
		l.wishes.tokens[b.Subject] = fmt.Sprintf("t%d", len(l.plans))
	case b.Reason == cluster.EndpointIsNode:
		l.wishes.vip = true
	default:
		return
	}
	l.helped[of] = time.Now()
	l.plan("somebody does what is to be done about %s: %s", b.Subject, b.Message)
	l.ask(string(b.Reason))
}
