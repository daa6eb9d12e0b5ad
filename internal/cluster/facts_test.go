package cluster

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

// TestTokens: which tokens a node has had a machine for, and the last one.
func TestTokens(t *testing.T) {
	f := Facts{Replaced: map[string][]string{"wk-1": {"a", "b"}}}
	for _, c := range []struct {
		node, token string
		had         bool
		last        string
	}{{"wk-1", "a", true, "b"}, {"wk-1", "b", true, "b"}, {"wk-1", "c", false, "b"}, {"wk-2", "a", false, ""}} {
		if had, last := f.WasReplaced(c.node, c.token), f.LastToken(c.node); had != c.had || last != c.last {
			t.Errorf("%s %s: %v, %q", c.node, c.token, had, last)
		}
	}
}

// TestApprovedHops: an approval of a way is for what is left of it, at its revision.
func TestApprovedHops(t *testing.T) {
	way := []Hop{{Kind: HopTalos, From: "v1.13.9", To: "v1.14.1"}, {Kind: HopKubernetes, From: "v1.36.1", To: "v1.37.0"}}
	if got := DescribeHops(way); got != "Talos v1.14.1, then Kubernetes v1.37.0" {
		t.Error(got)
	}
	var f Facts
	if f.ApprovedHops("r", way) {
		t.Error("nothing is approved")
	}
	for _, c := range []struct {
		changes  []string
		revision Revision
		hops     []Hop
		want     bool
	}{
		{[]string{ApprovableHops(way)}, "r", way, true},
		{[]string{ApprovableHops(way)}, "r", way[1:], true},
		{[]string{ApprovableHops(way)}, "another", way, false},
		{[]string{ApprovableHops(way[:1])}, "r", way, false},
		{[]string{DescribeHops(way)}, "r", way, false},
		{[]string{"change vm wk-1 cores=8"}, "r", way, false},
		{nil, "r", way, true},
	} {
		f.Intend(Intent{Kind: IntendApproved, Revision: "r", Changes: c.changes})
		if got := f.ApprovedHops(c.revision, c.hops); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// TestWay: a hop is made when it is the first, and nothing holds it.
func TestWay(t *testing.T) {
	way := Way{Hops: []Hop{{Kind: HopTalos, To: "v1.14.1"}, {Kind: HopKubernetes, To: "v1.37.0"}}}
	held := way
	held.Held = ApplyingOff
	if !way.IsHop(HopTalos) || way.IsHop(HopKubernetes) || held.IsHop(HopTalos) || (Way{}).IsHop(HopTalos) {
		t.Error("which hop is made is wrong")
	}
}

// TestInstallError: an installer that ran is named with its code.
func TestInstallError(t *testing.T) {
	if got := (&InstallError{Code: 7, Output: "no space"}).Error(); got != "the installer ended with exit code 7: no space" {
		t.Error(got)
	}
	for code := range int32(8) {
		if got := (&InstallError{Code: code}).MayPass(); got != (code == 4 || code == 5) {
			t.Errorf("code %d may pass: %t", code, got)
		}
	}
	if got := (&InstallError{Output: "no installer in it"}).Error(); got != "no installer in it" {
		t.Error(got)
	}
}

// TestUpgradeOrder: an order is for one revision, and adds to what was ordered before.
func TestUpgradeOrder(t *testing.T) {
	var f Facts
	if !f.UpgradeOrder("r").IsZero() {
		t.Error("an empty order")
	}
	for _, o := range []UpgradeOrder{{Despite: []string{"wk-2"}, By: "ann"}, {Now: true, By: "bob"}, {Despite: []string{"wk-1", "wk-2"}, By: "ann"}} {
		f.Intend(Intent{Kind: IntendUpgrade, Revision: "r", Order: f.UpgradeOrder("r").And(o)})
	}
	if got, want := f.UpgradeOrder("r").String(), "outside of its window and without a soak, although wk-1, wk-2 may not be Ready, by order of ann"; got != want {
		t.Errorf("%q", got)
	}
	if !f.UpgradeOrder("s").IsZero() || !(UpgradeOrder{By: "ann"}).IsZero() {
		t.Error("an order for another revision")
	}
}

// TestFollows: an installation is asked for once more where it is not known how the one before ended, of the same image at the same
// revision and in another boot.
func TestFollows(t *testing.T) {
	was := Install{Image: "i", Boot: "a", Revision: "r"}
	next := Install{Image: "i", Boot: "b", Revision: "r"}
	if !was.Unseen() || !next.Follows(was) {
		t.Error("it does not follow one whose end is not known")
	}
	for name, c := range map[string]struct {
		edit func(was, next *Install)
		seen bool
	}{
		"done":             {func(was, _ *Install) { was.Done = true }, true},
		"failed":           {func(was, _ *Install) { was.Failed = "exit code 1" }, true},
		"another image":    {func(_, next *Install) { next.Image = "j" }, false},
		"another revision": {func(_, next *Install) { next.Revision = "s" }, false},
		"the same boot":    {func(_, next *Install) { next.Boot = "a" }, false},
	} {
		a, b := was, next
		c.edit(&a, &b)
		if b.Follows(a) || a.Unseen() == c.seen {
			t.Errorf("%s: follows %v, unseen %v", name, b.Follows(a), a.Unseen())
		}
	}
}

// TestManifestsInWords: what would change of each object is named, and never a value that is left out.
func TestManifestsInWords(t *testing.T) {
	at := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	m := Manifests{Since: at, Changes: []ObjectChange{
		{Object: "DaemonSet kube-system/a", Fields: []FieldDifference{{Field: "image", Has: "a:v1", Wants: "a:v2"}, {Field: "labels.b"}}},
		{Object: "ConfigMap kube-system/b"},
		{Object: "Secret kube-system/c", Fields: []FieldDifference{{Field: "data.token"}}},
		{Object: "Service kube-system/d", Deleted: true},
	}}
	var words []string
	for _, c := range m.Changes {
		words = append(words, c.String())
	}
	if got, want := strings.Join(words, "; "), "DaemonSet kube-system/a: image a:v1 -> a:v2 (and 1 more); ConfigMap kube-system/b (new); Secret kube-system/c: data.token; Service kube-system/d (deleted: nothing renders it)"; got != want {
		t.Errorf("%s", got)
	}
	want := []FieldDifference{
		{Field: "DaemonSet kube-system/a image", Has: "a:v1", Wants: "a:v2", Since: at},
		{Field: "DaemonSet kube-system/a labels.b", Has: "another value", Wants: "what is rendered", Since: at},
		{Field: "ConfigMap kube-system/b the object", Has: "nothing", Wants: "what is rendered", Since: at},
		{Field: "Secret kube-system/c data.token", Has: "another value", Wants: "what is rendered", Since: at},
		{Field: "Service kube-system/d the object", Has: "what was rendered before", Wants: "nothing", Since: at},
	}
	if got := m.Differences(); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
}

// TestNoOrder: an order lets something be done, and counts for its own revision alone.
func TestNoOrder(t *testing.T) {
	for _, o := range []UpgradeOrder{{Now: true}, {Despite: []string{"wk-1"}}} {
		if o.IsZero() {
			t.Errorf("%+v lets nothing be done", o)
		}
		var f Facts
		if !f.UpgradeOrder("").IsZero() {
			t.Error("there is an order that was not given")
		}
		f.Intend(Intent{Kind: IntendUpgrade, Revision: "r", Order: o})
		if f.UpgradeOrder("r").IsZero() || !f.UpgradeOrder("s").IsZero() {
			t.Errorf("%+v of r counts for r: %v, and for s: %v", o, !f.UpgradeOrder("r").IsZero(), !f.UpgradeOrder("s").IsZero())
		}
	}
	if !(UpgradeOrder{By: "ann"}).IsZero() {
		t.Error("who has ordered nothing has")
	}
}

// TestEqualWaits: two waits are the same in all that they have.
func TestEqualWaits(t *testing.T) {
	a := Wait{Subject: "a", Reason: WaitingForTurn, About: "b", Message: "x"}
	if b := a; !a.Equal(b) {
		t.Error("a copy is another wait")
	}
	for name, b := range map[string]Wait{"another subject": {Subject: "c", Reason: WaitingForTurn, About: "b", Message: "x"}, "another message": {Subject: "a", Reason: WaitingForTurn, About: "b", Message: "y"}} {
		if a.Equal(b) {
			t.Errorf("%s is the same wait", name)
		}
	}
}

// TestUpgradeModesInWords: a mode that is not written is the first, and one that there is not has no name.
func TestUpgradeModesInWords(t *testing.T) {
	if mode, ok := ParseUpgradeMode(""); !ok || mode != UpgradeAuto {
		t.Errorf("%v, %v", mode, ok)
	}
	for _, mode := range []UpgradeMode{-1, 100} {
		if got := mode.String(); got == "" {
			t.Errorf("%d has no words", int(mode))
		}
	}
}
