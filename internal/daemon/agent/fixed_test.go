package agent_test

import (
	"maps"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/daemontest"
	"github.com/talos-agent/talos-agent/internal/lab"
)

// wantRefusedPlan checks that the plan of files that are laid over others has no step, and why they would be refused.
func (s *sim) wantRefusedPlan(what string, base, over map[string][]byte, reason cluster.Reason, text string) {
	s.T.Helper()
	maps.Copy(base, over)
	dir := fstest.MapFS{}
	for name, data := range base {
		if data != nil {
			dir[name] = &fstest.MapFile{Data: data}
		}
	}
	f, err := s.Cluster().ForecastDir(s.T.Context(), dir)
	must(err)
	if len(f.Steps) > 0 || len(f.Blocked) == 0 || f.Blocked[0].Reason != reason || !strings.Contains(f.Blocked[0].Message, text) || f.Unapproved {
		s.T.Errorf("%s: the plan has %d steps and %+v", what, len(f.Steps), f.Blocked)
	}
}

// TestHealingUnderFixedChanges: a push that changes what a cluster keeps for its life is reported
// with its place and the way back, and a worker that somebody stops is started by the revision
// before, also after a restart. When it is reverted, all is well.
func TestHealingUnderFixedChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 1}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		spec := func(from, to string) map[string][]byte {
			files := sz.Files()
			changed(t, files, "inventory/dev/cluster.yaml", from, to)
			return files
		}
		patched := spec("cni: cilium", "patches: {all: [patches/all.yaml]}\ncni: cilium")
		patched["inventory/dev/patches/all.yaml"] = []byte("machine: {sysctls: {vm.swappiness: \"1\"}}\ncluster:\n  network:\n    dnsDomain: other.local\n")
		flannel := spec("cni: cilium", "cni: flannel")
		changed(t, flannel, "inventory/dev/cluster.yaml", "addons: [addons/cilium.yaml, addons/podinfo.yaml]", "addons: []")
		lost := map[string][]byte{"inventory/dev/secrets.sops.yaml": nil}
		for _, c := range []struct {
			what   string
			files  map[string][]byte
			reason cluster.Reason
			place  string
			text   string
			hint   string
		}{
			{"pods", spec("  cidr: 10.10.0.0/20\n", "  cidr: 10.10.0.0/20\n  pod_cidr: 10.32.0.0/16\n"), cluster.FixedConfigChanged, "inventory/dev/cluster.yaml:6:13", "10.32.0.0/16", "write `pod_cidr: 10.244.0.0/16`"},
			{"services", spec("  cidr: 10.10.0.0/20\n", "  cidr: 10.10.0.0/20\n  svc_cidr: 10.33.0.0/16\n"), cluster.FixedConfigChanged, "inventory/dev/cluster.yaml:6:13", "10.33.0.0/16", "write `svc_cidr: 10.96.0.0/12`"},
			{"flannel", flannel, cluster.FixedConfigChanged, "inventory/dev/cluster.yaml:", "flannel", "write `cni: cilium`"},
			{"the contract", spec("cni: cilium", "config_contract: v1.12\ncni: cilium"), cluster.ContractChanged, "inventory/dev/cluster.yaml:", "v1.12", "write `config_contract: v1.13`"},
			{"a patch", patched, cluster.FixedConfigChanged, "inventory/dev/patches/all.yaml:4:5", "other.local", "undo the change in the patch"},
			{"no secrets", lost, cluster.SecretsMissing, "inventory/dev/secrets.sops.yaml", "is missing", "restore the file"},
			{"other secrets", map[string][]byte{"inventory/dev/secrets.sops.yaml": daemontest.OtherSecrets()}, cluster.SecretsChanged, "inventory/dev/secrets.sops.yaml", "other keys", "restore the file"},
		} {
			s.wantRefusedPlan(c.what, sz.Files(), c.files, c.reason, c.text)
			good := s.Status().Applied
			s.Push(c.files, c.what)
			must(s.Agent.Reconcile("dev"))
			for _, when := range []string{"at once", "after a restart"} {
				s.Until(2*time.Minute, c.what+" refused "+when, func(st cluster.Status) bool { return st.Reason == c.reason && st.Revision.Commit() == s.Head() })
				must(s.Lab.PVE.Stop(541))
				s.Until(10*time.Minute, c.what+": healed "+when, func(st cluster.Status) bool {
					return st.Condition == cluster.Stalled && st.Reason == c.reason && strings.Contains(st.Message, c.place) && strings.Contains(st.Message, c.text) && strings.Contains(st.Hint, c.hint) &&
						st.Applied == good && st.Problems.HasErrors() && strings.HasSuffix(st.Message, good.Short()+" stays in force: all nodes are Ready") && isRunning(s, 541)
				})
				s.Halt()
				s.Boot()
			}
			back := sz.Files()
			back["inventory/dev/patches/all.yaml"] = nil
			s.Push(back, c.what+" reverted")
			must(s.Agent.Reconcile("dev"))
			s.Until(5*time.Minute, c.what+" reverted", func(st cluster.Status) bool {
				return st.Condition == cluster.Ready && st.Applied.Commit() == s.Head() && !st.Problems.HasErrors()
			})
		}
		s.CheckRules(sz)
		s.Halt()
	})
}
