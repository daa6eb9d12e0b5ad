package agent_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// database is a StatefulSet of one pod with a volume.
const database = `{"apiVersion":"apps/v1","kind":"StatefulSet","metadata":{"name":"db","namespace":"default"},"spec":{"replicas":1,"serviceName":"db",
	"selector":{"matchLabels":{"app":"db"}},"template":{"metadata":{"labels":{"app":"db"}},"spec":{"containers":[{"name":"main","image":"registry.k8s.io/pause:3.10"}],
	"volumes":[{"name":"data","persistentVolumeClaim":{"claimName":"data-db-0"}}]}},
	"volumeClaimTemplates":[{"metadata":{"name":"data"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}]}}`

// placeOf is the node on which a pod of the namespace default runs and is ready, "" when it is not.
func (s *sim) placeOf(pod string) string {
	o := s.object("", "pods", "default", pod)
	if o == nil || o.GetDeletionTimestamp() != nil {
		return ""
	}
	conditions, _, err := unstructured.NestedSlice(o.Object, "status", "conditions")
	must(err)
	node, _, err := unstructured.NestedString(o.Object, "spec", "nodeName")
	must(err)
	for _, c := range conditions {
		if m, ok := c.(map[string]any); ok && m["type"] == "Ready" && m["status"] == string(metav1.ConditionTrue) {
			return node
		}
	}
	return ""
}

// attachedTo are the nodes that volumes are attached to.
func (s *sim) attachedTo() (nodes []string) {
	for _, o := range s.Lab.Kube.Objects("", schema.GroupVersionResource{Group: "storage.k8s.io", Version: "v1", Resource: "volumeattachments"}, "") {
		node, _, err := unstructured.NestedString(o.Object, "spec", "nodeName")
		must(err)
		nodes = append(nodes, node)
	}
	return nodes
}

// TestDestroyedMachinesLeaveNothing: the next machine of a node whose VM somebody destroyed has
// neither the Node object, the pods nor the volumes of the one before: a database that ran there
// runs again, with its volume, and no Node object keeps a mark of that.
func TestDestroyedMachinesLeaveNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 3, Workers: 2}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		s.kubectl(netip.MustParseAddr("10.10.0.11"), http.MethodPost, "/apis/apps/v1/namespaces/default/statefulsets", database)
		s.Until(10*time.Minute, "the database runs", func(cluster.Status) bool { return s.placeOf("db-0") != "" })
		for _, name := range []string{s.placeOf("db-0"), "dev-cp-3"} {
			before, pod := s.object("", "nodes", "", name).GetUID(), s.object("", "pods", "default", "db-0").GetUID()
			must(s.Lab.PVE.Stop(s.vmidOf(name)))
			must(s.Lab.PVE.Remove(s.vmidOf(name)))
			s.Until(10*time.Minute, "seen", func(st cluster.Status) bool { return st.Condition != cluster.Ready })
			does := ""
			s.Until(time.Hour, "Ready", func(st cluster.Status) bool {
				for _, p := range st.Passes {
					does += strings.Join(p.Started, "\n") + "\n"
				}
				return st.Condition == cluster.Ready
			})
			if who := fmt.Sprintf(`create vm %d \(%s\) on pve1: .+ \(qmdestroy by root@pam at [0-9: -]+ UTC, UPID:pve1:[^)]*:qmdestroy:%[1]d:root@pam:\)`, s.vmidOf(name), name); !regexp.MustCompile(who).MatchString(does) {
				t.Errorf("%s: who destroyed it is not shown: %s", name, does)
			}
			s.Until(5*time.Minute, "the database runs", func(cluster.Status) bool { return s.placeOf("db-0") != "" })
			now := s.object("", "nodes", "", name)
			taints, _, err := unstructured.NestedSlice(now.Object, "spec", "taints")
			must(err)
			if now.GetUID() == before || len(s.cordoned()) > 0 || name != "dev-cp-3" && len(taints) > 0 {
				t.Errorf("%s: its Node object is new: %v, cordoned %s, taints %v", name, now.GetUID() != before, s.cordoned(), taints)
			}
			if again := s.object("", "pods", "default", "db-0").GetUID() != pod; again == (name == "dev-cp-3") {
				t.Errorf("%s: the pod is another one: %v", name, again)
			}
			if got, want := fmt.Sprint(s.attachedTo()), fmt.Sprint([]string{s.placeOf("db-0")}); got != want {
				t.Errorf("%s: volumes are attached to %s, and the pod is on %s", name, got, want)
			}
		}
		s.Quiet(10 * time.Minute)
		s.CheckRules(sz)
		s.Halt()
	})
}

