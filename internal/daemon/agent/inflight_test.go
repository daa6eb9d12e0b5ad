package agent_test

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/pve"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// slowAddon adds a deployment of one pod to a repository that takes two minutes to end.
func slowAddon(files map[string][]byte) {
	files["inventory/dev/addons/slow.yaml"] = []byte("name: slow\nnamespace: apps\nchart: {path: charts/slow}\ndepends_on: [cilium]\n")
	files["inventory/dev/charts/slow/Chart.yaml"] = []byte("apiVersion: v2\nname: slow\nversion: 1.0.0\n")
	files["inventory/dev/charts/slow/templates/all.yaml"] = []byte(`apiVersion: apps/v1
kind: Deployment
metadata: {name: slow}
spec:
  selector: {matchLabels: {app: slow}}
  template:
    metadata: {labels: {app: slow}}
    spec:
      terminationGracePeriodSeconds: 150
      containers: [{name: slow, image: registry.example.org/slow:1, lifecycle: {preStop: {sleep: {seconds: 120}}}}]
`)
	files["inventory/dev/cluster.yaml"] = []byte(strings.Replace(string(files["inventory/dev/cluster.yaml"]), "addons/podinfo.yaml", "addons/podinfo.yaml, addons/slow.yaml", 1))
}

// nodeOf is where a pod of an app runs.
func (s *sim) nodeOf(app string) string {
	for _, p := range s.Lab.Kube.Objects("", schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "apps") {
		if strings.HasPrefix(p.GetName(), app+"-") {
			on, _, _ := unstructured.NestedString(p.Object, "spec", "nodeName")
			return on
		}
	}
	return ""
}

// isDrained reports whether a node is being drained.
func isDrained(st cluster.Status, node string) bool {
	for _, r := range st.Running {
		if r.Action == cluster.DrainNode && r.Subject == node {
			return true
		}
	}
	return false
}

// TestPeopleInADrain: while a node is drained, whose pod takes its time, somebody edits
// its VM, cordons it, and pushes another change. The turn ends with both changes, what was
// edited is as the inventory has it, and the node goes down once. One that somebody uncordons
// while it is drained stays up, and has its turn later, which takes it down once.
func TestPeopleInADrain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 2}
		files := sz.Files()
		slowAddon(files)
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Push(files, "a pod that takes its time")
		s.Boot()
		s.UntilReady(20 * time.Minute)
		w := s.watchTurns(sz)
		cordon := func(name string, on bool) {
			s.kubectl(netip.MustParseAddr("10.10.0.11"), http.MethodPatch, "/api/v1/nodes/"+name, fmt.Sprintf(`{"spec":{"unschedulable":%v}}`, on))
		}
		first, second, address := s.nodeOf("slow"), "dev-wk-2", "10.10.0.41"
		if first == second {
			second, address = "dev-wk-1", "10.10.0.42"
		}
		changed(t, files, "inventory/dev/nodes.yaml", "ip: "+address+", cpu: 4", "ip: "+address+", cpu: 6")
		s.Push(files, "more cores")
		s.Until(time.Hour, "drained", func(st cluster.Status) bool { return isDrained(st, first) && len(s.cordoned()) == 1 })
		time.Sleep(30 * time.Second)
		must(s.Lab.PVE.Edit(s.vmidOf(first), "memory", "3072"))
		must(s.Lab.PVE.Edit(s.vmidOf(first), "description", "mine"))
		cordon(first, true)
		changed(t, files, "inventory/dev/nodes.yaml", "ram: 8192, disk: 60G", "ram: 9216, disk: 60G")
		s.Push(files, "and more memory")
		w.wantDown("")
		s.Until(time.Hour, "the first has its turn", func(cluster.Status) bool { return w.count()[first] == 1 })
		s.Until(time.Hour, "the second is drained", func(st cluster.Status) bool { return isDrained(st, second) && len(s.cordoned()) == 1 })
		time.Sleep(30 * time.Second)
		cordon(second, false)
		s.Until(10*time.Minute, "given up", func(st cluster.Status) bool {
			return strings.Contains(waitFor(st, second, cluster.ActionFailed), "uncordoned")
		})
		w.wantDown(first + ":1")
		s.UntilReady(2 * time.Hour)
		w.wantDown("dev-wk-1:1 dev-wk-2:1")
		for name, cores := range map[string]string{first: "6", second: "4"} {
			vm, _ := s.Lab.PVE.VM(s.vmidOf(name))
			if vm.Config["cores"] != cores || vm.Config["memory"] != "9216" || len(vm.Pending) > 0 || name == first && !strings.HasSuffix(vm.Config["description"], "\nmine") {
				t.Errorf("%s: %v, pending %v", name, vm.Config, vm.Pending)
			}
		}
		if got := s.cordoned(); len(got) > 0 {
			t.Errorf("left cordoned: %v", got)
		}
		s.Quiet(10 * time.Minute)
		s.CheckRules(sz)
		s.Halt()
	})
}

