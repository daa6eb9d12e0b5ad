package agent_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
)

// TestClockOfHostIsAhead: the hardware clock of a host is in local time, and
// nothing has set it right when the agent starts.
func TestClockOfHostIsAhead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 1}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		time.Sleep(7 * 24 * time.Hour) // the secrets are older than the error is large
		s.Lab.World.SetGuestClock(-3 * time.Hour)
		s.Boot()
		s.UntilReady(20 * time.Minute)
		s.CheckRules(sz)
		s.Halt()

		// So far ahead that no certificate helps, the clocks are named.
		s.Lab.World.SetGuestClock(-3 * 24 * time.Hour)
		s.Boot()
		s.Until(5*time.Minute, "blind for the clock", func(st cluster.Status) bool {
			for _, w := range st.Waiting {
				if w.Reason == cluster.NodeUnknown && strings.Contains(w.Message, "expired or not yet valid") && strings.Contains(w.Hint, "timedatectl") {
					return !strings.Contains(w.Message, "tls:") && st.Condition == cluster.Unknown && st.Hint == w.Hint
				}
			}
			return false
		})
		s.Lab.World.SetGuestClock(0)
		s.UntilReady(5 * time.Minute)
		s.Halt()
	})
}
