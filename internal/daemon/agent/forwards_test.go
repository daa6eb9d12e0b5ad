package agent_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/agent"
	"github.com/talos-agent/talos-agent/internal/daemon/forwards"
	"github.com/talos-agent/talos-agent/internal/lab"
)

// forwardingFiles are the files of a cluster with ports of the host.
func forwardingFiles(t *testing.T, sz size, ports string) map[string][]byte {
	t.Helper()
	files := sz.Files()
	changed(t, files, "inventory/dev/cluster.yaml", "network:\n", "port_forwards: "+ports+"\nnetwork:\n")
	return files
}

// TestPortForwards: ports of the host that its policy allows lead to the nodes that are
// Ready, and to none any more when the cluster is destroyed or the policy has no such
// port.
func TestPortForwards(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "sim.dev.nft")
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 2}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		var mu sync.Mutex
		allows := []int{443, 53}
		s.Push(forwardingFiles(t, sz, "[{port: 443, node_port: 30443}, {port: 53, protocol: udp, nodes: controlplanes}]"), "the cluster")
		s.Boot(func(c *agent.Config) {
			c.Forwards = forwards.New(dir, "sim")
			allowed := c.Policy
			c.Policy = func() cluster.Policy {
				mu.Lock()
				defer mu.Unlock()
				p := allowed()
				p.Forwards = allows
				return p
			}
		})
		read := func() string {
			b, err := os.ReadFile(file)
			if err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			return string(b)
		}
		leads := func(what string, wants ...string) {
			t.Helper()
			s.Until(10*time.Minute, what, func(cluster.Status) bool {
				text := read()
				for _, want := range wants {
					if !strings.Contains(text, want) {
						return false
					}
				}
				return true
			})
		}
		s.UntilReady(30 * time.Minute)
		leads("all lead there", "dport 443 dnat ip to jhash ip saddr mod 2 map { 0 : 10.10.0.41 . 30443, 1 : 10.10.0.42 . 30443 }", "udp dport 53 dnat to 10.10.0.11:53")

		must(s.Lab.PVE.Stop(s.vmidOf("dev-wk-1")))
		leads("one worker is left", "dport 443 dnat to 10.10.0.42:30443")
		s.UntilReady(20 * time.Minute)
		leads("both are back", "0 : 10.10.0.41 . 30443")

		mu.Lock()
		allows = []int{53}
		mu.Unlock()
		s.Until(10*time.Minute, "refused", func(st cluster.Status) bool { return st.Reason == cluster.PolicyViolation })
		s.Until(10*time.Minute, "the port leads nowhere", func(cluster.Status) bool { return !strings.Contains(read(), "443") })
		leads("the other still does", "udp dport 53 dnat to 10.10.0.11:53")
		mu.Lock()
		allows = []int{443, 53}
		mu.Unlock()
		s.UntilReady(20 * time.Minute)
		leads("it leads there again", "0 : 10.10.0.41 . 30443")

		must(s.Cluster().Destroy(nil, nil))
		s.Until(20*time.Minute, "destroyed", isDestroyed)
		s.Until(10*time.Minute, "there is no file", func(cluster.Status) bool { return read() == "" })
		s.Halt()
	})
}
