package agent_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/agent"
	"github.com/talos-agent/talos-agent/internal/host/doctor"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/pve"
	"github.com/talos-agent/talos-agent/internal/lab/pve/accesslog"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// turns judges what takes nodes down, by what the world shows at that instant and not by
// what the agent believes: a node is down for its turn only when it was drained, no other
// one is out of service with it, and etcd keeps its quorum.
type turns struct {
	s  *sim
	sz size

	mu   sync.Mutex
	down map[string]int // how often, by node
}

// watchTurns begins to judge.
func (s *sim) watchTurns(sz size) *turns {
	w := &turns{s: s, sz: sz, down: map[string]int{}}
	s.Lab.World.OnCall(func(c world.CallRecord) {
		s.Witness(c)
		switch {
		case c.System == "pve" && strings.HasSuffix(c.Op, "/status/shutdown"):
			w.judge(c.Subject)
		case c.System == "talos" && (strings.HasSuffix(c.Op, "/Reboot") || strings.HasSuffix(c.Op, "/Rollback") || strings.HasSuffix(c.Op, "MachineService/Upgrade")):
			w.judge(c.Subject)
		}
	})
	return w
}

// judge looks at the world when a node is about to go down.
func (w *turns) judge(subject string) {
	name := subject
	for i := range w.sz.ControlPlanes + w.sz.Workers {
		if fmt.Sprint(w.s.vmidOf(w.sz.Name(i))) == subject {
			name = w.sz.Name(i)
		}
	}
	w.mu.Lock()
	w.down[name]++
	w.mu.Unlock()
	for _, n := range w.s.Lab.Kube.Objects("", schema.GroupVersionResource{Version: "v1", Resource: "nodes"}, "") {
		cordoned, _, _ := unstructured.NestedBool(n.Object, "spec", "unschedulable")
		if (n.GetName() == name) != cordoned {
			w.s.Lab.World.Violate("turns", "%s goes down, and %s is cordoned: %v", name, n.GetName(), cordoned)
		}
	}
	for _, p := range w.s.Lab.Kube.Objects("", schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "") {
		owners := p.GetOwnerReferences()
		stays := slices.ContainsFunc(owners, func(o metav1.OwnerReference) bool { return o.Kind == "DaemonSet" || o.Kind == "Node" })
		if on, _, _ := unstructured.NestedString(p.Object, "spec", "nodeName"); on == name && !stays {
			w.s.Lab.World.Violate("turns", "%s goes down, and pod %s is on it", name, p.GetName())
		}
	}
	up := 0
	for _, m := range w.s.Lab.Talos.Machines() {
		if strings.HasPrefix(m.Node, "dev-cp-") && m.Node != name && m.Stage == "running" {
			up++
		}
	}
	if w.sz.ControlPlanes > 1 && strings.HasPrefix(name, "dev-cp-") && up <= w.sz.ControlPlanes/2 {
		w.s.Lab.World.Violate("quorum", "%s goes down, and %d other control planes run", name, up)
	}
}

// count is how often each node went down.
func (w *turns) count() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.down)
}

// wantDown checks how often nodes went down; "" : none did.
func (w *turns) wantDown(want string) {
	w.s.T.Helper()
	if got := strings.TrimSuffix(strings.TrimPrefix(fmt.Sprint(w.count()), "map["), "]"); got != want {
		w.s.T.Errorf("went down: %s; want %s", got, want)
	}
}

