package agent_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// stuckBudget is where somebody has a disruption budget that never lets its only pod go, and stuckAPI whom they ask.
const stuckBudget = "/apis/policy/v1/namespaces/apps/poddisruptionbudgets"

var stuckAPI = netip.MustParseAddr("10.10.0.11")

// holdPod starts such a pod, and returns the node that it runs on.
func (s *sim) holdPod() (node string) {
	s.T.Helper()
	s.kubectl(stuckAPI, http.MethodPost, "/apis/apps/v1/namespaces/apps/deployments", `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"stuck","namespace":"apps"},
		"spec":{"replicas":1,"selector":{"matchLabels":{"app":"stuck"}},"template":{"metadata":{"labels":{"app":"stuck"}},"spec":{"containers":[{"name":"stuck","image":"registry.example.org/stuck:1"}]}}}}`)
	s.kubectl(stuckAPI, http.MethodPost, stuckBudget, `{"apiVersion":"policy/v1","kind":"PodDisruptionBudget","metadata":{"name":"stuck","namespace":"apps"},
		"spec":{"minAvailable":1,"selector":{"matchLabels":{"app":"stuck"}}}}`)
	s.Until(5*time.Minute, "it runs", func(cluster.Status) bool { node = s.nodeOf("stuck"); return node != "" })
	return node
}

// TestBudgetHoldsAnUpgrade: a pod that may not be evicted holds the node that is upgraded first. What was installed on it waits
// there, or is not installed yet where Talos does that on its way down; it is back in service between the tries, the budget is named
// with what to do about it, and no other node is touched, by the next agent neither. When the budget is gone all are upgraded.
func TestBudgetHoldsAnUpgrade(t *testing.T) {
	t.Parallel()
	for name, from := range map[string]string{"in service": "v1.13.8", "on its way down": "v1.12.11"} {
		t.Run(name, func(t *testing.T) {
			inClusterOf(t, size{ControlPlanes: 1, Workers: 2}, from, "v1.35.3", func(s *sim, push func(what, from, to string), w *turns) {
				node := s.holdPod()
				before := len(s.Lab.World.Calls())
				installed := map[string]int{}
				if from == "v1.13.8" {
					installed[node] = 1
				}
				held := func(st cluster.Status) bool {
					return st.Condition == cluster.Stalled && st.Reason == cluster.ActionFailed && strings.HasPrefix(st.Message, node+": drain node failed") &&
						strings.Contains(st.Message, "The disruption budget stuck needs 1 healthy pods") && strings.Contains(st.Hint, "or its budget room") && !st.Upgrade.StuckSince.IsZero() && st.Upgrade.Upgraded == 0
				}
				untouched := func() {
					s.T.Helper()
					w.wantDown("")
					if got := s.timesInstalled(before); !maps.Equal(got, installed) {
						s.T.Errorf("asked for another Talos: %v, want %v", got, installed)
					}
				}
				push("another talos", "talos_version: "+from, "talos_version: v1.13.9\ncanary: "+node)
				s.Until(time.Hour, "held up", held)
				s.Until(time.Hour, "back in service", func(st cluster.Status) bool { return len(s.cordoned()) == 0 && held(st) })
				s.wantTalos(from)
				untouched()
				s.Until(time.Hour, "tried again", func(st cluster.Status) bool { return isDrained(st, node) })
				s.Die()
				s.Until(time.Hour, "held up under the next agent", held)
				untouched()
				s.kubectl(stuckAPI, http.MethodDelete, stuckBudget+"/stuck", "")
				s.untilAppliedIn(2*time.Hour, "upgraded")
				s.wantTalos("v1.13.9")
				w.wantDown("dev-cp-1:1 dev-wk-1:1 dev-wk-2:1")
				if got := fmt.Sprint(s.timesInstalled(before)); got != "map[dev-cp-1:1 dev-wk-1:1 dev-wk-2:1]" {
					s.T.Errorf("asked for another Talos: %s", got)
				}
				s.CheckRules(size{ControlPlanes: 1, Workers: 2})
			})
		})
	}
}

// leader is the node whose member leads etcd.
func (s *sim) leader() string {
	s.T.Helper()
	for _, m := range s.Lab.Talos.Machines() {
		if m.Leads {
			return m.Node
		}
	}
	s.T.Fatal("etcd has no leader")
	return ""
}

// TestAlarmHoldsAnUpgrade: while etcd has an alarm that is reported, and nothing of an upgrade is begun, by the next agent
// neither. When a person has disarmed it all are upgraded, who leads etcd as the last of the control planes, so that there is no
// more than one other leader.
func TestAlarmHoldsAnUpgrade(t *testing.T) {
	t.Parallel()
	sz := size{ControlPlanes: 3, Workers: 1}
	inClusterOf(t, sz, "v1.13.8", "v1.35.3", func(s *sim, push func(what, from, to string), w *turns) {
		leader := s.leader()
		must(s.Lab.Talos.RaiseAlarm(s.vmidOf("dev-cp-2"), machineapi.EtcdMemberAlarm_NOSPACE))
		alarmed := func(st cluster.Status) bool {
			return st.Condition == cluster.Stalled && st.Reason == cluster.EtcdAlarm && strings.Contains(st.Message, "NOSPACE") && strings.Contains(st.Hint, "alarm disarm")
		}
		s.Until(10*time.Minute, "reported", alarmed)
		before := len(s.Lab.World.Calls())
		push("another talos", "talos_version: v1.13.8", "talos_version: v1.13.9")
		held := func(st cluster.Status) bool {
			return alarmed(st) && slices.ContainsFunc(st.Waiting, func(w cluster.WaitStatus) bool { return w.Subject == "dev-cp-3" && w.Reason == cluster.EtcdAlarm })
		}
		s.Until(time.Hour, "held", held)
		s.Die()
		s.Until(time.Hour, "held by the next agent", held)
		time.Sleep(10 * time.Minute)
		w.wantDown("")
		if got := s.timesInstalled(before); len(got) > 0 {
			s.T.Errorf("asked for another Talos: %v", got)
		}
		must(s.askTalos("10.10.0.11", func(ctx context.Context, c *client.Client) error {
			_, err := c.MachineClient.EtcdAlarmDisarm(ctx, &emptypb.Empty{})
			return err
		}))
		s.untilAppliedIn(2*time.Hour, "upgraded")
		s.wantTalos("v1.13.9")
		if got := s.orderInstalled(before); len(got) != 4 || got[2] != leader || got[3] != "dev-wk-1" {
			s.T.Errorf("%s led, and they were upgraded in this order: %v", leader, got)
		}
		s.CheckRules(sz)
	})
}

