package agent_test

import (
	"net"
	"net/netip"
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