// TestEdits pushes one edit after the other to a cluster that is Ready: each ends in a
// cluster that matches, with the nodes that it takes down each once, one at a time.
func TestEdits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 3, Workers: 2}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		files := sz.Files()
		push := func(what, file, from, to string) {
			t.Helper()
			changed(t, files, "inventory/dev/"+file, from, to)
			s.Push(files, what)
			s.Until(3*time.Hour, what, func(st cluster.Status) bool { return st.Condition == cluster.Ready && st.Applied.Commit() == s.Head() })
		}
		w := s.watchTurns(sz)
		push("tags", "cluster.yaml", "  bridge: vmbr1\n", "  bridge: vmbr1\n  tags: [team-a]\n")
		if vm, _ := s.Lab.PVE.VM(s.vmidOf("dev-wk-1")); !strings.Contains(vm.Config["tags"], "team-a") {
			t.Errorf("%v", vm.Config)
		}
		push("time servers, which take no reboot", "cluster.yaml", "time_servers: [10.10.0.1]", "time_servers: [10.10.0.1, 10.10.0.2]")
		w.wantDown("")
		push("cores of the workers", "nodes.yaml", "ip: 10.10.0.41, cpu: 4", "ip: 10.10.0.41, cpu: 6")
		w.wantDown("dev-wk-1:1")
		push("memory of every node", "nodes.yaml", "ram: 8192", "ram: 10240")
		w.wantDown("dev-cp-1:1 dev-cp-2:1 dev-cp-3:1 dev-wk-1:2 dev-wk-2:1")
		for i := range sz.ControlPlanes + sz.Workers {
			if vm, _ := s.Lab.PVE.VM(s.vmidOf(sz.Name(i))); vm.Config["memory"] != "10240" || len(vm.Pending) > 0 {
				t.Errorf("%s: %v, pending %v", sz.Name(i), vm.Config["memory"], vm.Pending)
			}
		}
		s.Quiet(10 * time.Minute)
		s.CheckRules(sz)
		s.Halt()
	})
}

// stuckAddon adds a deployment of one pod to a repository, and a disruption budget that
// never lets it go.
func stuckAddon(files map[string][]byte) {
	files["inventory/dev/addons/stuck.yaml"] = []byte("name: stuck\nnamespace: apps\nchart: {path: charts/stuck}\ndepends_on: [cilium]\n")
	files["inventory/dev/charts/stuck/Chart.yaml"] = []byte("apiVersion: v2\nname: stuck\nversion: 1.0.0\n")
	files["inventory/dev/charts/stuck/templates/all.yaml"] = []byte(`apiVersion: apps/v1
kind: Deployment
metadata: {name: stuck}
spec:
  replicas: 1
  selector: {matchLabels: {app: stuck}}
  template:
    metadata: {labels: {app: stuck}}
    spec:
      containers: [{name: stuck, image: registry.example.org/stuck:1}]
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: stuck}
spec:
  minAvailable: 1
  selector: {matchLabels: {app: stuck}}
`)
	files["inventory/dev/cluster.yaml"] = []byte(strings.Replace(string(files["inventory/dev/cluster.yaml"]), "addons/podinfo.yaml", "addons/podinfo.yaml, addons/stuck.yaml", 1))
}

// cordoned are the names of nodes that take no new pods.
func (s *sim) cordoned() []string {
	var out []string
	for _, n := range s.Lab.Kube.Objects("", schema.GroupVersionResource{Version: "v1", Resource: "nodes"}, "") {
		if on, _, _ := unstructured.NestedBool(n.Object, "spec", "unschedulable"); on {
			out = append(out, n.GetName())
		}
	}
	return out
}

// TestBudgetThatNeverYields: a pod that may not be evicted holds its node up. The node
// is not taken down and returns to service, the budget is named, and the other worker has
// its change; where the inventory has it, the pod is deleted in the end.
func TestBudgetThatNeverYields(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 2}
		files := sz.Files()
		stuckAddon(files)
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Push(files, "a pod that stays")
		s.Boot()
		s.UntilReady(20 * time.Minute)
		w := s.watchTurns(sz)
		changed(t, files, "inventory/dev/nodes.yaml", "disk: 60G", "disk: 70G")
		s.Push(files, "larger disks")
		s.Until(2*time.Hour, "held up", func(st cluster.Status) bool {
			for _, wait := range st.Waiting {
				if wait.Reason == cluster.ActionFailed && strings.Contains(wait.Message, "drain node failed") {
					if !strings.Contains(wait.Message, "The disruption budget stuck needs 1 healthy pods") {
						t.Fatalf("it does not name the budget: %+v", wait)
					}
					return true
				}
			}
			return false
		})
		s.Until(2*time.Minute, "back in service", func(cluster.Status) bool { return len(s.cordoned()) == 0 })
		changed(t, files, "inventory/dev/cluster.yaml", "cni: cilium", "drain: {timeout: 1m, on_timeout: delete}\ncni: cilium")
		s.Push(files, "delete what stays")
		s.UntilReady(2 * time.Hour)
		w.wantDown("dev-wk-1:1 dev-wk-2:1")
		s.Quiet(10 * time.Minute)
		s.CheckRules(sz)
		s.Halt()
	})
}

