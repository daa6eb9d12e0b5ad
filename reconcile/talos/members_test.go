package talos

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc/codes"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab/world"
	"github.com/talos-agent/talos-agent/reconcile/talos/etcdmember"
)

const statusCall = "machine.MachineService/EtcdStatus"

const membersCall = "machine.MachineService/EtcdMemberList"

// TestLearners: a control plane that joins is a learner first.
func TestLearners(t *testing.T) {
	inBubble(t, newest, []cluster.Node{cp(1), cp(2)}, func(b *bench) {
		b.bringUp(cp(1))
		b.power(cp(2))
		b.untilReach(cp(2), cluster.Maintenance)
		b.apply(cp(2))
		o := b.until("cp-2 learns", func(o cluster.Observed) bool {
			m, ok := etcdmember.Find(o.Members.Value, cp(2))
			return ok && m.Learner
		})
		if len(o.Members.Value) != 2 {
			t.Errorf("%+v", o.Members)
		}
		b.until("cp-2 fails as learners do", func(o cluster.Observed) bool {
			s := o.Machines["cp-2"].Services["etcd"]
			return s.State == "Running" && !s.Healthy && s.Message == "etcdserver: rpc not supported for learner"
		})
		start := time.Now()
		b.until("cp-2 votes", func(o cluster.Observed) bool {
			m, ok := etcdmember.Find(o.Members.Value, cp(2))
			return ok && !m.Learner && o.Machines["cp-2"].Services["etcd"].Healthy
		})
		if took := time.Since(start); took > b.world.Latency.Learn {
			t.Errorf("the vote was seen after %v", took)
		}
	})
}

// TestMembersForgotten: who was told that a member is removed need not wait until
// the list is too old.
func TestMembersForgotten(t *testing.T) {
	inBubble(t, newest, []cluster.Node{cp(1), cp(2), cp(3)}, func(b *bench) {
		b.bringUp(cp(1), cp(2), cp(3))
		time.Sleep(2 * membersFor)
		asked := func() int {
			b.world.ForgetCalls()
			b.observe()
			return b.world.CountCalls(func(c world.CallRecord) bool { return c.Op == membersCall })
		}
		asked()
		if n := asked(); n != 0 {
			t.Errorf("a list that is new is asked for %d times", n)
		}
		b.fleet.Forget("")
		if n := asked(); n != 3 {
			t.Errorf("a list that is forgotten is asked for %d times", n)
		}
		if n := b.world.CountCalls(func(c world.CallRecord) bool { return c.Op == statusCall }); n != 3 {
			t.Errorf("alarms that are forgotten are asked for %d times", n)
		}
		if n := asked(); n != 0 {
			t.Errorf("then it is asked for %d times", n)
		}
	})
}

// TestMembersWhileOneIsRemoved: as long as a node is removed the list is asked for in every
// pass, whatever is known of its role: it may join at any time.
func TestMembersWhileOneIsRemoved(t *testing.T) {
	inBubble(t, newest, []cluster.Node{cp(1), cp(2), cp(3), wk(1)}, func(b *bench) {
		b.bringUp(cp(1), cp(2), cp(3), wk(1))
		time.Sleep(2 * membersFor)
		b.observe()
		b.desired.Removed = []cluster.Node{wk(1)}
		b.desired.Spec.Nodes = []cluster.Node{cp(1), cp(2), cp(3)}
		b.world.ForgetCalls()
		b.observe()
		b.observe()
		if n := b.world.CountCalls(func(c world.CallRecord) bool { return c.Op == membersCall }); n != 6 {
			t.Errorf("two passes asked three members %d times", n)
		}
	})
}

