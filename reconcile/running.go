package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/drift"
	"github.com/talos-agent/talos-agent/reconcile/upgrade"
)

// What a cluster runs is not always what its repository has: changes of nodes that
// run are refused. A node that is made meanwhile gets what the others run, or its
// kubelet could be newer than every kube-apiserver.

// desire returns what should be now, as far as the repository decides it, on the way from what the
// nodes were seen to run.
func (r *Reconciler) desire(snap cluster.Snapshot, seen upgrade.Seen, facts cluster.Facts, now time.Time) (cluster.Desired, cluster.Problems) {
	snap, other := upgrade.KeepContract(snap, facts)
	goal := snap.Spec.Versions
	stage, held, by := r.stageOf(snap, goal, seen, facts)
	d, problems := r.c.Renderer.Desired(upgrade.At(snap, stage), facts, now)
	d.OtherContract = other
	d.Way = cluster.Way{Hops: stage.Hops, NoWay: stage.NoWay, Goal: goal, StageWaits: stage.Waits, Held: held, HeldBy: by, Back: stage.Back}
	return d, problems
}

// stageOf is how far a cluster is to come now on its way to some versions, and why it stays where it is, if
// the switches of its inventory or of the host have it so.
func (r *Reconciler) stageOf(snap cluster.Snapshot, goal cluster.Versions, seen upgrade.Seen, facts cluster.Facts) (stage upgrade.Stage, held cluster.Reason, by string) {
	if facts.UpgradeOrder(drift.AttemptAt(snap, facts)).Now {
		snap.Spec.Soak = 0
	}
	ran, _ := facts.Intent(cluster.IntendConfig)
	seen.Despite, seen.Asked = facts.UpgradeOrder(drift.AttemptAt(snap, facts)).Despite, ran.Asked
	stage = upgrade.Of(goal, snap.Spec, seen, ran.Versions, ran.Previous)
	if !facts.WasReady() {
		return stage, "", ""
	}
	if held, by = stage.Hold(snap, r.c.Policy(), facts); held != "" {
		stage = stage.Stay(snap.Spec, seen)
	}
	return stage, held, by
}

// desireApproved is desire as if the way to other versions were approved, where that is all that holds it, and that way.
func (r *Reconciler) desireApproved(snap cluster.Snapshot, seen upgrade.Seen, facts cluster.Facts, now time.Time) (cluster.Desired, []cluster.Hop, cluster.Problems) {
	d, problems := r.desire(snap, seen, facts, now)
	if d.Held != cluster.ChangeUnapproved || problems.HasErrors() {
		return d, nil, problems
	}
	hops := d.Hops
	facts.Intend(cluster.Intent{Kind: cluster.IntendApproved, Revision: snap.Revision})
	d, problems = r.desire(snap, seen, facts, now)
	return d, hops, problems
}

// asApproved is what is desired of a view as if the way to other versions were approved, and that way, where it waits for that.
func (r *Reconciler) asApproved(ctx context.Context, v *view, o cluster.Observed) (cluster.Desired, []cluster.Hop) {
	asked := v.desired.Repository()
	if asked.Held != cluster.ChangeUnapproved {
		return v.desired, nil
	}
	snap := asked.Snapshot
	snap.Spec.Versions = asked.Goal
	snap.Spec.Nodes = slices.Clone(snap.Spec.Nodes)
	for i := range snap.Spec.Nodes {
		snap.Spec.Nodes[i].Components = cluster.Components{}
	}
	d, hops, problems := r.desireApproved(snap, v.seen, o.Facts, o.Now)
	if problems.HasErrors() {
		return v.desired, nil
	}
	d = r.keepRunning(ctx, d, o)
	d.Removed, d.Silent = v.desired.Removed, v.desired.Silent
	return d, hops
}

// awaitHops notes in a forecast that it is as if a way to other versions were approved.
func awaitHops(f *cluster.Forecast, hops []cluster.Hop) {
	if len(hops) > 0 {
		f.Changes, f.Unapproved = append(f.Changes, cluster.ApprovableHops(hops)), true
	}
}

