package etcddb

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// Machine is the control plane that is called.
type Machine interface {
	// ReadEtcd returns the etcd of the machine as its own member has it, for a call of that name. It
	// waits until one runs, and needs no quorum.
	ReadEtcd(ctx context.Context, call string) (State, error)
	// ReachAlarms calls do with the alarms of the machine's etcd, which it may change, for a call of that
	// name. It waits for a quorum (recorded).
	ReachAlarms(ctx context.Context, call string, do func(*[]Alarm)) error
	// KeepSnapshot keeps an uploaded file in the place of the one before; nil: none. It refuses to
	// where no etcd can be.
	KeepSnapshot(file []byte) error
}

// State is an etcd as one of its members has it.
type State struct {
	Contents
	Server string // the version of etcd that it runs: 3.6.12
	Self   uint64 // the member
	Leader uint64 // 0: none that it knows
	Alarms []Alarm
}

// Alarm is something that etcd holds against one of its members, until it is disarmed.
type Alarm struct {
	Member uint64
	Kind   machineapi.EtcdMemberAlarm_AlarmType
}

// toAPI writes alarms as Talos answers with them.
func toAPI(alarms []Alarm) (out []*machineapi.EtcdMemberAlarm) {
	for _, a := range alarms {
		out = append(out, &machineapi.EtcdMemberAlarm{MemberId: a.Member, Alarm: a.Kind})
	}
	return out
}

// EtcdService is the part of machine.MachineService that is about the database of etcd.
type EtcdService struct {
	Machine Machine

	mu    sync.Mutex
	sized struct { // what was last written as a file for its size
		revision uint64
		members  int
		size     int64
	}
}

// sizeOf is how large the database is. It is written again only where there is something else in it: machines are asked far
// more often than they change.
func (s *EtcdService) sizeOf(c Contents) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sized.size == 0 || s.sized.revision != c.Registry.Revision || s.sized.members != len(c.Members) {
		file, err := Encode(c)
		if err != nil {
			return 0, err
		}
		s.sized.revision, s.sized.members, s.sized.size = c.Registry.Revision, len(c.Members), int64(len(file))
	}
	return s.sized.size, nil
}

// EtcdStatus is the machine's own etcd.
func (s *EtcdService) EtcdStatus(ctx context.Context, _ *emptypb.Empty) (*machineapi.EtcdStatusResponse, error) {
	e, err := s.Machine.ReadEtcd(ctx, "etcd status")
	if err != nil {
		return nil, err
	}
	size, err := s.sizeOf(e.Contents)
	if err != nil {
		return nil, err
	}
	st := &machineapi.EtcdMemberStatus{
		StorageVersion: storageOf(e.Version), ProtocolVersion: e.Server, MemberId: e.Self, Leader: e.Leader,
		IsLearner: slices.ContainsFunc(e.Members, func(m Member) bool { return m.ID == e.Self && m.Learner }),
		DbSize:    size, DbSizeInUse: size, RaftIndex: e.Index, RaftAppliedIndex: e.Index, RaftTerm: e.Term,
	}
	if e.Leader == 0 {
		st.Errors = []string{"etcdserver: no leader"}
	}
	for _, a := range e.Alarms { // as protobuf's text form is, with a space at its end
		st.Errors = append(st.Errors, fmt.Sprintf("memberID:%d alarm:%s ", a.Member, a.Kind))
	}
	return &machineapi.EtcdStatusResponse{Messages: []*machineapi.EtcdStatus{{MemberStatus: st}}}, nil
}

// EtcdAlarmList lists the alarms of all members.
func (s *EtcdService) EtcdAlarmList(ctx context.Context, _ *emptypb.Empty) (*machineapi.EtcdAlarmListResponse, error) {
	answer := &machineapi.EtcdAlarm{}
	if err := s.Machine.ReachAlarms(ctx, "etcd alarm list", func(alarms *[]Alarm) { answer.MemberAlarms = toAPI(*alarms) }); err != nil {
		return nil, err
	}
	return &machineapi.EtcdAlarmListResponse{Messages: []*machineapi.EtcdAlarm{answer}}, nil
}

// EtcdAlarmDisarm takes back the alarms of all members, and lists them.
func (s *EtcdService) EtcdAlarmDisarm(ctx context.Context, _ *emptypb.Empty) (*machineapi.EtcdAlarmDisarmResponse, error) {
	answer := &machineapi.EtcdAlarmDisarm{}
	if err := s.Machine.ReachAlarms(ctx, "etcd alarm disarm", func(alarms *[]Alarm) { answer.MemberAlarms, *alarms = toAPI(*alarms), nil }); err != nil {
		return nil, err
	}
	return &machineapi.EtcdAlarmDisarmResponse{Messages: []*machineapi.EtcdAlarmDisarm{answer}}, nil
}

// EtcdDefragment needs no quorum, and leaves as much as there was.
func (s *EtcdService) EtcdDefragment(ctx context.Context, _ *emptypb.Empty) (*machineapi.EtcdDefragmentResponse, error) {
	if _, err := s.Machine.ReadEtcd(ctx, "etcd defragment"); err != nil {
		return nil, err
	}
	return &machineapi.EtcdDefragmentResponse{Messages: []*machineapi.EtcdDefragment{{}}}, nil
}

// EtcdSnapshot sends the database and its hash. Faults of the world strike what is sent.
func (s *EtcdService) EtcdSnapshot(_ *machineapi.EtcdSnapshotRequest, out grpc.ServerStreamingServer[common.Data]) error {
	e, err := s.Machine.ReadEtcd(out.Context(), "etcd snapshot")
	if err != nil {
		return err
	}
	file, err := Encode(e.Contents)
	if err != nil {
		return err
	}
	return Send(Seal(file), world.VerdictOf(out.Context()).Fault, func(part []byte) error { return out.Send(&common.Data{Bytes: part}) })
}

// EtcdRecover takes a file, whatever it is. One that did not come as a whole is dropped.
// Source: talos v1.13.9, v1alpha1_server.go.
func (s *EtcdService) EtcdRecover(in grpc.ClientStreamingServer[common.Data, machineapi.EtcdRecoverResponse]) error {
	if err := s.Machine.KeepSnapshot(nil); err != nil {
		return err
	}
	file := []byte{}
	for {
		part, err := in.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		file = append(file, part.GetBytes()...)
	}
	if err := s.Machine.KeepSnapshot(file); err != nil {
		return err
	}
	return in.SendAndClose(&machineapi.EtcdRecoverResponse{Messages: []*machineapi.EtcdRecover{{}}})
}
