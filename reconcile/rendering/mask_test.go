package rendering

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/machineconfig"
)

func newMask(t *testing.T, snaps ...cluster.Snapshot) *Mask {
	t.Helper()
	m, err := NewMask(false, snaps...)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// secretOf is a secret of the bundle of a snapshot.
func secretOf(t *testing.T, snap cluster.Snapshot) string {
	t.Helper()
	bundle, err := machineconfig.OpenBundle(snap.Bundle, snap.Spec.Versions.Contract)
	if err != nil {
		t.Fatal(err)
	}
	secrets, err := bundle.Secrets(false)
	if err != nil || len(secrets) == 0 {
		t.Fatal(secrets, err)
	}
	return secrets[0].RevealString()
}

// TestMaskOfSeveralSnapshots: the secrets of all are hidden, with digests that are keyed with
// those of the first alone.
func TestMaskOfSeveralSnapshots(t *testing.T) {
	one, other := desire(t, "v1.13", "v1.13.9", "v1.36.1").Snapshot, desire(t, "v1.13", "v1.13.9", "v1.36.1").Snapshot
	other.Confidential = []cluster.Secret{cluster.SecretString("hunter2")}
	both := newMask(t, one, other)
	for _, secret := range []string{secretOf(t, one), secretOf(t, other), "hunter2", password} {
		if got := both.Clean("x " + secret); got != "x "+both.Hide(secret) {
			t.Errorf("%q is shown as %q", secret, got)
		}
	}
	if newMask(t, one).Hide(password) != both.Hide(password) || newMask(t, other).Hide(password) == both.Hide(password) {
		t.Error("a digest is not keyed with the secrets of the first snapshot")
	}
	fewer := one
	fewer.Confidential = nil
	if newMask(t, fewer).Hide(password) != both.Hide(password) {
		t.Error("what else is confidential changes the digests of a cluster with secrets")
	}
}

// TestMaskWithoutABundle: where a cluster has no secrets yet, digests are keyed with what else
// is confidential in it.
func TestMaskWithoutABundle(t *testing.T) {
	snap := func(secrets ...string) (out cluster.Snapshot) {
		for _, s := range secrets {
			out.Confidential = append(out.Confidential, cluster.SecretString(s))
		}
		return out
	}
	one := newMask(t, snap("hunter2"), snap("swordfish"))
	if got := one.Clean("hunter2, swordfish"); strings.Contains(got, "hunter2") || strings.Contains(got, "swordfish") {
		t.Errorf("shown: %s", got)
	}
	if one.Hide("x") != newMask(t, snap("hunter2")).Hide("x") || one.Hide("x") == newMask(t, snap("swordfish")).Hide("x") {
		t.Error("a digest is not keyed with what is confidential in the first snapshot")
	}
}

// TestWhatTheMaskLeaves: a secret that stands in half of all words is hidden where it is the
// whole text, and nothing is no secret.
func TestWhatTheMaskLeaves(t *testing.T) {
	snap := desire(t, "v1.13", "v1.13.9", "v1.36.1").Snapshot
	snap.Confidential = append(snap.Confidential, cluster.SecretString(" \n"))
	m := newMask(t, snap)
	for text, want := range map[string]string{
		"":              "",
		" \n":           " \n",
		"x \n y":        "x \n y",
		pin:             m.Hide(pin),
		"x" + pin + "y": "x" + pin + "y",
		"x" + password:  "x" + m.Hide(password),
		"plain":         "plain",
	} {
		if got := m.Clean(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if m.Hide("") != "" {
		t.Errorf("nothing is shown as %q", m.Hide(""))
	}
	if in := base64.StdEncoding.EncodeToString([]byte(pin)); m.Clean("x"+in) != "x"+in {
		t.Error("a form of a short secret is looked for")
	}
}

// TestNothingIsShownWithoutAMask: what cannot be read is an error, and no text.
func TestNothingIsShownWithoutAMask(t *testing.T) {
	d := desire(t, "v1.13", "v1.13.9", "v1.36.1")
	bad := d
	bad.Bundle = cluster.SecretString("no bundle: [")
	if out, err := Render(bad, noneRuns, Options{}); err == nil || textOf(out) != "" {
		t.Errorf("rendered without its secrets: %v", err)
	}
	o, asked := settle(t, d)
	edit(t, asked, "dev-wk-1", "TS_AUTHKEY=tskey", "TS_AUTHKEY=retired")
	if out, err := Compare(bad, o, asked, ""); err == nil || out.Differs {
		t.Errorf("compared without its secrets: %v", err)
	}

	// A config, and values, that are none.
	for name, spoil := range map[string]func(*cluster.Desired){
		"node dev-cp-1: ": func(d *cluster.Desired) {
			d.Configs = map[string]cluster.Config{"dev-cp-1": {Bytes: cluster.SecretString("x: [" + password)}}
		},
		"addon cilium: read the values: they are no JSON": func(d *cluster.Desired) {
			d.Spec.Addons = append([]cluster.Addon{}, d.Spec.Addons...)
			d.Spec.Addons[2].Values = cluster.SecretString("{" + password)
		},
	} {
		bad := d
		spoil(&bad)
		if out, err := Render(bad, noneRuns, Options{}); err == nil || !strings.HasPrefix(err.Error(), name) || strings.Contains(err.Error()+textOf(out), password) {
			t.Errorf("%s: %v", name, err)
		}
	}
	m := newMask(t, d.Snapshot)
	for _, c := range [][2]string{{"{", "{}"}, {"{}", "{"}} {
		if text, err := diffValues(m, []byte(c[0]), []byte(c[1])); err == nil || text != "" {
			t.Errorf("%q and %q: %q", c[0], c[1], text)
		}
	}
	config := d.Configs["dev-cp-1"].Bytes.RevealString()
	for _, c := range [][2]string{{"x: [", config}, {config, "x: ["}} {
		if text, err := diffConfigs(m, []byte(c[0]), []byte(c[1])); err == nil || text != "" {
			t.Errorf("a config that is none: %q", text)
		}
	}
}

// TestWhyNothingIsRendered: a node without a config has the reason, also where secrets would
// be shown.
func TestWhyNothingIsRendered(t *testing.T) {
	for want, spoil := range map[string]func(*cluster.Desired){
		"the cluster has no secrets":                                 func(d *cluster.Desired) { d.Bundle, d.Schematic = cluster.Secret{}, "" },
		"the image factory has not returned the id of its image yet": func(d *cluster.Desired) { d.Schematic = "" },
		"it cannot be rendered: the inventory has problems":          func(*cluster.Desired) {},
	} {
		for _, o := range []Options{{}, {ShowSecrets: true}} {
			d := desire(t, "v1.13", "v1.13.9", "v1.36.1")
			d.Configs = nil
			spoil(&d)
			if n := render(t, d, o).Nodes[0]; n.Unrendered != want || n.MachineConfig != "" {
				t.Errorf("%q, want %q", n.Unrendered, want)
			}
		}
	}
}

// TestWhatRunsIsHidden: a value that runs is shown where the wanted side shows one, whatever
// the place is called, unless that place has a secret as well.
func TestWhatRunsIsHidden(t *testing.T) {
	m := newMask(t, desire(t, "v1.13", "v1.13.9", "v1.36.1").Snapshot)
	at := func(path, text string) machineconfig.Scalar { return machineconfig.Scalar{Path: path, Text: text} }
	for name, c := range map[string]struct {
		wanted []machineconfig.Scalar
		runs   machineconfig.Scalar
		hidden bool
	}{
		"a new place":                     {nil, at("size", "2"), false},
		"a new place of an environment":   {nil, at("env.SIZE", "2"), true},
		"a known place of an environment": {[]machineconfig.Scalar{at("env.SIZE", "1")}, at("env.SIZE", "2"), false},
		"an element of it":                {[]machineconfig.Scalar{at("env[]", "1")}, at("env[]", "2"), true},
		"nothing at such a place":         {nil, at("env.SIZE", ""), false},
		"a place of a secret":             {[]machineconfig.Scalar{at("db.phrase", password)}, at("db.phrase", "other"), true},
		"beside a secret":                 {[]machineconfig.Scalar{at("db.phrase", password)}, at("db.size", "2"), true},
		"beside a secret, and known":      {[]machineconfig.Scalar{at("db.phrase", password), at("db.size", "1")}, at("db.size", "2"), false},
		"a place that two documents have": {[]machineconfig.Scalar{at("db.phrase", password), at("db.phrase", "plain")}, at("db.phrase", "other"), true},
		"with a password":                 {[]machineconfig.Scalar{at("url", "x")}, at("url", "https://me:other@example.org"), true},
	} {
		s := newSides(m)
		for _, v := range c.wanted {
			s.wanted(v)
		}
		if got := s.running(c.runs); (got != c.runs.Text) != c.hidden {
			t.Errorf("%s: %q", name, got)
		}
	}
}