// TestPeopleBetweenDrainAndRestart: a node is drained, its shutdown fails, and the agent is
// stopped. Meanwhile somebody puts the node back into service, a pod comes to it, and they
// cordon it again. Nothing on the Node shows that: the next agent finds the pod, and evicts it
// before the machine goes down.
func TestPeopleBetweenDrainAndRestart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 2}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		s.watchTurns(sz)
		api, node := netip.MustParseAddr("10.10.0.11"), "dev-wk-1"
		s.Lab.World.Inject(world.Fault{Op: "POST /nodes/{node}/qemu/{vmid}/status/shutdown", Kind: world.Answer, Status: 500, Text: "can't lock file", Times: 1000})
		files := sz.Files()
		changed(t, files, "inventory/dev/nodes.yaml", "ip: 10.10.0.41, cpu: 4", "ip: 10.10.0.41, cpu: 6")
		s.Push(files, "more cores")
		s.Until(time.Hour, "it is not shut down", func(st cluster.Status) bool {
			return waitFor(st, node, cluster.ActionFailed) != "" && slices.Equal(s.cordoned(), []string{node})
		})
		d, err := s.desired()
		must(err)
		s.Halt()
		for _, step := range []struct{ method, path, body string }{
			{http.MethodPatch, "/api/v1/nodes/" + node, `{"spec":{"unschedulable":null}}`},
			{http.MethodPost, "/api/v1/namespaces/default/pods", `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"late"},"spec":{"nodeName":"` + node + `","containers":[{"name":"late","image":"registry.example.org/late:1"}]}}`},
			{http.MethodPatch, "/api/v1/nodes/" + node, `{"spec":{"unschedulable":true}}`},
		} {
			must(s.askKube(d, api, step.method, step.path, step.body))
		}
		s.Lab.World.Heal()
		s.Boot()
		s.UntilReady(time.Hour)
		if vm, _ := s.Lab.PVE.VM(s.vmidOf(node)); vm.Config["cores"] != "6" {
			t.Errorf("%v", vm.Config)
		}
		if s.has("", "pods", "default", "late") {
			t.Error("the pod was not evicted")
		}
		if got := s.cordoned(); len(got) > 0 {
			t.Errorf("left cordoned: %v", got)
		}
		s.Quiet(10 * time.Minute)
		s.CheckRules(sz)
		s.Halt()
	})
}

