package bounds

import (
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/window"
)

// night is a window; which one does not matter.
var night = window.Window{From: 60, To: 120, Zone: time.UTC}

// TestUpgrade: of cluster and host the stricter holds, the rule is named where it is the host's, and
// without a window nothing is upgraded that may be only in one.
func TestUpgrade(t *testing.T) {
	const auto, window, approve, off = cluster.UpgradeAuto, cluster.UpgradeInWindow, cluster.UpgradeApproved, cluster.UpgradeOff
	const missing = "upgrade is window, and neither cluster.yaml nor the host's policy has a window"
	of := func(asks, allows string) string {
		return "the cluster asks for " + asks + ", and the host allows " + allows + " (host policy, policy.yaml:7: upgrade)"
	}
	for _, c := range []struct {
		asks, allows  cluster.UpgradeMode
		window, hosts bool
		mode          cluster.UpgradeMode
		rule          string
	}{
		{auto, auto, false, false, auto, ""}, {auto, auto, true, true, auto, ""},
		{window, auto, true, false, window, ""}, {window, auto, false, true, window, ""}, {window, window, true, true, window, ""},
		{window, auto, false, false, off, missing}, {auto, window, false, false, off, of("auto", "window") + "; " + missing},
		{auto, window, true, false, window, of("auto", "window")}, {approve, window, false, false, approve, ""},
		{approve, auto, false, false, approve, ""}, {window, approve, false, false, approve, of("window", "approve")},
		{auto, approve, false, false, approve, of("auto", "approve")}, {auto, off, false, false, off, of("auto", "off")},
		{off, auto, false, false, off, ""}, {off, approve, false, false, off, ""}, {off, off, false, false, off, ""}, {approve, off, true, true, off, of("approve", "off")},
	} {
		s := cluster.Spec{Switches: cluster.Switches{Upgrade: c.asks}}
		p := cluster.Policy{File: "policy.yaml", Switches: cluster.Switches{Upgrade: c.allows}, Lines: map[string]int{"upgrade": 7}}
		if c.window {
			s.Window = night
		}
		if c.hosts {
			p.Window = night
		}
		hint := "set `upgrade: auto`"
		if strings.HasSuffix(c.rule, missing) {
			hint = "add a `window` to cluster.yaml, or " + hint
		}
		if got := HintOff(s, p); got != hint {
			t.Errorf("%s of %s, windows %v, %v: the hint is %q", c.asks, c.allows, c.window, c.hosts, got)
		}
		if mode, rule := Upgrade(s, p); mode != c.mode || rule != c.rule {
			t.Errorf("%s of %s, windows %v, %v: %s, %q", c.asks, c.allows, c.window, c.hosts, mode, rule)
		}
	}
}

// TestUpgradeInOpenWindow: only what a window alone keeps comes at any time while that is open.
func TestUpgradeInOpenWindow(t *testing.T) {
	const auto, window, approve, off = cluster.UpgradeAuto, cluster.UpgradeInWindow, cluster.UpgradeApproved, cluster.UpgradeOff
	for _, c := range []struct {
		asks, allows  cluster.UpgradeMode
		window, hosts bool
		opens         bool
	}{
		{window, auto, true, false, true}, {window, auto, false, true, true}, {auto, window, true, false, true}, {window, window, false, true, true},
		{window, auto, false, false, false}, {window, approve, true, false, false}, {approve, window, true, true, false},
		{off, window, true, true, false}, {window, off, true, true, false}, {approve, auto, true, false, false},
	} {
		s, p := cluster.Spec{Switches: cluster.Switches{Upgrade: c.asks}}, cluster.Policy{Switches: cluster.Switches{Upgrade: c.allows}}
		if c.window {
			s.Window = night
		}
		if c.hosts {
			p.Window = night
		}
		wantAsked, wantAllowed := c.asks, c.allows
		if c.opens {
			wantAsked, wantAllowed = auto, auto
		}
		if asked, allowed := UpgradeInOpenWindow(s, p); asked != wantAsked || allowed != wantAllowed {
			t.Errorf("%s of %s, windows %v, %v: %s, %s", c.asks, c.allows, c.window, c.hosts, asked, allowed)
		}
	}
}