// TestMembersOfWhomeverKnows: the next one is asked when the first does not
// know; when none does, the members are unknown, also when they were known a
// moment ago.
func TestMembersOfWhomeverKnows(t *testing.T) {
	inBubble(t, newest, []cluster.Node{cp(1), cp(2), cp(3)}, func(b *bench) {
		b.bringUp(cp(1), cp(2), cp(3))
		time.Sleep(2 * membersFor)
		b.world.Inject(world.Fault{System: "talos", Op: membersCall, Subject: "cp-1", Kind: world.Slow, Delay: time.Hour})
		start := time.Now()
		if o := b.observe(); len(o.Members.Value) != 3 {
			t.Errorf("%+v", o.Members)
		}
		if took := time.Since(start); took > etcdmember.Within+time.Second {
			t.Errorf("it took %v", took)
		}
		if err := b.lab.Kill(401); err != nil {
			t.Fatal(err)
		}
		b.untilReach(cp(1), cluster.Silent)
		if o := b.observe(); len(o.Members.Value) != 3 {
			t.Errorf("with two of three: %+v", o.Members)
		}
		if err := b.lab.Kill(402); err != nil {
			t.Fatal(err)
		}
		b.untilReach(cp(2), cluster.Silent)
		b.until("nobody can tell", func(o cluster.Observed) bool {
			return !o.Members.Known && strings.Contains(o.Members.Why, "no etcd can be asked (cp-3: ")
		})
		if err := b.lab.Kill(403); err != nil {
			t.Fatal(err)
		}
		b.untilReach(cp(3), cluster.Silent)
		if o := b.observe(); o.Members.Known || o.Members.Why != "no control plane answers" {
			t.Errorf("%+v", o.Members)
		}
	})
}

func TestMembersFaults(t *testing.T) {
	for _, tc := range []struct {
		name  string
		fault world.Fault
		want  string
	}{
		{"slow", world.Fault{Kind: world.Slow, Delay: time.Hour}, "ask cp-1 for the members of etcd: no answer in time"},
		{"refused", world.Fault{Kind: world.Answer, Status: int(codes.Unknown), Text: "etcdserver: rpc not supported for learner"}, "ask cp-1 for the members of etcd: etcdserver: rpc not supported"},
		{"lost", world.Fault{Kind: world.LoseReply}, "ask cp-1 for the members of etcd: error reading from server: EOF"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, newest, []cluster.Node{cp(1)}, func(b *bench) {
				b.bringUp(cp(1))
				time.Sleep(2 * membersFor)
				tc.fault.System, tc.fault.Op = "talos", membersCall
				b.world.Inject(tc.fault)
				start := time.Now()
				if o := b.observe(); o.Members.Known || !strings.HasPrefix(o.Members.Why, tc.want) {
					t.Errorf("%+v, want %q", o.Members, tc.want)
				}
				if took := time.Since(start); took > etcdmember.Within {
					t.Errorf("it took %v", took)
				}
				b.world.Heal()
				if o := b.observe(); !o.Members.Known {
					t.Errorf("%+v", o.Members)
				}
			})
		})
	}
}

// TestOrphanMember: a member that is no control plane of the inventory is asked
// for in every pass, because nothing shows when somebody removes it.
func TestOrphanMember(t *testing.T) {
	inBubble(t, newest, []cluster.Node{cp(1), cp(2), cp(3)}, func(b *bench) {
		b.bringUp(cp(1), cp(2), cp(3))
		if err := b.lab.Kill(403); err != nil {
			t.Fatal(err)
		}
		b.untilReach(cp(3), cluster.Silent)
		b.desired.Spec.Nodes = []cluster.Node{cp(1), cp(2)}
		b.world.ForgetCalls()
		var dead cluster.Member
		for range 3 {
			o := b.observe()
			if dead, _ = etcdmember.Find(o.Members.Value, cp(3)); len(o.Members.Value) != 3 || dead.ID == 0 {
				t.Fatalf("%+v", o.Members)
			}
		}
		asked := 0
		for _, c := range b.world.Calls() {
			if c.Op == membersCall {
				asked++
			}
		}
		if asked != 6 {
			t.Errorf("three passes asked two members %d times", asked)
		}
		b.fleet.mu.Lock()
		l := b.fleet.watchers["cp-1"].link
		b.fleet.mu.Unlock()
		if _, err := l.machine.EtcdRemoveMemberByID(context.Background(), &machineapi.EtcdRemoveMemberByIDRequest{MemberId: dead.ID}); err != nil {
			t.Fatal(err)
		}
		if o := b.observe(); len(o.Members.Value) != 2 {
			t.Errorf("%+v", o.Members)
		}
	})
}