// TestUnhealthyControlPlanesHoldTurns: with two of five control planes away a change takes
// none down, and the status names who is away, also when one of them is back: a node that
// is not Ready has spent the budget. When both are, the change rolls.
func TestUnhealthyControlPlanesHoldTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 5, Workers: 1}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		w := s.watchTurns(sz)
		for _, name := range []string{"dev-cp-4", "dev-cp-5"} {
			must(s.Lab.Talos.Partition(s.vmidOf(name), true))
		}
		s.Until(10*time.Minute, "seen", func(st cluster.Status) bool {
			return st.Nodes[3].Phase != cluster.PhaseReady && st.Nodes[4].Phase != cluster.PhaseReady
		})
		files := sz.Files()
		changed(t, files, "inventory/dev/nodes.yaml", "cpu: 4, ram: 8192, disk: 40G", "cpu: 6, ram: 8192, disk: 40G")
		s.Push(files, "more cores")
		held := func(names string) {
			t.Helper()
			s.Until(10*time.Minute, "held by "+names, func(st cluster.Status) bool {
				why := waitFor(st, "dev-cp-1", cluster.WaitingForBudget)
				return strings.HasSuffix(why, ": "+names) && st.Revision.Commit() == s.Head()
			})
			time.Sleep(30 * time.Minute)
			if why := waitFor(s.Status(), "dev-cp-1", cluster.WaitingForBudget); !strings.HasSuffix(why, ": "+names) || len(s.cordoned()) > 0 {
				t.Errorf("later: %q, cordoned %v", why, s.cordoned())
			}
			w.wantDown("")
		}
		held("dev-cp-4, dev-cp-5")
		must(s.Lab.Talos.Partition(s.vmidOf("dev-cp-4"), false))
		held("dev-cp-5")
		must(s.Lab.Talos.Partition(s.vmidOf("dev-cp-5"), false))
		s.UntilReady(2 * time.Hour)
		w.wantDown("dev-cp-1:1 dev-cp-2:1 dev-cp-3:1 dev-cp-4:1 dev-cp-5:1")
		s.Quiet(10 * time.Minute)
		s.CheckRules(sz)
		s.Halt()
	})
}

// TestControlPlaneDiesInAnothersTurn: while the first of three control planes is down to be
// changed the second hangs, and etcd has no quorum. The first comes back with its change, and
// no other goes down before the second is back, which has its change when it is started.
func TestControlPlaneDiesInAnothersTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 3, Workers: 1}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		w := s.watchTurns(sz)
		first, second := s.vmidOf("dev-cp-1"), s.vmidOf("dev-cp-2")
		files := sz.Files()
		changed(t, files, "inventory/dev/nodes.yaml", "ram: 8192", "ram: 9216")
		s.Push(files, "more memory")
		s.Until(time.Hour, "the first is down", func(cluster.Status) bool { vm, _ := s.Lab.PVE.VM(first); return vm.Power == pve.Stopped })
		must(s.Lab.Talos.Kill(second))
		s.Until(time.Hour, "the first is back, and the second is named", func(st cluster.Status) bool {
			return st.Nodes[0].Phase == cluster.PhaseReady && len(s.cordoned()) == 0 && waitFor(st, "dev-cp-2", cluster.NodeUnreachable) != ""
		})
		time.Sleep(time.Hour)
		w.wantDown("dev-cp-1:1")
		if vm, _ := s.Lab.PVE.VM(first); vm.Config["memory"] != "9216" || len(vm.Pending) > 0 {
			t.Errorf("the first: %v, pending %v", vm.Config["memory"], vm.Pending)
		}
		if why := waitFor(s.Status(), "dev-cp-3", cluster.WaitingForBudget); !strings.HasSuffix(why, ": dev-cp-2") {
			t.Errorf("why the third waits: %q", why)
		}
		must(s.Lab.PVE.Stop(second))
		s.UntilReady(2 * time.Hour)
		w.wantDown("dev-cp-1:1 dev-cp-3:1 dev-wk-1:1")
		for i := range sz.ControlPlanes + sz.Workers {
			if vm, _ := s.Lab.PVE.VM(s.vmidOf(sz.Name(i))); vm.Config["memory"] != "9216" || len(vm.Pending) > 0 {
				t.Errorf("%s: %v, pending %v", sz.Name(i), vm.Config["memory"], vm.Pending)
			}
		}
		s.Quiet(10 * time.Minute)
		s.CheckRules(sz)
		s.Halt()
	})
}

