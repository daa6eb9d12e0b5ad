package agent_test

import (
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestUpgradeNamesReleases: what somebody has installed with Helm, with an API that the hop takes away, is named to who is to approve the hop, and
// the steps of that name what gets which version.
func TestUpgradeNamesReleases(t *testing.T) {
	t.Parallel()
	inClusterOf(t, size{ControlPlanes: 1, Workers: 1}, "v1.13.9", "v1.33.13", func(s *sim, push func(what, from, to string), w *turns) {
		s.installByHand("old", "apiVersion: admissionregistration.k8s.io/v1beta1\nkind: ValidatingAdmissionPolicy\nmetadata: {name: old}\n")
		s.installByHand("new", "apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingAdmissionPolicy\nmetadata: {name: new}\n")
		push("another kubernetes", "kubernetes_version: v1.33.13\n", "kubernetes_version: v1.34.13\nupgrade: approve\n")
		const want = "; Kubernetes v1.34.13: Helm cannot upgrade releases any more whose manifests have what it does not: default/old (admissionregistration.k8s.io/v1beta1 ValidatingAdmissionPolicy, which v1.34 removes)"
		s.Until(time.Hour, "named", func(st cluster.Status) bool {
			return strings.HasSuffix(st.Message, want)
		})
		push("go on", "upgrade: approve\n", "")
		var done []string
		s.Until(4*time.Hour, "upgraded", func(st cluster.Status) bool {
			for _, p := range st.Passes {
				for _, step := range p.Started {
					if !slices.Contains(done, step) {
						done = append(done, step)
					}
				}
			}
			return st.Condition == cluster.Ready && st.Applied.Commit() == s.Head()
		})
		s.wantKubernetes("v1.34.13")
		for _, step := range []string{"upgrade kube-apiserver of dev-cp-1 to v1.34.13", "upgrade kube-scheduler of dev-cp-1 to v1.34.13", "upgrade kubelet of dev-cp-1 to v1.34.13", "upgrade kubelet of dev-wk-1 to v1.34.13"} {
			if !slices.Contains(done, step) {
				s.T.Errorf("%q was not begun, but %q", step, done)
			}
		}
	})
}

// installByHand keeps a release of a manifest as Helm does, without compressing it.
func (s *sim) installByHand(name, manifest string) {
	s.T.Helper()
	record, err := json.Marshal(map[string]string{"name": name, "manifest": manifest})
	if err != nil {
		s.T.Fatal(err)
	}
	secret, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "Secret", "type": "helm.sh/release.v1",
		"metadata": map[string]any{"name": "sh.helm.release.v1." + name + ".v1", "namespace": "default", "labels": map[string]string{"owner": "helm", "name": name, "version": "1", "status": "deployed"}},
		"data":     map[string]any{"release": []byte(base64.StdEncoding.EncodeToString(record))}})
	if err != nil {
		s.T.Fatal(err)
	}
	s.kubectl(stuckAPI, "POST", "/api/v1/namespaces/default/secrets", string(secret))
}