// TestMembersAgree: all members are asked whether they name the same; one that does not
// answer leaves it unknown.
func TestMembersAgree(t *testing.T) {
	inBubble(t, newest, []cluster.Node{cp(1), cp(2), cp(3)}, func(b *bench) {
		b.bringUp(cp(1), cp(2), cp(3))
		b.until("all agree", func(o cluster.Observed) bool { return o.MembersAgree.Known && o.MembersAgree.Value })
		b.world.Inject(world.Fault{System: "talos", Op: membersCall, Subject: "cp-2", Kind: world.Slow, Delay: time.Hour, Times: 1})
		b.fleet.Forget("")
		if o := b.observe(); !o.Members.Known || o.MembersAgree.Known || !strings.Contains(o.MembersAgree.Why, "cp-2") {
			t.Errorf("members %+v, agree %+v", o.Members, o.MembersAgree)
		}
		time.Sleep(disagreeFor)
		if o := b.observe(); !o.MembersAgree.Value {
			t.Errorf("a moment later: %+v", o.MembersAgree)
		}
		if err := b.lab.Kill(403); err != nil {
			t.Fatal(err)
		}
		b.untilReach(cp(3), cluster.Silent)
		if o := b.observe(); !o.Members.Known || o.MembersAgree.Known || o.MembersAgree.Why != "1 of 3 members cannot be asked" || !slices.Equal(o.MembersAsked, []string{"cp-1", "cp-2"}) {
			t.Errorf("members %+v, agree %+v", o.Members, o.MembersAgree)
		}
	})
}

// TestAlarmsAndLeader: which alarms etcd has and who leads it comes with its members; where that cannot be read it is
// unknown, and the members are not.
func TestAlarmsAndLeader(t *testing.T) {
	inBubble(t, newest, []cluster.Node{cp(1), cp(2)}, func(b *bench) {
		b.bringUp(cp(1), cp(2))
		o := b.until("both vote", func(o cluster.Observed) bool { return o.MembersAgree.Value && len(o.Members.Value) == 2 })
		if first, _ := etcdmember.Find(o.Members.Value, cp(1)); !o.Etcd.Known || o.Etcd.Value.Leader != first.ID || len(o.Etcd.Value.Alarms) != 0 {
			t.Errorf("%+v, and cp-1 is %d", o.Etcd, first.ID)
		}
		if err := b.lab.RaiseAlarm(cp(2).VMID, machineapi.EtcdMemberAlarm_CORRUPT); err != nil {
			t.Fatal(err)
		}
		b.until("the alarm is seen", func(o cluster.Observed) bool { return slices.Equal(o.Etcd.Value.Alarms, []string{"CORRUPT"}) })
		if o = b.observe(); !strings.HasPrefix(o.Etcd.Value.Server, "3.6.") {
			t.Errorf("the oldest etcd is %q", o.Etcd.Value.Server)
		}
		b.world.Inject(world.Fault{System: "talos", Op: statusCall, Subject: "cp-1", Kind: world.Slow, Delay: time.Hour})
		b.until("the version of one is not known", func(o cluster.Observed) bool {
			return o.Etcd.Known && o.Etcd.Value.Server == "" && slices.Equal(o.Etcd.Value.Alarms, []string{"CORRUPT"})
		})
		b.world.Inject(world.Fault{System: "talos", Op: statusCall, Kind: world.Slow, Delay: time.Hour})
		b.until("it is not known any longer", func(o cluster.Observed) bool {
			return !o.Etcd.Known && strings.Contains(o.Etcd.Why, "no answer in time") && len(o.Members.Value) == 2
		})
		b.world.Heal()
		b.until("it is known again", func(o cluster.Observed) bool { return o.Etcd.Known })
	})
}
