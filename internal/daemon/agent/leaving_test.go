package agent_test

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/client"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// withoutNode takes a node out of nodes.yaml.
func withoutNode(t *testing.T, files map[string][]byte, name string) {
	t.Helper()
	const file = "inventory/dev/nodes.yaml"
	lines := strings.SplitAfter(string(files[file]), "\n")
	kept := slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return strings.Contains(line, "name: "+name+",") })
	if len(kept) != len(lines)-1 {
		t.Fatalf("%s is not one line of nodes.yaml:\n%s", name, files[file])
	}
	files[file] = []byte(strings.Join(kept, ""))
}

// TestBudgetHoldsARemoval: a worker with a pod that may not be evicted is to leave. It stays,
// with its VM and its Node object, and the budget is named; where the inventory has it, the pod
// is deleted in the end, and the node leaves.
func TestBudgetHoldsARemoval(t *testing.T) {
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
		s.watchRemovals()
		leaves := s.nodeOf("stuck")
		withoutNode(t, files, leaves)
		s.Push(files, "one less")
		named := func(st cluster.Status) bool {
			return strings.Contains(waitFor(st, leaves, cluster.ActionFailed), "The disruption budget stuck needs 1 healthy pods")
		}
		s.Until(2*time.Hour, "held up", named)
		time.Sleep(2 * time.Hour)
		if _, there := s.Lab.PVE.VM(s.vmidOf(leaves)); !there || !slices.Contains(s.nodeObjects(), leaves) || s.nodeOf("stuck") != leaves {
			t.Errorf("%s: has a VM: %v, nodes %v, the pod is on %s", leaves, there, s.nodeObjects(), s.nodeOf("stuck"))
		}
		if st := s.Status(); st.Condition == cluster.Ready {
			t.Errorf("it is %s", st.Condition)
		}
		changed(t, files, "inventory/dev/cluster.yaml", "cni: cilium", "drain: {timeout: 1m, on_timeout: delete}\ncni: cilium")
		s.Push(files, "delete what stays")
		s.UntilReady(2 * time.Hour)
		if got := s.nodeObjects(); slices.Contains(got, leaves) || len(got) != 2 {
			t.Errorf("nodes: %v", got)
		}
		s.Quiet(10 * time.Minute)
		s.CheckRules(size{ControlPlanes: 1, Workers: 1})
		s.Halt()
	})
}

// pinned has the pod of an addon on one node, a control plane too.
func pinned(files map[string][]byte, app, node string) {
	file := "inventory/dev/charts/" + app + "/templates/all.yaml"
	files[file] = []byte(strings.Replace(string(files[file]), "    spec:\n", "    spec:\n      nodeSelector: {kubernetes.io/hostname: "+node+"}\n      tolerations: [{key: node-role.kubernetes.io/control-plane, operator: Exists}]\n", 1))
}

// TestSomebodyTakesAControlPlaneDown: while one control plane is drained to leave, somebody shuts
// another down, which works for minutes more while Talos drains it. The member of the first stays,
// for without both there would be no quorum, until the other is back.
func TestSomebodyTakesAControlPlaneDown(t *testing.T) {
	t.Parallel()
	sz := size{ControlPlanes: 3, Workers: 1}
	files := sz.Files()
	slowAddon(files)
	stuckAddon(files)
	pinned(files, "slow", "dev-cp-1")
	pinned(files, "stuck", "dev-cp-2")
	changed(t, files, "inventory/dev/cluster.yaml", "cni: cilium", "allow_even: true\ncni: cilium")
	inReadyCluster(t, sz, files, func(t *testing.T, s *sim) {
		withoutNode(t, files, "dev-cp-1")
		s.Push(files, "one less")
		s.Until(time.Hour, "drained", func(st cluster.Status) bool { return isDrained(st, "dev-cp-1") })
		must(s.askTalos("10.10.0.12", func(ctx context.Context, c *client.Client) error {
			return c.Shutdown(ctx)
		}))
		down := false
		s.Until(time.Hour, "it is down, and back", func(cluster.Status) bool {
			up, voters := 0, 0
			for _, m := range s.Lab.Talos.Machines() {
				if m.Node == "dev-cp-3" {
					up, voters = m.Up, m.Voters
				}
			}
			if up <= voters/2 {
				t.Fatalf("%d of %d members of etcd are up", up, voters)
			}
			down = down || up < voters
			return down && voters == up
		})
		s.Until(2*time.Hour, "the first is removed", func(cluster.Status) bool {
			return fmt.Sprint(s.members(), s.nodeObjects()) == "[dev-cp-2 dev-cp-3] [dev-cp-2 dev-cp-3 dev-wk-1]"
		})
	})
}

