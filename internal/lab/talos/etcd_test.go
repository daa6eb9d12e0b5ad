package talos_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"pgregory.net/rapid"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// members asks a node for the member list.
func (l *lab) members(n node, local bool) ([]string, error) {
	resp, err := l.admin(n).EtcdMemberList(within(10*time.Second), &machineapi.EtcdMemberListRequest{QueryLocal: local})
	if err != nil {
		return nil, err
	}
	var out []string
	for _, m := range resp.GetMessages()[0].GetMembers() {
		name := m.GetHostname()
		if m.GetIsLearner() {
			name += " (learner)"
		}
		out = append(out, name)
	}
	slices.Sort(out)
	return out, nil
}

func (l *lab) wantMembers(n node, want ...string) {
	l.t.Helper()
	got, err := l.members(n, false)
	if err != nil || !slices.Equal(got, want) {
		l.t.Errorf("members seen from %s: %v, %v, want %v", n.name, got, err, want)
	}
}

// cluster brings up a cluster and waits until it is whole.
func (l *lab) cluster(nodes ...node) {
	l.t.Helper()
	l.bring("v1.13.9", nodes...)
	l.bootstrap(nodes[0])
	time.Sleep(3 * time.Minute)
	for _, n := range nodes {
		if v := l.view(n); !v.Ready {
			l.t.Fatalf("%s does not come up: %+v", n.name, v)
		}
	}
}

func TestBootstrapAnswers(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		ask := func(n node) codes.Code {
			return client.StatusCode(l.admin(n).Bootstrap(within(time.Minute), &machineapi.BootstrapRequest{}))
		}
		l.bring("v1.13.9", cp(1), wk(1))
		if got := ask(wk(1)); got != codes.Unimplemented {
			t.Errorf("on a worker: %v", got)
		}
		if err := l.fleet.Desync(401, true); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		err := l.admin(cp(1)).Bootstrap(within(time.Minute), &machineapi.BootstrapRequest{})
		if client.StatusCode(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "time is not in sync yet") || time.Since(start) < 5*time.Second {
			t.Errorf("without time: %v after %v", err, time.Since(start))
		}
		if st := status(t, l.admin(cp(1))); len(st.Status.UnmetConditions) == 0 || st.Status.UnmetConditions[0].Name != "time" {
			t.Errorf("without time: %+v", st)
		}
		if err := l.fleet.Desync(401, false); err != nil {
			t.Fatal(err)
		}
		if got := ask(cp(1)); got != codes.OK {
			t.Errorf("the bootstrap: %v", got)
		}
		if got := ask(cp(1)); got != codes.AlreadyExists {
			t.Errorf("again: %v", got)
		}
		// Right after the apply it is too early.
		l.fleet.PowerOn(cp(2).guest("v1.13.9"))
		time.Sleep(time.Minute)
		l.apply(cp(2), l.config(cp(2), "v1.13.9"))
		time.Sleep(l.world.Latency.Apply + 10*time.Millisecond)
		if got := ask(cp(2)); got != codes.FailedPrecondition {
			t.Errorf("right after the apply: %v", got)
		}
		time.Sleep(time.Minute)
		if got := ask(cp(2)); got != codes.AlreadyExists {
			t.Errorf("on one that joined: %v", got)
		}
		l.wantViolations()
	})
}

// TestEtcdCallsHang: before there is an etcd nobody answers, and who waits
// long enough is answered when there is one.
func TestEtcdCallsHang(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.bring("v1.13.9", cp(1), cp(2))
		c := l.admin(cp(1))
		ctx := within(2 * time.Second)
		_, list := c.EtcdMemberList(ctx, &machineapi.EtcdMemberListRequest{})
		_, status := c.EtcdStatus(ctx)
		_, alarms := c.MachineClient.EtcdAlarmList(ctx, &emptypb.Empty{})
		_, remove := c.MachineClient.EtcdRemoveMemberByID(ctx, &machineapi.EtcdRemoveMemberByIDRequest{MemberId: 1})
		for what, err := range map[string]error{"list": list, "status": status, "alarms": alarms, "remove": remove} {
			if client.StatusCode(err) != codes.DeadlineExceeded {
				t.Errorf("%s before the bootstrap: %v", what, err)
			}
		}
		answered := make(chan error)
		go func() {
			_, err := c.EtcdMemberList(within(time.Minute), &machineapi.EtcdMemberListRequest{})
			answered <- err
		}()
		synctest.Wait()
		l.bootstrap(cp(1))
		if err := <-answered; err != nil {
			t.Errorf("one who waited: %v", err)
		}
	})
}

