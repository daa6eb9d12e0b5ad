package drift

import (
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// imagesOf are the images of a control plane, each with its version.
func imagesOf(server, manager, scheduler, kubelet string) cluster.Images {
	return cluster.Images{Etcd: "registry.k8s.io/etcd:v3.6.4", APIServer: "registry.k8s.io/kube-apiserver:" + server, ControllerManager: "registry.k8s.io/kube-controller-manager:" + manager,
		Scheduler: "registry.k8s.io/kube-scheduler:" + scheduler, Kubelet: "ghcr.io/siderolabs/kubelet:" + kubelet, Proxy: "registry.k8s.io/kube-proxy:" + kubelet}
}

// TestDescribeSteps: a step of Kubernetes is called by what gets which version, and in which direction.
func TestDescribeSteps(t *testing.T) {
	const old, now = "v1.35.4", "v1.36.1"
	before := imagesOf(old, old, old, old)
	pinned := before
	pinned.Kubelet, pinned.APIServer = "ghcr.io/siderolabs/kubelet@sha256:00", "mirror.example/kube-apiserver:v1.35.4"
	for name, c := range map[string]struct {
		before, after cluster.Images
		want          string
	}{
		"nothing":                 {before, before, ""},
		"one":                     {before, imagesOf(now, old, old, old), "upgrade kube-apiserver of cp-1 to v1.36.1"},
		"a kubelet":               {before, imagesOf(old, old, old, now), "upgrade kubelet of cp-1 to v1.36.1"},
		"one goes back":           {imagesOf(now, now, old, old), imagesOf(now, old, old, old), "revert kube-controller-manager of cp-1 to v1.35.4"},
		"all":                     {before, imagesOf(now, now, now, now), "upgrade kube-apiserver and kube-controller-manager and kube-scheduler and kubelet of cp-1 to v1.36.1"},
		"in two directions":       {imagesOf(old, now, old, old), imagesOf(now, old, old, old), "upgrade kube-apiserver of cp-1 to v1.36.1, revert kube-controller-manager of cp-1 to v1.35.4"},
		"from an unknown version": {pinned, before, ""},
		"another registry":        {before, pinned, ""},
		"of a worker":             {cluster.Images{Kubelet: "k:" + old}, cluster.Images{Kubelet: "k:" + now}, "upgrade kubelet of cp-1 to v1.36.1"},
	} {
		if got := DescribeSteps("cp-1", ComponentsOf(c.before, c.after)); got != c.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// TestVersionsInADrift: where the versions of components are all that differs of a config they are shown, and where there is more its
// digests are.
func TestVersionsInADrift(t *testing.T) {
	n := cluster.Node{Name: "cp-1", Role: cluster.ControlPlane}
	before, after := cluster.ConfigSummary{Rest: "r", Images: imagesOf("v1.35.4", "v1.35.4", "v1.35.4", "v1.35.4")}, cluster.ConfigSummary{Rest: "r", Images: imagesOf("v1.36.1", "v1.35.4", "v1.35.4", "v1.35.4")}
	other, etcd := after, after
	other.Rest, etcd.Images.Etcd = "s", "registry.k8s.io/etcd:v3.6.5"
	for name, c := range map[string]struct {
		want       cluster.ConfigSummary
		has, wants string
	}{
		"a component": {after, "kube-apiserver v1.35.4", "kube-apiserver v1.36.1"},
		"more":        {other, "have", "want"},
		"etcd, too":   {etcd, "have", "want"},
		"nothing":     {before, "have", "want"},
	} {
		d := cluster.Desired{Configs: map[string]cluster.Config{n.Name: {Digest: "want", Summary: c.want}}}
		o := cluster.Observed{Now: time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC), Machines: map[string]cluster.Machine{n.Name: {Reach: cluster.Configured, ConfigDigest: "have", Summary: before}}}
		got := Describe(d, o, n, []Drift{{Reason: cluster.ConfigDrift, Field: FieldConfig, Want: "want", Have: "have", How: Reboot}})
		if len(got) != 1 || got[0].Field != FieldConfig || got[0].Has != c.has || got[0].Wants != c.wants {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
