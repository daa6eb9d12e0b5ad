package talos

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/talos/etcdmember"
	"github.com/talos-agent/talos-agent/reconcile/talos/rendered"
)

// allWithin bounds all questions of one observation.
const allWithin = 5 * time.Second

// membersFor is how long a list in which every control plane votes, and no other member, is good when
// nothing else changes: for less than a minute, the time between two passes of a quiet cluster by default,
// so that each of those sees a member that somebody else has added. One that leaves takes its etcd service
// with it, which is watched.
const membersFor = 50 * time.Second

// stateFor is how long it is good who leads etcd, which alarms it has and what its members run, while no upgrade depends on it;
// while one does that is membersFor.
const stateFor = 5 * time.Minute

// disagreeFor is how long a list is good while not all members name the same, or were not all asked.
const disagreeFor = 30 * time.Second

// ballot is what was last seen of the members of etcd.
type ballot struct {
	at      time.Time
	turn    uint64 // of the fleet, when it was asked for
	members cluster.Seen[[]cluster.Member]
	etcd    cluster.Seen[cluster.Etcd]
	stateAt time.Time // when that was asked for
	agreement
}

// unseenBallot is one of which nothing is known.
func unseenBallot(why string) ballot {
	return ballot{members: cluster.Unseen[[]cluster.Member](why), etcd: cluster.Unseen[cluster.Etcd](why), agreement: agreement{agree: cluster.Unseen[bool](why)}}
}

// fill fills in the part of the observed world.
func (b ballot) fill(o *cluster.Observed) {
	o.Members, o.Etcd, o.MembersAgree, o.MembersAsked = b.members, b.etcd, b.agree, slices.Clone(b.asked)
	o.Members.Value = slices.Clone(o.Members.Value)
}

// agreement is how far the members of etcd name the same members.
type agreement struct {
	agree cluster.Seen[bool] // whether all do
	asked []string           // the nodes whose members answered and do; none where one does not
}

// goodFor is how long the ballot need not be asked for again when nothing changes.
func (b ballot) goodFor() time.Duration {
	if !b.agree.Value || !b.etcd.Known {
		return disagreeFor
	}
	return membersFor
}

// plane is a control plane as it was last seen.
type plane struct {
	node    cluster.Node
	machine cluster.Machine
	link    *link
	removed bool // the inventory no longer has it
}

// observeMembers asks for the members of etcd, of one control plane after the
// other, the founder first, until one can answer. Each is asked for the members
// of its own etcd (queryLocal): without that, a machine answers with whichever
// etcd of its cluster it reaches, at random where there are two (recorded).
// Learners cannot answer so, hence only those whose etcd is healthy are asked.
//
// The others are asked after it whether they name the same, and the first one who leads, and for alarms.
//
// Known is never empty: before there is an etcd, it is unknown.
func (f *Fleet) observeMembers(ctx context.Context, d cluster.Desired, founder string) ballot {
	planes, turn, last := f.planes(d, founder)
	var able []plane
	var running []string
	answers := false
	for _, p := range planes {
		if p.machine.Reach != cluster.Configured {
			continue
		}
		answers = true
		switch etcd := p.machine.Services["etcd"]; {
		case etcd.State != "Running":
		case !etcd.Healthy:
			running = append(running, p.node.Name+": "+cmp.Or(etcd.Message, "not healthy"))
		case p.link == nil:
			running = append(running, p.node.Name+": its connection has just ended")
		default:
			able = append(able, p)
		}
	}
	switch {
	case !answers:
		return unseenBallot("no control plane answers")
	case len(able) == 0 && len(running) == 0:
		return unseenBallot("no etcd runs on the control planes that answer")
	case len(able) == 0:
		return unseenBallot("no etcd can be asked (" + strings.Join(running, "; ") + ")")
	}
	// One that is removed may be joining, which no machine shows that is a member already.
	if last.members.Known && last.turn == turn && time.Since(last.at) < last.goodFor() && len(d.StillRemoved()) == 0 && isSettled(planes, last.members.Value) {
		return last
	}
	asking, cancel := context.WithTimeout(ctx, allWithin)
	defer cancel()
	if last.stateAt.IsZero() || time.Since(last.stateAt) >= stateGoodFor(d, planes) {
		last.etcd = cluster.Seen[cluster.Etcd]{}
	}
	now := askMembers(asking, able, last)
	now.at, now.turn = time.Now(), turn
	f.mu.Lock()
	f.members = now
	f.mu.Unlock()
	return now
}

