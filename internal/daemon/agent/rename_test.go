package agent_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
)

// TestRenamedNodes: the machine of a node that gets another name in nodes.yaml, and keeps its
// place, is kept until somebody asks for a new one. Then it is removed as any that leaves the
// inventory, and the new one is made in its place.
func TestRenamedNodes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 3, Workers: 2}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		s.watchRemovals()
		files := sz.Files()
		push := func(from, to string) {
			t.Helper()
			changed(t, files, "inventory/dev/nodes.yaml", from, to)
			s.Push(files, to)
		}
		push("name: dev-wk-2", "name: dev-wk-9")
		s.Until(10*time.Minute, "refused", func(st cluster.Status) bool {
			return st.Revision.Commit() == s.Head() && slices.ContainsFunc(st.Blocked, func(b cluster.Block) bool {
				return b.Subject == "dev-wk-9" && b.Reason == cluster.NodeIdentityChanged && strings.Contains(b.Hint, "give it a `replace`")
			})
		})
		time.Sleep(time.Hour)
		if got := s.nodeObjects(); !slices.Contains(got, "dev-wk-2") {
			t.Errorf("nodes in Kubernetes: %s", got)
		}
		for _, c := range []struct{ from, to string }{
			{"name: dev-wk-9", "name: dev-wk-9, replace: a"},
			{"name: dev-cp-1", "name: dev-cp-9, replace: a"}, // the founder
			{"name: dev-wk-1", "name: dev-a-1, replace: a"},
		} {
			push(c.from, c.to)
			s.UntilReady(2 * time.Hour)
		}
		if got := fmt.Sprint(s.nodeObjects(), len(s.members())); got != "[dev-a-1 dev-cp-2 dev-cp-3 dev-cp-9 dev-wk-9] 3" {
			t.Errorf("nodes in Kubernetes, members of etcd: %s", got)
		}
		s.Quiet(10 * time.Minute)
		for _, v := range s.Lab.World.Violations() {
			t.Errorf("broken rule: %s", v)
		}
		s.Halt()
	})
}

// TestRestoredMachineIsKept: a machine that somebody restores from a backup of before its
// replacement is not replaced once more, until another token asks for that.
func TestRestoredMachineIsKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 1}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		description := func() string {
			for _, vm := range s.Lab.PVE.VMs() {
				if vm.VMID == s.vmidOf("dev-wk-1") {
					return vm.Config["description"]
				}
			}
			return ""
		}
		before := description()
		files := sz.Files()
		changed(t, files, "inventory/dev/nodes.yaml", "{name: dev-wk-1,", "{name: dev-wk-1, replace: a,")
		s.Push(files, "a new machine")
		s.UntilReady(time.Hour)
		made := s.generations()["dev-wk-1"]
		if description() == before {
			t.Fatalf("it has the description that it had: %s", before)
		}
		must(s.Lab.PVE.Edit(s.vmidOf("dev-wk-1"), "description", before))
		kept := func(st cluster.Status) bool {
			return slices.ContainsFunc(st.Blocked, func(b cluster.Block) bool {
				return b.Subject == "dev-wk-1" && b.Reason == cluster.NodeIdentityChanged && strings.Contains(b.Hint, "take `replace` out")
			})
		}
		s.Until(10*time.Minute, "kept", kept)
		s.Halt()
		s.Boot()
		time.Sleep(time.Hour)
		if st := s.Status(); !kept(st) || s.generations()["dev-wk-1"] != made {
			t.Errorf("after an hour and a restart: %+v", st.Blocked)
		}
		changed(t, files, "inventory/dev/nodes.yaml", "replace: a,", "replace: b,")
		s.Push(files, "and another")
		s.UntilReady(time.Hour)
		if s.generations()["dev-wk-1"] == made {
			t.Error("it has the machine that it had")
		}
		s.CheckRules(sz)
		s.Halt()
	})
}
