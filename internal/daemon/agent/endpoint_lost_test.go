package agent_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// addVIP gives a cluster without one a VIP.
func addVIP(t *testing.T, files map[string][]byte) {
	t.Helper()
	changed(t, files, "inventory/dev/cluster.yaml", "proxmox:\n", "  vip: 10.10.0.5\nproxmox:\n")
}

// TestEndpointIsLost: the control plane at whose address the others reach the Kubernetes API is
// lost, in several ways. What the status proposes, a vip and then a new machine, ends in a cluster
// that is whole.
func TestEndpointIsLost(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name            string
		destroyed       bool
		replace, forget bool
	}{
		{name: "destroyed", destroyed: true},
		{name: "hangs, and is replaced", replace: true},
		{name: "hangs, and is forgotten", forget: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			sz := size{ControlPlanes: 3, Workers: 1}
			files := withoutVIP(t, sz)
			inReadyCluster(t, sz, files, func(t *testing.T, s *sim) {
				if vmid := s.vmidOf("dev-cp-1"); c.destroyed {
					must(s.Lab.PVE.Remove(vmid))
				} else {
					must(s.Lab.Talos.Partition(vmid, true))
				}
				s.Until(time.Hour, "dev-cp-1 is missed for longer than it should be", func(st cluster.Status) bool { return st.Condition == cluster.Stalled })
				addVIP(t, files)
				if c.replace {
					changed(t, files, "inventory/dev/nodes.yaml", "{name: dev-cp-1,", "{name: dev-cp-1, replace: now,")
				}
				s.Push(files, "a vip")
				if c.forget {
					s.Until(time.Hour, "the push is seen", func(st cluster.Status) bool { return st.Revision.Commit() == s.Head() })
					must(s.Cluster().Forget("dev-cp-1", false))
				}
				s.UntilReady(3 * time.Hour)
				if got := fmt.Sprint(s.members()); got != "[dev-cp-1 dev-cp-2 dev-cp-3]" {
					t.Errorf("members of etcd: %s", got)
				}
			})
		})
	}
}

// TestEndpointIsRenamed: the control plane at whose address the others reach the Kubernetes API gets
// another name and a new machine at the same address, which could not be made while the others need
// the old one. It stays until there is a vip.
func TestEndpointIsRenamed(t *testing.T) {
	t.Parallel()
	sz := size{ControlPlanes: 3, Workers: 1}
	files := withoutVIP(t, sz)
	inReadyCluster(t, sz, files, func(t *testing.T, s *sim) {
		s.watchEndpoint("dev-cp-1", "10.10.0.11")
		changed(t, files, "inventory/dev/nodes.yaml", "{name: dev-cp-1,", "{name: dev-cp-9, replace: now,")
		s.Push(files, "another name")
		s.Until(time.Hour, "held", func(st cluster.Status) bool {
			return slices.ContainsFunc(st.Blocked, func(b cluster.Block) bool { return b.Reason == cluster.EndpointIsNode })
		})
		time.Sleep(2 * time.Hour)
		if got := fmt.Sprint(s.members(), s.cordoned()); got != "[dev-cp-1 dev-cp-2 dev-cp-3] []" {
			t.Errorf("members of etcd and cordoned nodes: %s", got)
		}
		addVIP(t, files)
		s.Push(files, "a vip")
		s.UntilReady(3 * time.Hour)
		if got := fmt.Sprint(s.members()); got != "[dev-cp-9 dev-cp-2 dev-cp-3]" {
			t.Errorf("members of etcd: %s", got)
		}
		for _, v := range s.Lab.World.Violations() {
			t.Errorf("broken rule: %s", v)
		}
	})
}

// TestTwoOfFiveDestroyed: somebody destroys two of five control planes at once. Their members, which
// no longer work, are removed one after the other, and both are made again.
func TestTwoOfFiveDestroyed(t *testing.T) {
	t.Parallel()
	sz := size{ControlPlanes: 5, Workers: 1}
	inReadyCluster(t, sz, sz.Files(), func(t *testing.T, s *sim) {
		must(s.Lab.PVE.Remove(s.vmidOf("dev-cp-2")))
		must(s.Lab.PVE.Remove(s.vmidOf("dev-cp-4")))
		s.Until(30*time.Minute, "it is seen", func(st cluster.Status) bool { return st.Condition != cluster.Ready })
		s.UntilReady(time.Hour)
		s.CheckRules(sz)
	})
}