// TestEditsByHandAreUndone: what somebody changes or stops behind the inventory's back is put right,
// with who it was, also while the newest push is broken or Git is not there.
func TestEditsByHandAreUndone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz, path := size{ControlPlanes: 1, Workers: 2}, filepath.Join(t.TempDir(), "access.log")
		log, err := accesslog.Open(path)
		must(err)
		defer func() { must(log.Close()) }()
		host := sz.Host()
		host.AccessLog = log
		s := newSim(t, sz, lab.Config{Hosts: []pve.Host{host}})
		defer s.Close()
		s.Boot(func(c *agent.Config) { c.Proxmox.AccessLog, c.Proxmox.Host = path, "pve1" })
		s.UntilReady(20 * time.Minute)
		w := s.watchTurns(sz)
		vmid := s.vmidOf("dev-wk-1")
		heal := func(what string, right func() bool) {
			t.Helper()
			s.Until(time.Hour, what, func(st cluster.Status) bool {
				return right() && st.Nodes[1].Phase == cluster.PhaseReady && len(s.cordoned()) == 0 && len(st.Running) == 0
			})
		}
		config := func(key string) string { vm, _ := s.Lab.PVE.VM(vmid); return vm.Config[key] }
		net0 := config("net0")
		must(s.Lab.PVE.Edit(vmid, "net0", strings.Replace(net0, "bridge=vmbr1", "bridge=vmbr0", 1)))
		heal("on its bridge", func() bool { return strings.Contains(config("net0"), "bridge=vmbr1") })
		must(s.Lab.PVE.Edit(vmid, "description", "mine"))
		heal("marked", func() bool { return strings.HasSuffix(config("description"), "\nmine") })
		time.Sleep(2 * time.Minute)
		s.putAsRoot(fmt.Sprintf("/nodes/pve1/qemu/%d/config", vmid), "onboot=0")
		heal("started at boot", func() bool { return config("onboot") == "1" })
		time.Sleep(2 * time.Minute)
		s.putAsRoot(fmt.Sprintf("/nodes/pve1/qemu/%d/config", vmid), "delete=tags")
		heal("tagged", func() bool { return strings.Contains(config("tags"), cluster.OwnTag) })
		time.Sleep(2 * time.Minute)
		s.putAsRoot(fmt.Sprintf("/nodes/pve1/qemu/%d/config", vmid), "delete=boot")
		s.Until(2*time.Minute, "its boot order is seen as deleted", func(st cluster.Status) bool {
			return len(st.Passes) > 0 && strings.Contains(fmt.Sprint(st.Passes), "boot order from none (pending its next start)")
		})
		w.wantDown("")
		time.Sleep(2 * time.Minute) // it is seen as it is then
		must(s.Lab.PVE.Stop(vmid))
		heal("started", func() bool { vm, _ := s.Lab.PVE.VM(vmid); return vm.Power == "running" })
		var started []string
		for _, p := range s.Status().Passes {
			started = append(started, p.Started...)
		}
		for _, want := range []string{
			`start vm 541 \(dev-wk-1\) \(qmstop by root@pam at [0-9: -]+ UTC, UPID:pve1:[^)]*:qmstop:541:root@pam:\)`,
			`change vm 541 \(dev-wk-1\): bridge from vmbr0 to vmbr1 \(changed after [0-9: -]+ UTC; no task shows who it was\)`,
			`change vm 541 \(dev-wk-1\): start at boot from false to true \(PUT config by root@pam!admin at [0-9: -]+ UTC, in the host's access log\)`,
			`change vm 541 \(dev-wk-1\): boot order from none \(pending its next start\) to the system disk \(PUT config by root@pam!admin at [0-9: -]+ UTC, in the host's access log\)`,
			`change vm 541 \(dev-wk-1\): tags from none to dev, talos-agent, worker \(PUT config by root@pam!admin at [0-9: -]+ UTC, in the host's access log\)`,
		} {
			if !regexp.MustCompile(want).MatchString(fmt.Sprint(started)) {
				t.Errorf("%s is not shown: %q", want, started)
			}
		}

		exam, err := s.Agent.Examine(t.Context(), true)
		must(err)
		if i := slices.IndexFunc(exam.Checks, func(c doctor.Check) bool { return c.Name == "accesslog" }); i < 0 || exam.Checks[i].Level != doctor.Pass || exam.Checks[i].Subject != path {
			t.Errorf("the access log can be read: %+v", exam.Checks)
		}

		// A push that is invalid leaves the last good one in force.
		files := sz.Files()
		changed(t, files, "inventory/dev/nodes.yaml", "cpu: 4", "cpu: many")
		s.Push(files, "broken")
		s.Until(10*time.Minute, "refused", func(st cluster.Status) bool { return st.Reason == cluster.InventoryInvalid })
		must(s.Lab.PVE.Edit(vmid, "cores", "2"))
		s.Until(time.Hour, "healed all the same", func(cluster.Status) bool { return config("cores") == "4" && len(s.cordoned()) == 0 })
		w.wantDown("dev-wk-1:1")
		s.CheckRules(sz)
		s.Halt()
	})
}

