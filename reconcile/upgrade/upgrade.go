// Package upgrade works out which versions the nodes of a cluster are to have now, on the way from
// those that they run to those that the inventory asks for. How far that has come is not stored: it
// is what they run.
//
// The package is pure: no clock, no network, no log and no chance.
package upgrade

import (
	"maps"
	"slices"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/ladder"
	"github.com/talos-agent/talos-agent/reconcile/upgrade/components"
)

// Ran is what each node was seen to run last, by name. One that does not answer has not another
// version for that, so that no hop is skipped for want of an answer.
type Ran map[string]cluster.Versions

// Watch returns what the nodes of a cluster run, from what was known before. A node whose VM is not
// there has no version, and one that is out of service for its turn has that from before the turn still. One that is
// silent since the agent was started has what all nodes had at last: it may have missed a hop that others have made.
func (r Ran) Watch(d cluster.Desired, o cluster.Observed) Ran {
	out := Ran{}
	all, _ := o.Facts.Intent(cluster.IntendConfig)
	for _, n := range d.Spec.Nodes {
		v, mach, kn := r[n.Name], o.Machines[n.Name], o.Nodes.Value[n.Name]
		if o.VMs[n.Name].Presence == cluster.Absent || mach.Reach == cluster.Maintenance {
			continue
		}
		if mach.Reach == cluster.Configured && mach.Talos != "" && (kn.Turn == "" || v.Talos == "") {
			v.Talos = mach.Talos
		}
		if oldest := components.OldestOn(n, o); oldest != "" {
			v.Kubernetes = oldest
		}
		if v.Talos == "" && o.Nodes.Known {
			v.Talos = all.Versions.Talos
		}
		if v != (cluster.Versions{}) {
			out[n.Name] = v
		}
	}
	return out
}

// CountAt is how many nodes run what a hop leads to, or newer.
func (r Ran) CountAt(hop cluster.Hop) (n int) {
	for _, v := range r {
		has := v.Talos
		if hop.Kind == cluster.HopKubernetes {
			has = v.Kubernetes
		}
		if has != "" && !ladder.IsOlder(has, hop.To) {
			n++
		}
	}
	return n
}

// oldest are the oldest versions of both that a node runs; false while one is not known.
func (r Ran) oldest() (out cluster.Versions, known bool) {
	for _, v := range r {
		if v.Talos != "" && (out.Talos == "" || ladder.IsOlder(v.Talos, out.Talos)) {
			out.Talos = v.Talos
		}
		if v.Kubernetes != "" && (out.Kubernetes == "" || ladder.IsOlder(v.Kubernetes, out.Kubernetes)) {
			out.Kubernetes = v.Kubernetes
		}
	}
	return out, out.Talos != "" && out.Kubernetes != ""
}

// canRun reports whether a version of Kubernetes runs on every Talos that a node is known to run.
func (r Ran) canRun(kubernetes string) bool {
	for _, v := range r {
		if v.Talos != "" && !ladder.Runs(v.Talos, kubernetes) {
			return false
		}
	}
	return true
}

// Seen is what is known of what the nodes of a cluster run.
type Seen struct {
	Ran      Ran
	Observed cluster.Observed
	Despite  []string // nodes for which no other one waits while they are not Ready
	// Asked are the newest versions that the inventory has asked for since all nodes ran what it asks for; none: that is not known.
	Asked cluster.Versions
}

// Watch returns what is known with another look.
func (s Seen) Watch(d cluster.Desired, o cluster.Observed) Seen {
	return Seen{Ran: s.Ran.Watch(d, o), Observed: o}
}

// Stage is how far a cluster is to come now.
type Stage struct {
	Versions cluster.Versions // that all nodes are to have at the end of the first hop
	// Components are, in a hop of Kubernetes, what of it each node is to have now, by name.
	Components map[string]cluster.Components
	Hops       []cluster.Hop // this one and those after it
	Waits      cluster.Wait  // why the hop of Kubernetes does not go on for now, with the node that it waits for, where it is one
	NoWay      string        // why there is none
	Back       cluster.Back  // what of it goes back to what all nodes ran before
}