// stateGoodFor is how long what is the same of all members need not be asked for again.
func stateGoodFor(d cluster.Desired, planes []plane) time.Duration {
	asked := d.Repository()
	behind := func(p plane) bool {
		return p.machine.Talos != asked.Spec.Versions.Talos || p.machine.Schematic != asked.Schematic
	}
	if len(asked.Hops) > 0 || slices.ContainsFunc(planes, behind) {
		return membersFor
	}
	return stateFor
}

// Forget implements reconcile.Forgetter: the members of etcd are asked for again, who leads and for alarms as well,
// also while a look is under way.
func (f *Fleet) Forget(string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.members.stateAt = time.Time{}
	f.turn++
}

// planes takes down how the control planes stand: those of the inventory, the founder
// first, then those that are being removed, whose etcd may not be the cluster's any
// longer.
func (f *Fleet) planes(d cluster.Desired, founder string) ([]plane, uint64, ballot) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []plane
	for i, n := range d.AllControlPlanes() {
		w := f.watchers[n.Name]
		if w == nil || f.closed {
			continue
		}
		removed := i >= len(d.Spec.ControlPlanes())
		p := plane{n, w.machine, w.link, removed}
		if n.Name == founder && !removed {
			out = slices.Insert(out, 0, p)
		} else {
			out = append(out, p)
		}
	}
	return out, f.turn, f.members
}

// askMembers asks one after the other. A list that lacks a machine whose etcd
// is healthy means two etcds: then neither is the cluster's. One that is being removed
// is no member at the end, and runs for a while still.
func askMembers(ctx context.Context, able []plane, last ballot) ballot {
	var errs []error
	for i, p := range able {
		members, err := etcdmember.List(ctx, p.link.machine)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("ask %s for the members of etcd: %w", p.node.Name, err))
			continue
		case !etcdmember.Has(members, p.node):
			errs = append(errs, fmt.Errorf("ask %s for the members of etcd: it is not one of those it names", p.node.Name))
			continue
		}
		for _, other := range able {
			if !etcdmember.Has(members, other.node) && !other.removed {
				return unseenBallot(sanitize(fmt.Sprintf("there are two etcds: that of %s does not have %s as a member, whose own is healthy", p.node.Name, other.node.Name)))
			}
		}
		others := slices.DeleteFunc(slices.Clone(able[i+1:]), func(p plane) bool { return !etcdmember.Has(members, p.node) })
		out := ballot{members: cluster.Saw(members), etcd: last.etcd, stateAt: last.stateAt}
		// What changes of machines has the members listed again, and changes nothing of this.
		if !last.etcd.Known || len(members) != len(last.members.Value) {
			out.etcd, out.stateAt = readEtcd(ctx, len(members), append([]plane{p}, others...)), time.Now()
		}
		if len(errs) > 0 { // of those before it
			out.agreement = agreement{agree: cluster.Unseen[bool](formatError(errs[0])), asked: []string{p.node.Name}}
			return out
		}
		out.agreement = compareMembers(ctx, p.node.Name, members, others)
		return out
	}
	return unseenBallot(formatError(errors.Join(errs...)))
}

// readEtcd asks members, side by side, who leads, for the alarms of all and for the versions that they run.
func readEtcd(ctx context.Context, members int, able []plane) cluster.Seen[cluster.Etcd] {
	found, errs := make([]etcdmember.Status, len(able)), make([]error, len(able))
	var all sync.WaitGroup
	for i, p := range able {
		all.Go(func() {
			if found[i], errs[i] = etcdmember.ReadStatus(ctx, p.link.machine); errs[i] != nil {
				errs[i] = fmt.Errorf("ask %s for the status of its etcd: %s", p.node.Name, formatError(errs[i]))
			}
		})
	}
	all.Wait()
	return etcdmember.Summarize(members, found, errs)
}

