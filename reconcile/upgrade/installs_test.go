package upgrade

import (
	"cmp"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestMayRepeat: an installation whose end is not known may be made once more, in another boot, and for the same commit.
func TestMayRepeat(t *testing.T) {
	n := cluster.Node{Name: "wk-1"}
	var d cluster.Desired
	d.Revision = "main@sha1:1"
	d.Spec.Versions.Talos = "v1.14.1"
	image := Installer(d)
	for name, c := range map[string]struct {
		in      cluster.Install
		boot    string
		repeat  bool
		pending bool
		reset   bool // its VM was, after that
	}{
		"nothing was":      {boot: "b"},
		"another boot":     {in: cluster.Install{Image: image, Boot: "a", Revision: d.Revision}, boot: "b", repeat: true},
		"the same boot":    {in: cluster.Install{Image: image, Boot: "a", Revision: d.Revision}, boot: "a", pending: true},
		"no boot":          {in: cluster.Install{Image: image, Boot: "a", Revision: d.Revision}},
		"done":             {in: cluster.Install{Image: image, Boot: "a", Revision: d.Revision, Done: true}, boot: "b"},
		"done, not booted": {in: cluster.Install{Image: image, Boot: "a", Revision: d.Revision, Done: true}, boot: "a", pending: true},
		"failed":           {in: cluster.Install{Image: image, Boot: "a", Revision: d.Revision, Failed: "exit code 7"}, boot: "a"},
		"once more":        {in: cluster.Install{Image: image, Boot: "a", Revision: d.Revision, Again: true}, boot: "b"},
		"another commit":   {in: cluster.Install{Image: image, Boot: "a", Revision: "main@sha1:2"}, boot: "b"},
		"after a reset":    {in: cluster.Install{Image: image, Boot: "a", Revision: d.Revision}, boot: "b", reset: true},
		"another image":    {in: cluster.Install{Image: "other", Boot: "a", Revision: d.Revision}, boot: "b"},
		"another is there": {in: cluster.Install{Image: "other", Boot: "a", Revision: d.Revision, Done: true}, boot: "a"},
		"another may come": {in: cluster.Install{Image: "other", Boot: "a", Revision: d.Revision}, boot: "a", pending: true},
	} {
		var o cluster.Observed
		o.Machines = map[string]cluster.Machine{n.Name: {BootID: c.boot}}
		if c.in != (cluster.Install{}) {
			o.Facts.Installs = map[string]cluster.Install{n.Name: c.in}
		}
		if c.reset {
			o.Facts.Restarts = map[string]cluster.Restart{n.Name: {Boot: "a", Reset: cluster.Reset{At: time.Unix(1, 0), Revision: d.Revision}}}
		}
		if got := MayRepeat(d, o, n); got != c.repeat {
			t.Errorf("%s: may be repeated: %t", name, got)
		}
		if got := IsPending(d, o, n); got != c.pending {
			t.Errorf("%s: pending: %t", name, got)
		}
	}
}

// TestEndedInstalls: what was installed on a node is remembered until its machine is seen to run it, in another boot. While it is not
// known what that is, or what it should be, nothing shows that.
func TestEndedInstalls(t *testing.T) {
	hop := []cluster.Hop{{Kind: cluster.HopTalos, From: "v1.13.9", To: "v1.14.1"}}
	for name, c := range map[string]struct {
		talos     string // that its machine runs
		boot      string
		has       string // the schematic that its machine runs
		schematic string // of the inventory, once it is known
		hops      []cluster.Hop
		want      bool
	}{
		"it runs that":                   {talos: "v1.14.1", boot: "b", has: "s", schematic: "s", want: true},
		"the same boot":                  {talos: "v1.14.1", boot: "a", has: "s", schematic: "s"},
		"it fell back":                   {talos: "v1.13.9", boot: "b", has: "s", schematic: "s", hops: hop},
		"what all run is not known":      {talos: "v1.13.9", boot: "b", has: "s", schematic: "s"},
		"its schematic is not known":     {talos: "v1.14.1", boot: "b", has: "s"},
		"it does not show its schematic": {talos: "v1.14.1", boot: "b", schematic: "s"},
		"it does not answer":             {boot: "b", schematic: "s", hops: hop},
	} {
		d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Versions: cluster.Versions{Talos: "v1.14.1"}, Nodes: []cluster.Node{{Name: "wk-1"}}}}, Way: cluster.Way{Hops: c.hops}}
		d.Schematic = c.schematic
		o := cluster.Observed{Machines: map[string]cluster.Machine{"wk-1": {Reach: cluster.Configured, Talos: c.talos, BootID: c.boot, Schematic: c.has}}}
		o.Facts.Installs = map[string]cluster.Install{"wk-1": {Boot: "a", Failed: "exit code 7"}}
		if got := EndedInstalls(d, o); (len(got) == 1) != c.want {
			t.Errorf("%s: %v have ended", name, got)
		}
	}
}