// TestSplitBrain: Bootstrap on a control plane that has not joined is accepted
// and makes a second cluster, and the lab reports it.
func TestSplitBrain(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.bring("v1.13.9", cp(1), cp(2))
		l.bootstrap(cp(1))
		l.wantViolations()
		l.bootstrap(cp(2))
		l.wantViolations("bootstrap")
		time.Sleep(time.Minute)
		own, err := l.members(cp(2), true)
		if err != nil || !slices.Equal(own, []string{"cp2"}) {
			t.Errorf("the second one's own members: %v, %v", own, err)
		}
		seen := map[string]bool{}
		for range 4 {
			got, err := l.members(cp(2), false)
			if err != nil {
				t.Fatal(err)
			}
			seen[strings.Join(got, " ")] = true
		}
		if !seen["cp1"] || !seen["cp2"] {
			t.Errorf("the second one answers with %v, want now one and now the other", seen)
		}
		apis := l.kube.serving()
		if len(apis) != 2 || apis[0].etcd == apis[1].etcd {
			t.Errorf("APIs %+v, want two with an etcd each", apis)
		}
		l.wantViolations("bootstrap") // once
	})
}

// TestSplitBrainAfterTheFact: the etcd that was off when the second one was
// founded comes back.
func TestSplitBrainAfterTheFact(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		first := cp(1).guest("v1.13.9")
		l.fleet.PowerOn(first)
		time.Sleep(time.Minute)
		l.apply(cp(1), l.config(cp(1), "v1.13.9"))
		time.Sleep(5 * time.Second)
		l.bootstrap(cp(1))
		time.Sleep(time.Minute)
		l.fleet.PowerOff(401)
		l.bring("v1.13.9", cp(2))
		l.bootstrap(cp(2))
		l.wantViolations()
		l.fleet.PowerOn(first)
		l.wantViolations("bootstrap")
	})
}

// TestRecreatedClusterIsNoSplitBrain: disks that are deleted hold no etcd.
func TestRecreatedClusterIsNoSplitBrain(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.cluster(cp(1), cp(2), cp(3))
		for _, n := range []node{cp(1), cp(2), cp(3)} {
			l.fleet.PowerOff(n.vmid)
		}
		l.cluster(cp(1), cp(2), cp(3))
		l.wantMembers(cp(1), "cp1", "cp2", "cp3")
		l.wantViolations()
	})
}

func TestOneLearnerAtATime(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.bring("v1.13.9", cp(1), cp(2), cp(3))
		l.bootstrap(cp(1))
		time.Sleep(l.world.Latency.Etcd + time.Second)
		l.wantMembers(cp(1), "cp1", "cp2 (learner)")
		if _, err := l.members(cp(2), true); client.StatusCode(err) != codes.DeadlineExceeded && client.StatusCode(err) != codes.Unknown {
			t.Errorf("the learner's own list: %v", err)
		}
		// The second one counts when it has been there for 5 s, and the third asks each 3 s.
		time.Sleep(l.world.Latency.Learn + 4*time.Second)
		l.wantMembers(cp(1), "cp1", "cp2", "cp3 (learner)")
		time.Sleep(l.world.Latency.Learn)
		l.wantMembers(cp(3), "cp1", "cp2", "cp3")
	})
}

