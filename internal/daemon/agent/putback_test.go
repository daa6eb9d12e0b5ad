package agent_test

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
)

// TestPutBack deletes a workload and another object of an addon by hand: both are put
// back, and with `heal: observe` the deletion is reported only.
func TestPutBack(t *testing.T) {
	t.Parallel()
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

// TestEditsArePutBack edits a Deployment and a ConfigMap by hand: both are put back, and the
// history names who it was. What an autoscaler sets is left, and so is what insists; with
// `heal: observe` an edit is reported only.
func TestEditsArePutBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const (
			deployment = "/apis/apps/v1/namespaces/apps/deployments/podinfo"
			config     = "/api/v1/namespaces/kube-system/configmaps/cilium-config"
		)
		sz := size{ControlPlanes: 1, Workers: 1}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		time.Sleep(10 * time.Minute)
		cp := netip.MustParseAddr("10.10.0.11")
		edit := func(path, manager, body string) {
			s.kubectl(cp, http.MethodPatch, path+"?fieldManager="+manager, body)
			time.Sleep(time.Second)
		}
		replicas := func() int64 {
			n, _, _ := unstructured.NestedInt64(s.object("apps", "deployments", "apps", "podinfo").Object, "spec", "replicas")
			return n
		}
		mode := func() string {
			text, _, _ := unstructured.NestedString(s.object("", "configmaps", "kube-system", "cilium-config").Object, "data", "cluster-name")
			return text
		}
		want, wantMode := replicas(), mode()

		edit(deployment, "kubectl-edit", `{"spec":{"replicas":7}}`)
		s.Until(5*time.Minute, "a deployment is put back", func(st cluster.Status) bool { return replicas() == want })
		s.UntilReady(10 * time.Minute)
		edit(config, "kubectl-patch", `{"data":{"cluster-name":"theirs"}}`)
		s.Until(30*time.Minute, "a config map is put back", func(st cluster.Status) bool { return mode() == wantMode })
		s.UntilReady(10 * time.Minute)
		s.Quiet(30 * time.Minute)
		runs, err := s.Agent.History("dev")
		must(err)
		history := fmt.Sprint(runs)
		for _, words := range []string{
			fmt.Sprintf("upgrade addon podinfo in apps: deployment apps/podinfo: spec.replicas %d -> 7, changed by kubectl-edit at ", want),
			"upgrade addon cilium in kube-system: configmap kube-system/cilium-config: data.cluster-name, changed by kubectl-patch at ",
		} {
			if !strings.Contains(history, words) {
				t.Errorf("no %q in the history", words)
			}
		}

		edit(deployment+"/scale", "kube-controller-manager", `{"spec":{"replicas":3}}`)
		s.UntilReady(10 * time.Minute)
		s.Quiet(30 * time.Minute)
		if replicas() != 3 {
			t.Errorf("%d replicas: an autoscaler was overruled", replicas())
		}

		edit(deployment, "operator", `{"spec":{"replicas":5}}`)
		s.Until(5*time.Minute, "what an operator did is put back", func(st cluster.Status) bool { return replicas() == want })
		s.UntilReady(10 * time.Minute)
		edit(deployment, "operator", `{"spec":{"replicas":5}}`)
		st := s.untilApplied("it is left")
		s.Quiet(time.Hour)
		if text := st.Problems.Error(); replicas() != 5 || !strings.Contains(text, "changed again, and is left so: deployment apps/podinfo: spec.replicas ") {
			t.Errorf("%d replicas, problems %s", replicas(), text)
		}

		files := sz.Files()
		changed(t, files, "inventory/dev/cluster.yaml", "cni: cilium\n", "cni: cilium\nheal: observe\n")
		s.Push(files, "observe")
		s.untilApplied("observe")
		edit(deployment, "kubectl-set", `{"spec":{"template":{"spec":{"terminationGracePeriodSeconds":1,"containers":[{"name":"podinfo","image":"ghcr.io/stefanprodan/podinfo:other"}]}}}}`)
		s.Until(5*time.Minute, "reported", func(st cluster.Status) bool {
			return len(st.Blocked) == 1 && st.Blocked[0].Reason == cluster.HealingOff && strings.Contains(st.Blocked[0].Message, "podinfo:other, changed by kubectl-set at ")
		})
		s.CheckRules(sz)
		s.Halt()
	})
}