// TestRetry: an order has what failed at the revision in force tried again, and nothing else.
func TestRetry(t *testing.T) {
	f := cluster.Facts{
		Installs: map[string]cluster.Install{"failed": {Revision: "r", Failed: "no"}, "back": {Revision: "r", Boot: "b", Done: true}, "hardware": {Revision: "r", Boot: "b", Done: true}, "rolled back": {Revision: "r", Failed: "by order", Back: true}, "done": {Revision: "r", Done: true}, "before": {Revision: "q", Failed: "no"}},
		Restarts: map[string]cluster.Restart{"back": {Revision: "r", Returned: true, Boot: "b"}, "hardware": {Revision: "r", Returned: true, Boot: "c"}, "away": {Revision: "r", Reset: cluster.Reset{Revision: "r"}}, "before": {Revision: "q", Returned: true}},
	}
	was := f.Installs
	Retry(&f, "r")
	if _, failed := f.Installs["failed"]; failed || len(f.Installs) != 5 || len(was) != 6 {
		t.Errorf("%+v", f.Installs)
	}
	if f.Restarts["back"].Revision != "" || f.Restarts["hardware"].Revision != "r" || f.Restarts["away"].Revision != "r" || f.Restarts["away"].Reset.Revision != "r" || f.Restarts["before"].Revision != "q" {
		t.Errorf("%+v", f.Restarts)
	}
}

