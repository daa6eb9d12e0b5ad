package agent_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
)

// TestAddonThatNeedsPrivileges: the pods of an addon are refused, which names the
// label that is missing; a push of it makes the cluster Ready, and one that takes it
// back takes it off the namespace.
func TestAddonThatNeedsPrivileges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 1}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		files := sz.Files()
		changed(t, files, "inventory/dev/cluster.yaml", "addons: [", "addons: [addons/exporter.yaml, ")
		const addon = "inventory/dev/addons/exporter.yaml"
		asked := "name: exporter\nnamespace: monitoring\nchart: {path: charts/exporter}\n"
		files[addon] = []byte(asked)
		files["inventory/dev/charts/exporter/Chart.yaml"] = []byte("apiVersion: v2\nname: exporter\nversion: 1.0.0\n")
		files["inventory/dev/charts/exporter/templates/all.yaml"] = []byte(`apiVersion: apps/v1
kind: DaemonSet
metadata: {name: exporter}
spec:
  selector: {matchLabels: {app: exporter}}
  template:
    metadata: {labels: {app: exporter}}
    spec:
      hostNetwork: true
      hostPID: true
      containers: [{name: main, image: registry.k8s.io/exporter:v1, ports: [{containerPort: 9100}]}]
`)
		s.Push(files, "an addon that needs privileges")
		s.Boot()
		const why = `daemonset monitoring/exporter: its pods are refused: violates PodSecurity "baseline:latest": host namespaces (hostNetwork=true, hostPID=true), hostPort (container "main" uses hostPort 9100)`
		s.Until(30*time.Minute, "refused and Stalled", func(st cluster.Status) bool {
			if st.Condition == cluster.Ready {
				t.Fatal("it is Ready, and an addon has no pods")
			}
			return st.Condition == cluster.Stalled && waitFor(st, "exporter", cluster.AddonPodsRefused) == why
		})
		if st := s.Status(); !strings.Contains(st.Hint, "namespace_labels: {pod-security.kubernetes.io/enforce: privileged}") || !strings.Contains(st.Hint, addon) {
			t.Errorf("the hint is %q", st.Hint)
		}
		files[addon] = []byte(asked + "namespace_labels: {pod-security.kubernetes.io/enforce: privileged}\n")
		s.Push(files, "allow it")
		s.UntilReady(25 * time.Minute)
		s.Quiet(10 * time.Minute)
		files[addon] = []byte(asked + "namespace_labels: {team: a}\n")
		s.Push(files, "take it back")
		s.UntilReady(5 * time.Minute)
		s.Quiet(10 * time.Minute) // the pods that are there stay
		s.Halt()
	})
}
