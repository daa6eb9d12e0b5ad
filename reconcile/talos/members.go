package talos

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/talos/rendered"
)

// membersWithin bounds one question for the members of etcd: asked of a machine
// whose etcd cannot answer, the call hangs until its caller gives up (recorded).
// allWithin bounds all questions of one observation.
const (
	membersWithin = 3 * time.Second
	allWithin     = 5 * time.Second
)

// membersFor is how long a list in which every control plane votes, and no other member, is good when
// nothing else changes: for less than a minute, the time between two passes of a quiet cluster by default,
// so that each of those sees a member that somebody else has added. One that leaves takes its etcd service
// with it, which is watched.
const membersFor = 50 * time.Second

// disagreeFor is the same while not all members name the same, or were not all asked.
const disagreeFor = 30 * time.Second

// ballot is what was last seen of the members of etcd.
type ballot struct {
	known   bool
	at      time.Time
	turn    uint64 // of the fleet, when it was asked for
	members []cluster.Member
	agreement
}

// agreement is how far the members of etcd name the same members.
type agreement struct {
	agree cluster.Seen[bool] // whether all do
	asked []string           // the nodes whose members answered and do; none where one does not
}

// goodFor is how long the ballot need not be asked for again when nothing changes.
func (b ballot) goodFor() time.Duration {
	if !b.agree.Value {
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
// The others are asked after it whether they name the same.
//
// Known is never empty: before there is an etcd, it is unknown.
func (f *Fleet) observeMembers(ctx context.Context, d cluster.Desired, founder string) (members cluster.Seen[[]cluster.Member], agree cluster.Seen[bool], asked []string) {
	unseen := func(why string) (cluster.Seen[[]cluster.Member], cluster.Seen[bool], []string) {
		return cluster.Unseen[[]cluster.Member](why), cluster.Unseen[bool](why), nil
	}
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
			running = append(running, p.node.Name+": "+orElse(etcd.Message, "not healthy"))
		case p.link == nil:
			running = append(running, p.node.Name+": its connection has just ended")
		default:
			able = append(able, p)
		}
	}
	switch {
	case !answers:
		return unseen("no control plane answers")
	case len(able) == 0 && len(running) == 0:
		return unseen("no etcd runs on the control planes that answer")
	case len(able) == 0:
		return unseen("no etcd can be asked (" + strings.Join(running, "; ") + ")")
	}
	// One that is removed may be joining, which no machine shows that is a member already.
	if last.known && last.turn == turn && time.Since(last.at) < last.goodFor() && len(d.StillRemoved()) == 0 && isSettled(planes, last.members) {
		return cluster.Saw(slices.Clone(last.members)), last.agree, slices.Clone(last.asked)
	}
	asking, cancel := context.WithTimeout(ctx, allWithin)
	defer cancel()
	list, found, err := askMembers(asking, able)
	f.mu.Lock()
	f.members = ballot{known: err == nil, at: time.Now(), turn: turn, members: list, agreement: found}
	f.mu.Unlock()
	if err != nil {
		return unseen(formatError(err))
	}
	return cluster.Saw(slices.Clone(list)), found.agree, slices.Clone(found.asked)
}

// Forget implements reconcile.Forgetter: the members of etcd are asked for again,
// also while a look is under way.
func (f *Fleet) Forget(string) {
	f.mu.Lock()
	defer f.mu.Unlock()
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
func askMembers(ctx context.Context, able []plane) ([]cluster.Member, agreement, error) {
	var errs []error
	for i, p := range able {
		members, err := p.link.members(ctx)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("ask %s for the members of etcd: %w", p.node.Name, err))
			continue
		case !isMember(members, p.node):
			errs = append(errs, fmt.Errorf("ask %s for the members of etcd: it is not one of those it names", p.node.Name))
			continue
		}
		for _, other := range able {
			if !isMember(members, other.node) && !other.removed {
				return nil, agreement{}, fmt.Errorf("there are two etcds: that of %s does not have %s as a member, whose own is healthy", p.node.Name, other.node.Name)
			}
		}
		if len(errs) > 0 { // of those before it
			return members, agreement{agree: cluster.Unseen[bool](formatError(errs[0])), asked: []string{p.node.Name}}, nil
		}
		others := slices.DeleteFunc(slices.Clone(able[i+1:]), func(p plane) bool { return !isMember(members, p.node) })
		return members, compareMembers(ctx, p.node.Name, members, others), nil
	}
	return nil, agreement{}, errors.Join(errs...)
}

