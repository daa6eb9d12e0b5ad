package agent_test

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/agent"
	"github.com/talos-agent/talos-agent/internal/daemon/reservations"
)

// TestReservationsKeepWithinThePolicy: no reservation is written of an address that the host does not allow, such as that of a router, whatever
// machine it would be of.
func TestReservationsKeepWithinThePolicy(t *testing.T) {
	t.Parallel()
	for name, forbid := range map[string]func(*cluster.Policy){
		"networks": func(p *cluster.Policy) { p.Networks = []netip.Prefix{netip.MustParsePrefix("10.99.0.0/24")} },
		"taken":    func(p *cluster.Policy) { p.Taken = append(p.Taken, netip.MustParseAddr("10.10.0.11")) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				sz := size{ControlPlanes: 1}
				s := newSim(t, sz, reservingLab(nil))
				defer s.Close()
				s.Push(reservedFiles(t, sz), "the cluster")
				s.Boot(func(c *agent.Config) {
					c.Reservations = reservations.New(dir, "sim")
					allowed := c.Policy
					c.Policy = func() cluster.Policy {
						p := allowed()
						forbid(&p)
						return p
					}
				})
				s.Until(time.Hour, "refused", func(st cluster.Status) bool { return st.Reason == cluster.PolicyViolation })
				time.Sleep(30 * time.Minute)
				if got := listReservations(t, dir); len(got) > 0 {
					t.Errorf("there are %q", got)
				}
				s.Halt()
			})
		})
	}
}
