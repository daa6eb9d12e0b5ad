package agent_test

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
)

// waitFor is the wait of a status with a reason; "" : there is none.
func waitFor(st cluster.Status, subject string, reason cluster.Reason) string {
	for _, w := range st.Waiting {
		if w.Subject == subject && w.Reason == reason {
			return w.Message
		}
	}
	return ""
}

// changed is the repository with one text in a file for another.
func changed(t *testing.T, files map[string][]byte, file, from, to string) {
	t.Helper()
	if !strings.Contains(string(files[file]), from) {
		t.Fatalf("%s has no %q", file, from)
	}
	files[file] = []byte(strings.ReplaceAll(string(files[file]), from, to))
}

// TestFirstReadyWaitsForDNS: with every node short of disk from the first moment,
// all of them are Ready, and no pod that resolves a name runs.
func TestFirstReadyWaitsForDNS(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 1}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		press := func(on bool) {
			for n := range sz.ControlPlanes + sz.Workers {
				s.Lab.Kube.SetPressure(sz.Name(n), "DiskPressure", on)
			}
		}
		s.Until(20*time.Minute, "waiting for cluster DNS", func(st cluster.Status) bool {
			press(true)
			if st.Condition == cluster.Ready {
				t.Fatal("it is Ready without DNS, on nodes that are short of disk")
			}
			dns := waitFor(st, "dev", cluster.ClusterDNSNotReady)
			return strings.Contains(dns, ": coredns-") && strings.Contains(dns, "untolerated taint") &&
				waitFor(st, "dev-cp-1", cluster.NodePressure) == "Kubernetes reports DiskPressure: kubelet has disk pressure" && waitFor(st, "dev-wk-1", cluster.NodePressure) != ""
		})
		time.Sleep(30 * time.Minute)
		if st := s.Status(); st.Condition != cluster.Stalled || st.Hint == "" {
			t.Errorf("after half an hour it is %s: %s -> %s", st.Condition, st.Message, st.Hint)
		}
		press(false)
		s.UntilReady(10 * time.Minute)
		// What holds later: a node that is short of something, but not a cluster
		// whose DNS somebody replaced.
		s.kubectl(netip.MustParseAddr("10.10.0.11"), http.MethodDelete, "/apis/apps/v1/namespaces/kube-system/deployments/coredns", "")
		s.Lab.Kube.SetPressure("dev-wk-1", "MemoryPressure", true)
		s.Until(5*time.Minute, "under pressure", func(st cluster.Status) bool {
			return st.Condition == cluster.Reconciling && waitFor(st, "dev-wk-1", cluster.NodePressure) != "" && len(st.Waiting) == 1
		})
		s.Lab.Kube.SetPressure("dev-wk-1", "MemoryPressure", false)
		s.UntilReady(5 * time.Minute)
		s.Halt()
		s.Boot()
		s.UntilReady(5 * time.Minute)
		s.Halt()
	})
}

// TestReadyWithoutDNS: what a patch switches off is not waited for.
func TestReadyWithoutDNS(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 0}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		files := sz.Files()
		changed(t, files, "inventory/dev/cluster.yaml", "cni: cilium\n", "cni: cilium\npatches: {controlplane: [patches/dns.yaml]}\n")
		files["inventory/dev/patches/dns.yaml"] = []byte("cluster:\n  coreDNS:\n    disabled: true\n")
		s.Push(files, "no DNS")
		s.Boot()
		s.UntilReady(20 * time.Minute)
		s.Halt()
	})
}

// TestBootstrapOnlyHoldsBackTheFirstReady: an addon that is left to others is
// waited for once, when it is installed.
func TestBootstrapOnlyHoldsBackTheFirstReady(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 1}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		files := sz.Files()
		files["inventory/dev/addons/podinfo.yaml"] = append(files["inventory/dev/addons/podinfo.yaml"], "ownership: bootstrap-only\n"...)
		s.Push(files, "left to others")
		const registry = "ghcr.io"
		s.Lab.Kube.CloseRegistry(registry)
		s.Boot()
		s.Until(20*time.Minute, "waiting for the addon alone", func(st cluster.Status) bool {
			if st.Condition == cluster.Ready {
				t.Fatal("it is Ready, and the addon is not")
			}
			return len(st.Waiting) == 1 && waitFor(st, "podinfo", cluster.AddonNotReady) != ""
		})
		s.Lab.Kube.OpenRegistry(registry)
		s.UntilReady(10 * time.Minute)
		s.kubectl(netip.MustParseAddr("10.10.0.11"), http.MethodDelete, "/apis/apps/v1/namespaces/apps/deployments/podinfo", "")
		time.Sleep(10 * time.Minute)
		if st := s.Status(); st.Condition != cluster.Ready {
			t.Errorf("what others manage now makes it %s: %s", st.Condition, st.Message)
		}
		s.Halt()
	})
}

// TestNodeNamesItsFailingPods: a network that cannot start is named as what keeps
// the nodes from being Ready.
func TestNodeNamesItsFailingPods(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 1}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		files := sz.Files()
		changed(t, files, "inventory/dev/cluster.yaml", "cni: cilium\n", "cni: flannel\n")
		changed(t, files, "inventory/dev/cluster.yaml", "addons: [addons/cilium.yaml, addons/podinfo.yaml]", "addons: []")
		for _, addon := range []string{"cilium", "podinfo"} {
			delete(files, "inventory/dev/addons/"+addon+".yaml")
		}
		s.Push(files, "flannel")
		s.Lab.Kube.CloseRegistry("ghcr.io")
		s.Boot()
		s.Until(20*time.Minute, "naming the pod", func(st cluster.Status) bool {
			for _, name := range []string{"dev-cp-1", "dev-wk-1"} {
				why := waitFor(st, name, cluster.NodeNotReady)
				if !strings.Contains(why, "cni plugin not initialized") || !strings.Contains(why, "kube-flannel-") || !strings.Contains(why, "ImagePullBackOff of ghcr.io/siderolabs/flannel:") {
					return false
				}
			}
			return true
		})
		s.Lab.Kube.OpenRegistry("ghcr.io")
		s.UntilReady(10 * time.Minute)
		s.Halt()
	})
}
