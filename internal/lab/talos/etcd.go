package talos

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/lab/talos/etcddb"
	"github.com/talos-agent/talos-agent/internal/lab/talos/services"
	"github.com/talos-agent/talos-agent/internal/lab/talos/system"
)

// etcd is one etcd: one set of data with its members. Two with the same
// authority are a split brain.
type etcd struct {
	id      string // as reported to Kubernetes
	ca      string // fingerprint of the etcd CA
	founder string // node
	members []*member
	leader  *member
	term    uint64
	index   uint64
	began   uint64    // the revision it began with, each later one is an entry of its log
	lost    time.Time // since when it has no quorum; zero: it has one
	version string    // of a minor: 3.6.0
	lastIn  string    // the node that joined last, whose learning the next one waits for
	alarms  []etcddb.Alarm
	removed []*member // that are still in the part of the database that an etcd of 3.6 reads
}

// member is one member of an etcd. It is what lies in a node's etcd data
// directory.
type member struct {
	of      *etcd
	id      uint64
	name    string
	address netip.Addr
	unnamed bool // has not published its name yet
	learner bool
	learned bool      // has caught up and waits to be made a voter
	joining *boot     // the run that joined, which alone asks for its vote
	asks    time.Time // until when it does
	started bool      // has become healthy since it runs
	on      *boot
	upSince time.Time // since when the others are connected with it; zero: they are not
}

const (
	etcdRuns = "Started task etcd (PID 300) for container etcd"

	etcdEnds  = 1500 * time.Millisecond // until the process of a removed member ends
	etcdPause = 5100 * time.Millisecond // until Talos starts it again

	// How long at most it takes until a learner answers, and until its first health check
	// fails, however long it learns.
	learnerAnswers = 7100 * time.Millisecond
	learnerFails   = 7500 * time.Millisecond

	// How long a member must have been connected to count in etcd's guard of changes, and when
	// Talos asks again to be added.
	// Source: etcd v3.6.12, etcdserver.HealthInterval; talos v1.13.9, services.buildInitialCluster.
	healthInterval = 5 * time.Second
	joinPause      = 3 * time.Second
	joinPatience   = 30 * time.Minute // until Talos asks no more
	votePatience   = 10 * time.Minute // and how long it asks for the vote of a member that joined

	voterPause    = 100 * time.Millisecond // Talos watches, the lab looks
	leavePause    = 10 * time.Second
	leavePatience = 5 * time.Minute
)

// isUp reports whether the member runs and others can reach it.
func (m *member) isUp() bool { return m.on != nil && !m.on.m.dark }

// isHealthy reports whether a client of this member can read and write.
func (m *member) isHealthy() bool { return m.isUp() && m.started && !m.learner && m.of.hasQuorum() }

// asksForVote reports whether Talos asks for a vote for the member: in the run that added it,
// whose data directory was empty, and for a time. A later run has the data, starts it as it is, and
// the member stays a learner until somebody removes it or empties its data directory.
// Source: talos v1.13.9, services.Etcd: learnerMemberID (PreFunc, argsForControlPlane, Runner) and
// promoteMember.
func (m *member) asksForVote() bool { return m.on == m.joining && time.Now().Before(m.asks) }

func (e *etcd) voters() []*member {
	return slices.DeleteFunc(slices.Clone(e.members), func(m *member) bool { return m.learner })
}

// countUp counts the voters that run and can be reached.
func (e *etcd) countUp() int {
	return len(slices.DeleteFunc(e.voters(), func(m *member) bool { return !m.isUp() }))
}

// hasQuorum reports whether a majority of the voters runs.
func (e *etcd) hasQuorum() bool { return e.countUp() > len(e.voters())/2 }

// canServe reports whether anybody who asks this etcd gets an answer.
func (e *etcd) canServe() bool {
	return slices.ContainsFunc(e.members, (*member).isHealthy)
}

func (e *etcd) findLearner() *member {
	i := slices.IndexFunc(e.members, func(m *member) bool { return m.learner })
	if i < 0 {
		return nil
	}
	return e.members[i]
}

// electLeader keeps the leader while it can lead, else lets another voter lead, one that ran
// before rather than one that comes back.
func (e *etcd) electLeader() {
	if !e.hasQuorum() {
		if e.lost.IsZero() {
			e.lost = time.Now()
		}
		return
	}
	same := e.lost.IsZero() || e.leader != nil && e.leader.started
	e.lost = time.Time{}
	if same && e.leader != nil && e.leader.isUp() && !e.leader.learner && slices.Contains(e.members, e.leader) {
		return
	}
	up := slices.DeleteFunc(e.voters(), func(m *member) bool { return !m.isUp() })
	e.setLeader(up[max(slices.IndexFunc(up, func(m *member) bool { return m.started }), 0)])
}