// TestAlarmHoldsAReboot: an alarm that comes up while a control plane is drained for another Talos keeps it up until a person has disarmed
// it.
func TestAlarmHoldsAReboot(t *testing.T) {
	t.Parallel()
	sz := size{ControlPlanes: 3, Workers: 1}
	inClusterOf(t, sz, "v1.13.8", "v1.35.3", func(s *sim, push func(what, from, to string), w *turns) {
		push("another talos", "talos_version: v1.13.8", "talos_version: v1.13.9")
		s.Until(time.Hour, "being drained", func(cluster.Status) bool { return len(s.cordoned()) > 0 })
		must(s.Lab.Talos.RaiseAlarm(s.vmidOf("dev-cp-2"), machineapi.EtcdMemberAlarm_NOSPACE))
		s.Until(10*time.Minute, "held", func(st cluster.Status) bool {
			return slices.ContainsFunc(st.Waiting, func(w cluster.WaitStatus) bool {
				return w.Reason == cluster.EtcdAlarm && strings.HasPrefix(w.Message, "is drained, ")
			})
		})
		time.Sleep(10 * time.Minute)
		w.wantDown("")
		must(s.askTalos("10.10.0.11", func(ctx context.Context, c *client.Client) error {
			_, err := c.MachineClient.EtcdAlarmDisarm(ctx, &emptypb.Empty{})
			return err
		}))
		s.untilAppliedIn(2*time.Hour, "upgraded")
		s.wantTalos("v1.13.9")
		w.wantDown("dev-cp-1:1 dev-cp-2:1 dev-cp-3:1 dev-wk-1:1")
		s.CheckRules(sz)
	})
}

// orderInstalled are the nodes whose machines were asked for another Talos since so many calls, in that order.
func (s *sim) orderInstalled(since int) (out []string) {
	for _, c := range s.Lab.World.Calls()[since:] {
		if c.System == "talos" && (strings.HasSuffix(c.Op, "LifecycleService/Upgrade") || strings.HasSuffix(c.Op, "MachineService/Upgrade")) {
			out = append(out, c.Subject)
		}
	}
	return out
}

// TestServiceHoldsAnUpgrade: what Proxmox VE's HA manager is about to do with the VM of one node keeps all of them up, and the status
// names it and how to see it. Where it has given the VM up that is named, too. Once it is out of HA, and the manager has
// forgotten it, all are upgraded.
func TestServiceHoldsAnUpgrade(t *testing.T) {
	t.Parallel()
	sz := size{ControlPlanes: 1, Workers: 2}
	inClusterOf(t, sz, "v1.13.8", "v1.35.3", func(s *sim, push func(what, from, to string), w *turns) {
		sid := fmt.Sprintf("vm:%d", s.vmidOf("dev-wk-2"))
		s.Lab.PVE.Manage(sid)
		s.Lab.PVE.SetService(sid, "request_start_balance")
		before := len(s.Lab.World.Calls())
		push("another talos", "talos_version: v1.13.8", "talos_version: v1.13.9")
		held := func(state string) func(cluster.Status) bool {
			return func(st cluster.Status) bool {
				return slices.ContainsFunc(st.Nodes, func(n cluster.NodeStatus) bool {
					return n.Name == "dev-cp-1" && strings.Contains(n.WaitsFor, "of dev-wk-2 is free") && strings.Contains(n.WaitsFor, state)
				})
			}
		}
		stalled := func(state, hint string) func(cluster.Status) bool {
			return func(st cluster.Status) bool {
				return held(state)(st) && st.Condition == cluster.Stalled && st.Reason == cluster.VMLocked && strings.Contains(st.Message, state) && strings.Contains(st.Hint, hint)
			}
		}
		s.Until(10*time.Minute, "held", held("request_start_balance"))
		s.Lab.PVE.SetService(sid, "error")
		s.Until(10*time.Minute, "held by a failure", stalled("given it up", "--state disabled"))
		s.Die()
		s.Until(10*time.Minute, "held by the next agent", stalled("given it up", "--state disabled"))
		s.Lab.PVE.Manage()
		s.Lab.PVE.SetService(sid, "request_stop")
		s.Until(time.Hour, "held until the manager knows", stalled("request_stop", "ha-manager status"))
		w.wantDown("")
		if got := s.timesInstalled(before); len(got) > 0 {
			s.T.Errorf("asked for another Talos: %v", got)
		}
		s.Lab.PVE.SetService(sid, "")
		s.untilAppliedIn(2*time.Hour, "upgraded")
		s.wantTalos("v1.13.9")
		w.wantDown("dev-cp-1:1 dev-wk-1:1 dev-wk-2:1")
		s.CheckRules(sz)
	})
}
