package agent_test

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/agent"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// watchRemovals judges, by what the world shows at that instant, whether a node that is
// switched off for ever was drained, and is no member of etcd any longer.
func (s *sim) watchRemovals() {
	s.Lab.World.OnCall(func(c world.CallRecord) { s.Witness(c); s.judgeRemoval(c) })
}

// judgeRemoval judges one call, as watchRemovals has it.
func (s *sim) judgeRemoval(c world.CallRecord) {
	if c.System != "pve" || !strings.HasSuffix(c.Op, "/status/stop") {
		return
	}
	name := ""
	for _, vm := range s.Lab.PVE.VMs() {
		if fmt.Sprint(vm.VMID) == c.Subject {
			name = vm.Config["name"]
		}
	}
	for _, n := range s.Lab.Kube.Objects("", schema.GroupVersionResource{Version: "v1", Resource: "nodes"}, "") {
		if cordoned, _, _ := unstructured.NestedBool(n.Object, "spec", "unschedulable"); n.GetName() == name && !cordoned {
			s.Lab.World.Violate("removal", "%s is stopped, and in service", name)
		}
	}
	if slices.Contains(s.members(), name) {
		s.Lab.World.Violate("removal", "%s is stopped, and a member of etcd", name)
	}
}

// members are the names of the members of etcd.
func (s *sim) members() []string {
	var out []string
	for _, m := range s.Lab.Talos.Machines() {
		if m.Etcd != "" {
			out = append(out, m.Node)
		}
	}
	return out
}

// nodeObjects are the names of the nodes in Kubernetes.
func (s *sim) nodeObjects() []string {
	var out []string
	for _, n := range s.Lab.Kube.Objects("", schema.GroupVersionResource{Version: "v1", Resource: "nodes"}, "") {
		out = append(out, n.GetName())
	}
	slices.Sort(out)
	return out
}

// TestNodesThatLeaveTheInventory: a worker and two control planes are removed, with VM,
// Node object and member of etcd, and the quorum is never lost.
func TestNodesThatLeaveTheInventory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 3, Workers: 3}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		s.watchRemovals()
		files := sz.Files()
		push := func(what, from, to string) {
			t.Helper()
			changed(t, files, "inventory/dev/nodes.yaml", from, to)
			s.Push(files, what)
		}
		push("a worker less", "  - {name: dev-wk-3, ip: 10.10.0.43, cpu: 4, ram: 8192, disk: 60G}\n", "")
		s.UntilReady(time.Hour)
		if got := fmt.Sprint(s.nodeObjects()); got != "[dev-cp-1 dev-cp-2 dev-cp-3 dev-wk-1 dev-wk-2]" {
			t.Errorf("nodes in Kubernetes: %s", got)
		}
		push("an even number", "  - {name: dev-cp-3, ip: 10.10.0.13, cpu: 4, ram: 8192, disk: 40G}\n", "")
		s.Until(time.Hour, "refused", func(st cluster.Status) bool { return st.Reason == cluster.EvenControlPlanes })
		changed(t, files, "inventory/dev/cluster.yaml", "cni: cilium", "allow_even: true\ncni: cilium")
		s.Push(files, "two are fine")
		s.UntilReady(time.Hour)
		push("the founder leaves", "  - {name: dev-cp-1, ip: 10.10.0.11, cpu: 4, ram: 8192, disk: 40G}\n", "")
		s.UntilReady(time.Hour)
		if got := fmt.Sprint(s.nodeObjects(), s.members()); got != "[dev-cp-2 dev-wk-1 dev-wk-2] [dev-cp-2]" {
			t.Errorf("nodes in Kubernetes, members of etcd: %s", got)
		}
		s.Quiet(10 * time.Minute)
		s.CheckRules(size{ControlPlanes: 1, Workers: 2})
		s.Halt()
	})
}