// Of returns the stage of a cluster whose inventory asks for some versions. Where it runs them, or it
// is not known what it runs, they are what it is to have. kept are those that all nodes ran before.
func Of(goal cluster.Versions, s cluster.Spec, seen Seen, kept ...cluster.Versions) Stage {
	have, known := seen.Ran.oldest()
	out := Stage{Versions: goal}
	out.Back.Talos = wasAsked(seen.Asked.Talos, goal.Talos) && hasNewerTalos(goal.Talos, s, seen) && slices.ContainsFunc(kept, func(v cluster.Versions) bool { return v.Talos == goal.Talos })
	if !known {
		return out
	}
	if out.Back.Talos {
		if out.NoWay = seen.findLeftEtcd(goal.Talos, s); out.NoWay != "" {
			return refuseWay(goal, s, seen, have, out)
		}
	}
	isKept := func(v cluster.Versions) bool {
		return wasAsked(seen.Asked.Kubernetes, goal.Kubernetes) && v.Kubernetes == goal.Kubernetes && seen.Ran.canRun(v.Kubernetes)
	}
	if components.HasNewer(goal.Kubernetes, s, seen.Observed) && (have.Kubernetes == goal.Kubernetes || slices.ContainsFunc(kept, isKept)) {
		return back(goal, s, seen, have, out)
	}
	if have.Talos == goal.Talos && have.Kubernetes == goal.Kubernetes {
		return out
	}
	hops, err := seen.findWay(have, goal, s)
	if err != nil {
		if out.NoWay = err.Error(); out.Back.Talos && goal.Kubernetes != have.Kubernetes { // it comes after that
			out = out.stayBack(s, seen, have)
		}
		return out
	}
	out.Hops = hops
	isBetween := components.HasNewer(have.Kubernetes, s, seen.Observed)
	switch out.Versions.Talos, out.Versions.Kubernetes = have.Talos, have.Kubernetes; hops[0].Kind {
	case cluster.HopTalos:
		if out.Versions.Talos = hops[0].To; isBetween { // there is no other order
			out.Components = components.Stay(s, seen.Observed)
		}
	case cluster.HopKubernetes:
		out.Versions.Kubernetes = hops[0].To
		out.Components, out.Waits = components.Next(hops[0].To, s, seen.Observed, seen.Despite...)
		why := seen.awaitTalos(have, goal, out.Back.Talos, s)
		if isBetween {
			why = ""
		}
		wait := cluster.Wait{Reason: cluster.WaitingForHop, Message: why}
		if reason, manifests := AwaitsManifests(cluster.Desired{Snapshot: cluster.Snapshot{Spec: s}}, seen.Observed); why == "" && out.Waits.Reason == "" {
			wait.Reason, wait.Message = reason, manifests
		}
		if wait.Message != "" {
			out = out.Stay(s, seen)
			out.Waits = wait
		}
	}
	return out
}

// wasAsked reports whether the inventory has asked for a newer version than it does now, as far as that is known. Without that it takes
// nothing back: somebody has upgraded the cluster by hand, and may have stored what the version of before cannot read.
func wasAsked(newest, now string) bool { return newest == "" || ladder.IsOlder(now, newest) }

// NoteAsked returns what is to be kept of what the inventory asks for, of which out was kept, while nodes run some versions, which
// may be those of all: see Seen.Asked.
func NoteAsked(out cluster.Versions, asked cluster.Desired, run cluster.Versions, all bool) cluster.Versions {
	goal := asked.Goal
	if all && asked.Back == (cluster.Back{}) && run.Talos == goal.Talos && run.Kubernetes == goal.Kubernetes {
		return cluster.Versions{Talos: goal.Talos, Kubernetes: goal.Kubernetes}
	}
	if out.Talos != "" && ladder.IsOlder(out.Talos, goal.Talos) {
		out.Talos = goal.Talos
	}
	if out.Kubernetes != "" && ladder.IsOlder(out.Kubernetes, goal.Kubernetes) {
		out.Kubernetes = goal.Kubernetes
	}
	return out
}

// BeforeHop are the versions of a cluster whose nodes are to make a hop: those that it leaves, until all
// nodes have made it, so that a node which is made meanwhile is never ahead of the others.
func BeforeHop(d cluster.Desired) cluster.Versions {
	v := d.Spec.Versions
	if len(d.Hops) > 0 && d.Hops[0].Kind == cluster.HopTalos {
		v.Talos = d.Hops[0].From
	} else if len(d.Hops) > 0 {
		v.Kubernetes = d.Hops[0].From
	}
	return v
}