// TestStoppedIsNotReady: a VM that is seen to be stopped, as when healing is off, is never shown as a
// node that is Ready, not for a moment.
func TestStoppedIsNotReady(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 2}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		files := sz.Files()
		changed(t, files, "inventory/dev/cluster.yaml", "cni: cilium", "heal: observe\ncni: cilium")
		s.Push(files, "observe")
		s.Boot()
		s.UntilReady(20 * time.Minute)
		time.Sleep(10 * time.Minute) // whatever a start of the agent has brought is over
		must(s.Lab.PVE.Stop(s.vmidOf("dev-wk-1")))
		s.Until(5*time.Minute, "seen", func(st cluster.Status) bool {
			if !slices.ContainsFunc(st.Blocked, func(b cluster.Block) bool { return b.Subject == "dev-wk-1" && b.Reason == cluster.HealingOff }) {
				return false
			}
			for _, n := range st.Nodes {
				if n.Name == "dev-wk-1" && n.Phase != cluster.PhaseStopped {
					t.Errorf("it is reported, and shown as %s", n.Phase)
				}
			}
			return true
		})
		s.Halt()
	})
}

// TestTakenOutOfThePool: the VM of a node that somebody took out of the pool, or moved to another one, where
// the token of the agent does not see it, is reported as that, and nothing is done to it; the
// command of the hint brings it back.
func TestTakenOutOfThePool(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 1}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		id := s.vmidOf("dev-wk-1")
		before, _ := s.Lab.PVE.VM(id)
		if got := s.askAsRoot(http.MethodPost, "/pools", "poolid=other"); !strings.HasPrefix(got, "200 ") {
			t.Fatal(got)
		}
		for what, move := range map[string]func(){
			"taken out": func() { s.takeOut(id) },
			"moved":     func() { s.putAsRoot("/pools/other", fmt.Sprintf("vms=%d&allow-move=1", id)) },
		} {
			time.Sleep(10 * time.Minute) // whatever came before is over
			move()
			var b cluster.Block
			s.Until(5*time.Minute, what+": reported", func(st cluster.Status) bool {
				i := slices.IndexFunc(st.Blocked, func(b cluster.Block) bool { return b.Subject == "dev-wk-1" })
				if i >= 0 {
					b = st.Blocked[i]
				}
				return i >= 0
			})
			if b.Reason != cluster.PoolDrift || !strings.Contains(b.Message, "(its own machine answers), and the inventory has talos") || !strings.Contains(b.Message, "changed after") {
				t.Errorf("%s: %+v", what, b)
			}
			if len(b.Drift) != 1 || b.Drift[0].Field != "pool" || b.Drift[0].Wants != "talos" || b.Drift[0].By == "" || b.Drift[0].Since.IsZero() {
				t.Errorf("%s: %+v", what, b.Drift)
			}
			time.Sleep(30 * time.Minute)
			if after, _ := s.Lab.PVE.VM(id); after.Digest != before.Digest || !isRunning(s, id) {
				t.Errorf("%s: the VM was changed: %v", what, after.Config)
			}
			m := regexp.MustCompile("`pvesh set (\\S+) --vms (\\d+) --allow-move 1` as root on pve1").FindStringSubmatch(b.Hint)
			if m == nil {
				t.Fatal(b.Hint)
			}
			s.putAsRoot(m[1], "vms="+m[2]+"&allow-move=1")
			s.UntilReady(10 * time.Minute)
		}
		s.CheckRules(sz)
		s.Halt()
	})
}

