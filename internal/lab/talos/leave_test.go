package talos_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// leave asks a node to leave etcd.
func (l *lab) leave(n node, patience time.Duration) error {
	_, err := l.admin(n).MachineClient.EtcdLeaveCluster(within(patience), &machineapi.EtcdLeaveClusterRequest{})
	return err
}

// etcdService is the state of a node's etcd, and whether it is healthy.
func (l *lab) etcdService(n node) string {
	l.t.Helper()
	info, err := l.admin(n).ServiceInfo(within(time.Second), "etcd")
	if err != nil || len(info) != 1 {
		l.t.Fatalf("etcd of %s: %v, %v", n.name, info, err)
	}
	health := info[0].Service.GetHealth()
	switch {
	case health.GetHealthy():
		return info[0].Service.GetState()
	case health.GetUnknown():
		return info[0].Service.GetState() + ", unknown"
	}
	return info[0].Service.GetState() + ", " + health.GetLastMessage()
}

// memberIDs are the ids of the members, by name.
func (l *lab) memberIDs(n node) map[string]uint64 {
	l.t.Helper()
	resp, err := l.admin(n).EtcdMemberList(within(time.Second), &machineapi.EtcdMemberListRequest{})
	if err != nil {
		l.t.Fatal(err)
	}
	ids := map[string]uint64{}
	for _, m := range resp.GetMessages()[0].GetMembers() {
		ids[m.GetHostname()] = m.GetId()
	}
	return ids
}

// TestLeaveNeedsTheOthers: with one of three members dead a healthy one does not get away. It
// asks for five minutes, or as long as the caller waits.
func TestLeaveNeedsTheOthers(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.cluster(cp(1), cp(2), cp(3))
		l.fleet.PowerOff(403)
		// At its end both sides give up at one instant, and either may be the first.
		if code := client.StatusCode(l.leave(cp(2), 25*time.Second)); code != codes.DeadlineExceeded && code != codes.Canceled {
			t.Errorf("%v, want no answer", code)
		}
		start := time.Now()
		err := l.leave(cp(2), time.Hour)
		text := grpcstatus.Convert(err).Message()
		if client.StatusCode(err) != codes.Unknown || !strings.HasPrefix(text, "failed to leave cluster: 2 error(s) occurred:\n\tfailed to remove member ") ||
			!strings.HasSuffix(text, ": etcdserver: unhealthy cluster\n\ttimeout") || time.Since(start) < 5*time.Minute {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		l.wantMembers(cp(1), "cp1", "cp2", "cp3")

		// It gets away as soon as no member is dead any more.
		left := make(chan error)
		go func() { left <- l.leave(cp(2), time.Minute) }()
		time.Sleep(15 * time.Second)
		if err := l.admin(cp(1)).EtcdRemoveMemberByID(within(time.Second), &machineapi.EtcdRemoveMemberByIDRequest{MemberId: l.memberIDs(cp(1))["cp3"]}); err != nil {
			t.Fatal(err)
		}
		if err := <-left; err != nil {
			t.Error(err)
		}
		l.wantMembers(cp(1), "cp1")
		if got := l.etcdService(cp(2)); got != "Finished, service not running" {
			t.Errorf("etcd of the node that left: %s", got)
		}
		l.wantViolations()
	})
}

// TestLastMemberStays: it can neither leave nor be removed.
func TestLastMemberStays(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.cluster(cp(1))
		err := l.leave(cp(1), time.Minute)
		if client.StatusCode(err) != codes.Unknown || !strings.HasPrefix(grpcstatus.Convert(err).Message(), "failed to leave cluster: 1 error(s) occurred:\n\tfailed to remove member 15953761862159307578: "+
			"etcdserver: re-configuration failed due to not enough started members") {
			t.Errorf("%v", err)
		}
		l.wantMembers(cp(1), "cp1")
	})
}

