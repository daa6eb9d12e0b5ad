package talos

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/talos-agent/talos-agent/internal/lab/talos/etcddb"
	"github.com/talos-agent/talos-agent/internal/lab/talos/services"
	"github.com/talos-agent/talos-agent/internal/lab/talos/system"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// The etcd calls of Talos. Asked before there is an etcd to answer, they hang
// until the caller's deadline (recorded): that is why callers must bring one.

// errHang means that a call gets no answer as things are.
var errHang = errors.New("no answer")

// awaitChange carries out a call as soon as that is possible, or until the caller
// gives up.
func (b *boot) awaitChange(ctx context.Context, do func() error) error {
	for {
		var moved <-chan struct{}
		err := b.alterFleet(func() error {
			moved = b.f.moved
			return do()
		})
		if !errors.Is(err, errHang) {
			return err
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

// What etcd answers without a quorum comes late, and latest in the first seconds, in which its
// status still shows the leader that is dead (recorded).
const (
	leaderLag  = 3 * time.Second
	earlyDelay = 11 * time.Second
	listDelay  = time.Second
	localDelay = 3400 * time.Millisecond // of a list that is read from this member alone
)

// noLeader is that answer. etcd's client library makes an error of it that carries no gRPC
// status, so that it arrives as Unknown.
type noLeader struct{ after time.Duration }

func (noLeader) Error() string { return "etcdserver: no leader" }

// missLeader is the answer of an etcd without a quorum that usually comes after a while.
func (b *boot) missLeader(e *etcd, usual time.Duration) error {
	if b.showsLeader(e) {
		usual = earlyDelay
	}
	return noLeader{usual}
}

// showsLeader reports whether the status of a member shows a leader, dead or alive.
func (b *boot) showsLeader(e *etcd) bool {
	return e.leader != nil && (e.hasQuorum() || time.Since(e.lost) < b.f.world.Scale(leaderLag))
}

// onControlPlane refuses what only control planes have.
func (b *boot) onControlPlane(what string) error {
	if b.set == nil || !b.set.control {
		return status.Errorf(codes.Unimplemented, "%s is only available on control plane nodes", what)
	}
	return nil
}

// askEtcd carries out a call that needs an etcd: it hangs where there is none, and
// fails late where there is no quorum and none comes.
func (b *boot) askEtcd(ctx context.Context, what string, do func() error) error {
	var giveUp <-chan time.Time
	for {
		var moved <-chan struct{}
		var refusal error
		late := noLeader{}
		err := b.alterFleet(func() error {
			moved = b.f.moved
			if err := b.onControlPlane(what); err != nil {
				return err
			}
			err := do()
			if errors.As(err, &late) {
				refusal = err
				return errHang
			}
			return err
		})
		if !errors.Is(err, errHang) {
			return err
		}
		if refusal != nil && giveUp == nil {
			timer := time.NewTimer(b.f.world.Scale(late.after))
			defer timer.Stop()
			giveUp = timer.C
		}
		select {
		case <-moved:
		case <-giveUp:
			return refusal
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

// localMember is the member on this machine.
func (b *boot) localMember() *member {
	if m := b.m.disk().member; m != nil && m.on == b {
		return m
	}
	return nil
}

// Bootstrap founds an etcd on this machine, or makes one of a snapshot, if it has none. Whether
// another machine has one is not looked at, as in life.
func (s *machineService) Bootstrap(ctx context.Context, in *machineapi.BootstrapRequest) (*machineapi.BootstrapResponse, error) {
	b := s.b
	// The time is waited for, but not for ever.
	patience, cancel := context.WithTimeout(ctx, b.f.world.Scale(5*time.Second))
	defer cancel()
	err := b.awaitChange(patience, func() error {
		d := b.m.disk()
		switch {
		case b.set == nil || !b.criUp || b.set.homeless:
			return status.Error(codes.FailedPrecondition, "bootstrap is not available yet")
		case !b.set.control && b.minor() < 13:
			return status.Error(codes.FailedPrecondition, "bootstrap can only be performed on a control plane node")
		case !b.set.control:
			return status.Error(codes.Unimplemented, "bootstrap is only available on control plane nodes")
		case b.set.etcdCA == "" && b.minor() >= 14:
			return status.Error(codes.InvalidArgument, "etcd is not configured, bootstrap is not possible")
		case b.m.timeless:
			return errHang
		case !d.hasNoEtcd():
			return status.Error(codes.AlreadyExists, "etcd data directory is not empty")
		case in.GetRecoverEtcd():
			b.recoverEtcd(in.GetRecoverSkipHashCheck())
			return nil
		}
		b.foundEtcd()
		return nil
	})
	if status.Code(err) == codes.DeadlineExceeded && ctx.Err() == nil {
		err = status.Error(codes.FailedPrecondition, "time is not in sync yet")
	}
	if err != nil {
		return nil, err
	}
	return &machineapi.BootstrapResponse{Messages: []*machineapi.Bootstrap{{}}}, nil
}

// makeEtcd makes an etcd with one member, whose data this machine has.
func (b *boot) makeEtcd(id, index, revision uint64) *member {
	f := b.f
	e := &etcd{id: fmt.Sprintf("etcd-%d", len(f.etcds)+1), ca: b.set.etcdCA, founder: b.hostname(), term: 1, index: index, began: revision}
	m := &member{of: e, id: id, name: b.hostname(), address: b.address.Addr()}
	e.members = []*member{m}
	f.etcds = append(f.etcds, e)
	b.m.disk().member = m
	f.world.Spend("etcd", b.hostname(), f.world.Latency.Etcd, "apply/"+b.m.subject())
	f.world.Report(b.hostname(), "founds %s", e.id)
	return m
}

// renewEtcd begins the service again as another one: its history ends with the wait it was in.
func (b *boot) renewEtcd() *services.Service {
	b.founded, b.joinable = true, false
	delete(b.services, "etcd")
	s := b.findService("etcd")
	s.MoveTo("Starting", "Starting service")
	s.MoveTo("Waiting", system.EtcdWaits)
	return s
}

// recoverEtcd makes an etcd of the snapshot that was uploaded: what a Bootstrap does that asks for it.
// It has been answered when the file is read. A file that is too short kills the first process of the
// machine, which is down then until it is power cycled (all recorded).
func (b *boot) recoverEtcd(skipHash bool) {
	s := b.renewEtcd()
	b.runAfter(b.f.step/4, func() {
		if b.stopping || b.services["etcd"] != s {
			return // it goes down, or was asked once more
		}
		s.MoveTo("Preparing", "Running pre state")
		d := b.m.disk()
		c, err := etcddb.Recover(d.upload, skipHash)
		switch {
		case errors.Is(err, etcddb.ErrTruncated):
			b.f.world.Report(b.hostname(), "dies of the snapshot: %v", err)
			b.m.haltNow()
			return
		case err != nil:
			d.debris = etcddb.LeavesData(err)
			s.MoveTo("Failed", "Failed to run pre stage: "+err.Error())
			return
		}
		d.upload = nil
		m := b.makeEtcd(system.RecoveredID(b.address.Addr()), 4, c.Registry.Revision)
		if k, ok := b.f.kubernetes.(world.Storage); ok {
			ca := b.set.kubeCA
			b.f.queueEffect(func() { k.FillRegistry(ca, m.of.id, c.Registry) })
		}
		b.runEtcd(m, b.f.world.Latency.Etcd)
	})
}

// EtcdMemberList is answered by the cluster, also on a machine that has not
// joined it yet; with QueryLocal by the machine's own etcd.
func (s *machineService) EtcdMemberList(ctx context.Context, in *machineapi.EtcdMemberListRequest) (*machineapi.EtcdMemberListResponse, error) {
	list := &machineapi.EtcdMembers{}
	err := s.b.askEtcd(ctx, "member list", func() error {
		e, err := s.b.etcdToList(in.GetQueryLocal())
		if err != nil {
			return err
		}
		for _, m := range e.members {
			d := m.describe()
			list.LegacyMembers = append(list.LegacyMembers, d.Name)
			list.Members = append(list.Members, &machineapi.EtcdMember{Id: d.ID, Hostname: d.Name, PeerUrls: d.PeerURLs, ClientUrls: d.ClientURLs, IsLearner: d.Learner})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &machineapi.EtcdMemberListResponse{Messages: []*machineapi.EtcdMembers{list}}, nil
}

// describe is the member as etcd lists it.
func (m *member) describe() etcddb.Member {
	d := etcddb.Member{ID: m.id, Learner: m.learner, PeerURLs: []string{system.PeerURL(m.address)}}
	if !m.unnamed {
		d.Name, d.ClientURLs = m.name, []string{system.ClientURL(m.address)}
	}
	return d
}

// ReadEtcd implements etcddb.Machine. Kubernetes is asked for what it stores without the lock of the
// fleet, which it may be waiting for.
func (i inside) ReadEtcd(ctx context.Context, call string) (now etcddb.State, err error) {
	b, ca, id, began := i.b, "", "", uint64(1)
	if err := b.askEtcd(ctx, call, func() error {
		m := b.localMember()
		if m == nil {
			return errHang
		}
		e := m.of
		ca, id, began = b.set.kubeCA, e.id, e.began
		now = etcddb.State{Alarms: slices.Clone(e.alarms), Server: b.etcdServer(), Self: m.id, Contents: etcddb.Contents{Registry: world.Registry{Revision: began}, Index: e.index, Term: e.term}}
		if b.showsLeader(e) {
			now.Leader = e.leader.id
		}
		var servers []string
		for _, o := range e.members {
			now.Members, servers = append(now.Members, o.describe()), append(servers, "")
			if o.on != nil {
				servers[len(servers)-1] = o.on.etcdServer()
			}
		}
		e.version = etcddb.Raise(e.version, servers)
		now.Version = e.version
		return nil
	}); err != nil {
		return now, err
	}
	if k, ok := b.f.kubernetes.(world.Storage); ok {
		now.Registry = k.ReadRegistry(ca, id)
	}
	now.Index += now.Registry.Revision - began
	return now, nil
}

// KeepSnapshot implements etcddb.Machine.
func (i inside) KeepSnapshot(file []byte) error {
	return i.b.alterFleet(func() error {
		if err := i.b.onControlPlane("etcd recover"); err != nil {
			return err
		}
		i.b.m.disk().upload = file
		return nil
	})
}

// etcdToList is the etcd a member list is about.
func (b *boot) etcdToList(queryLocal bool) (*etcd, error) {
	if !queryLocal {
		return b.reachEtcd()
	}
	m := b.localMember()
	switch {
	case m == nil:
		return nil, errHang
	case m.learner:
		return nil, errors.New("etcdserver: rpc not supported for learner")
	case !m.of.hasQuorum():
		return nil, b.missLeader(m.of, localDelay)
	}
	return m.of, nil
}

// ReachAlarms implements etcddb.Machine.
func (i inside) ReachAlarms(ctx context.Context, call string, do func(*[]etcddb.Alarm)) error {
	return i.b.askEtcd(ctx, call, func() error {
		m := i.b.localMember()
		if m == nil || !m.of.hasQuorum() {
			return errHang
		}
		do(&m.of.alarms)
		return nil
	})
}

// RaiseAlarm has the etcd of a control plane hold something against its member: that its database is full, or has other
// data than the others. It stays until it is disarmed.
func (f *Fleet) RaiseAlarm(vmid int, kind machineapi.EtcdMemberAlarm_AlarmType) error {
	none := fmt.Errorf("no etcd runs on machine %d", vmid)
	err := f.actOn(vmid, func(m *machine) {
		if m.boot == nil { // it is on, and nothing runs on it
			return
		}
		if own := m.boot.localMember(); own != nil {
			none, own.of.alarms = nil, append(own.of.alarms, etcddb.Alarm{Member: own.id, Kind: kind})
		}
	})
	return cmp.Or(err, none)
}

// EtcdRemoveMemberByID removes a member, dead or alive, as far as etcd lets it.
func (s *machineService) EtcdRemoveMemberByID(ctx context.Context, in *machineapi.EtcdRemoveMemberByIDRequest) (*machineapi.EtcdRemoveMemberByIDResponse, error) {
	id := in.GetMemberId()
	err := s.b.askEtcd(ctx, "etcd remove member", func() error {
		e, err := s.b.reachEtcd()
		if late := (noLeader{}); errors.As(err, &late) {
			return fmt.Errorf("failed to remove member: failed to remove member %d: %w", id, err)
		}
		if err != nil {
			return err
		}
		i := slices.IndexFunc(e.members, func(m *member) bool { return m.id == id })
		if i < 0 {
			return status.Errorf(codes.NotFound, "failed to remove member %d: etcdserver: member not found", id)
		}
		if err := e.refuseRemoval(e.members[i], s.b.f.world.Scale(healthInterval)); err != nil {
			return fmt.Errorf("failed to remove member: failed to remove member %d: %w", id, err)
		}
		e.removeMember(e.members[i])
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &machineapi.EtcdRemoveMemberByIDResponse{Messages: []*machineapi.EtcdRemoveMemberByID{{}}}, nil
}

// EtcdLeaveCluster removes this machine's own member and its data, unless the caller gives
// up before.
func (s *machineService) EtcdLeaveCluster(ctx context.Context, _ *machineapi.EtcdLeaveClusterRequest) (*machineapi.EtcdLeaveClusterResponse, error) {
	b, left := s.b, errHang
	err := b.alterFleet(func() error {
		if err := b.onControlPlane("etcd leave"); err != nil {
			return err
		}
		b.leaveEtcd(func() bool { return ctx.Err() == nil }, func(err error) { left = err })
		return nil
	})
	if err == nil {
		err = b.askEtcd(ctx, "etcd leave", func() error { return left })
	}
	if err != nil {
		return nil, err
	}
	return &machineapi.EtcdLeaveClusterResponse{Messages: []*machineapi.EtcdLeaveCluster{{}}}, nil
}

// EtcdForfeitLeadership hands the leadership to another member; on one that
// does not lead nothing happens, which is no error.
func (s *machineService) EtcdForfeitLeadership(ctx context.Context, _ *machineapi.EtcdForfeitLeadershipRequest) (*machineapi.EtcdForfeitLeadershipResponse, error) {
	answer := &machineapi.EtcdForfeitLeadership{}
	err := s.b.askEtcd(ctx, "etcd forfeit leadership", func() error {
		m := s.b.localMember()
		switch {
		case m == nil || m.learner:
			return errHang
		case !m.of.hasQuorum():
			return fmt.Errorf("failed to forfeit leadership: failed to list etcd members: %w", s.b.missLeader(m.of, listDelay))
		case len(m.of.members) == 1:
			return errors.New("failed to forfeit leadership: cannot forfeit leadership, only one member")
		case m.of.leader != m:
			return nil
		}
		// The first other one, whoever that is (recorded).
		other := m.of.members[slices.IndexFunc(m.of.members, func(o *member) bool { return o != m })]
		switch {
		case other.learner:
			return errors.New("failed to forfeit leadership: etcdserver: bad leader transferee")
		case !other.isUp():
			return errHang
		}
		m.of.setLeader(other)
		answer.Member = other.name
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &machineapi.EtcdForfeitLeadershipResponse{Messages: []*machineapi.EtcdForfeitLeadership{answer}}, nil
}