func (e *etcd) setLeader(m *member) {
	e.leader = m
	e.term++
	e.index += 2
}

// foundEtcd makes a new etcd on this machine: what Bootstrap does. Nobody checks
// whether there is another; that is the danger of it.
func (b *boot) foundEtcd() {
	m := b.makeEtcd(system.MemberID(b.address.Addr(), time.Time{}), 10, 1)
	b.renewEtcd()
	b.runAfter(b.f.step/4, func() { b.runEtcd(m, b.f.world.Latency.Etcd-b.f.step/4) })
}

// runEtcd starts the etcd process on data that is there. It answers a moment
// later and is healthy when d has passed.
func (b *boot) runEtcd(m *member, d time.Duration) {
	if b.stopping {
		return
	}
	s := b.findService("etcd")
	if s.State != "Preparing" {
		s.MoveTo("Preparing", "Running pre state")
	}
	s.MoveTo("Preparing", services.NewRunner)
	s.RunProcess(etcdRuns)
	if m.learner {
		b.runLearner(m, d)
		return
	}
	b.runAfter(b.f.step, func() {
		b.startAnswering(m)
		b.runAfter(d-b.f.step, func() { m.started = m.on == b })
	})
}

// startAnswering lets a member answer and be counted, if it still is one.
func (b *boot) startAnswering(m *member) {
	e, server := m.of, b.etcdServer()
	if !slices.Contains(e.members, m) {
		return
	}
	m.on, m.unnamed = b, false
	if etcddb.ShowsRemoved(server) {
		for _, back := range e.removed {
			b.f.world.Report(b.hostname(), "etcd %s has %s, which was removed, for a member again", server, back.name)
		}
		e.members, e.removed = append(e.members, e.removed...), nil
	} else if etcddb.DropsRemoved(server) {
		e.removed = nil
	}
}

// etcdServer is the version of etcd that the machine runs.
func (b *boot) etcdServer() string {
	return cmp.Or(etcddb.PinnedIn(b.set.etcdImage), etcddb.ServerOf(b.image.Version))
}

// runLearner simulates a joining member: it catches up, fails its health checks as
// learners do, and is made a voter when it has caught up and the others can
// decide so.
func (b *boot) runLearner(m *member, d time.Duration) {
	answers, fails := min(d*3/10, learnerAnswers), min(d/3, learnerFails)
	b.runAfter(answers, func() {
		b.startAnswering(m)
		b.runAfter(fails-answers, func() {
			if m.on == b {
				b.findService("etcd").FailHealth("etcdserver: rpc not supported for learner")
			}
			b.runAfter(d-fails, func() { m.learned = m.on == b })
		})
	})
}

// stopEtcd takes the etcd process away.
func (b *boot) stopEtcd() {
	if d := b.m.disk(); d != nil && d.member != nil && d.member.on == b {
		d.member.on, d.member.started, d.member.learned = nil, false, false
	}
}

// joinEtcd makes the machine a learner of an etcd that serves, unless that refuses. A member of the
// same name is removed first: a node with an empty data directory can only be
// that node re-created (as in the source of v1.13.9).
func (b *boot) joinEtcd(e *etcd) error {
	f := b.f
	interval := f.world.Scale(healthInterval)
	if i := slices.IndexFunc(e.members, func(m *member) bool { return m.name == b.hostname() && !m.unnamed }); i >= 0 {
		if err := e.refuseRemoval(e.members[i], interval); err != nil {
			return err
		}
		e.removeMember(e.members[i])
	}
	if err := e.refuseAdding(b.address.Addr(), interval); err != nil {
		return err
	}
	m := &member{of: e, id: system.MemberID(b.address.Addr(), time.Now()), name: b.hostname(), address: b.address.Addr(), unnamed: true, learner: true,
		joining: b, asks: time.Now().Add(f.world.Scale(votePatience))}
	e.members = append(e.members, m)
	slices.SortFunc(e.members, func(a, b *member) int { return cmp.Compare(a.id, b.id) })
	e.index += 2
	b.m.disk().member = m
	after := []string{"node/" + b.hostname(), "etcd/" + e.founder}
	if e.lastIn != "" {
		after = append(after, "learn/"+e.lastIn) // one learner at a time
	}
	e.lastIn = b.hostname()
	f.world.Spend("learn", b.hostname(), f.world.Latency.Learn, after...)
	f.world.Report(b.hostname(), "joins %s as a learner", e.id)
	b.runAfter(f.step/2, func() { m.unnamed = false })
	b.runEtcd(m, f.world.Latency.Learn)
	return nil
}