// TestControlPlanesThatSomebodyDestroyed: each VM that was destroyed by hand is made
// again, the founder's, too, after its member was removed from etcd; with two of three
// destroyed nothing is, because etcd has no quorum.
func TestControlPlanesThatSomebodyDestroyed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 3, Workers: 1}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		destroy := func(name string) {
			t.Helper()
			must(s.Lab.PVE.Stop(s.vmidOf(name)))
			must(s.Lab.PVE.Remove(s.vmidOf(name)))
			s.Until(10*time.Minute, "seen", func(st cluster.Status) bool { return st.Condition != cluster.Ready })
		}
		for _, name := range []string{"dev-cp-1", "dev-cp-3"} {
			destroy(name)
			s.UntilReady(time.Hour)
			var started []string
			for _, p := range s.Status().Passes {
				started = append(started, p.Started...)
			}
			if !slices.ContainsFunc(started, func(what string) bool {
				return strings.HasPrefix(what, "create vm") && strings.Contains(what, name) && strings.Contains(what, " by root@pam at ")
			}) {
				t.Errorf("who destroyed %s is not shown: %q", name, started)
			}
			if got := s.members(); len(got) != 3 {
				t.Errorf("%s: members of etcd: %s", name, got)
			}
		}
		destroy("dev-cp-1")
		destroy("dev-cp-2")
		time.Sleep(time.Hour)
		if st := s.Status(); waitFor(st, "dev-cp-2", cluster.EtcdMembersUnknown) == "" || len(s.Lab.PVE.VMs()) != 2 {
			t.Errorf("without a quorum: %+v", st.Waiting)
		}
		for _, v := range s.Lab.World.Violations() {
			t.Errorf("broken rule: %s", v)
		}
		s.Halt()
	})
}

// TestReplacement: each node whose token changed gets a new machine, once, and nothing
// else is made again.
func TestReplacement(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { replacedWith(t, size{ControlPlanes: 3, Workers: 2}, lab.Config{}, nil) })
}

// replacedWith replaces a worker and the founder of a Ready cluster, with one crash on the
// way if there is a point for it, and returns how often the agent died.
func replacedWith(t *testing.T, sz size, c lab.Config, p *crashPoint) (points []crashPoint, deaths int) {
	s := newSim(t, sz, c)
	defer s.Close()
	s.Boot()
	s.UntilReady(20 * time.Minute)
	s.watchRemovals()
	first := s.generations()
	pointsOf := s.armAt(p)
	files := sz.Files()
	for _, name := range []string{"dev-wk-1", "dev-cp-1"} {
		changed(t, files, "inventory/dev/nodes.yaml", "{name: "+name+",", "{name: "+name+", replace: now,")
		s.Push(files, "replace "+name)
		s.UntilReady(3 * time.Hour)
	}
	points = pointsOf()
	if t.Failed() {
		return points, s.Deaths
	}
	for _, p := range s.Status().Passes {
		for _, what := range p.Started {
			if strings.HasPrefix(what, "create vm") && strings.Contains(what, "(qm") || strings.Contains(what, "changed after") {
				t.Errorf("its own deletion is shown as somebody's: %s", what)
			}
		}
	}
	for name, now := range s.generations() {
		if replaced := now != first[name]; replaced != (name == "dev-wk-1" || name == "dev-cp-1") {
			t.Errorf("%s is replaced: %v", name, replaced)
		}
	}
	if got := s.members(); len(got) != sz.ControlPlanes || len(s.nodeObjects()) != sz.ControlPlanes+sz.Workers || len(s.cordoned()) > 0 {
		t.Errorf("members of etcd %s, nodes %s, cordoned %s", got, s.nodeObjects(), s.cordoned())
	}
	s.Quiet(10 * time.Minute)
	s.CheckRules(sz)
	s.Halt()
	return points, s.Deaths
}

// generations identifies the VM that each node has: another one has another id.
func (s *sim) generations() map[string]string {
	out := map[string]string{}
	for _, vm := range s.Lab.PVE.VMs() {
		out[vm.Config["name"]] = vm.Config["vmgenid"]
	}
	return out
}

