package agent_test

import (
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/daemontest"
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
	daemontest.LeaveToExhaust(t)
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
