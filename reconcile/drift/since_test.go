package drift

import (
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestIsUnseen: what cannot be looked at now keeps since when it differs.
func TestIsUnseen(t *testing.T) {
	d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Nodes: []cluster.Node{{Name: "wk-1"}}}}}
	seen := cluster.Observed{
		VMs:      map[string]cluster.VM{"wk-1": {Presence: cluster.Present, Owner: cluster.Ours, Hardware: cluster.Saw(cluster.Hardware{})}},
		Machines: map[string]cluster.Machine{"wk-1": {Reach: cluster.Configured}},
		Orphans:  cluster.Saw([]cluster.VM{}), Nodes: cluster.Saw(map[string]cluster.KubeNode{}), Members: cluster.Saw([]cluster.Member{}), Releases: cluster.Saw(map[string]cluster.Release{}),
	}
	for what, c := range map[string]struct {
		key  cluster.DriftKey
		hide func(*cluster.Observed)
	}{
		"vm": {cluster.DriftKey{Subject: "wk-1", Part: cluster.PartVM}, func(o *cluster.Observed) { o.VMs = nil }},
		"vm config": {cluster.DriftKey{Subject: "wk-1", Part: cluster.PartVM}, func(o *cluster.Observed) {
			o.VMs = map[string]cluster.VM{"wk-1": {Presence: cluster.Present, Owner: cluster.Ours}}
		}},
		"vm owner": {cluster.DriftKey{Subject: "wk-1", Part: cluster.PartVM}, func(o *cluster.Observed) { o.VMs = map[string]cluster.VM{"wk-1": {Presence: cluster.Present}} }},
		"orphan":   {cluster.DriftKey{Subject: "wk-9", Part: cluster.PartVM}, func(o *cluster.Observed) { o.Orphans.Known = false }},
		"machine":  {cluster.DriftKey{Subject: "wk-1", Part: cluster.PartMachine}, func(o *cluster.Observed) { o.Machines = nil }},
		"object":   {cluster.DriftKey{Subject: "wk-1", Part: cluster.PartObject}, func(o *cluster.Observed) { o.Nodes.Known = false }},
		"member":   {cluster.DriftKey{Subject: "07", Part: cluster.PartMember}, func(o *cluster.Observed) { o.Members.Known = false }},
		"release":  {cluster.DriftKey{Subject: "web", Part: cluster.PartRelease}, func(o *cluster.Observed) { o.Releases.Known = false }},
	} {
		o := seen
		if IsUnseen(d, o, c.key) {
			t.Errorf("%s: it is seen", what)
		}
		if c.hide(&o); !IsUnseen(d, o, c.key) {
			t.Errorf("%s: it is not seen", what)
		}
	}
	image := cluster.DriftKey{Subject: "wk-1", Part: cluster.PartMachine, Field: FieldSchematic}
	if !IsUnseen(d, seen, image) {
		t.Error("image schematic: which one is to run is not known yet")
	}
	if d.Schematic = "376567988ad3"; IsUnseen(d, seen, image) {
		t.Error("image schematic: it is seen")
	}
	absent := seen
	absent.VMs, absent.Machines = map[string]cluster.VM{"wk-1": {Presence: cluster.Absent}}, nil
	for _, part := range []cluster.Part{cluster.PartVM, cluster.PartMachine} {
		if IsUnseen(d, absent, cluster.DriftKey{Subject: "wk-1", Part: part}) {
			t.Errorf("%s: what is seen to be absent is seen", part)
		}
	}
}

// TestSinceAnyTime: a time that a node or a label names is one that can be shown, and not to come.
func TestSinceAnyTime(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	for _, at := range []time.Time{now.Add(time.Hour), time.Unix(99999999999999, 0), time.Unix(-99999999999999, 0)} {
		f := seenSince(cluster.Observed{Now: now}, "web", cluster.PartRelease, cluster.FieldDifference{Since: at})
		if _, err := f.Since.MarshalJSON(); err != nil || f.Since.After(now) {
			t.Errorf("%v: %v, %v", at, f.Since, err)
		}
	}
}