// TestQuorum: without a majority etcd is unhealthy, its lists time out and
// every API is down; with one again all comes back.
func TestQuorum(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.cluster(cp(1), cp(2), cp(3))
		if err := l.fleet.Kill(403); err != nil {
			t.Fatal(err)
		}
		l.wantMembers(cp(1), "cp1", "cp2", "cp3") // a dead member stays one
		if err := l.fleet.Partition(402, true); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := l.kube.serving(); len(got) != 0 {
			t.Errorf("%d APIs serve without a quorum", len(got))
		}
		// In the first seconds the status shows the leader that is dead, and what waits for a
		// leader waits longest.
		leader := func() (uint64, []string) {
			resp, err := l.admin(cp(1)).EtcdStatus(within(time.Second))
			if err != nil {
				t.Fatal(err)
			}
			m := resp.GetMessages()[0].GetMemberStatus()
			return m.GetLeader(), m.GetErrors()
		}
		if id, errs := leader(); id == 0 || len(errs) != 0 {
			t.Errorf("right after the loss: leader %d, errors %v", id, errs)
		}
		if _, err := l.members(cp(1), false); client.StatusCode(err) != codes.DeadlineExceeded {
			t.Errorf("member list right after the loss: %v", err)
		}
		for _, local := range []bool{false, true} {
			if _, err := l.members(cp(1), local); client.StatusCode(err) != codes.Unknown || grpcstatus.Convert(err).Message() != "etcdserver: no leader" {
				t.Errorf("member list without a quorum: %v", err)
			}
		}
		if st := status(t, l.admin(cp(1))); st.Status.Ready || !strings.Contains(st.Status.UnmetConditions[0].Reason, "etcd not healthy") {
			t.Errorf("without a quorum: %+v", st)
		}
		if id, errs := leader(); id != 0 || !slices.Equal(errs, []string{"etcdserver: no leader"}) {
			t.Errorf("status without a quorum: leader %d, errors %v", id, errs)
		}
		m := l.admin(cp(1)).MachineClient
		_, forfeit := m.EtcdForfeitLeadership(within(10*time.Second), &machineapi.EtcdForfeitLeadershipRequest{})
		_, leave := m.EtcdLeaveCluster(within(10*time.Second), &machineapi.EtcdLeaveClusterRequest{})
		_, remove := m.EtcdRemoveMemberByID(within(10*time.Second), &machineapi.EtcdRemoveMemberByIDRequest{MemberId: 7})
		_, alarms := m.EtcdAlarmList(within(10*time.Second), &emptypb.Empty{})
		_, defragment := m.EtcdDefragment(within(time.Second), &emptypb.Empty{})
		_, snapshot := receiveAll(m.EtcdSnapshot(within(time.Second), &machineapi.EtcdSnapshotRequest{}))
		for _, tc := range []struct {
			what string
			err  error
			code codes.Code
			text string
		}{
			{"forfeit", forfeit, codes.Unknown, "failed to forfeit leadership: failed to list etcd members: etcdserver: no leader"},
			{"leave", leave, codes.Unknown, "failed to leave cluster: 1 error(s) occurred:\n\tfailed to remove member "},
			{"remove", remove, codes.Unknown, "failed to remove member: failed to remove member 7: etcdserver: no leader"},
			{"alarms", alarms, codes.DeadlineExceeded, ""},
			{"defragment", defragment, codes.OK, ""},
			{"snapshot", snapshot, codes.OK, ""},
		} {
			if client.StatusCode(tc.err) != tc.code || tc.err != nil && !strings.Contains(tc.err.Error(), tc.text) {
				t.Errorf("%s without a quorum: %v", tc.what, tc.err)
			}
		}
		if err := l.fleet.Partition(402, false); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		l.wantMembers(cp(2), "cp1", "cp2", "cp3")
		if got := l.kube.serving(); len(got) != 2 {
			t.Errorf("%d APIs serve with a quorum of two", len(got))
		}
	})
}

// TestEtcdOfItsTalos: each version of Talos comes with an etcd, whose storage has a version since 3.6.
func TestEtcdOfItsTalos(t *testing.T) {
	for _, c := range []struct{ talos, server, storage string }{
		{"v1.8.4", "3.5.16", ""}, {"v1.10.7", "3.5.21", ""}, {"v1.10.9", "3.5.26", ""}, {"v1.11.6", "3.6.5", "3.6.0"}, {"v1.13.9", "3.6.12", "3.6.0"}, {"v1.14.1", "3.7.1", "3.7.0"},
	} {
		inBubble(t, world.Config{}, func(l *lab) {
			l.bring(c.talos, cp(1))
			l.bootstrap(cp(1))
			resp, err := l.admin(cp(1)).EtcdStatus(within(time.Second))
			if err != nil {
				t.Fatal(err)
			}
			if m := resp.GetMessages()[0].GetMemberStatus(); m.GetProtocolVersion() != c.server || m.GetStorageVersion() != c.storage {
				t.Errorf("%s: etcd %s with storage %q, want %s with %q", c.talos, m.GetProtocolVersion(), m.GetStorageVersion(), c.server, c.storage)
			}
		})
	}
}

