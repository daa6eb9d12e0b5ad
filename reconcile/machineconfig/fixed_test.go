package machineconfig

import (
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestFixed: what a config has of it is read from it again, whichever documents carry it,
// and no error quotes the config.
func TestFixed(t *testing.T) {
	for _, contract := range contracts {
		s := snapshot(t, contract)
		want := cluster.FixedConfig{Cluster: s.Spec.Name, DNSDomain: "cluster.local", Pods: s.Spec.Network.PodCIDR.String(), Services: s.Spec.Network.ServiceCIDR.String()}
		for name, cfg := range mustRender(t, s) {
			if cfg.Fixed != want {
				t.Errorf("%s at %s: %+v", name, contract, cfg.Fixed)
			}
			if got, err := Fixed(cfg.Bytes.Reveal()); err != nil || got != want {
				t.Errorf("%s at %s: %+v, %v", name, contract, got, err)
			}
		}
	}
	if _, err := Fixed([]byte("machine: {token: secret, nosuch: 1}")); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("%v", err)
	}
}
