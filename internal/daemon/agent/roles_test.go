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

// TestRoleOfANodeStays: a control plane that somebody moves to the workers of nodes.yaml goes on
// as what it is, with its vote; nothing of it is drained or restarted, until it is put back.
func TestRoleOfANodeStays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 3}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		w := s.watchTurns(sz)
		moved := sz.Files()
		const node = "{name: dev-cp-3, ip: 10.10.0.13, cpu: 4, ram: 8192, disk: 40G}"
		changed(t, moved, "inventory/dev/nodes.yaml", "  - "+node+"\n", "")
		changed(t, moved, "inventory/dev/nodes.yaml", "workers:\n  []\n", "workers:\n  - "+strings.Replace(node, "}", fmt.Sprintf(", vmid: %d}", s.vmidOf("dev-cp-3")), 1)+"\n")
		changed(t, moved, "inventory/dev/cluster.yaml", "proxmox:\n", "allow_even: true\nproxmox:\n")
		s.Push(moved, "one of them works")
		refused := func(st cluster.Status) bool {
			return st.Revision.Commit() == s.Head() && slices.ContainsFunc(st.Blocked, func(b cluster.Block) bool {
				return b.Subject == "dev-cp-3" && b.Reason == cluster.FixedConfigChanged && strings.HasPrefix(b.Message, "it runs as a controlplane, and the inventory has it as a worker: a node keeps its role")
			})
		}
		s.Until(10*time.Minute, "refused", refused)
		time.Sleep(time.Hour)
		st, err := s.Agent.Status("dev")
		if err != nil || !refused(st) {
			t.Errorf("%+v, %v", st, err)
		}
		s.Push(sz.Files(), "all of them control")
		s.UntilReady(20 * time.Minute)
		w.wantDown("")
		s.CheckRules(sz)
		s.Halt()
	})
}

// TestNetworkOfAClusterStays: Cilium is not installed beside Flannel in a cluster that runs with
// it, and its nodes keep their configs, until the inventory has flannel again.
func TestNetworkOfAClusterStays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		flannel := sz.Files()
		changed(t, flannel, "inventory/dev/cluster.yaml", "cni: cilium", "cni: flannel")
		changed(t, flannel, "inventory/dev/cluster.yaml", "addons: [addons/cilium.yaml]", "addons: []")
		s.Push(flannel, "flannel")
		s.Boot()
		s.UntilReady(20 * time.Minute)
		s.Push(sz.Files(), "cilium")
		refused := func(st cluster.Status) bool {
			return st.Revision.Commit() == s.Head() && st.Reason == cluster.FixedConfigChanged && strings.Contains(st.Message, "inventory/dev/cluster.yaml:14:6: cni: ") && st.Hint == "write `cni: flannel`; another one needs another cluster"
		}
		s.Until(10*time.Minute, "refused", refused)
		time.Sleep(time.Hour)
		if st, err := s.Agent.Status("dev"); err != nil || !refused(st) || len(st.Addons) > 0 || len(st.Blocked) != 1 || len(st.Waiting) > 0 {
			t.Errorf("%+v, %v", st, err)
		}
		s.Push(flannel, "flannel again")
		s.UntilReady(20 * time.Minute)
		s.Halt()
	})
}
