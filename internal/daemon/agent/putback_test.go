package agent_test

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
)

// TestPutBack deletes a workload and another object of an addon by hand: both are put
// back, and with `heal: observe` the deletion is reported only.
func TestPutBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 1}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		time.Sleep(10 * time.Minute)
		cp := netip.MustParseAddr("10.10.0.11")
		s.kubectl(cp, http.MethodDelete, "/apis/apps/v1/namespaces/apps/deployments/podinfo", "")
		s.Until(5*time.Minute, "a deployment is put back", func(st cluster.Status) bool { return s.has("apps", "deployments", "apps", "podinfo") })
		s.UntilReady(10 * time.Minute)
		s.kubectl(cp, http.MethodDelete, "/api/v1/namespaces/apps/services/podinfo", "")
		s.Until(30*time.Minute, "a service is put back", func(st cluster.Status) bool { return s.has("", "services", "apps", "podinfo") })
		s.UntilReady(10 * time.Minute)
		s.Quiet(30 * time.Minute)
		files := sz.Files()
		changed(t, files, "inventory/dev/cluster.yaml", "cni: cilium\n", "cni: cilium\nheal: observe\n")
		s.Push(files, "observe")
		s.untilApplied("observe")
		s.kubectl(cp, http.MethodDelete, "/apis/apps/v1/namespaces/apps/deployments/podinfo", "")
		s.Until(5*time.Minute, "reported", func(st cluster.Status) bool {
			return len(st.Blocked) == 1 && st.Blocked[0].Reason == cluster.HealingOff && strings.Contains(st.Blocked[0].Message, "upgrade addon podinfo in apps: deployment apps/podinfo is missing")
		})
		time.Sleep(30 * time.Minute)
		if s.has("apps", "deployments", "apps", "podinfo") {
			t.Error("it was put back")
		}
		s.CheckRules(sz)
		s.Halt()
	})
}