// TestOutageInARoll: the repository cannot be fetched any longer when a change has taken
// down the first node, and the agent is killed. The next one ends the change with what was
// fetched before, and changes nothing when the repository is back.
func TestOutageInARoll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 3, Workers: 2}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		w := s.watchTurns(sz)
		files := sz.Files()
		changed(t, files, "inventory/dev/nodes.yaml", "ram: 8192", "ram: 9216")
		s.Push(files, "more memory")
		s.Until(time.Hour, "the first is down", func(cluster.Status) bool { return len(w.count()) > 0 })
		network := s.Lab.World.Net.(*world.Memory)
		network.Darken("git.lab", true)
		s.Die()
		const want = "dev-cp-1:1 dev-cp-2:1 dev-cp-3:1 dev-wk-1:1 dev-wk-2:1"
		s.Until(2*time.Hour, "changed", func(st cluster.Status) bool {
			return st.Condition == cluster.Ready && st.Applied.Commit() == s.Head() && strings.Contains(st.Message, "the repository cannot be fetched") && len(w.count()) == 5
		})
		w.wantDown(want)
		time.Sleep(time.Hour)
		s.Halt()
		s.Boot()
		time.Sleep(time.Hour)
		network.Darken("git.lab", false)
		s.Until(time.Hour, "fetched again", func(st cluster.Status) bool {
			return st.Condition == cluster.Ready && !strings.Contains(st.Message, "cannot be fetched")
		})
		s.Quiet(10 * time.Minute)
		w.wantDown(want)
		if got := s.cordoned(); len(got) > 0 {
			t.Errorf("left cordoned: %v", got)
		}
		s.CheckRules(sz)
		s.Halt()
	})
}

// TestFewerAtOnceInARoll: while two workers are drained to be changed, a push allows one at
// a time. What was begun ends, and no more than one at a time goes down from then on.
func TestFewerAtOnceInARoll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 4}
		files := sz.Files()
		slowAddon(files)
		changed(t, files, "inventory/dev/cluster.yaml", "cni: cilium\n", "cni: cilium\nmax_unavailable: 2\n")
		changed(t, files, "inventory/dev/charts/slow/templates/all.yaml", "spec:\n  selector", "spec:\n  replicas: 4\n  selector")
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Push(files, "two at once")
		s.Boot()
		s.UntilReady(20 * time.Minute)
		changed(t, files, "inventory/dev/nodes.yaml", "cpu: 4, ram: 8192, disk: 60G", "cpu: 6, ram: 8192, disk: 60G")
		s.Push(files, "more cores")
		s.Until(time.Hour, "two are drained", func(cluster.Status) bool { return len(s.cordoned()) == 2 })
		changed(t, files, "inventory/dev/cluster.yaml", "max_unavailable: 2\n", "max_unavailable: 1\n")
		s.Push(files, "one at once")
		s.UntilReady(3 * time.Hour)
		for _, name := range []string{"dev-wk-1", "dev-wk-2", "dev-wk-3", "dev-wk-4"} {
			if n := s.timesOff(name); n != 1 {
				t.Errorf("%s was switched off %d times", name, n)
			}
		}
		if got := s.cordoned(); len(got) > 0 {
			t.Errorf("left cordoned: %v", got)
		}
		s.Quiet(10 * time.Minute)
		s.CheckRules(sz)
		s.Halt()
	})
}

