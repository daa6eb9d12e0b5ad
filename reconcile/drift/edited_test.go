package drift

import (
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestWhatAMachineIsGivenBack: its MAC and its address are refused where the inventory has
// changed, and corrected where somebody has edited the VM of a node that had them.
func TestWhatAMachineIsGivenBack(t *testing.T) {
	n := cluster.Node{Name: "wk-1", MAC: "BC:24:11:00:00:01", Cores: 4}
	d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Nodes: []cluster.Node{n}}}, Configs: map[string]cluster.Config{"wk-1": {Digest: "config"}}}
	hw := WantHardware(d.Spec, n)
	hw.MAC, hw.Address = "BC:24:11:00:00:02", "10.0.0.9/24,gw=10.0.0.1"
	hw.System = cluster.DiskSeen{Datastore: n.Datastore, Bytes: 1}
	for _, c := range []struct {
		what         string
		card         string
		power        cluster.Power
		mac, address How
	}{
		{"never seen as the inventory has it", "", cluster.PowerRunning, Refuse, Refuse},
		{"the inventory has changed since", "BC:24:11:00:00:09 ", cluster.PowerRunning, Refuse, Refuse},
		{"edited", "BC:24:11:00:00:01 ", cluster.PowerRunning, Reboot, NextStart},
		{"edited, and off", "BC:24:11:00:00:01 ", cluster.Stopped, InPlace, InPlace},
	} {
		o := cluster.Observed{Facts: cluster.Facts{Cards: map[string]string{}}}
		if c.card != "" {
			o.Facts.Cards["wk-1"] = c.card
		}
		got := map[string]How{}
		for _, dr := range OfNodeVM(d, o, n, cluster.VM{Power: c.power, Hardware: cluster.Saw(hw)}) {
			got[dr.Field] = dr.How
		}
		if got[string(cluster.FieldMAC)] != c.mac || got[string(cluster.FieldAddress)] != c.address {
			t.Errorf("%s: %v", c.what, got)
		}
	}
}

