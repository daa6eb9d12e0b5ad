package upgrade

import (
	"slices"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestWaitsOfWay: what comes after the first hop is shown with what it reboots and which APIs in use it takes away; a step of Kubernetes
// that a node has its config for and does not run is waited for a while, by the step, and what else holds it has waits of its own.
func TestWaitsOfWay(t *testing.T) {
	hop := func(kind cluster.HopKind, to string) cluster.Hop { return cluster.Hop{Kind: kind, To: to} }
	hops := []cluster.Hop{hop(cluster.HopTalos, "v1.13.9"), hop(cluster.HopTalos, "v1.14.1"), hop(cluster.HopKubernetes, "v1.35.10"), hop(cluster.HopKubernetes, "v1.36.1")}
	apis := cluster.Saw([]cluster.DeprecatedAPI{{Version: "v1", Resource: "endpoints", Removed: "v1.36"}, {Group: "flow", Version: "v1beta3", Resource: "schemas", Removed: "v1.35"}})
	noReleases := cluster.Saw[[]cluster.ReleaseAPI](nil)
	web := cluster.Saw([]cluster.ReleaseAPI{{Release: cluster.ReleaseName{Namespace: "apps", Name: "web"}, API: cluster.DeprecatedAPI{Group: "flow", Version: "v1beta3", Resource: "Schema", Removed: "v1.35"}}})
	kubelet := func(v string) cluster.Observed {
		return cluster.Observed{
			Machines: map[string]cluster.Machine{"wk-1": {Reach: cluster.Configured, Stage: "running", Ready: true, BootID: "b", Summary: cluster.ConfigSummary{Images: cluster.Images{Kubelet: "ghcr.io/siderolabs/kubelet:v1.36.1"}}}},
			Nodes:    cluster.Saw(map[string]cluster.KubeNode{"wk-1": {Name: "wk-1", Kubelet: v, BootID: "b", Ready: true}}), Deprecated: cluster.Saw[[]cluster.DeprecatedAPI](nil), ReleaseAPIs: noReleases}
	}
	const late = "wk-1: its kubelet is still v1.35.10, and its machine config has v1.36.1"
	isLate := cluster.Wait{Subject: "wk-1", Reason: cluster.WaitingForHop, Message: "its kubelet is still v1.35.10, and its machine config has v1.36.1"}
	awaits := func(node string) cluster.Wait {
		return cluster.Wait{Subject: node, Reason: cluster.WaitingForHop, Message: "no"}
	}
	locked := cluster.Node{Name: "wk-1", Locked: true}
	goesBack := cluster.Way{StageWaits: isLate, Back: cluster.Back{Kubernetes: true}}
	for name, c := range map[string]struct {
		way    cluster.Way
		node   cluster.Node
		o      cluster.Observed
		supply Supply
		want   []string
		about  string
		within time.Duration
	}{
		"nothing": {},
		"several hops": {way: cluster.Way{Hops: hops}, o: cluster.Observed{Deprecated: apis, ReleaseAPIs: noReleases}, want: []string{"Talos v1.14.1 comes after Talos v1.13.9; reboots its node",
			"Kubernetes v1.35.10 comes after Talos v1.14.1; reboots no node; clients use APIs that it does not have: flow/v1beta3 schemas", "Kubernetes v1.36.1 comes after Kubernetes v1.35.10; reboots no node; clients use APIs that it does not have: v1 endpoints"}, about: "Talos v1.14.1"},
		"a release, and what is requested is not known": {way: cluster.Way{Hops: hops[1:3]}, o: cluster.Observed{ReleaseAPIs: web}, want: []string{"Kubernetes v1.35.10 comes after Talos v1.14.1; reboots no node; which APIs clients use that it does not have is not known; Helm cannot upgrade releases any more whose manifests have what it does not: apps/web (flow/v1beta3 Schema, which v1.35 removes)"}, about: "Kubernetes v1.35.10"},
		"what is used is not known yet":                 {way: cluster.Way{Hops: hops[1:3]}, want: []string{"Kubernetes v1.35.10 comes after Talos v1.14.1; reboots no node"}, about: "Kubernetes v1.35.10"},
		"nor the installer":                             {way: cluster.Way{Hops: hops[:2]}, supply: Supply{Unchecked: "no"}, want: []string{"Talos v1.14.1 comes after Talos v1.13.9; reboots its node; whether its installer is there is seen then, for no"}, about: "Talos v1.14.1"},
		"a kubelet does not come up":                    {way: cluster.Way{Hops: hops[3:], StageWaits: isLate}, o: kubelet("v1.35.10"), want: []string{"Kubernetes v1.36.1 comes to the nodes one component after the other: " + late}, about: "Kubernetes v1.36.1 on wk-1", within: 5*time.Minute + 30*time.Second},
		"it goes back":                                  {way: goesBack, o: kubelet("v1.35.10"), want: []string{"Kubernetes goes back to v1.36.1, one component after the other: " + late}, about: "back on wk-1", within: 5*time.Minute + 30*time.Second},
		"its node is locked":                            {way: cluster.Way{Hops: hops[3:], StageWaits: isLate}, node: locked, o: kubelet("v1.35.10"), want: []string{"Kubernetes v1.36.1 comes to the nodes one component after the other: " + late}, about: "Kubernetes v1.36.1"},
		"another one is waited for":                     {way: cluster.Way{Hops: hops[3:], StageWaits: awaits("wk-2")}, o: kubelet("v1.35.10"), want: []string{"Kubernetes v1.36.1 comes to the nodes one component after the other: wk-2: no"}, about: "Kubernetes v1.36.1"},
		"the text names a node":                         {way: cluster.Way{Hops: hops[3:], StageWaits: cluster.Wait{Reason: cluster.WaitingForHop, Message: late}}, o: kubelet("v1.35.10"), want: []string{"Kubernetes v1.36.1 comes to the nodes one component after the other: " + late}, about: "Kubernetes v1.36.1"},
		"it came up":                                    {way: cluster.Way{Hops: hops[3:], StageWaits: awaits("wk-1")}, o: kubelet("v1.36.1"), want: []string{"Kubernetes v1.36.1 comes to the nodes one component after the other: wk-1: no"}, about: "Kubernetes v1.36.1"},
	} {
		if c.node.Name == "" {
			c.node.Name = "wk-1"
		}
		c.node.Role = cluster.Worker
		d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Name: "dev", Nodes: []cluster.Node{c.node}, Versions: cluster.Versions{Kubernetes: "v1.36.1"}}}, Way: c.way}
		var got []string
		waits := WaitsOfWay(d, c.o, c.supply)
		for _, w := range waits {
			if got = append(got, w.Message); w.Subject != "dev" || w.Reason != cluster.WaitingForHop || (w.Hint != "") != (w.Within > 0) {
				t.Errorf("%s: %+v", name, w)
			}
		}
		if !slices.Equal(got, c.want) || len(waits) > 0 && (waits[0].About != c.about || waits[0].Within != c.within) {
			t.Errorf("%s: %q, %+v", name, got, waits)
		}
	}
}