// putAsRoot sends a PUT to Proxmox VE with a token of root's.
func (s *sim) putAsRoot(path, form string) {
	s.T.Helper()
	if answer := s.askAsRoot(http.MethodPut, path, form); !strings.HasPrefix(answer, "200 ") {
		s.T.Errorf("PUT %s: %s", path, answer)
	}
}

// askAsRoot sends a form to Proxmox VE with a token of root's, and returns the status and the body
// of the answer.
func (s *sim) askAsRoot(method, path, form string) string {
	answer, err := s.tryAsRoot(method, path, form)
	must(err)
	return answer
}

// tryAsRoot does so of a Proxmox VE that may not answer.
func (s *sim) tryAsRoot(method, path, form string) (string, error) {
	ctx, cancel := context.WithTimeout(s.T.Context(), 30*time.Second)
	defer cancel()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(s.Lab.CA())
	client := &http.Client{Transport: &http.Transport{DialContext: s.Lab.World.Net.DialContext, TLSClientConfig: &tls.Config{RootCAs: pool}}}
	defer client.CloseIdleConnections()
	r, err := http.NewRequestWithContext(ctx, method, s.Lab.PVE.URL()+"/api2/json"+path, strings.NewReader(form))
	must(err)
	r.Header.Set("Authorization", "PVEAPIToken="+s.Lab.PVE.AdminToken())
	resp, err := client.Do(r)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.Status + " " + string(body), err
}

// timesOff is how often the VM of a node was switched off.
func (s *sim) timesOff(node string) (n int) {
	for _, e := range s.Lab.World.Events() {
		if strings.HasSuffix(e.Text, "("+node+") is off") {
			n++
		}
	}
	return n
}

// resizedWith gives the first worker of a Ready cluster more cores, with one crash on
// the way if there is a point for it, and returns how often the agent died.
func resizedWith(t *testing.T, sz size, c lab.Config, p *crashPoint) (points []crashPoint, deaths int) {
	s := newSim(t, sz, c)
	defer s.Close()
	s.Boot()
	s.UntilReady(20 * time.Minute)
	s.watchTurns(sz)
	pointsOf := s.armAt(p)
	files := sz.Files()
	changed(t, files, "inventory/dev/nodes.yaml", "10.10.0.41, cpu: 4", "10.10.0.41, cpu: 6")
	s.Push(files, "more cores")
	s.UntilReady(3 * time.Hour)
	points = pointsOf()
	if t.Failed() {
		return points, s.Deaths
	}
	vm, _ := s.Lab.PVE.VM(s.vmidOf("dev-wk-1"))
	if n := s.timesOff("dev-wk-1"); n != 1 || vm.Config["cores"] != "6" || len(vm.Pending) > 0 || len(s.cordoned()) > 0 {
		t.Errorf("switched off %d times, %s cores, pending %v, cordoned %v", n, vm.Config["cores"], vm.Pending, s.cordoned())
	}
	s.Quiet(10 * time.Minute)
	s.CheckRules(sz)
	s.Halt()
	return points, s.Deaths
}

// pointsSince are the instants at which the agent could have died since so many calls and
// steps of the disk.
func (s *sim) pointsSince(calls, steps int) (points []crashPoint) {
	seen := map[world.Call]int{}
	for _, c := range s.Lab.World.Calls()[calls:] {
		if seen[c.Call]++; seen[c.Call] <= repeats && c.System != "forge" && c.System != "git" {
			points = append(points, crashPoint{call: c.Call, nth: seen[c.Call]}, crashPoint{call: c.Call, nth: seen[c.Call], after: true})
		}
	}
	for n := steps; n < s.Disk.Steps; n++ {
		points = append(points, crashPoint{step: n - steps + 1}, crashPoint{step: n - steps + 1, after: true})
	}
	return points
}

