package upgrade

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// jobWorld is a cluster of two nodes on its way to another Talos, with a gate that is a Job.
func jobWorld() (cluster.Desired, cluster.Observed) {
	d := cluster.Desired{Snapshot: cluster.Snapshot{Revision: "r", Spec: cluster.Spec{Versions: cluster.Versions{Talos: "v1.13.9", Kubernetes: "v1.35.3"},
		Gates: []cluster.Gate{{Name: "a", Condition: "true"}, {Name: "smoke", Job: cluster.GateJob{Namespace: "tests", Prefix: "smoke", Manifest: "{}", Within: time.Minute}}},
		Nodes: []cluster.Node{{Name: "cp-1", Role: cluster.ControlPlane}, {Name: "wk-1"}}}}, Schematic: "s"}
	d.Hops = []cluster.Hop{{Kind: cluster.HopTalos, From: "v1.12.11", To: "v1.13.9"}, {Kind: cluster.HopTalos, From: "v1.13.9", To: "v1.14.1"}}
	o := cluster.Observed{Machines: map[string]cluster.Machine{}, Nodes: cluster.Saw(map[string]cluster.KubeNode{})}
	for _, n := range d.Spec.Nodes {
		o.Machines[n.Name] = cluster.Machine{Reach: cluster.Configured, Talos: "v1.12.11", Schematic: "s", Summary: cluster.ConfigSummary{Images: cluster.Images{Kubelet: "kubelet:v1.35.3"}}}
		o.Nodes.Value[n.Name] = cluster.KubeNode{Kubelet: "v1.35.3", Ready: true}
	}
	return d, o
}

// edit changes what is known of the machine of a node.
func edit(o *cluster.Observed, node string, f func(*cluster.Machine)) {
	m := o.Machines[node]
	f(&m)
	o.Machines[node] = m
}

// TestNamesOfJobs: the Job that is wanted is another one for another commit, another hop, and when a node has come further, and for
// nothing else; while something of that is not known, or does not fit, none is wanted.
func TestNamesOfJobs(t *testing.T) {
	first := JobsToSee(jobWorld())
	if len(first) != 1 || first[0].Namespace != "tests" || len(first[0].Name) != len("smoke-")+10 {
		t.Fatalf("wanted are %v", first)
	}
	const same, other, none = "the same", "another", "none"
	toKubernetes := func(d *cluster.Desired) {
		d.Spec.Versions = cluster.Versions{Talos: "v1.12.11", Kubernetes: "v1.36.1"}
		d.Hops = []cluster.Hop{{Kind: cluster.HopKubernetes, From: "v1.35.3", To: "v1.36.1"}}
	}
	for what, c := range map[string]struct {
		edit func(*cluster.Desired, *cluster.Observed)
		want string
	}{
		"nothing":          {func(*cluster.Desired, *cluster.Observed) {}, same},
		"later":            {func(d *cluster.Desired, o *cluster.Observed) { o.Now = o.Now.Add(time.Hour) }, same},
		"another commit":   {func(d *cluster.Desired, o *cluster.Observed) { d.Revision = "q" }, other},
		"another hop":      {func(d *cluster.Desired, o *cluster.Observed) { d.Spec.Versions.Talos = "v1.13.8" }, other},
		"other extensions": {func(d *cluster.Desired, o *cluster.Observed) { d.Schematic = "q" }, other},
		"a node has come further": {func(d *cluster.Desired, o *cluster.Observed) {
			edit(o, "wk-1", func(m *cluster.Machine) { m.Talos = "v1.13.9" })
		}, other},
		"a config has changed": {func(d *cluster.Desired, o *cluster.Observed) {
			edit(o, "wk-1", func(m *cluster.Machine) { m.ConfigDigest, m.Summary.Images.Kubelet = "q", "kubelet:q" })
		}, same},
		"a hop of Kubernetes": {func(d *cluster.Desired, o *cluster.Observed) { toKubernetes(d) }, other},
		"of which the images are not known": {func(d *cluster.Desired, o *cluster.Observed) {
			toKubernetes(d)
			edit(o, "wk-1", func(m *cluster.Machine) { m.Summary.Images = cluster.Images{} })
		}, none},
		"with what is older than it begins with": {func(d *cluster.Desired, o *cluster.Observed) {
			toKubernetes(d)
			o.Nodes.Value["wk-1"] = cluster.KubeNode{Kubelet: "v1.34.1"}
		}, none},
		"a machine is silent": {func(d *cluster.Desired, o *cluster.Observed) {
			edit(o, "wk-1", func(m *cluster.Machine) { m.Reach = cluster.Silent })
		}, none},
		"its version is not known": {func(d *cluster.Desired, o *cluster.Observed) {
			edit(o, "wk-1", func(m *cluster.Machine) { m.Talos = "" })
		}, none},
		"the nodes are not known": {func(d *cluster.Desired, o *cluster.Observed) { o.Nodes.Known = false }, none},
		"the next hop is taken for this one": {func(d *cluster.Desired, o *cluster.Observed) { // by an agent that has seen one node so far
			d.Spec.Versions.Talos, d.Hops = "v1.14.1", d.Hops[1:]
		}, none},
		"no hop is known":     {func(d *cluster.Desired, o *cluster.Observed) { d.Spec.Versions.Talos, d.Hops = "v1.14.1", nil }, none},
		"a node is in a turn": {func(d *cluster.Desired, o *cluster.Observed) { o.Nodes.Value["wk-1"] = cluster.KubeNode{Turn: "t"} }, none},
		"no gate is a Job":    {func(d *cluster.Desired, o *cluster.Observed) { d.Spec.Gates = d.Spec.Gates[:1] }, none},
	} {
		d, o := jobWorld()
		c.edit(&d, &o)
		got := none
		if names := JobsToSee(d, o); len(names) > 0 {
			if got = other; names[0] == first[0] {
				got = same
			}
		}
		if got != c.want {
			t.Errorf("%s: it is %s, and %s is wanted", what, got, c.want)
		}
		if a, waits := FindAwaitedJob(d, o); got == none && what != "a node is in a turn" && (a.Start || waits == (what == "no gate is a Job")) {
			t.Errorf("%s: %+v", what, a)
		}
	}
}