// removedWith takes a worker and a control plane out of the inventory of a Ready cluster,
// with one crash on the way if there is a point for it, and returns how often the agent
// died.
func removedWith(t *testing.T, sz size, c lab.Config, p *crashPoint) (points []crashPoint, deaths int) {
	s := newSim(t, sz, c)
	defer s.Close()
	s.Boot()
	s.UntilReady(20 * time.Minute)
	s.watchRemovals()
	pointsOf := s.armAt(p)
	files := sz.Files()
	changed(t, files, "inventory/dev/cluster.yaml", "cni: cilium", "allow_even: true\ncni: cilium")
	changed(t, files, "inventory/dev/nodes.yaml", "  - {name: dev-cp-1, ip: 10.10.0.11, cpu: 4, ram: 8192, disk: 40G}\n", "")
	s.Push(files, "the founder leaves")
	s.UntilReady(3 * time.Hour)
	changed(t, files, "inventory/dev/nodes.yaml", "  - {name: dev-wk-2, ip: 10.10.0.42, cpu: 4, ram: 8192, disk: 60G}\n", "")
	s.Push(files, "a worker leaves")
	s.UntilReady(3 * time.Hour)
	points = pointsOf()
	if t.Failed() {
		return points, s.Deaths
	}
	if got := fmt.Sprint(s.nodeObjects(), s.members()); got != "[dev-cp-2 dev-wk-1] [dev-cp-2]" {
		t.Errorf("nodes in Kubernetes, members of etcd: %s", got)
	}
	s.Quiet(10 * time.Minute)
	s.CheckRules(size{ControlPlanes: 1, Workers: 1})
	s.Halt()
	return points, s.Deaths
}

// TestCrashDuringARemoval kills the agent at every third instant of the removal of a control
// plane and of a worker, with -all-crashes at every one: another one ends it.
func TestCrashDuringARemoval(t *testing.T) {
	t.Parallel()
	crashEverywhere(t, size{ControlPlanes: 2, Workers: 2}, 3, removedWith)
}

// TestCrashDuringAReplacement does the same to a replacement of both.
func TestCrashDuringAReplacement(t *testing.T) {
	t.Parallel()
	crashEverywhere(t, size{ControlPlanes: 3, Workers: 2}, 3, replacedWith)
}

// crashEverywhere lives through something once, and then once for every instant of it, or
// one in so many of them, at which the agent is killed.
func crashEverywhere(t *testing.T, sz size, part int, lived func(*testing.T, size, lab.Config, *crashPoint) ([]crashPoint, int)) {
	crashWhere(t, sz, func(i int, _ crashPoint) bool { return isRun(t, i, part) }, lived)
}

// crashWhere does the same for those instants that are picked.
func crashWhere(t *testing.T, sz size, picked func(int, crashPoint) bool, lived func(*testing.T, size, lab.Config, *crashPoint) ([]crashPoint, int)) {
	var points []crashPoint
	synctest.Test(t, func(t *testing.T) { points, _ = lived(t, sz, lab.Config{}, nil) })
	var tally tally
	t.Run("all", func(t *testing.T) {
		for i, p := range points {
			if picked(i, p) {
				t.Run(p.String(), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						tally.add(runHurried(t, func(c lab.Config) int { _, n := lived(t, sz, c, &p); return n }))
					})
				})
			}
		}
	})
	tally.judge(t, len(points))
}

