package talos

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

const forfeitCall = "machine.MachineService/EtcdForfeitLeadership"

// leader is the control plane that leads etcd, and another one.
func (b *bench) leader() (leads, other cluster.Node) {
	b.Helper()
	for _, n := range b.desired.Spec.ControlPlanes() {
		l := b.raw(n)
		st, err := l.etcdStatus(within(time.Minute))
		l.close()
		switch {
		case err != nil:
			b.Fatal(err)
		case st.Leader == st.ID:
			leads = n
		default:
			other = n
		}
	}
	if leads.Name == "" {
		b.Fatal("none leads")
	}
	return leads, other
}

var planes = []cluster.Node{cp(1), cp(2), cp(3)}

// TestForfeit: who leads does no longer, and who does not is not asked.
func TestForfeit(t *testing.T) {
	inBubble(t, newest, planes, func(b *bench) {
		b.bringUp(planes...)
		was, other := b.leader()
		b.calls()
		if err := b.fleet.Forfeit(within(time.Minute), b.desired, other); err != nil {
			t.Error(err)
		}
		if calls := b.calls(); calls["EtcdForfeitLeadership"] != 0 {
			t.Errorf("calls %v", calls)
		}
		for range 2 {
			if err := b.fleet.Forfeit(within(time.Minute), b.desired, was); err != nil {
				t.Error(err)
			}
			if now, _ := b.leader(); now.Name == was.Name {
				t.Errorf("%s still leads", now.Name)
			}
		}
		if calls := b.calls(); calls["EtcdForfeitLeadership"] != 1 {
			t.Errorf("calls %v", calls)
		}
	})
}

func TestForfeitFaults(t *testing.T) {
	for _, tc := range []struct {
		name  string
		fault world.Fault
		want  string // of the error, "" : none
		hint  string
	}{
		{"request lost", world.Fault{Kind: world.LoseRequest}, "no other member leads after 15s (cp-", ""},
		{"reply lost", world.Fault{Kind: world.LoseReply}, "", ""},
		{"hangs", world.Fault{Kind: world.Slow, Delay: time.Hour}, "and the answer was lost: no answer in time", ""},
		{"a learner", world.Fault{Kind: world.Answer, Status: int(codes.Unknown), Text: "failed to forfeit leadership: etcdserver: bad leader transferee"}, "it is too early: failed to forfeit", "a member of etcd has no vote yet"},
		{"no leader", world.Fault{Kind: world.Answer, Status: int(codes.Unknown), Text: "failed to forfeit leadership: failed to list etcd members: etcdserver: no leader"}, "the machine refuses: failed to forfeit", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, newest, planes, func(b *bench) {
				b.bringUp(planes...)
				was, _ := b.leader()
				tc.fault.System, tc.fault.Op, tc.fault.Nth = "talos", forfeitCall, 1
				b.world.Inject(tc.fault)
				err := b.fleet.Forfeit(within(time.Minute), b.desired, was)
				if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), "forfeit leadership of etcd on "+was.Name) || !strings.Contains(err.Error(), tc.want)) {
					t.Errorf("%v, want %q", err, tc.want)
				}
				if hint := fault.HintOf(err); !strings.HasPrefix(hint, tc.hint) || tc.hint == "" && hint != "" {
					t.Errorf("hint %q", hint)
				}
				if err != nil {
					if err := b.fleet.Forfeit(within(time.Minute), b.desired, was); err != nil {
						t.Error(err)
					}
				}
				if now, _ := b.leader(); now.Name == was.Name {
					t.Errorf("%s still leads", now.Name)
				}
			})
		})
	}
}

// TestForfeitToWhoCannotLead: Talos passes the leadership to the first other member without looking.
// To one that is dead it hangs, to a learner it is refused, and the leader stays: each ends
// within its time.
func TestForfeitToWhoCannotLead(t *testing.T) {
	refused := func(b *bench, n cluster.Node, want string) {
		b.Helper()
		start := time.Now()
		err := b.fleet.Forfeit(within(time.Minute), b.desired, n)
		if err == nil || !strings.Contains(err.Error(), want) || time.Since(start) > forfeitWithin+ledWithin+5*time.Second {
			b.Errorf("after %v: %v, want %q", time.Since(start), err, want)
		}
		l := b.raw(n)
		defer l.close()
		if st, err := l.etcdStatus(within(time.Minute)); err != nil || st.Leader != st.ID {
			b.Errorf("%s leads no longer: %v, %v", n.Name, st, err)
		}
	}
	t.Run("dead", func(t *testing.T) {
		inBubble(t, newest, planes, func(b *bench) {
			b.bringUp(planes...)
			was, _ := b.leader()
			if err := b.fleet.Forfeit(within(time.Minute), b.desired, was); err != nil {
				t.Fatal(err)
			}
			now, _ := b.leader()
			if err := b.lab.Kill(was.VMID); err != nil {
				t.Fatal(err)
			}
			refused(b, now, "no other member leads after "+ledWithin.String())
		})
	})
	t.Run("learner", func(t *testing.T) {
		inBubble(t, newest, []cluster.Node{cp(1), cp(2)}, func(b *bench) {
			b.bringUp(cp(1))
			b.power(cp(2))
			b.apply(cp(2))
			isLearner := func(o cluster.Observed) bool {
				return slices.ContainsFunc(o.Members.Value, func(m cluster.Member) bool { return m.Learner })
			}
			b.until("cp-2 joins", isLearner)
			if err := b.lab.Reboot(cp(2).VMID); err != nil { // it stays one
				t.Fatal(err)
			}
			b.until("its etcd runs", func(o cluster.Observed) bool { return o.Machines["cp-2"].Services["etcd"].State == "Running" })
			refused(b, cp(1), "it is too early: failed to forfeit leadership: etcdserver: bad leader transferee")
			if !isLearner(b.observe()) {
				t.Error("it is no learner any longer")
			}
		})
	})
}

// TestForfeitOfNothing: where there is no other member, and where no etcd answers.
func TestForfeitOfNothing(t *testing.T) {
	inBubble(t, newest, []cluster.Node{cp(1), wk(1)}, func(b *bench) {
		b.power(cp(1), wk(1))
		b.apply(cp(1), wk(1))
		for _, tc := range []struct {
			node cluster.Node
			want string
		}{{wk(1), "it is a worker"}, {cp(1), "read the status of its etcd: no answer in time"}} {
			start := time.Now()
			if err := b.fleet.Forfeit(within(time.Minute), b.desired, tc.node); err == nil || !strings.Contains(err.Error(), tc.want) || time.Since(start) > 10*time.Second {
				t.Errorf("%s after %v: %v", tc.node.Name, time.Since(start), err)
			}
		}
		b.until("etcd waits", func(o cluster.Observed) bool { return o.Machines["cp-1"].Services["etcd"].State == "Preparing" })
		if err := b.fleet.Bootstrap(within(time.Minute), b.desired, cp(1)); err != nil {
			t.Fatal(err)
		}
		b.until("etcd runs", func(o cluster.Observed) bool { return o.Members.Known })
		if err := b.fleet.Forfeit(within(time.Minute), b.desired, cp(1)); err == nil || !strings.Contains(err.Error(), "only one member") {
			t.Error(err)
		}
		d := b.desired
		d.Access = cluster.Access{}
		if err := b.fleet.Forfeit(within(time.Minute), d, cp(1)); err == nil {
			t.Error("without keys")
		}
	})
}
