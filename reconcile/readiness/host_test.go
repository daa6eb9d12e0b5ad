package readiness

import (
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestAwaitHost: a host that is not seen, has no quorum or is in maintenance is waited for, and no other.
func TestAwaitHost(t *testing.T) {
	for name, c := range map[string]struct {
		h      cluster.Host
		reason cluster.Reason
		text   string
		hint   string
		within time.Duration
	}{
		"usable":           {cluster.Host{Known: true, Quorate: cluster.Saw(true)}, "", "", "", 0},
		"quorum not known": {cluster.Host{Known: true}, "", "", "", 0},
		"not seen":         {cluster.Host{Why: "connection refused"}, cluster.HostUnknown, "cannot see host pve1: connection refused", "", 2 * time.Minute},
		"not seen yet":     {cluster.Host{}, cluster.HostUnknown, "cannot see host pve1: it has not answered yet", "", 2 * time.Minute},
		"no quorum":        {cluster.Host{Known: true, Quorate: cluster.Saw(false)}, cluster.HostNoQuorum, "the Proxmox VE cluster of pve1 has no quorum, so nothing can be changed", "bring the other hosts back; `pvecm status` shows who is missing", 2 * time.Minute},
		"in maintenance":   {cluster.Host{Known: true, Maintained: true}, cluster.HostMaintained, "host pve1 is in maintenance mode", "`ha-manager crm-command node-maintenance disable pve1` ends it", 24 * time.Hour},
		"neither seen":     {cluster.Host{Maintained: true}, cluster.HostUnknown, "cannot see host pve1: it has not answered yet", "", 2 * time.Minute},
	} {
		w := AwaitHost("wk-1", "pve1", c.h, 2*time.Minute)
		if w.Reason != c.reason || w.Message != c.text || w.Hint != c.hint || w.Within != c.within || c.reason != "" && (w.Subject != "wk-1" || w.About != "pve1") {
			t.Errorf("%s: %+v", name, w)
		}
	}
}