// TestLeaderMovesOn: who leads can die.
func TestLeaderMovesOn(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.cluster(cp(1), cp(2), cp(3))
		leader := func(n node) uint64 {
			resp, err := l.admin(n).EtcdStatus(within(time.Second))
			if err != nil {
				t.Fatal(err)
			}
			return resp.GetMessages()[0].GetMemberStatus().GetLeader()
		}
		before := leader(cp(2))
		l.fleet.PowerOff(401)
		if after := leader(cp(2)); after == before || after == 0 || after != leader(cp(3)) {
			t.Errorf("leader %d, then %d", before, after)
		}
	})
}

func TestMembersLeave(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.cluster(cp(1), cp(2), cp(3))
		if _, err := l.admin(cp(3)).MachineClient.EtcdLeaveCluster(within(time.Second), &machineapi.EtcdLeaveClusterRequest{}); err != nil {
			t.Fatal(err)
		}
		l.wantMembers(cp(1), "cp1", "cp2")
		time.Sleep(time.Minute)
		l.wantMembers(cp(1), "cp1", "cp2") // it does not come back by itself

		resp, err := l.admin(cp(1)).EtcdMemberList(within(time.Second), &machineapi.EtcdMemberListRequest{})
		if err != nil {
			t.Fatal(err)
		}
		var second uint64
		for _, m := range resp.GetMessages()[0].GetMembers() {
			if m.GetHostname() == "cp2" {
				second = m.GetId()
			}
		}
		if err := l.admin(cp(1)).EtcdRemoveMemberByID(within(time.Second), &machineapi.EtcdRemoveMemberByIDRequest{MemberId: second}); err != nil {
			t.Fatal(err)
		}
		l.wantMembers(cp(1), "cp1")
		if err := l.fleet.Reboot(402); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		l.wantMembers(cp(1), "cp1") // nor does one that was removed, with its old data
		if err := l.admin(cp(2)).Bootstrap(within(time.Second), &machineapi.BootstrapRequest{}); client.StatusCode(err) != codes.AlreadyExists {
			t.Errorf("bootstrap of a removed member: %v", err)
		}
		l.wantViolations()
	})
}

// TestRemovalNeedsAMajority: with one of three members dead a healthy one cannot be
// removed, and the dead one can; of one nothing can.
func TestRemovalNeedsAMajority(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.cluster(cp(1), cp(2), cp(3))
		ids := map[string]uint64{}
		resp, err := l.admin(cp(1)).EtcdMemberList(within(time.Second), &machineapi.EtcdMemberListRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range resp.GetMessages()[0].GetMembers() {
			ids[m.GetHostname()] = m.GetId()
		}
		remove := func(name, want string) {
			t.Helper()
			err := l.admin(cp(1)).EtcdRemoveMemberByID(within(time.Second), &machineapi.EtcdRemoveMemberByIDRequest{MemberId: ids[name]})
			if want == "" && err != nil || want != "" && (client.StatusCode(err) != codes.Unknown || !strings.Contains(err.Error(), want)) {
				t.Errorf("remove %s: %v", name, err)
			}
		}
		l.fleet.PowerOff(403)
		remove("cp2", "etcdserver: unhealthy cluster")
		remove("cp3", "")
		remove("cp2", "")
		remove("cp1", "re-configuration failed due to not enough started members")
		l.wantMembers(cp(1), "cp1")
	})
}

// TestReplacedControlPlane: the same node on a new disk takes the place of the
// member that is dead.
func TestReplacedControlPlane(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.cluster(cp(1), cp(2), cp(3))
		l.fleet.PowerOff(403)
		l.wantMembers(cp(1), "cp1", "cp2", "cp3")
		l.bring("v1.13.9", cp(3))
		time.Sleep(time.Minute)
		l.wantMembers(cp(1), "cp1", "cp2", "cp3")
		if v := l.view(cp(3)); !v.Ready {
			t.Errorf("%+v", v)
		}
		l.wantViolations()
	})
}