// TestAwaitWay: a hop of Kubernetes that is half done is shown while there is no way to all that is asked for, with what has the newer
// version and which versions of Kubernetes alone can be asked for; one that goes on, or back, has its own wait.
func TestAwaitWay(t *testing.T) {
	images := func(apiServer string) cluster.Machine {
		return cluster.Machine{Reach: cluster.Configured, Summary: cluster.ConfigSummary{Images: cluster.Images{APIServer: "registry.k8s.io/kube-apiserver:" + apiServer, Kubelet: "ghcr.io/siderolabs/kubelet:v1.32.13"}}}
	}
	noWay := cluster.Way{NoWay: "a downgrade of Talos", Goal: cluster.Versions{Talos: "v1.13.9", Kubernetes: "v1.32.13"}}
	goesBack := noWay
	goesBack.Back.Kubernetes = true
	for name, c := range map[string]struct {
		way       cluster.Way
		apiServer string
		want      bool
	}{
		"half done":            {noWay, "v1.33.13", true},
		"all have the same":    {noWay, "v1.32.13", false},
		"it goes back":         {goesBack, "v1.33.13", false},
		"there is a way to it": {cluster.Way{Goal: noWay.Goal}, "v1.33.13", false},
	} {
		d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Name: "lab", Nodes: []cluster.Node{{Name: "cp-1", Role: cluster.ControlPlane}}}}, Way: c.way}
		w := awaitWay(d, cluster.Observed{Machines: map[string]cluster.Machine{"cp-1": images(c.apiServer)}})
		if (w.Reason != "") != c.want {
			t.Errorf("%s: %+v", name, w)
		}
		const message = "its Kubernetes stays between v1.32.13 and v1.33.13, as there is no way to all that is asked for, of it v1.32.13: cp-1 has kube-apiserver v1.33.13"
		const hint = "set `talos_version` to what the nodes run, and `kubernetes_version` alone to v1.32.13, to which it goes back, or to v1.33.13, to which it goes on"
		if c.want && (w.Subject != "lab" || w.Reason != cluster.WaitingForHop || w.Message != message || w.Hint != hint) {
			t.Errorf("%s: %+v", name, w)
		}
		if waits := WaitsOfWay(d, cluster.Observed{Machines: map[string]cluster.Machine{"cp-1": images(c.apiServer)}}, Supply{}); c.want != slices.ContainsFunc(waits, w.Equal) {
			t.Errorf("%s: %+v", name, waits)
		}
	}
}

