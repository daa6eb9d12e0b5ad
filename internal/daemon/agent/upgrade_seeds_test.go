package agent_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/daemontest"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/talos/installer"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

var upgradeSeeds = flag.Int("upgrade-seeds", 4, "how many seeds of upgrades to run")

// TestUpgradeSeeds gives every seed an upgrade of Talos and of Kubernetes over several hops, and single events
// on the way, drawn from the seed: requests and answers are lost, the agent dies, hosts, nodes and the
// repository are away, people get in the way, and other versions and nodes are pushed. The cluster must
// become what the repository has in the end; where the agent stops meanwhile it names why, and somebody
// pushes.
//
// To see one again: go test ./internal/daemon/agent -run TestUpgradeSeeds -seed N -upgrade-seeds 1 -v
func TestUpgradeSeeds(t *testing.T) {
	t.Parallel()
	count := max(1, *upgradeSeeds/daemontest.Thin(t))
	for i := range count {
		seed := *firstSeed + uint64(i)
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := newUpgradeLife(t, seed)
				defer l.Close()
				l.live()
				if t.Failed() || count == 1 {
					t.Logf("planned:\n  %s\nhappened:\n%s", strings.Join(l.plans, "\n  "), l.Story(400))
				}
			})
		})
	}
}

// upgradeLife is the run of one seed.
type upgradeLife struct {
	*sim
	t      *testing.T
	rnd    *rand.Rand
	size   size
	from   [2]string // versions of Talos and Kubernetes
	wants  [2]string // in the repository
	fewer  bool      // extensions are asked for than at first
	plans  []string
	undo   []func() bool // what people do to clean up after themselves, until that has worked
	pushes int           // because the agent had stopped
}

func newUpgradeLife(t *testing.T, seed uint64) *upgradeLife {
	rnd := rand.New(rand.NewPCG(seed, 20260202))
	sizes := []size{{ControlPlanes: 1, Workers: 1}, {ControlPlanes: 3, Workers: 1}, {ControlPlanes: 1, Workers: 2}, {ControlPlanes: 3, Workers: 3}}
	starts := [][2]string{{"v1.12.11", "v1.34.3"}, {"v1.11.6", "v1.34.3"}, {"v1.13.8", "v1.35.3"}}
	l := &upgradeLife{t: t, rnd: rnd, size: sizes[rnd.IntN(len(sizes))], from: starts[rnd.IntN(len(starts))]}
	l.sim = newSim(t, l.size, lab.Config{})
	l.wants = l.from
	l.plan("%v nodes, from %v", l.size, l.from)
	return l
}

func (l *upgradeLife) plan(format string, args ...any) {
	l.plans = append(l.plans, fmt.Sprintf("%8.1fs ", l.Lab.World.Now().Sub(l.Lab.World.Start()).Seconds())+fmt.Sprintf(format, args...))
}

// ask pushes versions, for nodes of the size.
func (l *upgradeLife) ask(versions [2]string, why string) {
	l.wants = versions
	l.mu.Lock()
	l.back = l.back || versions[0] == l.from[0] && l.Agent != nil // what was begun may end after the next push
	l.mu.Unlock()
	files := l.size.Files()
	if l.fewer {
		changed(l.t, files, "inventory/dev/cluster.yaml", "siderolabs/iscsi-tools, siderolabs/util-linux-tools", "siderolabs/iscsi-tools")
	}
	withVersions(l.t, files, [2]string{"v1.13.9", "v1.36.1"}, versions)
	if l.pushes > 0 { // to the files of the cluster, or it has nothing tried again
		const file = "inventory/dev/cluster.yaml"
		files[file] = fmt.Appendf(files[file], "# once more (%d)\n", l.pushes)
	}
	l.Push(files, why)
}

func (l *upgradeLife) live() {
	goal := [2]string{"v1.14.1", "v1.36.1"}
	l.ask(l.from, "the cluster")
	l.Boot()
	l.UntilReady(30 * time.Minute)
	l.ask(goal, "other versions")
	for range 2 + l.rnd.IntN(5) {
		l.pass(time.Duration(1+l.rnd.IntN(400)) * time.Second)
		l.interfere()
	}
	l.pass(time.Duration(1+l.rnd.IntN(1200)) * time.Second)
	l.Lab.World.Heal()
	if l.wants != goal {
		l.plan("pushed: forward again")
		l.ask(goal, "forward again")
	}
	looked := time.Now()
	l.Until(24*time.Hour, "upgraded", func(st cluster.Status) bool {
		l.undo = slices.DeleteFunc(l.undo, func(f func() bool) bool { return f() })
		l.helpOut(st, &looked)
		return len(l.undo) == 0 && st.Condition == cluster.Ready && st.Revision == st.Applied && st.Revision.Commit() == l.Head()
	})
	if l.t.Failed() {
		return
	}
	if l.pushes > 3 {
		l.t.Errorf("somebody had to push %d times", l.pushes)
	}
	l.wantTalos(goal[0])
	l.wantKubernetes(goal[1])
	l.Quiet(10 * time.Minute)
	l.CheckRules(l.size)
	l.Halt()
}