// TestJobsDespiteNodes: a node that is not waited for may come and go.
func TestJobsDespiteNodes(t *testing.T) {
	d, o := jobWorld()
	o.Facts.Intend(cluster.Intent{Kind: cluster.IntendUpgrade, Revision: d.Revision, Order: cluster.UpgradeOrder{Despite: []string{"wk-1"}}})
	there := JobsToSee(d, o)
	edit(&o, "wk-1", func(m *cluster.Machine) { m.Reach, m.Talos = cluster.Silent, "" })
	if away := JobsToSee(d, o); len(there) != 1 || len(away) != 1 || there[0] != away[0] {
		t.Errorf("%v, and %v while it is silent", there, away)
	}
}

// TestLeftJobs: what is no longer needed is to be deleted, but for what may be wanted still, is not ours, or has failed for this commit.
func TestLeftJobs(t *testing.T) {
	d, o := jobWorld()
	wanted := JobsToSee(d, o)[0]
	all := map[string]cluster.Job{
		"wanted":          {ObjectName: wanted, Ours: true, Revision: "r"},
		"complete":        {Ours: true, Revision: "r", Complete: time.Unix(1, 0)},
		"failed":          {Ours: true, Revision: "r", Failed: time.Unix(1, 0)},
		"of another":      {Ours: true, Revision: "q", Failed: time.Unix(1, 0)},
		"deleting":        {Ours: true, Revision: "q", Deleting: true},
		"somebody else's": {Revision: "q"},
	}
	see := func(o *cluster.Observed) {
		o.Jobs = cluster.Saw(map[cluster.ObjectName]cluster.Job{})
		for name, job := range all {
			if job.Name == "" {
				job.ObjectName = cluster.ObjectName{Namespace: "tests", Name: name}
			}
			o.Jobs.Value[job.ObjectName] = job
		}
	}
	find := func(d cluster.Desired, o cluster.Observed) string {
		var out []string
		see(&o)
		for _, job := range LeftJobs(d, o) {
			out = append(out, strings.TrimPrefix(strings.Replace(job.String(), wanted.String(), "tests/wanted", 1), "tests/"))
		}
		return strings.Join(out, ", ")
	}
	if got := find(d, o); got != "complete, of another" {
		t.Errorf("on the way: %s", got)
	}
	if got := find(d, cluster.Observed{}); got != "of another" {
		t.Errorf("while nothing is known: %s", got)
	}
	o.Nodes.Value["wk-1"] = cluster.KubeNode{Kubelet: "v1.35.3", Turn: "t"}
	if got := find(d, o); got != "of another" {
		t.Errorf("in a turn: %s", got)
	}
	d.Hops = nil
	for _, n := range d.Spec.Nodes {
		edit(&o, n.Name, func(m *cluster.Machine) { m.Talos = "v1.13.9" })
	}
	if got := find(d, o); got != "complete, of another, wanted" {
		t.Errorf("at its end: %s", got)
	}
}

// TestJobsWaitForService: no Job is started while a node is out of service, though it is known that there is none.
func TestJobsWaitForService(t *testing.T) {
	d, o := jobWorld()
	o.Gates, o.Jobs = map[string]cluster.Seen[bool]{}, cluster.Saw(map[cluster.ObjectName]cluster.Job{})
	if a, waits := FindAwaitedJob(d, o); !waits || !a.Start {
		t.Errorf("in service: %+v, %v", a, waits)
	}
	kn := o.Nodes.Value["wk-1"]
	kn.Turn = "t"
	o.Nodes.Value["wk-1"] = kn
	if a, waits := FindAwaitedJob(d, o); !waits || a.Start || !strings.Contains(a.Wait.Message, "when no node is out of service") {
		t.Errorf("in a turn: %+v, %v", a, waits)
	}
}

// TestJobsStayFresh: a Job counts for an hour, and for as long as those of all gates may take.
func TestJobsStayFresh(t *testing.T) {
	d, o := jobWorld()
	name := JobsToSee(d, o)[0]
	d.Spec.Gates = append(slices.Clone(d.Spec.Gates), cluster.Gate{Name: "long", Job: cluster.GateJob{Namespace: "tests", Prefix: "long", Manifest: "{}", Within: 2 * time.Hour}})
	o.Now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for ago, want := range map[time.Duration]bool{time.Hour: true, 3 * time.Hour: true, 4 * time.Hour: false} {
		o.Jobs = cluster.Saw(map[cluster.ObjectName]cluster.Job{name: {ObjectName: name, Ours: true, Revision: d.Revision, Complete: o.Now.Add(-ago)}})
		if a, waits := FindAwaitedJob(d, o); !waits || (a.Gate.Name == "long") != want {
			t.Errorf("%v ago: %+v, %v", ago, a, waits)
		}
	}
}