// TestApproval: a push that removes more nodes than the host lets go waits for an
// approval, which is for the plan that was shown and for no other.
func TestApproval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 4}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		s.watchRemovals()
		if err := s.Cluster().Approve("0123456789ab"); cluster.ReasonOf(err) != cluster.NothingToAccept {
			t.Errorf("nothing waits: %v", err)
		}
		files := sz.Files()
		workers := func(n int) string {
			return fmt.Sprintf("  - {name: dev-wk-%d, ip: 10.10.0.%d, cpu: 4, ram: 8192, disk: 60G}\n", n, 40+n)
		}
		changed(t, files, "inventory/dev/nodes.yaml", workers(3)+workers(4), "")
		s.Push(files, "two workers less")
		held := func(st cluster.Status) bool {
			return st.Reason == cluster.RemovalUnapproved && st.Revision.Commit() == s.Head()
		}
		s.Until(time.Hour, "held", held)
		shown, err := s.Cluster().Forecast(t.Context())
		if err != nil || !shown.Unapproved || !slices.Equal(shown.VMs, []int{543, 544}) || !shown.Destructive() {
			t.Fatalf("%+v, %v", shown, err)
		}
		s.Quiet(10 * time.Minute)
		changed(t, files, "inventory/dev/nodes.yaml", workers(2), "")
		s.Push(files, "three workers less")
		s.Until(time.Hour, "held", held)
		if err := s.Cluster().Approve(shown.Digest); cluster.ReasonOf(err) != cluster.NotConfirmed {
			t.Errorf("what was shown before: %v", err)
		}
		if shown, err = s.Cluster().Forecast(t.Context()); err != nil {
			t.Fatal(err)
		}
		must(s.Cluster().Approve(shown.Digest[:12]))
		s.UntilReady(2 * time.Hour)
		if got := fmt.Sprint(s.nodeObjects()); got != "[dev-cp-1 dev-wk-1]" {
			t.Errorf("nodes in Kubernetes: %s", got)
		}
		s.CheckRules(size{ControlPlanes: 1, Workers: 1})
		s.Push(sz.Files(), "all of them again")
		s.UntilReady(2 * time.Hour)
		s.Push(files, "and none of them")
		s.Until(time.Hour, "held: what was approved is over", held)
		s.Quiet(10 * time.Minute)
		s.CheckRules(sz)
		s.Halt()
	})
}

// TestGuardedNodeLeaves: a node that was protected when it left the inventory is removed
// when that is approved, also by an agent that was started since.
func TestGuardedNodeLeaves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 2}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		s.watchRemovals()
		files, line := sz.Files(), "  - {name: dev-wk-2, ip: 10.10.0.42, cpu: 4, ram: 8192, disk: 60G}\n"
		changed(t, files, "inventory/dev/nodes.yaml", line, strings.Replace(line, "}", ", protect: true}", 1))
		s.Push(files, "a worker is protected")
		s.UntilReady(time.Hour)
		s.Halt()
		s.Boot()
		changed(t, files, "inventory/dev/nodes.yaml", strings.Replace(line, "}", ", protect: true}", 1), "")
		s.Push(files, "it leaves")
		s.Until(time.Hour, "held", func(st cluster.Status) bool { return st.Reason == cluster.RemovalUnapproved })
		s.Quiet(10 * time.Minute)
		s.CheckRules(sz)
		shown, err := s.Cluster().Forecast(t.Context())
		if err != nil || !shown.Unapproved || len(shown.VMs) != 1 {
			t.Fatalf("%+v, %v", shown, err)
		}
		must(s.Cluster().Approve(shown.Digest))
		s.UntilReady(2 * time.Hour)
		s.CheckRules(size{ControlPlanes: 1, Workers: 1})
		s.Halt()
	})
}

// TestPoolThatIsLost: all VMs were taken out of their pool, so that the agent sees none, and a worker
// leaves the inventory. Nothing of the cluster is removed for that, and nothing is made beside it.
func TestPoolThatIsLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 3, Workers: 2}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		before, first := fmt.Sprint(s.members(), s.nodeObjects()), s.generations()
		for _, vm := range s.Lab.PVE.VMs() {
			s.takeOut(vm.VMID)
		}
		files := sz.Files()
		withoutNode(t, files, "dev-wk-2")
		s.Push(files, "one worker less")
		s.Lab.World.ForgetCalls()
		time.Sleep(3 * time.Hour)
		for _, c := range s.Lab.World.Calls() {
			if c.Mutating && (c.System == "pve" || c.System == "talos") {
				t.Errorf("%v: %s %s %s", c.At, c.System, c.Op, c.Subject)
			}
		}
		if after := fmt.Sprint(s.members(), s.nodeObjects()); after != before || fmt.Sprint(s.generations()) != fmt.Sprint(first) {
			t.Errorf("%s, and before %s; machines %v, and before %v", after, before, s.generations(), first)
		}
		if st := s.Status(); st.Condition != cluster.Stalled {
			t.Errorf("the cluster is %s", st.Condition)
		}
		s.Halt()
	})
}

