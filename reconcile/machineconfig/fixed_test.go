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
			want.Authorities = cfg.Fixed.Authorities
			if cfg.Fixed != want || want.Authorities.Talos == "" || want.Authorities.Kubernetes == "" || (want.Authorities.Etcd == "") != (name == "dev-wk-1") {
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

// TestAuthoritiesOfConfigs: configs of the same secrets have the same authorities, and those
// of others have others; no key is in what identifies them.
func TestAuthoritiesOfConfigs(t *testing.T) {
	s := snapshot(t, contracts[len(contracts)-1])
	ours := mustRender(t, s)
	text, err := NewBundle("v1.13", testNow)
	if err != nil {
		t.Fatal(err)
	}
	s.Bundle = cluster.NewSecret(text)
	theirs := mustRender(t, s)
	for name, cfg := range ours {
		for other := range ours {
			if what := cfg.Fixed.Authorities.Other(ours[other].Fixed.Authorities); what != "" {
				t.Errorf("%s has another authority than %s: %s", name, other, what)
			}
			if what := cfg.Fixed.Authorities.Other(theirs[other].Fixed.Authorities); what != "Talos" {
				t.Errorf("%s has another authority than %s of another cluster: %q", name, other, what)
			}
		}
	}
}
