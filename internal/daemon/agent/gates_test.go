package agent_test

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// TestGatesOfUpgrades: each node is upgraded only while the gates of the inventory hold, of Talos and of Kubernetes
// alike, and what is installed on a node is not booted while one is closed. One that closes later stops the next node.
func TestGatesOfUpgrades(t *testing.T) {
	t.Parallel()
	sz := size{ControlPlanes: 1, Workers: 1}
	inClusterOf(t, sz, "v1.13.8", "v1.35.10", func(s *sim, push func(what, from, to string), w *turns) {
		s.Lab.World.Inject(world.Fault{System: "talos", Op: "machine.LifecycleService/Upgrade", Kind: world.Slow, Delay: time.Minute}) // there is time to close a gate
		api := netip.MustParseAddr("10.10.0.11")
		const path = "/api/v1/namespaces/default/configmaps"
		set := func(state string) {
			s.kubectl(api, http.MethodPatch, path+"/copies", fmt.Sprintf(`{"data":{"state":%q}}`, state))
		}
		waits := func(st cluster.Status) bool {
			for _, wait := range st.Waiting {
				if wait.Reason == cluster.WaitingForGate {
					return true
				}
			}
			return false
		}
		s.kubectl(api, http.MethodPost, path, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"copies","namespace":"default"},"data":{"state":"behind"}}`)
		const gate = "gates: [{name: copies, objects: {api_version: v1, kind: ConfigMap, namespace: default, name: copies}, condition: 'objects.all(o, o.data.state == \"all\")'}]\n"
		push("a gate", "cni: cilium\n", "cni: cilium\n"+gate)
		s.untilAppliedIn(time.Hour, "with a gate")
		before := len(s.Lab.World.Calls())
		push("another talos", "talos_version: v1.13.8", "talos_version: v1.13.9")
		s.Until(time.Hour, "held", waits)
		time.Sleep(2 * time.Hour)
		w.wantDown("")
		set("all")
		s.Until(time.Hour, "the control plane has the new one installed", func(cluster.Status) bool { return s.timesInstalled(before)["dev-cp-1"] == 1 })
		set("behind") // before it is drained
		s.Until(time.Hour, "held again", waits)
		time.Sleep(2 * time.Hour)
		w.wantDown("")
		set("all")
		s.Until(time.Hour, "the control plane is drained", func(cluster.Status) bool { return slices.Contains(s.cordoned(), "dev-cp-1") })
		set("behind") // its own turn is ended, and the worker waits
		s.Until(time.Hour, "held for the worker", waits)
		time.Sleep(2 * time.Hour)
		w.wantDown("dev-cp-1:1")
		set("all")
		s.untilAppliedIn(2*time.Hour, "upgraded")
		s.wantTalos("v1.13.9")
		if got := fmt.Sprint(s.timesInstalled(before)); got != "map[dev-cp-1:1 dev-wk-1:1]" {
			t.Errorf("got another Talos: %s", got)
		}

		set("behind")
		push("another kubernetes", "kubernetes_version: v1.35.10", "kubernetes_version: v1.36.1")
		s.Until(time.Hour, "held", waits)
		time.Sleep(2 * time.Hour)
		s.wantKubernetes("v1.35.10")
		set("all")
		s.untilAppliedIn(2*time.Hour, "upgraded")
		s.wantKubernetes("v1.36.1")
	})
}

// TestInstalledIsTakenBack: what is installed on a node that is not booted yet, and that another push takes back, is never run: the next
// version is installed over it, or the one that the node runs, whatever it is booted for then.
func TestInstalledIsTakenBack(t *testing.T) {
	t.Parallel()
	sz := size{ControlPlanes: 1, Workers: 1}
	inClusterOf(t, sz, "v1.13.7", "v1.36.1", func(s *sim, push func(what, from, to string), w *turns) {
		s.Lab.World.Inject(world.Fault{System: "talos", Op: "machine.LifecycleService/Upgrade", Kind: world.Slow, Delay: time.Minute}) // there is time to close a gate
		api := netip.MustParseAddr("10.10.0.11")
		const path = "/api/v1/namespaces/default/configmaps"
		set := func(state string) {
			s.kubectl(api, http.MethodPatch, path+"/copies", fmt.Sprintf(`{"data":{"state":%q}}`, state))
		}
		install := func(from, to string) { // and no more, on the control plane
			before := len(s.Lab.World.Calls())
			set("all")
			push("another talos", "talos_version: "+from, "talos_version: "+to)
			s.Until(time.Hour, "the control plane has the new one installed", func(cluster.Status) bool { return s.timesInstalled(before)["dev-cp-1"] == 1 })
			set("behind")
			s.Until(time.Hour, "held", func(st cluster.Status) bool {
				return slices.ContainsFunc(st.Waiting, func(wait cluster.WaitStatus) bool { return wait.Reason == cluster.WaitingForGate })
			})
		}
		s.kubectl(api, http.MethodPost, path, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"copies","namespace":"default"},"data":{"state":"all"}}`)
		push("a gate", "cni: cilium\n", "cni: cilium\ngates: [{name: copies, objects: {api_version: v1, kind: ConfigMap, namespace: default, name: copies}, condition: 'objects.all(o, o.data.state == \"all\")'}]\n")
		s.untilAppliedIn(time.Hour, "with a gate")

		install("v1.13.7", "v1.13.8")
		w.wantDown("")
		push("a better one", "talos_version: v1.13.8", "talos_version: v1.13.9")
		s.Until(time.Hour, "the push is seen", func(st cluster.Status) bool { return st.Revision.Commit() == s.Head() })
		set("all")
		s.untilAppliedIn(2*time.Hour, "upgraded")
		s.wantTalos("v1.13.9")
		w.wantDown("dev-cp-1:1 dev-wk-1:1") // and neither for the version in between

		install("v1.13.9", "v1.14.1")
		before := len(s.Lab.World.Calls())
		push("taken back", "talos_version: v1.14.1", "talos_version: v1.13.9")
		s.untilAppliedIn(time.Hour, "taken back")
		if got := fmt.Sprint(s.timesInstalled(before)); got != "map[dev-cp-1:1]" {
			t.Errorf("got the one that they run: %s", got)
		}
		w.wantDown("dev-cp-1:1 dev-wk-1:1")
		if err := s.Lab.Talos.Reboot(s.vmidOf("dev-cp-1")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Minute)
		s.wantTalos("v1.13.9")
	})
}