// TestRemovalOutsideThePolicy: root of the host takes the VMID of a node out of the policy, and a push takes
// the node out of the inventory. Its VM runs on, in service, until the policy allows that again.
func TestRemovalOutsideThePolicy(t *testing.T) {
	t.Parallel()
	sz := size{ControlPlanes: 1, Workers: 2}
	files := sz.Files()
	inReadyCluster(t, sz, files, func(t *testing.T, s *sim) {
		var allowed atomic.Pointer[cluster.Policy]
		allow := func(last int) {
			allowed.Store(&cluster.Policy{File: "policy.yaml", Pool: "talos", VMIDs: []cluster.Range{{First: 400, Last: last}}, Lines: map[string]int{"vmids": 2}})
		}
		allow(541)
		s.watchRemovals()
		s.Halt()
		withoutNode(t, files, "dev-wk-2")
		s.Push(files, "one worker less")
		s.Boot(func(c *agent.Config) { c.Policy = func() cluster.Policy { return *allowed.Load() } })
		first := s.bootOf("dev-wk-2")
		s.Until(time.Hour, "held by the policy", func(st cluster.Status) bool {
			return st.Reason == cluster.PolicyViolation && strings.Contains(st.Message, "vm 542 is kept: its vmid lies outside 400-541 (host policy, policy.yaml:2: vmids)")
		})
		s.Quiet(time.Hour)
		s.CheckRules(sz)
		if is := s.bootOf("dev-wk-2"); is == "" || is != first {
			t.Errorf("dev-wk-2 had boot %q, and has %q", first, is)
		}
		allow(599)
		s.UntilReady(time.Hour)
		s.CheckRules(size{ControlPlanes: 1, Workers: 1})
	})
}

// TestApprovalOutlivesAReadme: after the approval of changes that take two workers down in turns somebody
// pushes a README, twice, and the agent is started again in between: nothing waits for another approval.
// A push that asks for more does.
func TestApprovalOutlivesAReadme(t *testing.T) {
	t.Parallel()
	sz := size{ControlPlanes: 1, Workers: 2}
	files := sz.Files()
	inReadyCluster(t, sz, files, func(t *testing.T, s *sim) {
		changed(t, files, "inventory/dev/cluster.yaml", "cni: cilium\n", "apply: approve\ncni: cilium\n")
		for n, ip := range []string{"10.10.0.41", "10.10.0.42"} {
			node := fmt.Sprintf("{name: dev-wk-%d, ip: %s, ", n+1, ip)
			changed(t, files, "inventory/dev/nodes.yaml", node+"cpu: 4", node+"cpu: 2")
		}
		s.Push(files, "smaller workers")
		held := func(st cluster.Status) bool {
			return st.Reason == cluster.ChangeUnapproved && st.Revision.Commit() == s.Head()
		}
		s.Until(time.Hour, "held", held)
		shown, err := s.Cluster().Forecast(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		must(s.Cluster().Approve(shown.Digest))
		s.Until(time.Hour, "the first is out of service", func(cluster.Status) bool { return len(s.cordoned()) > 0 })
		files["README.md"] = []byte("one\n")
		s.Push(files, "a readme")
		s.Until(10*time.Minute, "it is seen", func(st cluster.Status) bool { return st.Revision.Commit() == s.Head() })
		s.Halt()
		files["README.md"] = []byte("two\n")
		s.Push(files, "another readme")
		s.Boot()
		s.UntilReady(2 * time.Hour)
		for _, vm := range s.Lab.PVE.VMs() {
			if strings.HasPrefix(vm.Config["name"], "dev-wk-") && vm.Config["cores"] != "2" {
				t.Errorf("%s has %s cores", vm.Config["name"], vm.Config["cores"])
			}
		}
		changed(t, files, "inventory/dev/nodes.yaml", "ip: 10.10.0.41, cpu: 2", "ip: 10.10.0.41, cpu: 3")
		s.Push(files, "a larger one")
		s.Until(time.Hour, "held", held)
		s.Quiet(10 * time.Minute)
		s.CheckRules(sz)
	})
}