// TestJoinNeedsActiveVoters: etcd adds no member while a voter is away, nor in the first seconds
// after it is back. A single one has no other to wait for.
func TestJoinNeedsActiveVoters(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		second := cp(2).guest("v1.13.9")
		l.bring("v1.13.9", cp(1))
		l.bootstrap(cp(1))
		time.Sleep(time.Minute)
		l.fleet.PowerOn(second)
		time.Sleep(time.Minute)
		l.apply(cp(2), l.config(cp(2), "v1.13.9"))
		time.Sleep(l.world.Latency.Apply + l.world.Latency.Learn + 2*time.Second)
		l.wantMembers(cp(1), "cp1", "cp2")
		l.bring("v1.13.9", cp(3))
		time.Sleep(time.Minute)
		l.wantMembers(cp(1), "cp1", "cp2", "cp3")

		l.fleet.PowerOff(402)
		l.bring("v1.13.9", cp(4))
		time.Sleep(5 * time.Minute)
		l.wantMembers(cp(1), "cp1", "cp2", "cp3")
		if state := l.serviceState(cp(4), "etcd"); state != "Preparing" {
			t.Errorf("its etcd is %s, want one that waits", state)
		}
		l.fleet.PowerOn(second)
		var back time.Time
		for began := time.Now(); l.view(cp(4)).Etcd == "" && time.Since(began) < time.Hour; {
			time.Sleep(100 * time.Millisecond)
			if up := l.view(cp(1)).Up; back.IsZero() && up == 3 {
				back = time.Now()
			}
		}
		if waited := time.Since(back); waited < 5*time.Second || waited > 9*time.Second {
			t.Errorf("it joins %v after the voter is back, want 5 s and at most a retry more", waited)
		}
		time.Sleep(time.Minute)
		l.wantMembers(cp(1), "cp1", "cp2", "cp3", "cp4")

		// Of five, one that is away is not needed.
		l.bring("v1.13.9", cp(5))
		time.Sleep(time.Minute)
		l.fleet.PowerOff(405)
		l.bring("v1.13.9", cp(6))
		time.Sleep(time.Minute)
		l.wantMembers(cp(1), "cp1", "cp2", "cp3", "cp4", "cp5", "cp6")
		l.wantViolations()
	})
}

// TestRemovalNeedsActiveVoters: a voter that came back a moment ago does not count yet.
func TestRemovalNeedsActiveVoters(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.cluster(cp(1), cp(2), cp(3))
		ids := l.memberIDs(cp(1))
		if err := l.fleet.Partition(403, true); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if err := l.fleet.Partition(403, false); err != nil {
			t.Fatal(err)
		}
		remove := func() error {
			return l.admin(cp(1)).EtcdRemoveMemberByID(within(time.Second), &machineapi.EtcdRemoveMemberByIDRequest{MemberId: ids["cp2"]})
		}
		time.Sleep(3 * time.Second)
		if err := remove(); err == nil || !strings.Contains(err.Error(), "etcdserver: unhealthy cluster") {
			t.Errorf("3 s after it is back: %v", err)
		}
		time.Sleep(3 * time.Second)
		if err := remove(); err != nil {
			t.Errorf("6 s after it is back: %v", err)
		}
		l.wantMembers(cp(1), "cp1", "cp3")
	})
}

// TestAddressOfAMember: an address that another member has is added no second time.
func TestAddressOfAMember(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.cluster(cp(1), cp(2), cp(3), cp(4), cp(5)) // so many that one may be away
		l.fleet.PowerOff(405)
		renamed := cp(5)
		renamed.name, renamed.vmid = "cp9", 409
		l.bring("v1.13.9", renamed)
		time.Sleep(time.Minute)
		l.wantMembers(cp(1), "cp1", "cp2", "cp3", "cp4", "cp5")
		if err := l.admin(cp(1)).EtcdRemoveMemberByID(within(time.Second), &machineapi.EtcdRemoveMemberByIDRequest{MemberId: l.memberIDs(cp(1))["cp5"]}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		l.wantMembers(cp(1), "cp1", "cp2", "cp3", "cp4", "cp9")
	})
}

// TestLearnerThatReboots: only the run that joined asks for a vote, and for ten minutes. A learner
// that boots before it has one answers for ever as learners do, and no other is added meanwhile.
// What helps is an empty data directory.
func TestLearnerThatReboots(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.bring("v1.13.9", cp(1), cp(2), cp(3))
		l.bootstrap(cp(1))
		time.Sleep(l.world.Latency.Etcd + time.Second)
		if err := l.fleet.Kill(402); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		l.wantMembers(cp(1), "cp1", "cp2 (learner)")
		if err := l.fleet.Reboot(402); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Minute)
		l.wantMembers(cp(1), "cp1", "cp2 (learner)")
		if got := l.etcdService(cp(2)); got != "Running, etcdserver: rpc not supported for learner" {
			t.Errorf("etcd of the learner: %s", got)
		}
		l.wantStage(cp(2), booting)
		if state := l.serviceState(cp(3), "etcd"); state != "Preparing" {
			t.Errorf("etcd of the other is %s, want one that waits", state)
		}
		if err := l.admin(cp(2)).ResetGeneric(within(time.Second), &machineapi.ResetRequest{Reboot: true, SystemPartitionsToWipe: stateAndData[1:]}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Minute)
		l.wantMembers(cp(1), "cp1", "cp2", "cp3")
		l.wantViolations()
	})
}

