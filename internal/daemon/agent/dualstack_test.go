package agent_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
)

// ipv6Of is what a Node of a cluster has of addresses and of networks of its pods.
func (s *sim) ipv6Of(node string) string {
	for _, o := range s.Lab.Kube.Objects("", schema.GroupVersionResource{Version: "v1", Resource: "nodes"}, "") {
		if o.GetName() != node {
			continue
		}
		var addresses []string
		all, _, _ := unstructured.NestedSlice(o.Object, "status", "addresses")
		for _, a := range all {
			if entry := a.(map[string]any); entry["type"] == "InternalIP" {
				addresses = append(addresses, fmt.Sprint(entry["address"]))
			}
		}
		pods, _, _ := unstructured.NestedStringSlice(o.Object, "spec", "podCIDRs")
		return fmt.Sprint(addresses, pods)
	}
	return ""
}

// TestDualStack: a dual-stack cluster of one node becomes Ready with addresses of both families in Proxmox VE, Talos and
// Kubernetes, and stays as it is; an IPv6 address that somebody took from the VM is given back; and the cluster neither loses
// IPv6 nor gets other networks of it.
func TestDualStack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1}
		files := func(six string) map[string][]byte {
			out := sz.Files()
			changed(t, out, "inventory/dev/cluster.yaml", "  cidr: 10.10.0.0/20\n", "  cidr: 10.10.0.0/20\n"+six)
			return out
		}
		const six = "  cidr6: fd00:10:10::/64\n  gateway6: fe80::1\n"
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Push(files(six+"  pod_cidr6: fd00:10:244::/56\n"), "dual stack")
		s.Boot()
		s.UntilReady(20 * time.Minute)
		vmid := s.vmidOf("dev-cp-1")
		config := func() string { vm, _ := s.Lab.PVE.VM(vmid); return vm.Config["ipconfig0"] }
		made := config()
		if !strings.Contains(made, "ip6=fd00:10:10::b/64") || !strings.Contains(made, "gw6=fe80::1") {
			t.Errorf("the VM has %s", made)
		}
		if got, want := s.ipv6Of("dev-cp-1"), "[10.10.0.11 fd00:10:10::b] [10.244.0.0/24 fd00:10:244::/64]"; got != want {
			t.Errorf("the Node has %s, want %s", got, want)
		}
		s.Quiet(time.Hour)

		s.putAsRoot(fmt.Sprintf("/nodes/pve1/qemu/%d/config", vmid), "ipconfig0=ip=10.10.0.11/20,gw=10.10.0.1")
		s.Until(2*time.Hour, "its IPv6 address is given back", func(st cluster.Status) bool {
			return config() == made && st.Condition == cluster.Ready && len(st.Running) == 0
		})
		for _, c := range []struct{ what, six, text string }{
			{"without IPv6", "", "keeps the address families that it was made with: IPv4 and IPv6"},
			{"other pods", six + "  pod_cidr6: fd00:10:245::/56\n", "keeps the IPv6 pod network that it was made with, which is fd00:10:244::/56"},
			{"other services", six + "  pod_cidr6: fd00:10:244::/56\n  svc_cidr6: fd00:10:96::/112\n", "keeps the IPv6 service network that it was made with"},
		} {
			s.wantRefusedPlan(c.what, sz.Files(), files(c.six), cluster.FixedConfigChanged, c.text)
		}
		s.CheckRules(sz)
		s.Halt()
	})
}

// TestIPv6IsForNewClusters: a cluster of IPv4 alone that lives does not become dual stack.
func TestIPv6IsForNewClusters(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		if got, want := s.ipv6Of("dev-cp-1"), "[10.10.0.11] [10.244.0.0/24]"; got != want {
			t.Errorf("the Node has %s, want %s", got, want)
		}
		files := sz.Files()
		changed(t, files, "inventory/dev/cluster.yaml", "  cidr: 10.10.0.0/20\n", "  cidr: 10.10.0.0/20\n  cidr6: fd00:10:10::/64\n")
		s.wantRefusedPlan("with IPv6", sz.Files(), files, cluster.FixedConfigChanged, "keeps the address families that it was made with: IPv4 alone")
		s.Push(files, "dual stack")
		must(s.Agent.Reconcile("dev"))
		s.Until(10*time.Minute, "it is refused", func(st cluster.Status) bool {
			return st.Reason == cluster.FixedConfigChanged && strings.Contains(st.Message, "cluster.yaml:6:10") && strings.Contains(st.Hint, "remove cidr6")
		})
		s.CheckRules(sz)
		s.Halt()
	})
}