// isOtherStage reports whether a cluster is to come to another point than that of d, by what is seen now.
func (r *Reconciler) isOtherStage(d cluster.Desired, seen upgrade.Seen, facts cluster.Facts) bool {
	have := upgrade.Stage{Versions: d.Spec.Versions, Hops: d.Hops, Waits: d.StageWaits, NoWay: d.NoWay, Back: d.Back}
	for _, n := range d.Spec.Nodes {
		if n.Components != (cluster.Components{}) {
			if have.Components == nil {
				have.Components = map[string]cluster.Components{}
			}
			have.Components[n.Name] = n.Components
		}
	}
	stage, held, _ := r.stageOf(d.Snapshot, d.Goal, seen, facts)
	return held != d.Held || !stage.Equal(have)
}

// learnConfig notes in f what the nodes of the cluster are seen to run.
func learnConfig(d cluster.Desired, o cluster.Observed, f *cluster.Facts) {
	in, known := f.Intent(cluster.IntendConfig)
	before := in
	v, uniform, seen := drift.RunningVersions(d, o)
	switch same, other := drift.CountConfigs(d, o); {
	case same > other:
		in.Versions, in.Revision = upgrade.BeforeHop(d), d.Revision
	case seen && (uniform || !known):
		in.Versions.Talos, in.Versions.Kubernetes = v.Talos, v.Kubernetes
		in.Versions.Contract = contractOf(d, in)
	}
	// Each of them by itself, for one push may lead to others of both, and is taken back as one.
	if was := before.Versions; was.Talos != in.Versions.Talos && was.Talos != "" {
		in.Previous.Talos = was.Talos
	}
	if was := before.Versions; was.Kubernetes != in.Versions.Kubernetes && was.Kubernetes != "" {
		in.Previous.Kubernetes = was.Kubernetes
	}
	in.Asked = upgrade.NoteAsked(in.Asked, d.Repository(), v, seen && uniform)
	if !in.Equal(before) {
		in.Kind, in.At = cluster.IntendConfig, o.Now.UTC()
		f.Intend(in)
	}
}

// contractOf returns the contract of what runs: the one that was kept, else the one of
// the repository, as far as what runs knows it.
func contractOf(d cluster.Desired, in cluster.Intent) string {
	if in.Versions.Contract != "" {
		return in.Versions.Contract
	}
	return fmt.Sprintf("v1.%d", min(upgrade.MinorOf(d.Spec.Versions.Contract), upgrade.MinorOf(in.Versions.Talos)))
}

// keepRunning returns asked with what a new node gets: what the repository has, or,
// while the nodes that run have something else, what they have.
func (r *Reconciler) keepRunning(ctx context.Context, asked cluster.Desired, o cluster.Observed) cluster.Desired {
	in, known := o.Facts.Intent(cluster.IntendConfig)
	v, _, seen := drift.RunningVersions(asked, o)
	switch {
	case seen:
		v.Contract = contractOf(asked, cluster.Intent{Versions: cluster.Versions{Talos: v.Talos, Contract: in.Versions.Contract}})
	case known:
		v = in.Versions
	case o.Facts.BootstrapSent():
		asked.Hold = "no node of it shows what it runs"
		return asked
	default:
		return asked
	}
	d := asked
	if v != asked.Spec.Versions {
		snap := asked.Snapshot
		snap.Spec.Versions = v
		d = r.renderRunning(snap, asked, o)
	}
	switch same, other := drift.CountConfigs(d, o); {
	case d.Hold != "", same > other, in.Revision == asked.Revision && in.Revision.Unique():
		return d
	case other == 0 && !o.Facts.BootstrapSent():
		return d // nothing runs yet
	case in.Revision == "":
		asked.Hold = "which revision the nodes have is not recorded"
		return asked
	}
	base, err := r.base.read(ctx, r.c.Source, in.Revision)
	if err != nil && in.Revision == asked.Revision {
		return d
	}
	if err != nil {
		asked.Hold = fmt.Sprintf("the nodes have the config of %s, which cannot be read: %s", in.Revision.Short(), text.OneLine(err.Error()))
		return asked
	}
	d = r.renderRunning(mergeSnapshots(base, asked.Snapshot, v), asked, o)
	d.Base = in.Revision
	return d
}

// renderRunning returns what a new node gets of a snapshot that is not the repository's.
func (r *Reconciler) renderRunning(snap cluster.Snapshot, asked cluster.Desired, o cluster.Observed) cluster.Desired {
	d, problems := r.c.Renderer.Desired(snap, o.Facts, o.Now)
	if problems.HasErrors() {
		asked.Hold = "its config cannot be rendered: " + problems.First()
		return asked
	}
	d.OtherContract, d.Asked = asked.OtherContract, &asked
	return d
}