// TestLostNetworkCard: the network card of a VM that somebody removed, while it ran or while it was off,
// is put back as it was, and one that somebody disconnected is connected again; a VM that is off is
// started with it.
func TestLostNetworkCard(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 1}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		const name = "dev-wk-1"
		id := s.vmidOf(name)
		card := func() string {
			vm, ok := s.Lab.PVE.VM(id)
			if !ok || len(vm.Pending) > 0 {
				return ""
			}
			return vm.Config["net0"]
		}
		before := card()
		for _, c := range []struct{ what, does string }{
			{"removed as it runs", "network card from none (pending its next start) to virtio"},
			{"removed as it is off", "network card from none to virtio"},
			{"disconnected", "link down from true to false"},
		} {
			must(s.Cluster().Suspend())
			switch c.what {
			case "removed as it runs":
				if got := s.askAsRoot(http.MethodPut, fmt.Sprintf("/nodes/pve1/qemu/%d/config", id), "delete=net0"); !strings.Contains(got, "hot-unplugging") {
					t.Errorf("%s: %s", c.what, got)
				}
			case "removed as it is off":
				must(s.Lab.PVE.Stop(id))
				must(s.Lab.PVE.Edit(id, "net0", ""))
			case "disconnected":
				must(s.Lab.PVE.Edit(id, "net0", before+",link_down=1"))
				must(s.Lab.Talos.Partition(id, true))
			}
			must(s.Cluster().Resume())
			does := ""
			s.Until(10*time.Minute, c.what+": put back", func(st cluster.Status) bool {
				for _, p := range st.Passes {
					does += strings.Join(p.Started, "\n") + "\n"
				}
				return card() == before
			})
			if c.what == "disconnected" {
				must(s.Lab.Talos.Partition(id, false))
			}
			s.UntilReady(20 * time.Minute)
			if !strings.Contains(does, "change vm 541 (dev-wk-1): "+c.does) {
				t.Errorf("%s: %s", c.what, does)
			}
		}
		must(s.Lab.PVE.Edit(id, "ide2", ""))
		warns := func(st cluster.Status) bool {
			return slices.ContainsFunc(st.Problems, func(p cluster.Problem) bool { return strings.Contains(p.Message, "cloud-init drive of vm 541") })
		}
		if warns(s.Status()) {
			t.Error("its cloud-init drive is missed before it was removed")
		}
		s.Until(5*time.Minute, "its cloud-init drive is missed", func(st cluster.Status) bool { return st.Condition == cluster.Ready && warns(st) })
		s.CheckRules(sz)
		s.Halt()
	})
}

// TestMemberThatSomebodyRemoved: a control plane whose member somebody has removed from etcd while it
// runs never joins again with its data. That is reported as such, all the time, with the way out;
// nothing is done about it unasked, and another token ends it.
func TestMemberThatSomebodyRemoved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 3, Workers: 1}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		first := s.generations()
		must(s.askTalos("10.10.0.11", func(ctx context.Context, c *client.Client) error {
			list, err := c.EtcdMemberList(ctx, &machineapi.EtcdMemberListRequest{})
			must(err)
			for _, m := range list.GetMessages()[0].GetMembers() {
				if m.GetHostname() == "dev-cp-2" {
					return c.EtcdRemoveMemberByID(ctx, &machineapi.EtcdRemoveMemberByIDRequest{MemberId: m.GetId()})
				}
			}
			return errors.New("dev-cp-2 is no member")
		}))
		reported := func(st cluster.Status) bool {
			return slices.ContainsFunc(st.Blocked, func(b cluster.Block) bool {
				return b.Subject == "dev-cp-2" && b.Reason == cluster.EtcdMemberLost && strings.Contains(b.Hint, "`replace`")
			})
		}
		s.Until(5*time.Minute, "reported", reported)
		for range 1000 {
			if time.Sleep(time.Second); !reported(s.Status()) {
				t.Fatalf("it is no longer reported: %s", s.Story(10))
			}
		}
		if s.generations()["dev-cp-2"] != first["dev-cp-2"] || s.Status().Condition != cluster.Stalled {
			t.Errorf("unasked it has another machine, or the cluster is %s", s.Status().Condition)
		}
		files := sz.Files()
		changed(t, files, "inventory/dev/nodes.yaml", "{name: dev-cp-2, ", "{name: dev-cp-2, replace: again, ")
		s.Push(files, "replace it")
		s.untilApplied("replaced")
		s.endReplaced(sz, first, "dev-cp-2")
	})
}