// TestAddWay: a forecast has the hops of the way that is made; of one that is to be approved it has the change that is approved, and of one
// that is held, or of a cluster that is destroyed, nothing.
func TestAddWay(t *testing.T) {
	hops := []cluster.Hop{{Kind: cluster.HopTalos, From: "v1.13.9", To: "v1.14.1"}, {Kind: cluster.HopKubernetes, From: "v1.35.10", To: "v1.36.1"}}
	var destroyed cluster.Facts
	destroyed.Intend(cluster.Intent{Kind: cluster.IntendDestroy})
	for name, c := range map[string]struct {
		way                  cluster.Way
		facts                cluster.Facts
		hops, changes, notes int
	}{
		"no way":          {},
		"a way":           {way: cluster.Way{Hops: hops}, hops: 2, notes: 1},
		"it is approved":  {way: cluster.Way{Hops: hops, Held: cluster.ChangeUnapproved}, changes: 1, notes: 1},
		"it is held":      {way: cluster.Way{Hops: hops, Held: cluster.ApplyingOff}},
		"it is destroyed": {way: cluster.Way{Hops: hops}, facts: destroyed, notes: 1},
	} {
		var f cluster.Forecast
		AddWay(&f, cluster.Desired{Way: c.way}, cluster.Observed{Facts: c.facts})
		if len(f.Hops) != c.hops || len(f.Changes) != c.changes || len(f.Notes) != c.notes {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

// TestDescribeRemovedOnWay: who decides about a way reads what its hops take away, each at the one that does.
func TestDescribeRemovedOnWay(t *testing.T) {
	api := func(removed string) cluster.ReleaseAPI {
		return cluster.ReleaseAPI{Release: cluster.ReleaseName{Namespace: "apps", Name: "web"}, API: cluster.DeprecatedAPI{Group: "flow", Version: "v1beta3", Resource: "Schema", Removed: removed}}
	}
	d := cluster.Desired{Way: cluster.Way{Held: cluster.ChangeUnapproved, Hops: []cluster.Hop{
		{Kind: cluster.HopKubernetes, From: "v1.34.2", To: "v1.35.10"}, {Kind: cluster.HopTalos, From: "v1.13.9", To: "v1.14.1"}, {Kind: cluster.HopKubernetes, From: "v1.35.10", To: "v1.36.1"}}}}
	for name, c := range map[string]struct {
		o    cluster.Observed
		want string
	}{
		"nothing is known": {},
		"none":             {o: cluster.Observed{Deprecated: cluster.Saw[[]cluster.DeprecatedAPI](nil), ReleaseAPIs: cluster.Saw[[]cluster.ReleaseAPI](nil)}},
		"in both": {o: cluster.Observed{Deprecated: cluster.Saw[[]cluster.DeprecatedAPI](nil), ReleaseAPIs: cluster.Saw([]cluster.ReleaseAPI{api("v1.35"), api("v1.36")})},
			want: "; Kubernetes v1.35.10: Helm cannot upgrade releases any more whose manifests have what it does not: apps/web (flow/v1beta3 Schema, which v1.35 removes)" +
				"; Kubernetes v1.36.1: Helm cannot upgrade releases any more whose manifests have what it does not: apps/web (flow/v1beta3 Schema, which v1.36 removes)"},
	} {
		if got := DescribeRemovedOnWay(d, c.o); got != c.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// TestBlockLocked: a locked control plane holds up the others, a locked worker what comes after the hop. Neither is named while it is not
// what is waited for.
func TestBlockLocked(t *testing.T) {
	hop, talos := cluster.Hop{Kind: cluster.HopKubernetes, From: "v1.35.10", To: "v1.36.1"}, cluster.Hop{Kind: cluster.HopTalos, From: "v1.13.9", To: "v1.14.1"}
	forth := cluster.Way{Hops: []cluster.Hop{hop}, StageWaits: cluster.Wait{Reason: cluster.WaitingForHop, Message: "it waits"}}
	then, held, goes := forth, forth, forth
	then.Hops, held.Held, goes.StageWaits = []cluster.Hop{hop, talos}, cluster.ChangeUnapproved, cluster.Wait{}
	const words = "it is not given Kubernetes v1.36.1, because it is locked in the inventory"
	for name, c := range map[string]struct {
		way        cluster.Way
		locked     string
		cp, wk, to string // versions of Kubernetes: what they have, and are to have
		want       []string
	}{
		"a worker, and the other is not done": {way: forth, locked: "wk", cp: "v1.35.10", wk: "v1.35.10", to: "v1.36.1"},
		"a worker":                            {way: forth, locked: "wk", cp: "v1.36.1", wk: "v1.35.10", to: "v1.36.1", want: []string{"wk: " + words}},
		"what it has is not known":            {way: forth, locked: "wk", cp: "v1.36.1", to: "v1.36.1", want: []string{"wk: " + words}},
		"and Talos comes then":                {way: then, locked: "wk", cp: "v1.36.1", wk: "v1.35.10", to: "v1.36.1", want: []string{"wk: " + words + ", and Talos v1.14.1 waits for it"}},
		"a control plane":                     {way: forth, locked: "cp", cp: "v1.35.10", wk: "v1.35.10", to: "v1.36.1", want: []string{"cp: " + words}},
		"one that has it":                     {way: forth, locked: "wk", cp: "v1.36.1", wk: "v1.36.1", to: "v1.36.1"},
		"the hop is held":                     {way: held, locked: "wk", cp: "v1.36.1", wk: "v1.35.10", to: "v1.36.1"},
		"nothing waits":                       {way: goes, locked: "wk", cp: "v1.36.1", wk: "v1.35.10", to: "v1.36.1"},
		"it goes back":                        {way: cluster.Way{Back: cluster.Back{Kubernetes: true}, StageWaits: cluster.Wait{Reason: cluster.WaitingForHop, Message: "it waits"}}, locked: "wk", cp: "v1.36.1", wk: "v1.37.0", to: "v1.36.1", want: []string{"wk: " + words}},
		"it goes back, and others, too":       {way: cluster.Way{Back: cluster.Back{Kubernetes: true}, StageWaits: cluster.Wait{Reason: cluster.WaitingForHop, Message: "it waits"}}, locked: "wk", cp: "v1.37.0", wk: "v1.37.0", to: "v1.36.1"},
	} {
		d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Name: "dev", Versions: cluster.Versions{Kubernetes: c.to}, Nodes: []cluster.Node{{Name: "cp", Role: cluster.ControlPlane}, {Name: "wk", Role: cluster.Worker}}}}, Way: c.way}
		kubelets := map[string]cluster.KubeNode{"cp": {Kubelet: c.cp}, "wk": {Kubelet: c.wk}}
		for i := range d.Spec.Nodes {
			d.Spec.Nodes[i].Locked = d.Spec.Nodes[i].Name == c.locked
		}
		var got []string
		for _, b := range BlockLocked(d, cluster.Observed{Nodes: cluster.Saw(kubelets)}) {
			if got = append(got, b.Subject+": "+b.Message); b.Reason != cluster.NodeLocked || b.Hint == "" {
				t.Errorf("%s: %+v", name, b)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q", name, got)
		}
	}
}