// TestOriginOfDrift: who changed something, and when, is shown for what somebody changed, and
// not for what the inventory has changed.
func TestOriginOfDrift(t *testing.T) {
	at, before, now := time.Date(2026, 11, 22, 10, 31, 0, 0, time.UTC), time.Date(2026, 11, 22, 9, 0, 0, 0, time.UTC), time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	n := cluster.Node{Name: "wk-1", Cores: 4}
	d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Nodes: []cluster.Node{n}}}, Configs: map[string]cluster.Config{"wk-1": {Digest: "new"}}}
	dr := []Drift{{Reason: cluster.HardwareDrift, Field: "cores", Want: "4", Have: "2", How: Reboot}}
	for what, c := range map[string]struct {
		vm     cluster.VM
		edited bool
		by     string
		since  time.Time
	}{
		"a task":              {cluster.VM{ChangedBy: []cluster.Task{{Type: "qmconfig", User: "root@pam", Started: at, UPID: "UPID:x:"}}}, true, "qmconfig by root@pam at 2026-11-22 10:31 UTC, UPID:x:", at},
		"a request":           {cluster.VM{ChangedWith: []cluster.Request{{Method: "PUT", Call: "config", User: "ci@pve", At: at}}}, true, "PUT config by ci@pve at 2026-11-22 10:31 UTC, in the host's access log", at},
		"it is not known who": {cluster.VM{ChangedAfter: at}, true, "changed after 2026-11-22 10:31 UTC; no task shows who it was", before},
		"no change was seen":  {cluster.VM{}, true, "", before},
		"the inventory":       {cluster.VM{ChangedBy: []cluster.Task{{Type: "qmconfig", Started: at}}}, false, "", before},
	} {
		o := cluster.Observed{Now: now, VMs: map[string]cluster.VM{"wk-1": c.vm}, DriftNotes: map[cluster.DriftKey]cluster.DriftNote{{Subject: "wk-1", Part: cluster.PartVM, Field: "cores"}: {Since: before}}}
		if c.edited {
			o.Facts.Settled = map[string]string{"wk-1": WantDigest(d, n)}
		}
		got := Describe(d, o, n, dr)
		want := cluster.FieldDifference{Field: "cores", Has: "2", Wants: "4", How: "reboot", By: c.by, Since: c.since}
		if len(got) != 1 || got[0] != want {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
	}
}

// TestConfigThatTakesNoReboot: what is shown of a config that a machine takes while it runs is no reboot.
func TestConfigThatTakesNoReboot(t *testing.T) {
	n := cluster.Node{Name: "wk-1", Role: cluster.Worker}
	old, other := cluster.ConfigSummary{Rest: "a", Images: cluster.Images{Kubelet: "1"}}, cluster.ConfigSummary{Rest: "b"}
	for name, c := range map[string]struct {
		runs   cluster.ConfigSummary
		change *cluster.Change
		want   How
	}{
		"another kubelet":                     {old, nil, InPlace},
		"more than that":                      {other, nil, Reboot},
		"it is not known what runs":           {cluster.ConfigSummary{}, nil, Reboot},
		"it takes it while it runs":           {other, &cluster.Change{For: "new"}, InPlace},
		"it takes it with a reboot":           {old, &cluster.Change{For: "new", Reboots: true}, Reboot},
		"it refuses it":                       {other, &cluster.Change{For: "new", Refused: "no"}, Reboot},
		"another config was asked about once": {other, &cluster.Change{For: "old"}, Reboot},
	} {
		d := cluster.Desired{Configs: map[string]cluster.Config{"wk-1": {Digest: "new", Summary: cluster.ConfigSummary{Rest: "a", Images: cluster.Images{Kubelet: "2"}}}}}
		mach := cluster.Machine{Reach: cluster.Configured, ConfigDigest: "had", Summary: c.runs, Change: c.change}
		o := cluster.Observed{Machines: map[string]cluster.Machine{"wk-1": mach}}
		got := Describe(d, o, n, OfMachine(d, o, n, mach))
		if len(got) != 1 || got[0].How != string(c.want) {
			t.Errorf("%s: %+v, want %s", name, got, c.want)
		}
	}
}
