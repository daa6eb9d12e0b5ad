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
	"github.com/talos-agent/talos-agent/internal/lab/talos"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// watchEndpoint judges, when the removal of a node begins and at each of its steps, whether
// a machine that stays still has the address of that node as its endpoint.
func (s *sim) watchEndpoint(name, address string) {
	s.Lab.World.OnCall(func(c world.CallRecord) {
		s.Witness(c)
		stops := c.System == "pve" && strings.HasSuffix(c.Op, "/status/stop") && c.Subject == fmt.Sprint(s.vmidOf(name))
		cordons := c.System == "kube" && strings.HasPrefix(c.Op, "PATCH") && c.Subject == name
		if !stops && !cordons && !strings.Contains(c.Op, "EtcdRemoveMember") {
			return
		}
		for _, m := range s.Lab.Talos.Machines() {
			if running, _ := s.Lab.Talos.ConfigsOf(m.VMID); m.Node != name && strings.Contains(running, "endpoint: https://"+address+":") {
				s.Lab.World.Violate("endpoint", "%s %s, and %s has its address as the endpoint", c.Op, name, m.Node)
			}
		}
	})
}

// withoutVIP are the files of a cluster whose endpoint is the address of its first control
// plane, which any number of them may leave.
func withoutVIP(t *testing.T, sz size) map[string][]byte {
	t.Helper()
	files := sz.Files()
	changed(t, files, "inventory/dev/cluster.yaml", "  vip: 10.10.0.5\n", "")
	changed(t, files, "inventory/dev/cluster.yaml", "cni: cilium", "allow_even: true\ncni: cilium")
	return files
}

// TestEndpointLeaves: the control plane whose address is the endpoint of the cluster leaves the
// inventory, of three and then of two. It works until every node that stays is seen to have the
// new endpoint, which kubeconfig and talosconfig name.
func TestEndpointLeaves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 3, Workers: 2}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		files := withoutVIP(t, sz)
		s.Push(files, "no vip")
		s.Boot()
		s.UntilReady(20 * time.Minute)
		for i, name := range []string{"dev-cp-1", "dev-cp-2"} {
			s.watchEndpoint(name, fmt.Sprintf("10.10.0.%d", 11+i))
			changed(t, files, "inventory/dev/nodes.yaml", fmt.Sprintf("  - {name: %s, ip: 10.10.0.%d, cpu: 4, ram: 8192, disk: 40G}\n", name, 11+i), "")
			s.Push(files, name+" leaves")
			s.Until(10*time.Minute, "waits for the others", func(st cluster.Status) bool {
				return strings.Contains(waitFor(st, name, cluster.WaitingForEndpoint), "dev-wk-2")
			})
			s.UntilReady(time.Hour)
			kube, err := s.Cluster().Kubeconfig()
			must(err)
			talos, err := s.Cluster().Talosconfig()
			must(err)
			for what, file := range map[string][]byte{"kubeconfig": kube, "talosconfig": talos} {
				if strings.Contains(string(file), fmt.Sprintf("10.10.0.%d", 11+i)) || !strings.Contains(string(file), fmt.Sprintf("10.10.0.%d", 12+i)) {
					t.Errorf("the %s names %s, which is deleted:\n%s", what, name, file)
				}
			}
		}
		if got := fmt.Sprint(s.nodeObjects(), s.members()); got != "[dev-cp-3 dev-wk-1 dev-wk-2] [dev-cp-3]" {
			t.Errorf("nodes in Kubernetes, members of etcd: %s", got)
		}
		s.Quiet(10 * time.Minute)
		s.CheckRules(size{ControlPlanes: 1, Workers: 2})
		s.Halt()
	})
}

