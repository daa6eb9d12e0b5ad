package agent_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
)

// webAddon adds an addon to a repository, whose upgrades are rolled back, and that asks for so many CPUs.
func webAddon(files map[string][]byte, cpu string) {
	files["inventory/dev/addons/web.yaml"] = []byte("name: web\nnamespace: apps\nchart: {path: charts/web}\nvalues: {cpu: " + cpu + "}\nready: {timeout: 10m}\non_failure: rollback\ndepends_on: [cilium]\n")
	files["inventory/dev/charts/web/Chart.yaml"] = []byte("apiVersion: v2\nname: web\nversion: 1.0.0\n")
	files["inventory/dev/charts/web/templates/all.yaml"] = []byte(`apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: web, image: registry.example.org/web:1, resources: {requests: {cpu: {{ .Values.cpu | quote }}}}}]
`)
	files["inventory/dev/cluster.yaml"] = []byte(strings.Replace(string(files["inventory/dev/cluster.yaml"]), "addons/podinfo.yaml", "addons/podinfo.yaml, addons/web.yaml", 1))
}

// TestUpgradeIsRolledBack pushes an upgrade of an addon that never becomes ready: it goes
// back to what was ready, also over a restart of the agent in the middle, is not tried
// again, and the next push that changes it is.
func TestUpgradeIsRolledBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 1}
		files := sz.Files()
		webAddon(files, "100m")
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Push(files, "an addon")
		s.Boot()
		s.UntilReady(20 * time.Minute)
		time.Sleep(time.Minute)
		changed(t, files, "inventory/dev/addons/web.yaml", "100m", "64")
		s.Push(files, "too much")
		s.Until(5*time.Minute, "waits", func(st cluster.Status) bool {
			for _, w := range st.Waiting {
				if w.Reason == cluster.AddonNotReady && strings.Contains(w.Message, "; will be rolled back to revision 1 at ") {
					return true
				}
			}
			return false
		})
		s.Halt()
		s.Boot()
		s.Until(20*time.Minute, "rolled back", func(st cluster.Status) bool {
			return len(st.Blocked) == 1 && st.Blocked[0].Reason == cluster.ReleaseRolledBack && len(st.Waiting) == 0 && len(st.Running) == 0
		})
		s.Quiet(time.Hour)
		revisions := func() string {
			var out []string
			for _, o := range s.Lab.Kube.Objects("", schema.GroupVersionResource{Version: "v1", Resource: "secrets"}, "apps") {
				if l := o.GetLabels(); l["name"] == "web" {
					out = append(out, l["version"]+":"+l["status"])
				}
			}
			return strings.Join(out, " ")
		}
		if have, want := revisions(), "1:superseded 2:superseded 3:deployed"; have != want {
			t.Errorf("the revisions are %s, want %s", have, want)
		}
		changed(t, files, "inventory/dev/addons/web.yaml", `64`, "200m")
		s.Push(files, "less")
		s.UntilReady(20 * time.Minute)
		s.Quiet(30 * time.Minute)
		if have, want := revisions(), "1:superseded 2:superseded 3:superseded 4:deployed"; have != want {
			t.Errorf("the revisions are %s, want %s", have, want)
		}
		s.CheckRules(sz)
		s.Halt()
	})
}