// TestInstalledForAnother: an installation of which it is not known how it ended counts for the commit that asked for it, and one that is
// seen to have ended for every other one, too.
func TestInstalledForAnother(t *testing.T) {
	var d cluster.Desired
	d.Revision, d.Schematic = "main@sha1:2", "s"
	d.Spec.Versions.Talos, d.Spec.InstallerRegistry = "v1.14.1", "factory.talos.dev"
	n := cluster.Node{Name: "wk-1", Role: cluster.Worker}
	for name, c := range map[string]struct {
		in   cluster.Install
		want bool
	}{
		"not known, of this commit": {cluster.Install{Revision: "main@sha1:2"}, true},
		"not known, of another":     {cluster.Install{Revision: "main@sha1:1"}, false},
		"ended, of another":         {cluster.Install{Revision: "main@sha1:1", Done: true}, true},
		"failed, of this commit":    {cluster.Install{Revision: "main@sha1:2", Failed: "exit code 1"}, false},
		"of another boot":           {cluster.Install{Revision: "main@sha1:2", Done: true, Boot: "a"}, false},
		"of another image":          {cluster.Install{Revision: "main@sha1:2", Done: true, Image: "other"}, false},
	} {
		in := c.in
		if in.Boot == "" {
			in.Boot = "b"
		}
		if in.Image == "" {
			in.Image = Installer(d)
		}
		o := cluster.Observed{Now: time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC), Machines: map[string]cluster.Machine{"wk-1": {Reach: cluster.Configured, BootID: "b", Talos: "v1.13.9"}}}
		o.Facts.Installs = map[string]cluster.Install{"wk-1": in}
		if got := IsInstalled(d, o, n); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestAwaitOverwritten: as long as the next boot of a machine may run what was taken back that is waited for, whatever it runs.
func TestAwaitOverwritten(t *testing.T) {
	const other = "factory.talos.dev/nocloud-installer/s:v1.14.1"
	at := time.Date(2026, 11, 29, 14, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		in    cluster.Install
		after time.Duration
		runs  string // what the machine runs
		boot  string
		left  string
		want  string // part of the message; "" : no wait
	}{
		"nothing was installed":         {boot: "b"},
		"how it ended is not known":     {in: cluster.Install{Image: other, Boot: "b"}, boot: "b", after: time.Minute, want: "how the installation of " + other + " ended, so that its next boot may run that; it runs what it is to run, which is installed over it at 2026-11-29 14:15 UTC"},
		"over it, not known":            {in: cluster.Install{Image: "own", Boot: "b"}, boot: "b", after: time.Minute, want: "is installed again at 2026-11-29 14:15 UTC"},
		"it has had its time":           {in: cluster.Install{Image: other, Boot: "b"}, boot: "b", after: InstallWithin},
		"and nothing is done":           {in: cluster.Install{Image: other, Boot: "b"}, boot: "b", after: InstallWithin, left: "apply is off", want: "nothing is installed over that: apply is off"},
		"it is there, nothing done":     {in: cluster.Install{Image: other, Boot: "b", Done: true}, boot: "b", left: "it is locked", want: "nothing is installed over that: it is locked"},
		"it is there":                   {in: cluster.Install{Image: other, Boot: "b", Done: true}, boot: "b"},
		"it has booted since":           {in: cluster.Install{Image: other, Boot: "a"}, boot: "b", after: time.Minute, left: "apply is off"},
		"it runs another one":           {in: cluster.Install{Image: other, Boot: "b"}, boot: "b", after: time.Minute, runs: "v1.14.1"},
		"it was to go back":             {in: cluster.Install{Image: other, Boot: "b", Back: true}, boot: "b", after: time.Minute, left: "apply is off"},
		"the installer has failed":      {in: cluster.Install{Image: other, Boot: "b", Failed: "exit code 7"}, boot: "b", left: "apply is off"},
		"the machine is not to be seen": {in: cluster.Install{Image: other, Boot: "b"}, after: time.Minute},
	} {
		d := cluster.Desired{Schematic: "s"}
		d.Spec.Versions.Talos = "v1.13.9"
		if c.in.Image == "own" {
			c.in.Image = Installer(d)
		}
		n := cluster.Node{Name: "wk-1"}
		o := cluster.Observed{Now: at.Add(c.after), Machines: map[string]cluster.Machine{"wk-1": {Reach: cluster.Configured, Talos: cmp.Or(c.runs, "v1.13.9"), Schematic: "s", BootID: c.boot}}}
		if c.in != (cluster.Install{}) {
			c.in.At = at
			o.Facts.Installs = map[string]cluster.Install{"wk-1": c.in}
		}
		w := AwaitOverwritten(d, o, n, c.left)
		d.Spec.SecureBoot = true
		mach := o.Machines["wk-1"]
		if mach.SecureBoot = cluster.OptionOff; mach.Talos != "" {
			o.Machines["wk-1"] = mach
		}
		if w := AwaitOverwritten(d, o, n, c.left); w.Reason != "" || BootsAnother(d, o, n) {
			t.Errorf("%s, of a machine that has not booted by Secure Boot: %+v", name, w)
		}
		if (w.Reason == "") != (c.want == "") || !strings.Contains(w.Message, c.want) {
			t.Errorf("%s: %+v", name, w)
		}
	}
}