// TestEndpointIsReplaced: a control plane whose address was the endpoint, and that is replaced in
// the push that has another one, works until every other node is seen to have that.
func TestEndpointIsReplaced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 3, Workers: 2}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		files := withoutVIP(t, sz)
		s.Push(files, "no vip")
		s.Boot()
		s.UntilReady(20 * time.Minute)
		s.watchEndpoint("dev-cp-1", "10.10.0.11")
		first := s.generations()["dev-cp-1"]
		changed(t, files, "inventory/dev/cluster.yaml", "proxmox:\n", "  vip: 10.10.0.5\nproxmox:\n")
		changed(t, files, "inventory/dev/nodes.yaml", "{name: dev-cp-1,", "{name: dev-cp-1, replace: now,")
		s.Push(files, "a vip, and a new machine")
		s.UntilReady(2 * time.Hour)
		if s.generations()["dev-cp-1"] == first || len(s.members()) != 3 {
			t.Errorf("dev-cp-1 has no new machine: members of etcd %s", s.members())
		}
		s.Quiet(10 * time.Minute)
		s.CheckRules(sz)
		s.Halt()
	})
}

// TestEndpointIsNew: a control plane is exchanged for one that stands in front of all others, and is
// the endpoint by that. It is made and joins before another node has its address as the endpoint,
// and the one that leaves works until all have.
func TestEndpointIsNew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 3, Workers: 2}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		files := withoutVIP(t, sz)
		s.Push(files, "no vip")
		s.Boot()
		s.UntilReady(20 * time.Minute)
		s.watchEndpoint("dev-cp-1", "10.10.0.11")
		s.Lab.World.OnConfig(func(c world.GivenConfig) {
			if !c.First && strings.Contains(string(c.Config), "endpoint: https://10.10.0.9:") && !slices.Contains(s.members(), "dev-cp-0") {
				s.Lab.World.Violate("endpoint", "%s gets the endpoint of dev-cp-0, which has not joined", c.Node)
			}
		})
		changed(t, files, "inventory/dev/nodes.yaml", "{name: dev-cp-1, ip: 10.10.0.11,", "{name: dev-cp-0, ip: 10.10.0.9,")
		s.Push(files, "another one is the first")
		s.UntilReady(2 * time.Hour)
		if got := fmt.Sprint(s.nodeObjects()); got != "[dev-cp-0 dev-cp-2 dev-cp-3 dev-wk-1 dev-wk-2]" || len(s.members()) != 3 {
			t.Errorf("nodes in Kubernetes: %s; members of etcd: %s", got, s.members())
		}
		s.Quiet(10 * time.Minute)
		for _, v := range s.Lab.World.Violations() {
			t.Errorf("broken rule: %s", v)
		}
		s.Halt()
	})
}

// TestEndpointBecomesAVIP: a push gives a cluster a VIP, and workers that restart in the same push. No
// worker has the VIP as its endpoint before a control plane serves it: one that restarts with it would
// wait for ever for a certificate, and every control plane for that worker.
func TestEndpointBecomesAVIP(t *testing.T) {
	t.Parallel()
	for _, reboots := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			sz := size{ControlPlanes: 1, Workers: 2}
			s := newSim(t, sz, lab.Config{})
			defer s.Close()
			w := newWishes(sz)
			s.Boot()
			s.UntilReady(20 * time.Minute)
			s.Lab.World.OnConfig(func(c world.GivenConfig) {
				served := slices.ContainsFunc(s.Lab.Talos.Machines(), func(m talos.MachineView) bool {
					running, _ := s.Lab.Talos.ConfigsOf(m.VMID)
					return m.Control && strings.Contains(running, "10.10.0.5")
				})
				if strings.HasPrefix(c.Node, "dev-wk-") && strings.Contains(string(c.Config), "endpoint: https://10.10.0.5:") && !served {
					s.Lab.World.Violate("endpoint", "%s gets the VIP as its endpoint, which no control plane has", c.Node)
				}
			})
			w.vip, w.wkCores = true, 6
			if reboots {
				w.env = 1
			}
			s.Push(w.files(sz), "a vip, and workers that restart")
			s.Until(time.Hour, "Ready", func(st cluster.Status) bool {
				if text := fmt.Sprint(st.Message, st.Waiting); strings.Contains(text, "invalid IP") {
					t.Fatalf("it names no VIP: %s", text)
				}
				return st.Condition == cluster.Ready && st.Applied.Commit() == s.Head()
			})
			w.check(s, sz)
			s.CheckRules(sz)
			s.Halt()
		})
	}
}