// seekAgain has the machine look for an etcd to join once more, if it is to.
func (b *boot) seekAgain() {
	b.joinable = b.m.disk().hasNoEtcd() && b.findService("etcd").State == "Preparing"
}

// limitJoin ends the service of an etcd that has found nothing to join for too long: what comes
// later it does not notice, until the next boot or a Bootstrap.
// Source: talos v1.13.9, constants.EtcdJoinTimeout, services.buildInitialCluster.
func (b *boot) limitJoin(s *services.Service) {
	b.runAfter(joinPatience, func() {
		if b.m.disk().member == nil && s.State == "Preparing" && b.services["etcd"] == s {
			b.joinable = false
			s.MoveTo("Failed", "Failed to run pre stage: failed to build initial etcd cluster: failed to build cluster arguments: 1 error(s) occurred:\n\ttimeout")
		}
	})
}

// countActive counts the voters that etcd's guard of changes believes in: they have been up for
// a while. Who is asked counts itself.
func (e *etcd) countActive(interval time.Duration) (n int) {
	var asked *member
	for _, m := range e.voters() {
		if m.isUp() && (asked == nil || m.upSince.Before(asked.upSince)) {
			asked = m
		}
	}
	for _, m := range e.voters() {
		if m == asked || m.isUp() && time.Since(m.upSince) > interval {
			n++
		}
	}
	return n
}

// refuseRemoval is etcd's own guard: a member that runs stays while the others that run
// would be no majority without it, and so does the last one; a dead one may go. (Talos
// 1.13.9 with etcd 3.6.12: recorded.)
func (e *etcd) refuseRemoval(m *member, interval time.Duration) error {
	switch left := len(e.voters()) - 1; {
	case m.learner:
	case left == 0:
		return errTooFew
	case m.isUp() && e.countActive(interval)-1 < left/2+1:
		return errUnhealthy
	}
	return nil
}

// refuseAdding is its guard of those who join: one learner at a time, an address once, and
// the voters that are active would be a majority with one more.
// Source: etcd v3.6.12, etcdserver.mayAddMember, isConnectedToQuorumAfterAddingNewMemberSince.
func (e *etcd) refuseAdding(address netip.Addr, interval time.Duration) error {
	voters := len(e.voters())
	switch {
	case voters > 1 && e.countActive(interval) < (voters+1)/2+1:
		return errUnhealthy
	case slices.ContainsFunc(e.members, func(m *member) bool { return m.address == address }):
		return errAddressTaken
	case e.findLearner() != nil:
		return errLearner
	}
	return nil
}

var (
	errTooFew    = errors.New("etcdserver: re-configuration failed due to not enough started members")
	errUnhealthy = errors.New("etcdserver: unhealthy cluster")

	errAddressTaken = errors.New("etcdserver: Peer URLs already exists")
	errLearner      = errors.New("etcdserver: too many learner members in cluster")
)

// removeMember takes a member out of the list. Its process, if it runs, ends: an
// etcd that was removed never comes back with its data.
func (e *etcd) removeMember(m *member) {
	e.members = slices.DeleteFunc(e.members, func(o *member) bool { return o == m })
	e.index++
	if slices.ContainsFunc(e.members, func(o *member) bool { return o.on != nil && etcddb.LeavesRemoved(o.on.etcdServer()) }) {
		e.removed = append(e.removed, m)
	}
	if b := m.on; b != nil {
		m.on, m.started, m.learned = nil, false, false
		b.runAfter(etcdEnds, b.restartEtcd)
	}
}

// restartEtcd is what Talos does with an etcd that ends because its member was removed: it
// starts it again, for ever (recorded).
func (b *boot) restartEtcd() {
	if b.stopping {
		return
	}
	s := b.findService("etcd")
	s.MoveTo("Waiting", "Runner Containerd(etcd) exited without error, going to restart it")
	b.runAfter(etcdPause, func() {
		if !b.stopping {
			s.Resume(etcdRuns)
			b.runAfter(etcdEnds, b.restartEtcd)
		}
	})
}