// TestLearnerLeavesAsVoter: it waits until it is one.
func TestLearnerLeavesAsVoter(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.cluster(cp(1))
		l.bring("v1.13.9", cp(2))
		l.wantMembers(cp(1), "cp1", "cp2 (learner)")
		events := l.watchEvents(cp(2))
		if err := l.leave(cp(2), time.Hour); err != nil {
			t.Error(err)
		}
		l.wantMembers(cp(1), "cp1")
		l.fleet.PowerOff(402)
		seen := events()
		voter := slices.Index(seen, "etcd RUNNING: Health check successful")
		left := slices.IndexFunc(seen, func(e string) bool { return strings.HasPrefix(e, "etcd STOPPING: ") })
		if voter < 0 || left < voter {
			t.Errorf("events %q", seen)
		}
	})
}

// TestRemovedMember: its etcd ends and is started again for ever, calls that need it hang, and
// the others answer its member list. What helps is an empty data directory alone.
func TestRemovedMember(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.cluster(cp(1), cp(2), cp(3))
		if err := l.admin(cp(1)).EtcdRemoveMemberByID(within(time.Second), &machineapi.EtcdRemoveMemberByIDRequest{MemberId: l.memberIDs(cp(1))["cp3"]}); err != nil {
			t.Fatal(err)
		}
		check := func(when string) {
			t.Helper()
			seen := map[string]int{}
			for range 40 {
				seen[l.etcdService(cp(3))]++
				time.Sleep(500 * time.Millisecond)
			}
			if seen["Waiting, service not running"] < 20 || seen["Running, service not running"] < 6 {
				t.Errorf("etcd of the removed member %s: %v", when, seen)
			}
			l.wantMembers(cp(3), "cp1", "cp2")
			if _, err := l.members(cp(3), true); client.StatusCode(err) != codes.DeadlineExceeded {
				t.Errorf("its own list %s: %v", when, err)
			}
			if err := l.leave(cp(3), time.Minute); client.StatusCode(err) != codes.DeadlineExceeded {
				t.Errorf("leave %s: %v", when, err)
			}
		}
		check("after the removal")
		if err := l.fleet.Reboot(403); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		check("after a reboot")
		data := []*machineapi.ResetPartitionSpec{stateAndData[1]}
		if err := l.admin(cp(3)).ResetGeneric(within(time.Second), &machineapi.ResetRequest{Reboot: true, SystemPartitionsToWipe: data}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		l.wantMembers(cp(3), "cp1", "cp2", "cp3")
		l.wantViolations()
	})
}

// TestMemberWithoutAName: one that joins is in the list before it has a name and an address
// for clients.
func TestMemberWithoutAName(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.cluster(cp(1))
		l.fleet.PowerOn(cp(2).guest("v1.13.9"))
		time.Sleep(l.world.Latency.Boot + time.Second)
		l.apply(cp(2), l.config(cp(2), "v1.13.9"))
		nameless, c := 0, l.admin(cp(1))
		for range 1000 {
			resp, err := c.EtcdMemberList(within(time.Second), &machineapi.EtcdMemberListRequest{})
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range resp.GetMessages()[0].GetMembers() {
				if m.GetHostname() != "" {
					continue
				}
				nameless++
				if !m.GetIsLearner() || len(m.GetClientUrls()) != 0 || !slices.Equal(m.GetPeerUrls(), []string{"https://10.5.0.12:2380"}) {
					t.Errorf("a member without a name: %v", m)
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
		if nameless == 0 || nameless > 10 {
			t.Errorf("seen without a name %d times", nameless)
		}
		l.wantMembers(cp(1), "cp1", "cp2")
	})
}

// TestPlanesAreFoundLate: some boots do not know the control planes in their first seconds.
func TestPlanesAreFoundLate(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.cluster(cp(1), cp(2))
		late := 0
		for range 4 {
			if err := l.fleet.Reboot(402); err != nil {
				t.Fatal(err)
			}
			time.Sleep(l.world.Latency.Boot + 3*time.Second)
			switch _, err := l.members(cp(2), false); {
			case err != nil && client.StatusCode(err) == codes.Unknown && strings.Contains(err.Error(), "no controlplane endpoints discovered yet"):
				late++
			case err != nil:
				t.Error(err)
			}
			time.Sleep(3 * time.Second)
			l.wantMembers(cp(2), "cp1", "cp2")
		}
		if late != 2 {
			t.Errorf("%d of 4 boots did not know them at once", late)
		}
	})
}