// helpOut has somebody push where the agent has stopped for long, and names why.
func (l *upgradeLife) helpOut(st cluster.Status, looked *time.Time) {
	if st.Condition != cluster.Stalled {
		*looked = time.Now()
	}
	if time.Since(*looked) < time.Hour || l.pushes > 3 {
		return
	}
	*looked = time.Now()
	if st.Reason == "" {
		l.t.Errorf("the agent stops and does not name why: %+v", st)
	}
	l.pushes++
	l.plan("pushed once more, because of %s: %s", st.Reason, st.Message)
	l.ask(l.wants, fmt.Sprintf("once more (%d)", l.pushes))
}

// pass lets time pass, and people clean up.
func (l *upgradeLife) pass(d time.Duration) {
	began := time.Now()
	l.Until(d+time.Second, "past", func(cluster.Status) bool { return time.Since(began) >= d })
	l.undo = slices.DeleteFunc(l.undo, func(f func() bool) bool { return f() })
}

// draw draws a node.
func (l *upgradeLife) draw() (name, address string, vmid int) {
	n := l.rnd.IntN(l.size.ControlPlanes + l.size.Workers)
	if n < l.size.ControlPlanes {
		return l.size.Name(n), fmt.Sprintf("10.10.0.%d", 11+n), 411 + n
	}
	return l.size.Name(n), fmt.Sprintf("10.10.0.%d", 41+n-l.size.ControlPlanes), 541 + n - l.size.ControlPlanes
}

// interfere has one thing happen.
func (l *upgradeLife) interfere() {
	name, address, vmid := l.draw()
	events := map[string]func(){
		"the agent dies":            func() { l.Die() },
		"requests are lost":         func() { l.loseCalls(world.LoseRequest) },
		"answers are lost":          func() { l.loseCalls(world.LoseReply) },
		"its machine reboots":       func() { l.touch(); _ = l.Lab.Talos.Reboot(vmid) },
		"its VM is stopped":         func() { l.touch(); _ = l.Lab.PVE.Stop(vmid) },
		"the host reboots":          l.rebootHost,
		"the repository is away":    func() { l.darken("git.lab") },
		"its address is away":       func() { l.touch(); l.darken(address) },
		"somebody cordons it":       func() { l.cordon(name) },
		"somebody edits its config": func() { l.touch(); _ = l.talosctl(address, machineapi.ApplyConfigurationRequest_NO_REBOOT) },
		"somebody resets it":        func() { l.reset(address) },
		"kubernetes is out of order": func() {
			l.Lab.World.Inject(world.Fault{System: "kube", Kind: world.Answer, Status: http.StatusServiceUnavailable, Text: "out of order", Times: 1 + l.rnd.IntN(100)})
		},
		"etcd has an alarm":        func() { l.alarm(411) },
		"the new Talos hangs":      l.hang,
		"pushed: back":             func() { l.ask(l.from, "back") },
		"pushed: forward":          func() { l.ask([2]string{"v1.14.1", "v1.36.1"}, "forward") },
		"pushed: Talos alone":      func() { l.ask([2]string{"v1.14.1", l.from[1]}, "Talos alone") },
		"pushed: Kubernetes alone": func() { l.ask([2]string{l.from[0], "v1.35.3"}, "Kubernetes alone") },
		"pushed: other extensions": func() { l.fewer = !l.fewer; l.ask(l.wants, "other extensions") },
		"pushed: a worker more":    func() { l.size.Workers++; l.ask(l.wants, "a worker more") },
		"pushed: another README":   func() { l.ask(l.wants, "another README") },
	}
	names := make([]string, 0, len(events))
	for n := range events {
		names = append(names, n)
	}
	slices.Sort(names)
	what := names[l.rnd.IntN(len(names))]
	l.plan("%s (%s)", what, name)
	events[what]()
}

// loseCalls has a few calls of one system lose what is asked or answered.
func (l *upgradeLife) loseCalls(kind world.FaultKind) {
	system := []string{"talos", "talos", "kube", "pve"}[l.rnd.IntN(4)]
	f := world.Fault{System: system, Kind: kind, Nth: 1 + l.rnd.IntN(20), Times: 1 + l.rnd.IntN(5)}
	if system == "talos" && l.rnd.IntN(2) == 0 {
		ops := []string{"machine.LifecycleService/Upgrade", "machine.MachineService/Upgrade", "machine.MachineService/Reboot", "machine.ImageService/Pull", "machine.MachineService/ApplyConfiguration"}
		f.Op, f.Nth = ops[l.rnd.IntN(len(ops))], 1
	}
	l.plan("  of %s %s, %d from no. %d on", f.System, f.Op, f.Times, f.Nth)
	l.Lab.World.Inject(f)
}