// TestLearnerThatIsCutOff: the run that joined gets its vote when the others hear of it within
// ten minutes, and never later.
func TestLearnerThatIsCutOff(t *testing.T) {
	for _, tc := range []struct {
		away time.Duration
		want string
	}{{5 * time.Minute, "cp2"}, {15 * time.Minute, "cp2 (learner)"}} {
		t.Run(tc.away.String(), func(t *testing.T) {
			inBubble(t, world.Config{}, func(l *lab) {
				l.bring("v1.13.9", cp(1), cp(2))
				l.bootstrap(cp(1))
				time.Sleep(l.world.Latency.Etcd + time.Second)
				if err := l.fleet.Partition(402, true); err != nil {
					t.Fatal(err)
				}
				time.Sleep(tc.away)
				l.wantMembers(cp(1), "cp1", "cp2 (learner)")
				if err := l.fleet.Partition(402, false); err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * time.Minute)
				l.wantMembers(cp(1), "cp1", tc.want)
			})
		})
	}
}

// TestEtcdSurvivesAnything: whatever happens to the machines of a cluster that
// was founded once, nothing but the agent's own doing can break the rules, and
// when all is well again, all is well.
func TestEtcdSurvivesAnything(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		acts := rapid.SliceOfN(rapid.SampledFrom([]string{"kill", "off", "reboot", "cut", "mend", "wait"}), 1, 12).Draw(rt, "acts")
		on := rapid.SliceOfN(rapid.IntRange(1, 3), len(acts), len(acts)).Draw(rt, "on")
		inBubble(t, world.Config{}, func(l *lab) {
			nodes := []node{cp(1), cp(2), cp(3)}
			guests := map[int]world.Guest{}
			for _, n := range nodes {
				guests[n.vmid] = n.guest("v1.13.9")
				l.fleet.PowerOn(guests[n.vmid])
			}
			time.Sleep(time.Minute)
			for _, n := range nodes {
				l.apply(n, l.config(n, "v1.13.9"))
			}
			time.Sleep(5 * time.Second)
			l.bootstrap(cp(1))
			for i, act := range acts {
				vmid := 400 + on[i]
				switch act {
				case "kill":
					_ = l.fleet.Kill(vmid) // it may be off
				case "off":
					l.fleet.PowerOff(vmid)
				case "reboot":
					_ = l.fleet.Reboot(vmid)
				case "cut":
					_ = l.fleet.Partition(vmid, true)
				case "mend":
					_ = l.fleet.Partition(vmid, false)
				case "wait":
					time.Sleep(7 * time.Second)
				}
				time.Sleep(500 * time.Millisecond)
			}
			for _, n := range nodes {
				_ = l.fleet.Partition(n.vmid, false)
				l.fleet.PowerOff(n.vmid)
				l.fleet.PowerOn(guests[n.vmid])
			}
			time.Sleep(5 * time.Minute)
			// A learner that booted before it had a vote needs help, and holds up the others.
			for range nodes {
				for _, n := range nodes {
					if l.view(n).Learner {
						if err := l.admin(n).ResetGeneric(within(time.Second), &machineapi.ResetRequest{Reboot: true, SystemPartitionsToWipe: stateAndData[1:]}); err != nil {
							rt.Error(err)
						}
						time.Sleep(5 * time.Minute)
					}
				}
			}
			for _, n := range nodes {
				if v := l.view(n); !v.Ready || v.Etcd != "etcd-1" || v.Learner {
					rt.Errorf("%s: %+v", n.name, v)
				}
			}
			if v := l.world.Violations(); len(v) > 0 {
				rt.Error(v)
			}
		})
	})
}