// TestEtcdThatSomebodyHadLeave: the etcd of a control plane that leaves the others does not start again
// before its machine does. It is restarted, drained, when that has lasted, and joins again. Where heal is
// observe it is left so.
func TestEtcdThatSomebodyHadLeave(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 3, Workers: 1}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		first := s.generations()
		leave := func() {
			must(s.askTalos("10.10.0.12", func(ctx context.Context, c *client.Client) error {
				_, err := c.MachineClient.EtcdLeaveCluster(ctx, &machineapi.EtcdLeaveClusterRequest{})
				return err
			}))
		}
		files := sz.Files()
		changed(t, files, "inventory/dev/cluster.yaml", "cni: cilium\n", "cni: cilium\nheal: observe\n")
		s.Push(files, "look on")
		s.untilApplied("observe")
		leave()
		s.Until(time.Hour, "left", func(st cluster.Status) bool {
			return slices.ContainsFunc(st.Blocked, func(b cluster.Block) bool { return b.Subject == "dev-cp-2" && b.Reason == cluster.HealingOff })
		})
		time.Sleep(time.Hour)
		if got := s.members(); slices.Contains(got, "dev-cp-2") || len(s.cordoned()) > 0 {
			t.Errorf("where heal is observe: members %v, cordoned %v", got, s.cordoned())
		}
		files = sz.Files()
		s.Push(files, "heal")
		for times := 1; times <= 2; times++ {
			s.untilApplied("healed")
			s.Quiet(10 * time.Minute)
			if got := s.members(); len(got) != 3 || len(s.cordoned()) > 0 {
				t.Fatalf("members %v, cordoned %v: %s", got, s.cordoned(), s.Story(20))
			}
			if times == 1 {
				leave() // another time, at the same revision
				s.Until(20*time.Minute, "left", func(st cluster.Status) bool { return st.Condition != cluster.Ready })
			}
		}
		if got := s.generations(); got["dev-cp-2"] != first["dev-cp-2"] {
			t.Error("it has another machine")
		}
		s.CheckRules(sz)
		s.Halt()
	})
}

// TestEtcdOfTheEndpointThatSomebodyHadLeave: a control plane whose etcd has left the others does not find
// them again while its own address is the endpoint. A vip that is pushed brings it back: the others get that
// although it is not Ready.
func TestEtcdOfTheEndpointThatSomebodyHadLeave(t *testing.T) {
	t.Parallel()
	sz := size{ControlPlanes: 3, Workers: 1}
	files := sz.Files()
	changed(t, files, "inventory/dev/cluster.yaml", "  vip: 10.10.0.5\n", "")
	inReadyCluster(t, sz, files, func(t *testing.T, s *sim) {
		must(s.askTalos("10.10.0.11", func(ctx context.Context, c *client.Client) error {
			_, err := c.MachineClient.EtcdLeaveCluster(ctx, &machineapi.EtcdLeaveClusterRequest{})
			return err
		}))
		s.Until(time.Hour, "it boots for long", func(st cluster.Status) bool {
			return slices.ContainsFunc(st.Waiting, func(w cluster.WaitStatus) bool {
				return w.Subject == "dev-cp-1" && w.Reason == cluster.WaitingForTalos && w.Overdue
			})
		})
		s.Push(sz.Files(), "a vip")
		s.UntilReady(2 * time.Hour)
		if got := s.members(); len(got) != 3 || len(s.cordoned()) > 0 {
			t.Errorf("members %v, cordoned %v", got, s.cordoned())
		}
		s.CheckRules(sz)
	})
}

// TestResetWhileAnotherIsDead: somebody resets a control plane while another one is dead. Its etcd
// cannot leave, so that it comes back with its data after five minutes, and etcd has no quorum meanwhile.
// The agent waits, and touches nothing.
func TestResetWhileAnotherIsDead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 3, Workers: 1}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		first, dead := s.generations(), s.vmidOf("dev-cp-3")
		must(s.Lab.Talos.Partition(dead, true))
		s.Until(20*time.Minute, "dev-cp-3 is dead", func(st cluster.Status) bool { return waitFor(st, "dev-cp-3", cluster.NodeUnreachable) != "" })
		must(s.askTalos("10.10.0.12", func(ctx context.Context, c *client.Client) error {
			_, err := c.MachineClient.Reset(ctx, &machineapi.ResetRequest{Graceful: true, Reboot: true})
			return err
		}))
		s.Lab.World.ForgetCalls()
		s.Until(2*time.Minute, "resetting", func(st cluster.Status) bool {
			return strings.HasPrefix(waitFor(st, "dev-cp-2", cluster.WaitingForTalos), "Talos is resetting")
		})
		time.Sleep(30 * time.Minute)
		for _, c := range s.Lab.World.Calls() {
			if c.Mutating && (c.System == "pve" || c.System == "talos") {
				t.Errorf("%v: %s %s", c.At, c.Op, c.Subject)
			}
		}
		if got := s.cordoned(); len(got) > 0 {
			t.Errorf("cordoned are %v", got)
		}
		must(s.Lab.Talos.Partition(dead, false))
		s.UntilReady(20 * time.Minute)
		if got := s.generations(); got["dev-cp-2"] != first["dev-cp-2"] || got["dev-cp-3"] != first["dev-cp-3"] {
			t.Error("a control plane has another machine")
		}
		s.Halt()
	})
}