// darken has an address not answer for a while.
func (l *upgradeLife) darken(address string) {
	network := l.Lab.World.Net.(*world.Memory)
	network.Darken(address, true)
	until := time.Now().Add(time.Duration(10+l.rnd.IntN(600)) * time.Second)
	l.undo = append(l.undo, func() bool {
		if time.Now().Before(until) {
			return false
		}
		network.Darken(address, false)
		return true
	})
}

// alarm has etcd raise an alarm, and somebody disarm it later.
func (l *upgradeLife) alarm(vmid int) {
	if l.Agent == nil || !l.alarmed.IsZero() || l.Lab.Talos.RaiseAlarm(vmid, machineapi.EtcdMemberAlarm_NOSPACE) != nil {
		return
	}
	until := time.Now().Add(time.Duration(60+l.rnd.IntN(1200)) * time.Second)
	l.since(time.Now())
	l.undo = append(l.undo, func() bool {
		disarm := func(ctx context.Context, c *client.Client) error {
			_, err := c.MachineClient.EtcdAlarmDisarm(ctx, &emptypb.Empty{})
			return err
		}
		if time.Now().Before(until) || l.askTalos("10.10.0.11", disarm) != nil {
			return false
		}
		l.since(time.Time{})
		return true
	})
}

// since notes since when etcd has an alarm.
func (l *upgradeLife) since(at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.alarmed = at
}

// hang has whatever boots a newer Talos by itself hang for a while, until its VM is reset. Who hangs for another reason
// than its upgrade is reset by somebody in the end.
func (l *upgradeLife) hang() {
	set := func(flaw installer.Flaw) {
		for _, version := range []string{"v1.12.11", "v1.13.9", "v1.14.1"} {
			l.Lab.Talos.SpoilImage(version, flaw)
		}
	}
	set(installer.HangsOnReboot)
	until := time.Now().Add(time.Duration(60+l.rnd.IntN(3600)) * time.Second)
	l.undo = append(l.undo, func() bool {
		if time.Now().Before(until) {
			return false
		}
		set(installer.Sound)
		reset := true
		for _, m := range l.Lab.Talos.Machines() {
			if m.Stage == "" { // one whose VM is busy is reset later
				l.touch()
				reset = l.Lab.PVE.Stop(m.VMID) == nil && l.Lab.PVE.Start(m.VMID) == nil && reset
			}
		}
		return reset
	})
}

// rebootHost has every machine, and the agent, end at once and begin again.
func (l *upgradeLife) rebootHost() {
	l.touch()
	l.Die()
	var ran []int
	for _, vm := range l.Lab.PVE.VMs() {
		if l.Lab.PVE.Stop(vm.VMID) == nil {
			ran = append(ran, vm.VMID)
		}
	}
	time.Sleep(2 * time.Minute)
	for _, vmid := range ran {
		must(l.Lab.PVE.Start(vmid))
	}
	l.touch()
}

// cordon has somebody cordon a node, and take that back later.
func (l *upgradeLife) cordon(name string) {
	set := func(on bool) error {
		if l.Agent == nil {
			return fmt.Errorf("there is no kubeconfig")
		}
		return l.tryKubectl(netip.MustParseAddr("10.10.0.11"), http.MethodPatch, "/api/v1/nodes/"+name, fmt.Sprintf(`{"spec":{"unschedulable":%v}}`, on))
	}
	if set(true) != nil {
		return
	}
	until := time.Now().Add(time.Duration(60+l.rnd.IntN(1200)) * time.Second)
	l.undo = append(l.undo, func() bool {
		return time.Now().After(until) && (!slices.Contains(l.cordoned(), name) || set(false) == nil)
	})
}

// reset has somebody reset a node, all but its image; a control plane leaves etcd first, and the only one stays.
func (l *upgradeLife) reset(address string) {
	if l.Agent == nil || l.size.ControlPlanes == 1 && address == "10.10.0.11" {
		return
	}
	l.touch()
	wipe := []*machineapi.ResetPartitionSpec{{Label: constants.StatePartitionLabel, Wipe: true}, {Label: constants.EphemeralPartitionLabel, Wipe: true}}
	_ = l.askTalos(address, func(ctx context.Context, c *client.Client) error {
		return c.ResetGeneric(ctx, &machineapi.ResetRequest{Graceful: true, Reboot: true, SystemPartitionsToWipe: wipe})
	})
}
