package effect

import (
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestTalosToBoot: a machine that is not seen is taken to boot what was installed on it before it was taken down last, unless that failed.
func TestTalosToBoot(t *testing.T) {
	const image = "factory.talos.dev/nocloud-installer/376567988ad3:v1.14.1"
	for name, c := range map[string]struct {
		in   cluster.Install
		boot string // that it was taken down from
		want string
	}{
		"nothing was installed":          {cluster.Install{}, "", "v1.13.9"},
		"it was":                         {cluster.Install{Image: image, Boot: "a", Done: true}, "a", "v1.14.1"},
		"how that ended was not seen":    {cluster.Install{Image: image, Boot: "a"}, "a", "v1.14.1"},
		"it failed":                      {cluster.Install{Image: image, Boot: "a", Failed: "exit code 7"}, "a", "v1.13.9"},
		"it was taken down before":       {cluster.Install{Image: image, Boot: "b", Done: true}, "a", "v1.13.9"},
		"it was not taken down since it": {cluster.Install{Image: image, Boot: "a", Done: true}, "", "v1.13.9"},
	} {
		d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Versions: cluster.Versions{Talos: "v1.13.9"}}}}
		o := cluster.Observed{Facts: cluster.Facts{Installs: map[string]cluster.Install{"cp-2": c.in}, Restarts: map[string]cluster.Restart{"cp-2": {Boot: c.boot}}}}
		if got := talosToBoot(d, o, cluster.Node{Name: "cp-2"}); got != c.want {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// TestManifestsOfAnotherTalos: what control planes render of what Talos deploys once is not known before they run another Talos.
func TestManifestsOfAnotherTalos(t *testing.T) {
	for name, c := range map[string]struct {
		node, version string
		known         bool
	}{
		"a control plane": {"cp-1", "v1.14.1", false},
		"the same Talos":  {"cp-1", "v1.13.9", true},
		"a worker":        {"wk-1", "v1.14.1", true},
	} {
		d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Nodes: []cluster.Node{{Name: "cp-1", Role: cluster.ControlPlane}, {Name: "wk-1", Role: cluster.Worker}}}}}
		o := cluster.Observed{Manifests: cluster.Saw(cluster.Manifests{}), Machines: map[string]cluster.Machine{"cp-1": {Talos: "v1.13.9"}, "wk-1": {Talos: "v1.13.9"}}}
		if bootInstalled(d, &o, c.node, c.version); o.Manifests.Known != c.known || o.Machines[c.node].Talos != c.version {
			t.Errorf("%s: %+v", name, o)
		}
	}
}