// rolledWith gives the control planes of a Ready cluster more memory, and then every node a
// machine config that takes a reboot, with one crash on the way if there is a point for it,
// and returns how often the agent died.
func rolledWith(t *testing.T, sz size, c lab.Config, p *crashPoint) (points []crashPoint, deaths int) {
	s := newSim(t, sz, c)
	defer s.Close()
	s.Boot()
	s.UntilReady(20 * time.Minute)
	g, w := newGuard(s, sz), newWishes(sz)
	s.Lab.World.OnCall(func(c world.CallRecord) { s.Witness(c); g.watch(c) })
	pointsOf := s.armAt(p)
	for n := range sz.ControlPlanes + sz.Workers {
		g.permit(sz.Name(n))
		if n < sz.ControlPlanes {
			g.permit(sz.Name(n))
		}
	}
	w.cpRAM = 9216
	s.Push(w.files(sz), "more memory")
	s.UntilReady(3 * time.Hour)
	w.env = 1
	s.Push(w.files(sz), "another environment")
	s.UntilReady(3 * time.Hour)
	points = pointsOf()
	if t.Failed() {
		return points, s.Deaths
	}
	if n, want := g.countDowns(), 2*sz.ControlPlanes+sz.Workers; n != want {
		t.Errorf("nodes were taken down %d times, want %d", n, want)
	}
	g.wantInService()
	w.check(s, sz)
	s.Quiet(10 * time.Minute)
	s.CheckRules(sz)
	s.Halt()
	return points, s.Deaths
}

// TestCrashDuringARoll kills the agent at one instant in twenty, with -all-crashes at every one, while changes roll over control planes and workers:
// another one ends them, and no node goes down more often than it has to.
func TestCrashDuringARoll(t *testing.T) {
	t.Parallel()
	crashEverywhere(t, size{ControlPlanes: 3, Workers: 3}, 20, rolledWith)
}

// showsScheduler reports whether Kubernetes shows the scheduler of a control plane as ready and of
// a version of its config.
func (s *sim) showsScheduler(node, version string) bool {
	for _, o := range s.Lab.Kube.Objects("", schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "kube-system") {
		if o.GetName() == "kube-scheduler-"+node && o.GetAnnotations()["talos.dev/config-version"] == version {
			conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
			return slices.ContainsFunc(conditions, func(c any) bool {
				of, _ := c.(map[string]any)
				return of["type"] == "Ready" && of["status"] == "True"
			})
		}
	}
	return false
}

// TestStaticPodsOneControlPlaneAfterTheOther: a change of the scheduler restarts it and its node's
// kube-apiserver some time after the config was taken, and Talos reports both as ready meanwhile.
// No other control plane gets its config before Kubernetes shows the pods of the one before as its
// config has them.
func TestStaticPodsOneControlPlaneAfterTheOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 3, Workers: 1}
		files := sz.Files()
		changed(t, files, "inventory/dev/cluster.yaml", "cni: cilium\n", "cni: cilium\npatches: {controlplane: [patches/scheduler.yaml]}\n")
		patch := "inventory/dev/patches/scheduler.yaml"
		files[patch] = []byte("cluster: {scheduler: {extraArgs: {v: \"2\"}}}\n")
		// Longer than the minute for which a node is watched that was given a config.
		s := newSim(t, sz, lab.Config{Latency: world.Latencies{Manifest: 2 * time.Minute}})
		defer s.Close()
		s.Push(files, "a scheduler that logs")
		s.Boot()
		s.UntilReady(20 * time.Minute)
		var mu sync.Mutex
		var given []string
		s.Lab.World.OnConfig(func(c world.GivenConfig) {
			mu.Lock()
			defer mu.Unlock()
			for _, before := range given {
				if !s.showsScheduler(before, "2") {
					t.Errorf("%s got its config before %s ran with its own", c.Node, before)
				}
			}
			given = append(given, c.Node)
		})
		files[patch] = []byte("cluster: {scheduler: {extraArgs: {v: \"3\"}}}\n")
		s.Push(files, "that logs more")
		s.UntilReady(time.Hour)
		mu.Lock()
		defer mu.Unlock()
		if slices.Sort(given); strings.Join(given, " ") != "dev-cp-1 dev-cp-2 dev-cp-3" {
			t.Errorf("configs were given to %v", given)
		}
		s.Quiet(10 * time.Minute)
		s.CheckRules(sz)
		s.Halt()
	})
}