// TestRemovalsOfTwoPushes: a second push takes another worker out while the first one is drained,
// where one may be removed without approval. The first removal ends, and then the second begins.
func TestRemovalsOfTwoPushes(t *testing.T) {
	t.Parallel()
	sz := size{ControlPlanes: 1, Workers: 3}
	files := sz.Files()
	slowAddon(files)
	pinned(files, "slow", "dev-wk-2")
	inReadyCluster(t, sz, files, func(t *testing.T, s *sim) {
		s.watchRemovals()
		withoutNode(t, files, "dev-wk-2")
		s.Push(files, "one less")
		s.Until(time.Hour, "drained", func(st cluster.Status) bool { return isDrained(st, "dev-wk-2") })
		withoutNode(t, files, "dev-wk-1")
		s.Push(files, "and another")
		s.Until(time.Hour, "the second waits for the first", func(st cluster.Status) bool {
			return st.Reason == cluster.RemovalUnapproved && isDrained(st, "dev-wk-2")
		})
		s.Until(2*time.Hour, "both are removed", func(cluster.Status) bool { return fmt.Sprint(s.nodeObjects()) == "[dev-cp-1 dev-wk-3]" })
		s.CheckRules(size{ControlPlanes: 1, Workers: 1})
	})
}

// TestPeopleInARemoval: while a worker is drained to be removed somebody uncordons it, which
// gives the removal up for a while; and while it is drained again a push puts it back. It is in
// service then, and nothing of it was deleted.
func TestPeopleInARemoval(t *testing.T) {
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
		s.watchRemovals()
		first, leaves := s.generations(), s.nodeOf("slow")
		all := string(files["inventory/dev/nodes.yaml"])
		withoutNode(t, files, leaves)
		s.Push(files, "one less")
		drained := func(st cluster.Status) bool {
			return isDrained(st, leaves) && slices.Equal(s.cordoned(), []string{leaves})
		}
		s.Until(time.Hour, "drained", drained)
		time.Sleep(30 * time.Second)
		must(s.Lab.PVE.Edit(s.vmidOf(leaves), "description", "mine"))
		s.kubectl(netip.MustParseAddr("10.10.0.11"), http.MethodPatch, "/api/v1/nodes/"+leaves, `{"spec":{"unschedulable":false}}`)
		s.Until(10*time.Minute, "given up", func(st cluster.Status) bool {
			return strings.Contains(waitFor(st, leaves, cluster.ActionFailed), "uncordoned")
		})
		s.Push(map[string][]byte{"inventory/dev/nodes.yaml": []byte(all)}, "it stays")
		s.UntilReady(time.Hour)
		s.Until(10*time.Minute, "marked again", func(cluster.Status) bool { // its config is read once in an interval
			vm, _ := s.Lab.PVE.VM(s.vmidOf(leaves))
			return strings.HasSuffix(vm.Config["description"], "\nmine")
		})
		s.Quiet(10 * time.Minute)
		if got := s.generations(); got[leaves] != first[leaves] || len(s.cordoned()) > 0 || len(s.nodeObjects()) != 3 {
			t.Errorf("%s: another machine: %v; cordoned %v, nodes %v", leaves, got[leaves] != first[leaves], s.cordoned(), s.nodeObjects())
		}
		s.CheckRules(sz)
		s.Halt()
	})
}