// leaveEtcd takes this machine's member out of its etcd, then its data off the disk, and calls
// done: with an error where etcd refuses. A learner becomes a voter first. Where etcd
// refuses because another member is dead it is asked again for five minutes. A member that
// left does not come back by itself (all recorded). It is over when it is not wanted any more.
func (b *boot) leaveEtcd(wanted func() bool, done func(error)) {
	var until time.Time
	var try func()
	try = func() {
		m := b.localMember()
		switch {
		case !wanted():
			return
		case m == nil || !m.started || m.learner:
			b.runAfter(voterPause, try)
			return
		case until.IsZero():
			until = time.Now().Add(b.f.world.Scale(leavePatience))
		}
		err := m.of.refuseRemoval(m, b.f.world.Scale(healthInterval))
		if !m.of.hasQuorum() {
			err = b.missLeader(m.of, 0)
		}
		switch {
		case err == nil:
			b.dropMember(m, done)
		case !errors.Is(err, errUnhealthy):
			done(fmt.Errorf("failed to leave cluster: 1 error(s) occurred:\n\tfailed to remove member %d: %w", m.id, err))
		case time.Now().Before(until):
			b.runAfter(leavePause, try)
		default:
			done(fmt.Errorf("failed to leave cluster: 2 error(s) occurred:\n\tfailed to remove member %d: %w\n\ttimeout", m.id, err))
		}
	}
	try()
}

// dropMember removes this machine's member and stops its process. The data stays until that
// has ended.
func (b *boot) dropMember(m *member, done func(error)) {
	b.stopEtcd()
	m.of.removeMember(m)
	b.joinable = false
	b.f.world.Report(b.hostname(), "leaves %s", m.of.id)
	s := b.findService("etcd")
	s.MoveTo("Stopping", s.Goodbye())
	b.runAfter(b.f.stop, func() {
		b.m.disk().member = nil
		s.MoveTo("Finished", "Service finished successfully")
		done(nil)
	})
}

// settleEtcd lets elections, joins and promotions happen, and checks the rules.
func (f *Fleet) settleEtcd(machines []*machine) {
	for _, e := range f.etcds {
		for _, m := range e.members {
			switch {
			case !m.isUp():
				m.upSince = time.Time{}
			case m.upSince.IsZero():
				m.upSince = time.Now()
			}
		}
		if l := e.findLearner(); l != nil && l.learned && l.isUp() && l.asksForVote() && e.canServe() {
			l.learner, l.learned = false, false
			e.index++
			// Its next health check is the first to pass.
			on := l.on
			on.runAfter(f.step*5/2, func() { l.started = l.on == on })
			f.world.Report(l.name, "is a voter of %s", e.id)
		}
		e.electLeader()
	}
	for _, m := range machines {
		b := m.boot
		if b == nil || b.set == nil || b.set.etcdCA == "" || !b.joinable || b.stopping || m.dark || m.disk().member != nil {
			continue
		}
		if b.seeksPlanes() {
			// It looks again once it has found them.
			b.joinable = false
			b.runAfter(discovery+f.step*3/2, b.seekAgain)
			continue
		}
		for _, e := range f.etcds {
			if e.ca != b.set.etcdCA || !e.canServe() || !b.findsEtcd(e) {
				continue
			}
			switch err := b.joinEtcd(e); {
			case err == nil:
				e.electLeader()
			case errors.Is(err, errUnhealthy):
				// It asks again. What else refuses it ends with a change.
				b.joinable = false
				b.runAfter(joinPause, b.seekAgain)
			}
			break
		}
	}
	f.checkSplit(machines)
}

// checkSplit reports two etcds of one authority as soon as both have a member
// whose data lies on a machine that is switched on. (Data on a disk nobody
// runs may not exist any more: a deleted disk is simply forgotten.)
func (f *Fleet) checkSplit(machines []*machine) {
	alive := map[string][]string{} // CA -> etcds
	for _, m := range machines {
		d := m.disk()
		if d == nil || d.member == nil || !slices.Contains(d.member.of.members, d.member) {
			continue
		}
		if e := d.member.of; !slices.Contains(alive[e.ca], e.id) {
			alive[e.ca] = append(alive[e.ca], e.id)
		}
	}
	for _, ca := range slices.Sorted(maps.Keys(alive)) {
		ids := alive[ca]
		if len(ids) < 2 {
			continue
		}
		slices.Sort(ids)
		key := strings.Join(ids, " and ")
		if !f.split[key] {
			f.split[key] = true
			f.world.Violate("bootstrap", "%s exist with one etcd authority: the cluster was bootstrapped twice", key)
		}
	}
}
