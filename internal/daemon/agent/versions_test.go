package agent_test

import (
	"testing"
	"time"
)

// TestClusterOfEveryTalos: a cluster is built with each minor version of Talos that can be upgraded
// from or to, by what that version answers, and with a Kubernetes that runs on it. It then has
// both, and is left as it is.
func TestClusterOfEveryTalos(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ talos, kubernetes string }{
		{"v1.8.4", "v1.31.14"}, {"v1.9.6", "v1.32.13"}, {"v1.10.9", "v1.33.13"}, {"v1.11.6", "v1.33.13"}, {"v1.12.11", "v1.35.10"}, {"v1.14.1", "v1.37.2"},
	} {
		t.Run(c.talos, func(t *testing.T) {
			sz := size{ControlPlanes: 3, Workers: 1}
			files := sz.Files()
			changed(t, files, "inventory/dev/cluster.yaml", "talos_version: v1.13.9\nkubernetes_version: v1.36.1\n", "talos_version: "+c.talos+"\nkubernetes_version: "+c.kubernetes+"\n")
			inReadyCluster(t, sz, files, func(t *testing.T, s *sim) {
				for _, m := range s.Lab.Talos.Machines() {
					if m.Talos != c.talos {
						t.Errorf("%s runs Talos %s, want %s", m.Node, m.Talos, c.talos)
					}
				}
				boots := map[string]string{}
				for _, m := range s.Lab.Talos.Machines() {
					boots[m.Node] = m.BootID
				}
				s.UntilReady(5 * time.Minute)
				for name, boot := range boots {
					if s.bootOf(name) != boot {
						t.Errorf("%s has booted again", name)
					}
				}
			})
		})
	}
}