// TestOutageInARemoval: the repository cannot be fetched any longer when a control plane is
// being drained for its removal, and the agent is killed. The next one ends the removal with
// what was fetched before, and removes nothing else.
func TestOutageInARemoval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 3, Workers: 1}
		files := sz.Files()
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		s.watchRemovals()
		changed(t, files, "inventory/dev/cluster.yaml", "cni: cilium", "allow_even: true\ncni: cilium")
		withoutNode(t, files, "dev-cp-2")
		s.Push(files, "one less")
		s.Until(time.Hour, "cordoned", func(cluster.Status) bool { return slices.Equal(s.cordoned(), []string{"dev-cp-2"}) })
		network := s.Lab.World.Net.(*world.Memory)
		network.Darken("git.lab", true)
		s.Die()
		s.Until(2*time.Hour, "removed", func(st cluster.Status) bool {
			return st.Condition == cluster.Ready && strings.Contains(st.Message, "the repository cannot be fetched") && len(s.Lab.PVE.VMs()) == 3
		})
		if got := fmt.Sprint(s.nodeObjects(), s.members()); got != "[dev-cp-1 dev-cp-3 dev-wk-1] [dev-cp-1 dev-cp-3]" {
			t.Errorf("nodes in Kubernetes, members of etcd: %s", got)
		}
		s.Halt()
		s.Boot()
		time.Sleep(time.Hour)
		network.Darken("git.lab", false)
		s.Until(time.Hour, "fetched again", func(st cluster.Status) bool {
			return st.Condition == cluster.Ready && !strings.Contains(st.Message, "cannot be fetched")
		})
		s.Quiet(10 * time.Minute)
		s.CheckRules(size{ControlPlanes: 2, Workers: 1})
		s.Halt()
	})
}

// TestNewMachineThatDoesNotCome: two workers are to have new machines, and that of the first
// never comes up. The second keeps the one that it has until somebody has helped.
func TestNewMachineThatDoesNotCome(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 3}
		files := sz.Files()
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		s.watchRemovals()
		first := s.generations()
		s.Lab.World.Inject(world.Fault{System: "pve", Op: "POST /nodes/{node}/qemu/{vmid}/status/start", Subject: fmt.Sprint(s.vmidOf("dev-wk-1")), Kind: world.NeverUp, Times: 1})
		changed(t, files, "inventory/dev/nodes.yaml", "{name: dev-wk-1,", "{name: dev-wk-1, replace: now,")
		s.Push(files, "a new machine for the first")
		s.Until(2*time.Hour, "made", func(cluster.Status) bool {
			now := s.generations()["dev-wk-1"]
			return now != "" && now != first["dev-wk-1"]
		})
		changed(t, files, "inventory/dev/nodes.yaml", "{name: dev-wk-2,", "{name: dev-wk-2, replace: now,")
		s.Push(files, "and for the second")
		s.Until(2*time.Hour, "stalled", func(st cluster.Status) bool { return st.Condition == cluster.Stalled && st.Concerns == "dev-wk-1" })
		time.Sleep(2 * time.Hour)
		if got := s.generations(); got["dev-wk-2"] != first["dev-wk-2"] || len(s.cordoned()) > 0 {
			t.Errorf("dev-wk-2 has a new machine: %v; cordoned: %v", got["dev-wk-2"] != first["dev-wk-2"], s.cordoned())
		}
		if why := waitFor(s.Status(), "dev-wk-2", cluster.WaitingForBudget); !strings.Contains(why, "dev-wk-1") {
			t.Errorf("why the second waits: %q, of %+v", why, s.Status().Waiting)
		}
		must(s.Lab.PVE.Stop(s.vmidOf("dev-wk-1")))
		s.UntilReady(3 * time.Hour)
		for name, now := range s.generations() {
			if replaced := now != first[name]; replaced != (name == "dev-wk-1" || name == "dev-wk-2") {
				t.Errorf("%s is replaced: %v", name, replaced)
			}
		}
		s.Quiet(10 * time.Minute)
		s.CheckRules(sz)
		s.Halt()
	})
}