// TestAlarms: what etcd holds against a member every other one shows as well, until it is disarmed.
func TestAlarms(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.cluster(cp(1), cp(2))
		if err := l.fleet.RaiseAlarm(999, machineapi.EtcdMemberAlarm_NOSPACE); err == nil {
			t.Error("a machine that is not there has an alarm")
		}
		errorsOf := func(n node) []string {
			resp, err := l.admin(n).EtcdStatus(within(time.Second))
			if err != nil {
				t.Fatal(err)
			}
			return resp.GetMessages()[0].GetMemberStatus().GetErrors()
		}
		if got := errorsOf(cp(1)); len(got) != 0 {
			t.Errorf("before: %q", got)
		}
		if err := l.fleet.RaiseAlarm(cp(2).vmid, machineapi.EtcdMemberAlarm_NOSPACE); err != nil {
			t.Fatal(err)
		}
		var id uint64
		for _, n := range []node{cp(1), cp(2)} {
			list, err := l.admin(n).MachineClient.EtcdAlarmList(within(time.Second), &emptypb.Empty{})
			if err != nil {
				t.Fatal(err)
			}
			alarms := list.GetMessages()[0].GetMemberAlarms()
			if len(alarms) != 1 || alarms[0].GetAlarm() != machineapi.EtcdMemberAlarm_NOSPACE {
				t.Fatalf("%s lists %v", n.name, alarms)
			}
			id = alarms[0].GetMemberId()
			if got, want := errorsOf(n), []string{fmt.Sprintf("memberID:%d alarm:NOSPACE ", id)}; !slices.Equal(got, want) {
				t.Errorf("%s shows %q, want %q", n.name, got, want)
			}
		}
		disarmed, err := l.admin(cp(1)).MachineClient.EtcdAlarmDisarm(within(time.Second), &emptypb.Empty{})
		if err != nil || len(disarmed.GetMessages()[0].GetMemberAlarms()) != 1 {
			t.Errorf("disarmed: %v, %v", disarmed, err)
		}
		if got := errorsOf(cp(2)); len(got) != 0 {
			t.Errorf("afterwards: %q", got)
		}
	})
}

// TestRemovedMembersComeBack: in an upgrade to etcd 3.6 a member that was removed comes back and has a vote, unless the etcd
// before was one that drops it: with Talos 1.10.9, if no image is pinned.
func TestRemovedMembersComeBack(t *testing.T) {
	for name, tc := range map[string]struct {
		pin  string
		way  []string
		want []string
	}{
		"direct":    {"", []string{"v1.11.6"}, []string{"cp1", "cp2", "cp3", "cp4"}},
		"by 3.5.26": {"", []string{"v1.10.9", "v1.11.6"}, []string{"cp1", "cp2", "cp3"}},
		"pinned":    {"gcr.io/etcd-development/etcd:v3.5.21", []string{"v1.10.9", "v1.11.6"}, []string{"cp1", "cp2", "cp3"}}, // etcd stays
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, world.Config{}, func(l *lab) {
				pin := []string{}
				if tc.pin != "" {
					pin = append(pin, "cluster: {etcd: {image: "+tc.pin+"}}")
				}
				for _, n := range []node{cp(1), cp(2), cp(3), cp(4)} {
					l.fleet.PowerOn(n.guest("v1.10.7"))
				}
				time.Sleep(l.world.Latency.Boot + time.Second)
				for _, n := range []node{cp(1), cp(2), cp(3), cp(4)} {
					l.apply(n, l.config(n, "v1.10.7", pin...))
				}
				time.Sleep(l.world.Latency.Apply + 3*time.Second)
				l.bootstrap(cp(1))
				time.Sleep(3 * time.Minute)
				if err := l.leave(cp(4), time.Minute); err != nil {
					t.Fatal(err)
				}
				l.fleet.PowerOff(cp(4).vmid)
				for _, version := range tc.way {
					for _, n := range []node{cp(1), cp(2), cp(3)} {
						err := l.legacy(within(time.Minute), n, &machineapi.UpgradeRequest{Image: factoryInstaller(version)})
						if stuck := name == "direct" && n != cp(1); (err != nil) != stuck { // by the member that is not there
							t.Fatal(err)
						}
						time.Sleep(5 * time.Minute)
					}
				}
				l.wantMembers(cp(1), tc.want...)
				resp, err := l.admin(cp(1)).EtcdStatus(within(time.Second))
				if err != nil {
					t.Fatal(err)
				}
				server := resp.GetMessages()[0].GetMemberStatus().GetProtocolVersion()
				if pinned := strings.HasPrefix(server, "3.5."); pinned != (tc.pin != "") {
					t.Errorf("etcd is %s", server)
				}
			})
		})
	}
}