// compareMembers asks the others, side by side, whether they name the same members as the first. It
// is not known of all while a member among them is not asked, or does not answer.
func compareMembers(ctx context.Context, first string, members []cluster.Member, others []plane) agreement {
	lists, errs := make([][]cluster.Member, len(others)), make([]error, len(others))
	var all sync.WaitGroup
	for i, p := range others {
		all.Go(func() { lists[i], errs[i] = p.link.members(ctx) })
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

// members asks the machine for the members of its own etcd.
func (l *link) members(ctx context.Context) ([]cluster.Member, error) {
	ctx, cancel := context.WithTimeout(ctx, membersWithin)
	defer cancel()
	resp, err := l.machine.EtcdMemberList(ctx, &machineapi.EtcdMemberListRequest{QueryLocal: true})
	if err != nil {
		return nil, err
	}
	var out []cluster.Member
	for _, msg := range resp.GetMessages() {
		for _, m := range msg.GetMembers() {
			out = append(out, cluster.Member{ID: m.GetId(), Name: sanitize(m.GetHostname()), Address: peerAddress(m.GetPeerUrls()), Learner: m.GetIsLearner()})
		}
	}
	return out, nil
}

// peerAddress is the address in a member's peer URLs, "" when there is none.
func peerAddress(urls []string) string {
	for _, s := range urls {
		u, err := url.Parse(s)
		if err != nil {
			continue
		}
		if a, err := netip.ParseAddr(u.Hostname()); err == nil {
			return a.String()
		}
	}
	return ""
}

// memberOf finds a node among the members.
func memberOf(members []cluster.Member, n cluster.Node) (cluster.Member, bool) {
	i := slices.IndexFunc(members, func(m cluster.Member) bool { return m.Name == n.Name || m.Address == n.IP.String() })
	if i < 0 {
		return cluster.Member{}, false
	}
	return members[i], true
}

func isMember(members []cluster.Member, n cluster.Node) bool {
	_, ok := memberOf(members, n)
	return ok
}

// isSettled reports whether every control plane of the inventory has a vote, and
// nobody else: a member that is no control plane is removed by hand, which no
// machine shows.
func isSettled(planes []plane, members []cluster.Member) bool {
	return len(members) == len(planes) && !slices.ContainsFunc(planes, func(p plane) bool {
		m, ok := memberOf(members, p.node)
		return !ok || m.Learner
	})
}

// Rendered returns the bootstrap manifests that the control planes render, as a list of objects in JSON. It is
// unknown while one of them does not answer, and where they do not render the same.
func (f *Fleet) Rendered(ctx context.Context, d cluster.Desired) cluster.Seen[cluster.Secret] {
	planes, _, _ := f.planes(d, "")
	planes = slices.DeleteFunc(planes, func(p plane) bool { return p.removed })
	found, errs := make([][]byte, len(planes)), make([]error, len(planes))
	ctx, cancel := context.WithTimeout(ctx, allWithin)
	defer cancel()
	var all sync.WaitGroup
	for i, p := range planes {
		if p.link == nil {
			errs[i] = errors.New("its machine is not reached")
			continue
		}
		all.Go(func() { found[i], errs[i] = rendered.Read(ctx, p.link.cosi) })
	}
	all.Wait()
	for i, p := range planes {
		switch {
		case errs[i] != nil:
			return cluster.Unseen[cluster.Secret](p.node.Name + ": " + formatError(errs[i]))
		case !bytes.Equal(found[i], found[0]):
			return cluster.Unseen[cluster.Secret](fmt.Sprintf("%s and %s do not render the same", planes[0].node.Name, p.node.Name))
		}
	}
	if len(planes) == 0 || len(planes) < len(d.Spec.ControlPlanes()) {
		return cluster.Unseen[cluster.Secret]("not all control planes are watched yet")
	}
	return cluster.Saw(cluster.NewSecret(found[0]))
}
