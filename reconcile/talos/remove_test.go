package talos

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab/world"
	"github.com/talos-agent/talos-agent/reconcile/talos/etcdmember"
)

const removeCall = "machine.MachineService/EtcdRemoveMemberByID"

// memberNow is the member of a control plane.
func (b *bench) memberNow(n cluster.Node) cluster.Member {
	b.Helper()
	o := b.until("members are seen", func(o cluster.Observed) bool { return o.Members.Known })
	m, ok := etcdmember.Find(o.Members.Value, n)
	if !ok {
		b.Fatalf("%s is no member of %+v", n.Name, o.Members)
	}
	return m
}

// TestRemoveMember: a member is removed by asking another control plane, dead or alive,
// also when an answer is lost, and once.
func TestRemoveMember(t *testing.T) {
	inBubble(t, newest, planes, func(b *bench) {
		b.bringUp(planes...)
		gone := b.memberNow(cp(3))
		if err := b.lab.Kill(403); err != nil {
			t.Fatal(err)
		}
		b.untilReach(cp(3), cluster.Silent)
		b.world.Inject(world.Fault{System: "talos", Op: removeCall, Kind: world.LoseReply, Times: 1})
		b.calls()
		for range 2 {
			if err := b.fleet.RemoveMember(within(time.Minute), b.desired, cp(3), gone); err != nil {
				t.Error(err)
			}
		}
		if calls := b.calls(); calls["EtcdRemoveMemberByID"] != 1 {
			t.Errorf("calls %v", calls)
		}
		if o := b.observe(); len(o.Members.Value) != 2 {
			t.Errorf("%+v", o.Members)
		}
		// The next one is asked when the first does not answer.
		alive := b.memberNow(cp(2))
		if err := b.fleet.RemoveMember(within(time.Minute), b.desired, cp(2), alive); err != nil {
			t.Error(err)
		}
		b.desired.Spec.Nodes, b.desired.Removed = []cluster.Node{cp(1)}, []cluster.Node{cp(2)}
		b.until("one is left, and what is removed runs on", func(o cluster.Observed) bool {
			return o.Members.Known && len(o.Members.Value) == 1 && o.MembersAgree.Value && len(o.MembersAsked) == 1 && o.Machines["cp-2"].Reach == cluster.Configured
		})
	})
}

// TestRemoveMemberRefusals: what etcd refuses is reported, a member that is another's by
// now is left, and nobody is asked but control planes that stay.
func TestRemoveMemberRefusals(t *testing.T) {
	inBubble(t, newest, planes, func(b *bench) {
		b.bringUp(planes...)
		m := b.memberNow(cp(3))
		another := m
		another.Name = "cp-9"
		if err := b.fleet.RemoveMember(within(time.Minute), b.desired, cp(3), another); err == nil || !strings.Contains(err.Error(), "it is of cp-3 at ") {
			t.Errorf("another's: %v", err)
		}
		b.world.Inject(world.Fault{System: "talos", Op: removeCall, Kind: world.Answer, Status: int(codes.Unknown), Text: "failed to remove member: failed to remove member 1: etcdserver: unhealthy cluster", Times: 1})
		if err := b.fleet.RemoveMember(within(time.Minute), b.desired, cp(3), m); err == nil || !strings.Contains(err.Error(), "the machine refuses: failed to remove member") {
			t.Errorf("refused: %v", err)
		}
		alone := b.desired
		alone.Spec.Nodes = []cluster.Node{cp(3)}
		if err := b.fleet.RemoveMember(within(time.Minute), alone, cp(3), m); err == nil || !strings.Contains(err.Error(), "there is no other control plane to ask") {
			t.Errorf("alone: %v", err)
		}
		if o := b.observe(); len(o.Members.Value) != 3 {
			t.Errorf("%+v", o.Members)
		}
	})
}
