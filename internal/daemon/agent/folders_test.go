package agent_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/agent"
	"github.com/talos-agent/talos-agent/internal/lab"
)

// TestSharedSecrets: a folder that is copied with its secrets, or renamed, is no second
// cluster of the same authorities, in this life of the agent or in the next.
func TestSharedSecrets(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what    string
		renamed bool
		want    string
	}{
		{"copied", false, "an authority's key of the secrets is that of the secrets in cluster dev"},
		{"renamed", true, "these are the secrets that cluster dev was made with"},
	} {
		t.Run(c.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sz := size{ControlPlanes: 1}
				s := newSim(t, sz, lab.Config{})
				defer s.Close()
				all := func(c *agent.Config) { c.Clusters = nil }
				s.Boot(all)
				s.UntilReady(20 * time.Minute)
				files := map[string][]byte{}
				for name, b := range sz.Files() {
					text := strings.NewReplacer("cluster_name: dev", "cluster_name: prod", "dev-cp", "prod-cp", "10.10.0.11", "10.10.0.13").Replace(string(b))
					files[strings.Replace(name, "/dev/", "/prod/", 1)] = []byte(text)
					if c.renamed {
						files[name] = nil
					}
				}
				s.Push(files, "prod")
				for _, life := range []string{"this life", "the next"} {
					time.Sleep(30 * time.Minute)
					st, err := s.Agent.Status("prod")
					if err != nil || st.Condition != cluster.Stalled || !strings.Contains(st.Message, c.want) {
						t.Errorf("%s: prod is %s: %s (%v)", life, st.Condition, st.Message, err)
					}
					if life == "this life" {
						s.Halt()
						s.Boot(all)
					}
				}
				if vms := len(s.Lab.PVE.VMs()); vms != 1 {
					t.Errorf("there are %d VMs", vms)
				}
				s.Halt()
			})
		})
	}
}

// TestMisnamedFolder: a folder whose name no cluster can have is reported beside the
// clusters that there are.
func TestMisnamedFolder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot(func(c *agent.Config) { c.Clusters = nil })
		s.UntilReady(20 * time.Minute)
		s.Push(map[string][]byte{"inventory/My_Cluster/cluster.yaml": []byte("cluster_name: my\n")}, "one more")
		time.Sleep(2 * time.Minute)
		if got := s.Agent.Trouble(); len(got) != 1 || !strings.Contains(got[0], `the folder "My_Cluster" has a cluster.yaml and a name that no cluster can have`) {
			t.Errorf("%q", got)
		}
		s.Push(map[string][]byte{"inventory/My_Cluster/cluster.yaml": nil}, "and none")
		time.Sleep(2 * time.Minute)
		if got := s.Agent.Trouble(); len(got) > 0 {
			t.Errorf("afterwards: %q", got)
		}
		s.Halt()
	})
}