// TestLearnerThatStaysOne: a control plane whose machine restarts while it joins etcd stays a learner for
// ever, and no other one can join. That is reported, and another token gives it a new machine.
func TestLearnerThatStaysOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 3, Workers: 1}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		joins := func() (times int) {
			for _, e := range s.Lab.World.Events() {
				if e.Subject == "dev-cp-3" && strings.HasSuffix(e.Text, " as a learner") {
					times++
				}
			}
			return times
		}
		before := joins()
		must(s.Lab.PVE.Stop(s.vmidOf("dev-cp-3")))
		must(s.Lab.PVE.Remove(s.vmidOf("dev-cp-3")))
		for began := time.Now(); joins() == before; time.Sleep(50 * time.Millisecond) {
			if time.Since(began) > 20*time.Minute {
				t.Fatalf("it does not join: %s", s.Story(20))
			}
		}
		must(s.Lab.Talos.Reboot(s.vmidOf("dev-cp-3")))
		first := s.generations()
		s.Until(30*time.Minute, "reported", func(st cluster.Status) bool {
			return slices.ContainsFunc(st.Blocked, func(b cluster.Block) bool { return b.Subject == "dev-cp-3" && b.Reason == cluster.EtcdMemberStuck })
		})
		time.Sleep(30 * time.Minute)
		if s.generations()["dev-cp-3"] != first["dev-cp-3"] || s.Status().Condition != cluster.Stalled {
			t.Errorf("unasked it has another machine, or the cluster is %s", s.Status().Condition)
		}
		files := sz.Files()
		changed(t, files, "inventory/dev/nodes.yaml", "{name: dev-cp-3, ", "{name: dev-cp-3, replace: again, ")
		s.Push(files, "replace it")
		s.untilApplied("replaced")
		s.endReplaced(sz, first, "dev-cp-3")
	})
}

// destroyedWith has somebody destroy the VM of a worker, and then that of the founder, with one crash
// on the way if there is a point for it, and returns how often the agent died.
func destroyedWith(t *testing.T, sz size, c lab.Config, p *crashPoint) (points []crashPoint, deaths int) {
	s := newSim(t, sz, c)
	defer s.Close()
	s.Boot()
	s.UntilReady(20 * time.Minute)
	g := newGuard(s, sz)
	g.orderNext(newWishes(sz).order(sz))
	g.named(s.Head())
	g.noteReady(s.Head())
	g.look()
	s.Lab.World.OnCall(func(c world.CallRecord) { s.Witness(c); s.judgeRemoval(c); g.lookAgain(); g.watch(c) })
	first, vmids := s.generations(), map[string]int{"dev-wk-1": s.vmidOf("dev-wk-1"), "dev-cp-1": s.vmidOf("dev-cp-1")}
	pointsOf := s.armAt(p)
	for _, name := range []string{"dev-wk-1", "dev-cp-1"} {
		object := s.object("", "nodes", "", name).GetUID()
		g.touch(name)
		must(s.Lab.PVE.Stop(vmids[name]))
		must(s.Lab.PVE.Remove(vmids[name]))
		s.untilReplaced(name, first[name], func() {})
		s.UntilReady(time.Hour)
		if now := s.object("", "nodes", "", name); now == nil || now.GetUID() == object {
			t.Errorf("%s has the Node object of the machine before", name)
		}
	}
	points = pointsOf()
	return points, s.endReplaced(sz, first, "dev-wk-1", "dev-cp-1")
}

// TestCrashWhileADestroyedVMIsMadeAgain kills the agent at one instant in twelve, with -all-crashes
// at every one, while a worker and a control plane whose VMs somebody has destroyed are made again:
// another one ends it, with one machine for each, one Node object and one member of etcd.
func TestCrashWhileADestroyedVMIsMadeAgain(t *testing.T) {
	t.Parallel()
	crashEverywhere(t, size{ControlPlanes: 3, Workers: 2}, 12, destroyedWith)
}