// mergeSnapshots returns a snapshot whose machine configs are those of base, for the
// nodes of asked at some versions. A node that base does not have keeps its own
// settings, with the patches as base has them. What is no part of a machine config, such as
// the switches and the window, is that of asked: it is in force as soon as it is read.
func mergeSnapshots(base, asked cluster.Snapshot, v cluster.Versions) cluster.Snapshot {
	out := asked
	out.Confidential = slices.Concat(asked.Confidential, base.Confidential)
	out.Spec.Versions = v
	out.Spec.Network, out.Spec.CNI = base.Spec.Network, base.Spec.CNI
	out.Spec.Network.Endpoint = keepEndpoint(base.Spec, asked.Spec)
	out.Spec.Schematic, out.Spec.InstallerRegistry = base.Spec.Schematic, base.Spec.InstallerRegistry
	out.Spec.Nodes = make([]cluster.Node, 0, len(asked.Spec.Nodes))
	patches := map[string]cluster.Patch{} // of base, by file
	shared := map[string]bool{}           // files that nodes of base have in asked
	for _, n := range base.Spec.Nodes {
		for _, p := range n.Patches {
			patches[p.File] = p
		}
		now, _ := asked.Spec.Node(n.Name)
		for _, p := range now.Patches {
			shared[p.File] = true
		}
	}
	for _, n := range asked.Spec.Nodes {
		if was, ok := base.Spec.Node(n.Name); ok && was.Role == n.Role {
			n.Labels, n.Taints, n.Patches = was.Labels, was.Taints, was.Patches
		} else {
			var own []cluster.Patch
			for _, p := range n.Patches {
				if old, ok := patches[p.File]; ok {
					own = append(own, old)
				} else if !shared[p.File] {
					own = append(own, p)
				}
			}
			n.Patches = own
		}
		out.Spec.Nodes = append(out.Spec.Nodes, n)
	}
	return out
}

// keepEndpoint returns the endpoint of base, or, where that is the address of a control plane that
// leaves, one that works before and after: that of the first control plane that base has and that
// stays, unless what is asked for is another of them.
func keepEndpoint(base, asked cluster.Spec) string {
	u, err := url.Parse(base.Network.Endpoint)
	hasAddress := func(host string) func(cluster.Node) bool {
		return func(n cluster.Node) bool { return n.IP.String() == host }
	}
	staying := slices.DeleteFunc(base.ControlPlanes(), func(n cluster.Node) bool {
		return !slices.ContainsFunc(asked.ControlPlanes(), hasAddress(n.IP.String()))
	})
	if err != nil || !slices.ContainsFunc(base.ControlPlanes(), hasAddress(u.Hostname())) || slices.ContainsFunc(asked.ControlPlanes(), hasAddress(u.Hostname())) || len(staying) == 0 {
		return base.Network.Endpoint
	}
	if next, err := url.Parse(asked.Network.Endpoint); err == nil && slices.ContainsFunc(staying, hasAddress(next.Hostname())) {
		return asked.Network.Endpoint
	}
	u.Host = staying[0].IP.String() + ":" + u.Port()
	return u.String()
}

// base is the snapshot that was read last of those that are not the newest.
type base struct {
	mu   sync.Mutex
	snap cluster.Snapshot
}

// read returns the snapshot of a revision.
func (b *base) read(ctx context.Context, s Source, revision cluster.Revision) (cluster.Snapshot, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.snap.Revision == revision {
		return b.snap, nil
	}
	f, err := s.At(ctx, revision)
	switch {
	case err != nil:
		return cluster.Snapshot{}, err
	case f.Problems.HasErrors():
		return cluster.Snapshot{}, errors.New(f.Problems.First())
	}
	b.snap = f.Snapshot
	return b.snap, nil
}

// keep remembers the snapshot of a revision that nodes run.
func (b *base) keep(snap cluster.Snapshot, in cluster.Intent) {
	if snap.Revision == in.Revision {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.snap = snap
	}
}

// configIntent is what is noted before the first config is sent.
func configIntent(d cluster.Desired) cluster.Intent {
	return cluster.Intent{Kind: cluster.IntendConfig, At: time.Now().UTC(), Versions: d.Spec.Versions, Revision: cmp.Or(d.Base, d.Revision)}
}