// refuseWay is the stage of a cluster whose Talos could not follow what else goes back: nothing of it does.
func refuseWay(goal cluster.Versions, s cluster.Spec, seen Seen, have cluster.Versions, out Stage) Stage {
	out.Back = cluster.Back{}
	if goal.Kubernetes != have.Kubernetes || components.HasNewer(have.Kubernetes, s, seen.Observed) {
		out = out.stayBack(s, seen, have)
	}
	return out
}

// stayBack is the stage of a cluster whose Kubernetes does not go back for now: its nodes have what they have of it. A Talos that does not
// run that is shown with the Kubernetes that is asked for along with it.
func (s Stage) stayBack(spec cluster.Spec, seen Seen, have cluster.Versions) Stage {
	s.Components = components.Stay(spec, seen.Observed)
	if ladder.Runs(s.Versions.Talos, have.Kubernetes) {
		s.Versions.Kubernetes = have.Kubernetes
	}
	return s
}

// back is the stage of a cluster whose Kubernetes goes back: before Talos, which may be its reason, and which may
// be too old for what the nodes still run. Where they are between two versions that are both newer than the
// one that is asked for, the older of these comes first: no component goes back over two minor versions. Nothing goes back where Talos
// is to and cannot, and Kubernetes not while Talos is on its way back.
func back(goal cluster.Versions, s cluster.Spec, seen Seen, have cluster.Versions, out Stage) Stage {
	out.NoWay = seen.refuseBack(have, goal, out.Back.Talos, s)
	if out.NoWay != "" || out.Back.Talos && seen.isTalosFirst(have, goal, s) {
		return out.stayBack(s, seen, have)
	}
	out = Stage{Versions: cluster.Versions{Talos: have.Talos, Kubernetes: goal.Kubernetes, Contract: goal.Contract}, Back: cluster.Back{Kubernetes: true}}
	if ladder.IsOlder(goal.Kubernetes, have.Kubernetes) && components.HasNewer(have.Kubernetes, s, seen.Observed) {
		out.Versions.Kubernetes = have.Kubernetes
	}
	out.Components, out.Waits = components.Revert(out.Versions.Kubernetes, s, seen.Observed)
	if hops, err := ladder.Find(cluster.Versions{Talos: have.Talos, Kubernetes: goal.Kubernetes}, goal); err == nil && out.Versions.Kubernetes == goal.Kubernetes {
		out.Hops = hops // of Talos, after it
	}
	return out
}

// hasNewerTalos reports whether a node is known to run a newer Talos than some version.
func hasNewerTalos(than string, s cluster.Spec, seen Seen) bool {
	return slices.ContainsFunc(s.Nodes, func(n cluster.Node) bool { return seen.isNewer(n, than) })
}

// Stay is the stage of a cluster that is not to go on: its nodes have what they have. What of Talos they are to have is
// shown all the same, for it takes a turn.
func (s Stage) Stay(spec cluster.Spec, seen Seen) Stage {
	if len(s.Components) > 0 {
		s.Components, s.Waits = components.Stay(spec, seen.Observed), cluster.Wait{}
	}
	return s
}

// Equal reports whether two stages ask for the same.
func (s Stage) Equal(other Stage) bool {
	return s.Versions == other.Versions && maps.Equal(s.Components, other.Components) && slices.Equal(s.Hops, other.Hops) && s.Waits.Equal(other.Waits) && s.NoWay == other.NoWay && s.Back == other.Back
}

// At returns a snapshot that asks for what the nodes are to have now.
func At(snap cluster.Snapshot, s Stage) cluster.Snapshot {
	snap.Spec.Versions.Talos, snap.Spec.Versions.Kubernetes = s.Versions.Talos, s.Versions.Kubernetes
	if len(s.Components) > 0 {
		snap.Spec.Nodes = slices.Clone(snap.Spec.Nodes)
		for i, n := range snap.Spec.Nodes {
			snap.Spec.Nodes[i].Components = s.Components[n.Name]
		}
	}
	return snap
}