// TestUnhealthyControlPlanesHoldRemovals: with two of five control planes away none is
// removed, because etcd would lose its quorum; with one away none is either, because it may be
// the next to be missed. When both are back one is.
func TestUnhealthyControlPlanesHoldRemovals(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 5, Workers: 1}
		files := sz.Files()
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		s.watchRemovals()
		for _, name := range []string{"dev-cp-4", "dev-cp-5"} {
			must(s.Lab.Talos.Partition(s.vmidOf(name), true))
		}
		s.Until(10*time.Minute, "seen", func(st cluster.Status) bool {
			return st.Nodes[3].Phase != cluster.PhaseReady && st.Nodes[4].Phase != cluster.PhaseReady
		})
		changed(t, files, "inventory/dev/cluster.yaml", "cni: cilium", "allow_even: true\ncni: cilium")
		withoutNode(t, files, "dev-cp-1")
		s.Push(files, "the founder leaves")
		held := func(reason cluster.Reason, why string) {
			t.Helper()
			s.Until(10*time.Minute, "held", func(st cluster.Status) bool {
				return strings.Contains(waitFor(st, "dev-cp-1", reason), why) && st.Revision.Commit() == s.Head()
			})
			time.Sleep(30 * time.Minute)
			if len(s.cordoned()) > 0 || len(s.Lab.PVE.VMs()) != 6 || len(s.members()) != 5 {
				t.Errorf("later: cordoned %v, members %v", s.cordoned(), s.members())
			}
		}
		held(cluster.WaitingForQuorum, "2 of 4 members of etcd would be healthy")
		must(s.Lab.Talos.Partition(s.vmidOf("dev-cp-4"), false))
		held(cluster.WaitingForBudget, "dev-cp-5")
		must(s.Lab.Talos.Partition(s.vmidOf("dev-cp-5"), false))
		s.UntilReady(2 * time.Hour)
		if got := fmt.Sprint(s.nodeObjects(), s.members()); got != "[dev-cp-2 dev-cp-3 dev-cp-4 dev-cp-5 dev-wk-1] [dev-cp-2 dev-cp-3 dev-cp-4 dev-cp-5]" {
			t.Errorf("nodes in Kubernetes, members of etcd: %s", got)
		}
		s.Quiet(10 * time.Minute)
		s.CheckRules(size{ControlPlanes: 4, Workers: 1})
		s.Halt()
	})
}

// TestControlPlaneDiesInAnothersRemoval: while the first of three control planes is drained to
// be removed the second hangs. No member is removed while etcd would lose its quorum by that,
// and the removal ends when the second is back.
func TestControlPlaneDiesInAnothersRemoval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 3, Workers: 1}
		files := sz.Files()
		changed(t, files, "inventory/dev/cluster.yaml", "cni: cilium", "allow_even: true\ncni: cilium")
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Push(files, "two are fine")
		s.Boot()
		s.UntilReady(20 * time.Minute)
		s.watchRemovals()
		withoutNode(t, files, "dev-cp-1")
		s.Push(files, "the founder leaves")
		s.Until(time.Hour, "cordoned", func(cluster.Status) bool { return slices.Equal(s.cordoned(), []string{"dev-cp-1"}) })
		second := s.vmidOf("dev-cp-2")
		must(s.Lab.Talos.Kill(second))
		s.Until(time.Hour, "the second is named", func(st cluster.Status) bool { return waitFor(st, "dev-cp-2", cluster.NodeUnreachable) != "" })
		time.Sleep(time.Hour)
		if got := s.members(); len(got) < 2 || !slices.Contains(got, "dev-cp-1") || len(s.Lab.PVE.VMs()) != 4 {
			t.Errorf("members of etcd %v, %d VMs", got, len(s.Lab.PVE.VMs()))
		}
		must(s.Lab.PVE.Stop(second))
		s.UntilReady(2 * time.Hour)
		if got := fmt.Sprint(s.nodeObjects(), s.members()); got != "[dev-cp-2 dev-cp-3 dev-wk-1] [dev-cp-2 dev-cp-3]" {
			t.Errorf("nodes in Kubernetes, members of etcd: %s", got)
		}
		s.Quiet(10 * time.Minute)
		s.CheckRules(size{ControlPlanes: 2, Workers: 1})
		s.Halt()
	})
}
