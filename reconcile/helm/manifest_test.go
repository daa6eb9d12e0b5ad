package helm

import (
	"slices"
	"testing"
)

func TestWorkloadsIn(t *testing.T) {
	const manifest = `---
# Source: web/templates/a.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: x}
data:
  text: |
    kind: Deployment
---
# Source: web/templates/b.yaml
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent, namespace: other}
---
kind: "Deployment"
apiVersion: apps/v1
metadata:
  name: web
---
apiVersion: apps/v1
kind: StatefulSet # of data
metadata: {name: data}
--- # not ours
apiVersion: example.org/v1
kind: Deployment
metadata: {name: foreign}
---
apiVersion: apps/v1
kind: Deployment
metadata: [broken
---
apiVersion: apps/v1
kind: DeploymentSet
metadata: {name: like}
`
	got, _ := workloadsIn(manifest, "apps")
	want := []object{{kindDaemonSet, "other", "agent"}, {kindDeployment, "apps", "web"}, {kindStatefulSet, "apps", "data"}}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if s := want[0].String(); s != "daemonset other/agent" {
		t.Error(s)
	}
}

func FuzzManifest(f *testing.F) {
	f.Add("---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\n")
	f.Fuzz(func(t *testing.T, manifest string) {
		list, _ := workloadsIn(manifest, "apps")
		for _, o := range list {
			if o.kind == "" || o.namespace == "" {
				t.Errorf("%+v", o)
			}
		}
	})
}
