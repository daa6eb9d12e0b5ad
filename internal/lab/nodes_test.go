package lab

import (
	"crypto/x509/pkix"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/lab/kube"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// TestPodsOnNodes asks the simulated Kubernetes what a machine is asked of its pods.
func TestPodsOnNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, err := world.New(world.Config{})
		if err != nil {
			t.Fatal(err)
		}
		ca, err := world.NewPKI(pkix.Name{Organization: []string{"kubernetes"}})
		if err != nil {
			t.Fatal(err)
		}
		clusters := kube.New(kube.Config{World: w})
		defer func() {
			clusters.Close()
			w.Close()
		}()
		address := netip.MustParseAddr("10.0.0.11")
		clusters.ServeAPI(ca.Fingerprint(), "etcd-1", world.ControlPlane{Node: "cp-1", Address: address, CACert: ca.PEM, CAKey: ca.KeyPEM,
			Kubernetes: "v1.36.1", CNI: "flannel", KubeProxy: true, PodCIDR: "10.244.0.0/16", ServiceCIDR: "10.96.0.0/12"}, func(bool) {})
		clusters.RunKubelet(ca.Fingerprint(), world.Kubelet{Node: "cp-1", Address: address, Kubernetes: "v1.36.1", Talos: "v1.13.9", Control: true, VMID: 401}, func(bool) {})
		time.Sleep(10 * time.Minute)

		var names []string
		for _, p := range (nodes{clusters}).PodsOn(ca.Fingerprint(), "cp-1") {
			if len(p.Containers) == 0 || p.Containers[0].Image == "" || p.UID == "" || p.Namespace != "kube-system" {
				t.Errorf("pod %+v", p)
			}
			names = append(names, p.Name)
		}
		for _, want := range []string{"kube-apiserver", "kube-flannel"} {
			if !slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, want) }) {
				t.Errorf("no %s among %v", want, names)
			}
		}
		if elsewhere := (nodes{clusters}).PodsOn(ca.Fingerprint(), "wk-1"); len(elsewhere) != 0 {
			t.Errorf("pods on a node that there is not: %v", elsewhere)
		}
		clusters.CloseRegistry("ghcr.io")
		if n := (nodes{clusters}); n.CanPull("ghcr.io/siderolabs/kubelet:v1.36.1") || !n.CanPull("registry.k8s.io/pause:3.10") {
			t.Error("a closed registry gives images out, or an open one does not")
		}
	})
}
