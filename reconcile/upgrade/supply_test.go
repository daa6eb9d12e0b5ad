package upgrade

import (
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestJudgeSupply: nothing is begun before the installers of all hops of Talos are known to be there.
func TestJudgeSupply(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	const next, last = "r/nocloud-installer/s:v1.12.11", "r/nocloud-installer/s:v1.13.9"
	there := cluster.InstallerSeen{At: now.Add(-24 * time.Hour)}
	for name, c := range map[string]struct {
		seen             map[string]cluster.InstallerSeen
		edit             func(*cluster.Desired)
		ask, missing     int
		unknown          bool
		unchecked, holds bool
	}{
		"nothing is known":        {ask: 2, unknown: true, holds: true},
		"one is known":            {seen: map[string]cluster.InstallerSeen{next: there}, ask: 1, unknown: true, holds: true},
		"both are there":          {seen: map[string]cluster.InstallerSeen{next: there, last: there}},
		"one is missing":          {seen: map[string]cluster.InstallerSeen{next: there, last: {At: now, Missing: "404"}}, missing: 1, holds: true},
		"one is missing for long": {seen: map[string]cluster.InstallerSeen{next: there, last: {At: now.Add(-askAgain), Missing: "404"}}, missing: 1, ask: 1, holds: true},
		"one cannot be seen":      {seen: map[string]cluster.InstallerSeen{next: there, last: {At: now, Unchecked: "mirror"}}, unchecked: true},
		"no schematic":            {edit: func(d *cluster.Desired) { d.Schematic = "" }, unknown: true, holds: true},
		"held by a switch":        {edit: func(d *cluster.Desired) { d.Held = cluster.ApplyingOff }},
		"back":                    {edit: func(d *cluster.Desired) { d.Back.Talos = true }},
		"no way":                  {edit: func(d *cluster.Desired) { d.NoWay = "none" }},
		"Kubernetes alone":        {edit: func(d *cluster.Desired) { d.Hops = d.Hops[2:] }},
	} {
		d := cluster.Desired{Schematic: "s", Snapshot: cluster.Snapshot{Spec: cluster.Spec{InstallerRegistry: "r"}}}
		d.Hops = []cluster.Hop{{Kind: cluster.HopTalos, From: "v1.11.6", To: "v1.12.11"}, {Kind: cluster.HopTalos, From: "v1.12.11", To: "v1.13.9"}, {Kind: cluster.HopKubernetes, From: "v1.34.3", To: "v1.35.3"}}
		if c.edit != nil {
			c.edit(&d)
		}
		s := JudgeSupply(d, cluster.Observed{Now: now, Installers: c.seen})
		if len(s.Ask) != c.ask || len(s.Missing) != c.missing || s.Unknown != c.unknown || (s.Unchecked != "") != c.unchecked || s.Holds() != c.holds {
			t.Errorf("%s: %+v", name, s)
		}
	}
}
