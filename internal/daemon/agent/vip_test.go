package agent_test

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/agent"
	"github.com/talos-agent/talos-agent/internal/lab"
)

// TestTakenVIP brings a cluster up whose VIP another machine has, as long as it has it:
// what waits for the VIP is not blamed on bridges and consoles, and who has the
// address is told within a minute.
func TestTakenVIP(t *testing.T) {
	t.Parallel()
	const mac = "BC:24:11:00:00:99"
	sz := size{ControlPlanes: 3, Workers: 1}
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		other, err := s.Lab.World.Net.Listen("10.10.0.5:6443")
		must(err)
		go hangUp(other)
		s.Boot(func(c *agent.Config) {
			c.Neighbour = func(addr netip.Addr) string {
				if addr.String() == "10.10.0.5" {
					return mac
				}
				return ""
			}
		})
		s.Until(10*time.Minute, "told that a kube-apiserver answers and the VIP does not", func(st cluster.Status) bool {
			return reasonOf(st, "dev") == cluster.VIPNotServed
		})
		s.Until(90*time.Second, "Stalled because of the VIP", func(st cluster.Status) bool {
			return st.Condition == cluster.Stalled && st.Reason == cluster.VIPNotServed && strings.Contains(st.Message, mac) && st.Hint != ""
		})
		s.Until(10*time.Minute, "told what the worker waits for", func(st cluster.Status) bool {
			return reasonOf(st, "dev-wk-1") == cluster.VIPNotServed
		})
		for _, w := range s.Status().Waiting {
			if strings.Contains(w.Hint, "bridge") {
				t.Errorf("%s: %s [%s]", w.Subject, w.Message, w.Hint)
			}
		}
		must(other.Close())
		s.UntilReady(20 * time.Minute)
		s.CheckRules(sz)
		s.Halt()
	})
}

// reasonOf is why a subject waits.
func reasonOf(st cluster.Status, subject string) cluster.Reason {
	for _, w := range st.Waiting {
		if w.Subject == subject {
			return w.Reason
		}
	}
	return ""
}

// hangUp ends every connection at once, as a machine does that serves something else.
func hangUp(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_ = c.Close() // whoever dialled sees that it ended
	}
}

// TestVIPOfOthers brings clusters up whose VIP is not Talos' own. What has it is there late: kube-vip runs when its addon is
// installed, which needs nothing that waits for the address, and a load balancer when somebody switches it on. Until then that
// is what is waited for, and afterwards all control planes join.
func TestVIPOfOthers(t *testing.T) {
	t.Parallel()
	for by, blamed := range map[string]string{"kube-vip": "grep kube-vip", "external": "load balancer"} {
		t.Run(by, func(t *testing.T) {
			sz := size{ControlPlanes: 3, Workers: 1}
			synctest.Test(t, func(t *testing.T) {
				s := newSim(t, sz, lab.Config{})
				defer s.Close()
				files, vip := sz.Files(), "10.10.0.5"
				if by == "external" {
					vip = "192.0.2.7"
				}
				changed(t, files, "inventory/dev/cluster.yaml", "vip: 10.10.0.5", "vip: {address: "+vip+", by: "+by+"}")
				if by == "kube-vip" {
					changed(t, files, "inventory/dev/cluster.yaml", "addons: [", "addons: [addons/kube-vip.yaml, ")
					files["inventory/dev/addons/kube-vip.yaml"] = []byte("name: kube-vip\nnamespace: kube-system\nchart: {repository: https://charts.example.org, name: podinfo, version: 6.9.0}\n")
				}
				s.Push(files, "the cluster")
				s.Boot()
				s.Until(30*time.Minute, "told that nothing answers at the VIP", func(st cluster.Status) bool {
					for _, w := range st.Waiting {
						if w.Reason == cluster.VIPNotServed && w.Subject == "dev" && strings.Contains(w.Message, vip) && strings.Contains(w.Hint, blamed) {
							return true
						}
					}
					return false
				})
				if by == "kube-vip" {
					s.Until(30*time.Minute, "kube-vip is installed", func(st cluster.Status) bool {
						return slices.ContainsFunc(st.Addons, func(a cluster.AddonStatus) bool {
							return a.Name == "kube-vip" && (a.State == "deployed" || a.State == "ready")
						})
					})
				}
				s.Lab.Kube.Balance(netip.MustParseAddr(vip))
				s.UntilReady(time.Hour)
				s.CheckRules(sz)
				s.Halt()
			})
		})
	}
}
