package upgrade

import (
	"testing"

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
		"another image":    {in: cluster.Install{Image: "other", Boot: "a", Revision: d.Revision}, boot: "b"},
	} {
		var o cluster.Observed
		o.Machines = map[string]cluster.Machine{n.Name: {BootID: c.boot}}
		if c.in != (cluster.Install{}) {
			o.Facts.Installs = map[string]cluster.Install{n.Name: c.in}
		}
		if got := MayRepeat(d, o, n); got != c.repeat {
			t.Errorf("%s: may be repeated: %t", name, got)
		}
		if got := IsPending(o, n); got != c.pending {
			t.Errorf("%s: pending: %t", name, got)
		}
	}
}