// compareMembers asks the others, side by side, whether they name the same members as the first. It
// is not known of all while a member among them is not asked, or does not answer.
func compareMembers(ctx context.Context, first string, members []cluster.Member, others []plane) agreement {
	lists, errs := make([][]cluster.Member, len(others)), make([]error, len(others))
	var all sync.WaitGroup
	for i, p := range others {
		all.Go(func() { lists[i], errs[i] = etcdmember.List(ctx, p.link.machine) })
	}
	all.Wait()
	out := agreement{agree: cluster.Saw(true), asked: []string{first}}
	if missing := len(members) - len(others) - 1; missing > 0 {
		out.agree = cluster.Unseen[bool](fmt.Sprintf("%d of %d members cannot be asked", missing, len(members)))
	}
	for i, p := range others {
		switch {
		case errs[i] != nil:
			out.agree = cluster.Unseen[bool](fmt.Sprintf("ask %s for the members of etcd: %s", p.node.Name, formatError(errs[i])))
		case !sameMembers(members, lists[i]):
			return agreement{agree: cluster.Saw(false)}
		default:
			out.asked = append(out.asked, p.node.Name)
		}
	}
	return out
}

// sameMembers reports whether two lists have the same members, in whatever order.
func sameMembers(a, b []cluster.Member) bool {
	byID := func(x, y cluster.Member) int { return cmp.Compare(x.ID, y.ID) }
	return slices.Equal(slices.SortedFunc(slices.Values(a), byID), slices.SortedFunc(slices.Values(b), byID))
}

// isSettled reports whether every control plane of the inventory has a vote, and
// nobody else: a member that is no control plane is removed by hand, which no
// machine shows.
func isSettled(planes []plane, members []cluster.Member) bool {
	return len(members) == len(planes) && !slices.ContainsFunc(planes, func(p plane) bool {
		m, ok := etcdmember.Find(members, p.node)
		return !ok || m.Learner
	})
}

// Rendered returns the bootstrap manifests that the control planes render, as a list of objects in JSON. It is
// unknown while one of them does not answer, and where they do not render the same.
func (f *Fleet) Rendered(ctx context.Context, d cluster.Desired) cluster.Seen[cluster.RenderedManifests] {
	planes, _, _ := f.planes(d, "")
	planes = slices.DeleteFunc(planes, func(p plane) bool { return p.removed })
	found, errs, lacks := make([]rendered.Manifests, len(planes)), make([]error, len(planes)), ""
	ctx, cancel := context.WithTimeout(ctx, allWithin)
	defer cancel()
	var all sync.WaitGroup
	for i, p := range planes {
		if errs[i] = errors.New("its machine is not reached"); p.link != nil {
			all.Go(func() { found[i], errs[i] = rendered.Read(ctx, p.link.cosi) })
		}
	}
	all.Wait()
	for i, p := range planes {
		switch {
		case errs[i] != nil:
			return cluster.Unseen[cluster.RenderedManifests](p.node.Name + ": " + formatError(errs[i]))
		case found[i].Objects != found[0].Objects:
			return cluster.Unseen[cluster.RenderedManifests](fmt.Sprintf("%s and %s do not render the same", planes[0].node.Name, p.node.Name))
		case found[i].Lacks != "":
			lacks = p.node.Name + " has not rendered " + found[i].Lacks
		}
	}
	if len(planes) == 0 || len(planes) < len(d.Spec.ControlPlanes()) {
		return cluster.Unseen[cluster.RenderedManifests]("not all control planes are watched yet")
	}
	return cluster.Saw(cluster.RenderedManifests{Objects: cluster.SecretString(found[0].Objects), Lacks: lacks})
}

// ConfigDigests identify the machine configs that the control planes run, by name, of those that are known.
func (f *Fleet) ConfigDigests(d cluster.Desired) map[string]string {
	planes, _, _ := f.planes(d, "")
	out := map[string]string{}
	for _, p := range planes {
		if p.machine.ConfigDigest != "" {
			out[p.node.Name] = p.machine.ConfigDigest
		}
	}
	return out
}