// TestConfigOfOtherVersions: a config that somebody edited is reported also while the versions of
// its machine are not those of the inventory, as far as what it was given is known.
func TestConfigOfOtherVersions(t *testing.T) {
	since := time.Date(2026, 11, 22, 10, 31, 0, 0, time.UTC)
	kept := func(of ...string) string {
		had := settled{}
		for i := 0; i < len(of); i += 2 {
			had.set(of[i], of[i+1])
		}
		return had.encode()
	}
	const no, edited, other, unknown = "", "edited", "other", "not compared"
	for what, c := range map[string]struct {
		settled string
		runs    string
		edit    func(d *cluster.Desired, o *cluster.Observed, m *cluster.Machine)
		want    string
	}{
		"as it was given": {kept(FieldConfig, "old"), "old", nil, no},
		"edited":          {kept(FieldConfig, "old"), "edit", nil, edited},
		"edited, of another image": {kept(FieldConfig, "old"), "edit", func(_ *cluster.Desired, _ *cluster.Observed, m *cluster.Machine) {
			m.Talos, m.Schematic = "v1.13.9", "b"
		}, edited},
		"the agent has begun to give it":         {kept(FieldConfig, "older", fieldGiven(FieldConfig), "old"), "old", nil, no},
		"the inventory's, before its versions":   {kept(FieldConfig, "old"), "new", nil, no},
		"not read":                               {kept(FieldConfig, "old"), "", nil, no},
		"nothing is kept, and it is as rendered": {"", "running", nil, no},
		"nothing is kept, and it is another":     {"", "edit", nil, other},
		"kept before, and as rendered now":       {kept(FieldConfig, "old"), "running", nil, edited},
		"of an older journal":                    {"0123456789abcdef", "edit", nil, other},
		"nothing of its config is kept":          {kept("cores", "4"), "running", nil, no},
		"nothing is rendered":                    {"", "edit", func(d *cluster.Desired, _ *cluster.Observed, _ *cluster.Machine) { d.Configs = nil }, unknown},
		"what runs is not known":                 {"", "edit", func(d *cluster.Desired, _ *cluster.Observed, _ *cluster.Machine) { d.Hold = "why" }, unknown},
		"it runs another Talos than others":      {"", "edit", func(_ *cluster.Desired, _ *cluster.Observed, m *cluster.Machine) { m.Talos = "v1.13.7" }, unknown},
		"it runs another image than others":      {"", "edit", func(_ *cluster.Desired, _ *cluster.Observed, m *cluster.Machine) { m.Schematic = "b" }, unknown},
		"another kubelet than others": {"", "edit", func(_ *cluster.Desired, o *cluster.Observed, _ *cluster.Machine) {
			o.Nodes.Value["cp-1"] = cluster.KubeNode{Kubelet: "v1.35.0"}
		}, unknown},
		"its kubelet is not seen": {"", "edit", func(_ *cluster.Desired, o *cluster.Observed, _ *cluster.Machine) { o.Nodes.Known = false }, unknown},
		"it is all of the inventory": {kept(FieldConfig, "old"), "edit", func(d *cluster.Desired, _ *cluster.Observed, m *cluster.Machine) {
			m.Talos, d.Asked = "v1.13.9", nil
		}, "its own"},
	} {
		s, n := newNode()
		s.Versions = cluster.Versions{Talos: "v1.13.9", Kubernetes: "v1.36.1"}
		asked := cluster.Desired{Snapshot: cluster.Snapshot{Spec: s}, Schematic: "a", Configs: map[string]cluster.Config{"cp-1": {Digest: "new"}}}
		d := asked
		d.Asked, d.Configs = &asked, map[string]cluster.Config{"cp-1": {Digest: "running"}}
		d.Spec.Versions.Talos = "v1.13.8"
		o := cluster.Observed{Now: since.Add(time.Hour), Nodes: cluster.Saw(map[string]cluster.KubeNode{"cp-1": {Kubelet: "v1.36.1"}})}
		m := cluster.Machine{Reach: cluster.Configured, Talos: "v1.13.8", Schematic: "a", ConfigDigest: c.runs, ConfigSince: since}
		if c.settled != "" {
			o.Facts.Settled = map[string]string{"cp-1": c.settled}
		}
		if c.edit != nil {
			c.edit(&d, &o, &m)
		}
		o.Machines = map[string]cluster.Machine{"cp-1": m}
		drifts := OfWholeMachine(d, o, n, m)
		if c.want == "its own" {
			d.Spec.Versions = s.Versions
			if got := OfWholeMachine(d, o, n, m); len(got) != 1 || got[0].How != Reboot {
				t.Errorf("%s: %+v", what, got)
			}
			continue
		}
		if len(drifts) == 0 || drifts[0].Reason == cluster.ConfigDrift {
			t.Fatalf("%s: its versions are not compared first: %+v", what, drifts)
		}
		got := no
		if len(drifts) > 1 {
			dr := drifts[1]
			if dr.How != Refuse || dr.Field != FieldConfig || dr.Reason != cluster.ConfigDrift {
				t.Errorf("%s: %+v", what, dr)
			}
			b := dr.Refusal(cluster.Desired{Snapshot: cluster.Snapshot{Spec: s}}, cluster.Observed{}, n)
			switch {
			case dr.By != "" && dr.Since.Equal(since) && strings.Contains(b.Message, "the one that it was given (edited on the node; it runs that since 2026-11-22 10:31 UTC"):
				got = edited
			case dr.Have == uncompared && strings.Contains(b.Message, uncompared):
				got = unknown
			case dr.Want == "running" && dr.By == "" && strings.Contains(b.Message, "for the versions that it runs"):
				got = other
			default:
				t.Errorf("%s: %+v, %s", what, dr, b.Message)
			}
			if b.Hint == "" || b.Reason != cluster.ConfigDrift || b.About != FieldConfig {
				t.Errorf("%s: %+v", what, b)
			}
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", what, got, c.want)
		}
		if shown := OfRunning(d, o, n); len(shown) != len(drifts) {
			t.Errorf("%s: shown: %+v", what, shown)
		}
	}
}

// TestHintOfReserved: a node that has its address from a DHCP server, and does not answer, names
// the same way out as one whose VM shows that the inventory has another address.
func TestHintOfReserved(t *testing.T) {
	s, n := newNode()
	plane := n
	plane.Name = "cp-2"
	replace := "undo that; or give it another `replace` in nodes.yaml: it gets a new machine, and what is on its disks is lost"
	for what, c := range map[string]struct {
		mode    cluster.AddressMode
		planes  []cluster.Node
		settled bool
		want    []string
	}{
		"the vm has it":          {cluster.AddressStatic, []cluster.Node{n, plane}, true, nil},
		"it was never there":     {cluster.AddressReserved, []cluster.Node{n, plane}, false, []string{"does the DHCP server give 10.10.0.11 to BC:24:11:00:00:01?"}},
		"it was":                 {cluster.AddressReserved, []cluster.Node{n, plane}, true, []string{"does the DHCP server give 10.10.0.11 to BC:24:11:00:00:01?", replace}},
		"the only control plane": {cluster.AddressReserved, []cluster.Node{n}, true, []string{"undo that; or add two control planes, and then give it another `replace`"}},
	} {
		s.Network.Mode, s.Nodes = c.mode, c.planes
		f := cluster.Facts{}
		if c.settled {
			f.Settled = map[string]string{n.Name: settledMark}
		}
		got := HintOfReserved(s, f, n)
		if (got == "") != (c.want == nil) || !c.settled && strings.Contains(got, "replace") {
			t.Errorf("%s: %q", what, got)
		}
		for _, want := range c.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s: %q has no %q", what, got, want)
			}
		}
	}
}