// TestCrashDuringAResize kills the agent at every second instant of a turn, with -all-crashes
// at every one: another one ends it, and the node goes down once.
func TestCrashDuringAResize(t *testing.T) {
	t.Parallel()
	sz := size{ControlPlanes: 1, Workers: 2}
	var points []crashPoint
	synctest.Test(t, func(t *testing.T) { points, _ = resizedWith(t, sz, lab.Config{}, nil) })
	var tally tally
	t.Run("all", func(t *testing.T) {
		for i, p := range points {
			if isRun(t, i, 2) {
				t.Run(p.String(), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						tally.add(runHurried(t, func(c lab.Config) int { _, n := resizedWith(t, sz, c, &p); return n }))
					})
				})
			}
		}
	})
	tally.judge(t, len(points))
}

// TestNodeThatDoesNotComeBack: while a node that was taken down stays away no other one
// goes, and when somebody has helped it the rest follows.
func TestNodeThatDoesNotComeBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 3, Workers: 1}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		w := s.watchTurns(sz)
		vmid := s.vmidOf("dev-cp-1")
		s.Lab.World.Inject(world.Fault{System: "pve", Op: "POST /nodes/{node}/qemu/{vmid}/status/start", Subject: fmt.Sprint(vmid), Kind: world.NeverUp, Times: 1})
		files := sz.Files()
		changed(t, files, "inventory/dev/nodes.yaml", "ram: 8192", "ram: 9216")
		s.Push(files, "more memory")
		s.Until(2*time.Hour, "stalled", func(st cluster.Status) bool { return st.Condition == cluster.Stalled && st.Concerns == "dev-cp-1" })
		time.Sleep(2 * time.Hour)
		w.wantDown("dev-cp-1:1")
		must(s.Lab.PVE.Stop(vmid))
		s.UntilReady(3 * time.Hour)
		w.wantDown("dev-cp-1:1 dev-cp-2:1 dev-cp-3:1 dev-wk-1:1")
		s.Quiet(10 * time.Minute)
		s.CheckRules(sz)
		s.Halt()
	})
}

// TestPeopleInATurn: a node that somebody puts back into service while it is drained is
// not taken down then; one that somebody cordoned is left alone until it is uncordoned; and
// a push in the middle of a turn that takes the change back ends it.
func TestPeopleInATurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 1}
		files := sz.Files()
		stuckAddon(files)
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Push(files, "a pod that stays")
		s.Boot()
		s.UntilReady(20 * time.Minute)
		w := s.watchTurns(sz)
		api := netip.MustParseAddr("10.10.0.11")
		cordon := func(on bool) {
			s.kubectl(api, http.MethodPatch, "/api/v1/nodes/dev-wk-1", fmt.Sprintf(`{"spec":{"unschedulable":%v}}`, on))
		}
		cordon(true)
		changed(t, files, "inventory/dev/nodes.yaml", "10.10.0.41, cpu: 4", "10.10.0.41, cpu: 6")
		s.Push(files, "more cores")
		s.Until(time.Hour, "waiting for the cordon", func(st cluster.Status) bool { return waitFor(st, "dev-wk-1", cluster.NodeCordoned) != "" })
		time.Sleep(time.Hour)
		if got := s.cordoned(); !slices.Equal(got, []string{"dev-wk-1"}) {
			t.Errorf("cordoned: %v", got)
		}
		cordon(false)
		s.Until(time.Hour, "drained", func(st cluster.Status) bool {
			return len(st.Running) > 0 && st.Running[0].Action == cluster.DrainNode && len(s.cordoned()) > 0
		})
		cordon(false)
		s.Until(time.Minute, "given up", func(st cluster.Status) bool {
			return strings.Contains(waitFor(st, "dev-wk-1", cluster.ActionFailed), "uncordoned")
		})
		changed(t, files, "inventory/dev/nodes.yaml", "10.10.0.41, cpu: 6", "10.10.0.41, cpu: 4")
		s.Push(files, "back")
		s.UntilReady(time.Hour)
		w.wantDown("")
		if got := s.cordoned(); len(got) > 0 {
			t.Errorf("left cordoned: %v", got)
		}
		s.Quiet(10 * time.Minute)
		s.CheckRules(sz)
		s.Halt()
	})
}
