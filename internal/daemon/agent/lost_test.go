package agent_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/api"
	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// TestForget has machines hang, and root takes them for lost: a worker gets a new machine
// at once; a control plane whose VM cannot be seen leaves etcd and Kubernetes, also when
// the agent is restarted meanwhile, and is made again when its VM is seen; what answers, and
// what etcd cannot do without, is refused.
func TestForget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 3, Workers: 2}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		s.watchRemovals()
		first := s.generations()
		refused := func(node, want string) {
			t.Helper()
			if err := s.Cluster().Forget(node, true); err == nil || !strings.Contains(err.Error()+fault.HintOf(err), want) {
				t.Errorf("%s: %v", node, err)
			}
		}
		refused("dev-wk-1", "its machine answers")
		refused("dev-cp-1", "its machine answers")
		refused("dev-wk-9", "its nodes are dev-cp-1, dev-cp-2")
		if err := s.Cluster().Forget("dev-wk-9", true); !errors.Is(err, api.ErrUnknownNode) {
			t.Error(err)
		}

		must(s.Lab.Talos.Kill(s.vmidOf("dev-wk-2")))
		s.Until(10*time.Minute, "not Ready", func(cluster.Status) bool {
			_, err := s.Cluster().ForecastForget("dev-wk-2")
			return err == nil
		})
		f, err := s.Cluster().ForecastForget("dev-wk-2")
		if text := strings.Join(f.Notes, "\n"); err != nil || !strings.Contains(text, "is deleted with its disks") || !f.Destructive() {
			t.Errorf("%v: %+v", err, f)
		}
		must(s.Cluster().Forget("dev-wk-2", false))
		s.Until(10*time.Minute, "made again", func(cluster.Status) bool { return s.generations()["dev-wk-2"] != first["dev-wk-2"] })
		s.UntilReady(30 * time.Minute)
		if now := s.generations(); now["dev-wk-2"] == first["dev-wk-2"] || now["dev-wk-1"] != first["dev-wk-1"] {
			t.Errorf("machines are %v, and were %v", now, first)
		}

		// A control plane on a host that does not answer about it.
		lost := s.vmidOf("dev-cp-2")
		must(s.Lab.Talos.Kill(lost))
		for _, what := range []string{"config", "pending", "status/current"} {
			s.Lab.World.Inject(world.Fault{System: "pve", Op: "GET /nodes/{node}/qemu/{vmid}/" + what, Subject: fmt.Sprint(lost), Kind: world.Answer, Status: 595, Text: "no route to host", Times: 1 << 20})
		}
		s.Until(30*time.Minute, "lost", func(cluster.Status) bool {
			f, err := s.Cluster().ForecastForget("dev-cp-2")
			return err == nil && f.Unfenced && strings.Contains(strings.Join(f.Notes, "\n"), "etcd: 2 of 3 members are healthy; without that of dev-cp-2 2 of 2, and 2 are needed")
		})
		if err := s.Cluster().Forget("dev-cp-2", false); err == nil || !strings.Contains(err.Error(), "its vm cannot be seen any more") {
			t.Errorf("that its vm cannot be seen was not shown, and: %v", err)
		}
		must(s.Cluster().Forget("dev-cp-2", true))
		s.Until(30*time.Minute, "no member", func(cluster.Status) bool { return len(s.members()) == 2 })
		s.Halt()
		s.Boot()
		s.Until(30*time.Minute, "waits for its vm", func(st cluster.Status) bool {
			return waitsFor(st, "dev-cp-2", "its vm is deleted when that is possible")
		})
		refused("dev-cp-3", "its machine answers")
		s.Lab.World.Heal()
		s.UntilReady(time.Hour)
		if now := s.generations(); now["dev-cp-2"] == first["dev-cp-2"] || len(s.members()) != 3 {
			t.Errorf("machines are %v, and were %v; members %v", now, first, s.members())
		}

		for _, name := range []string{"dev-cp-1", "dev-cp-3"} {
			must(s.Lab.Talos.Kill(s.vmidOf(name)))
		}
		s.Until(30*time.Minute, "no quorum", func(st cluster.Status) bool {
			err := s.Cluster().Forget("dev-cp-1", true)
			return err != nil && (strings.Contains(err.Error(), "its member cannot be removed from etcd") || strings.Contains(err.Error(), "it is not known whether it answers"))
		})
		s.Halt()
	})
}

// TestCrashDuringForget kills the agent at one instant in twelve, with -all-crashes at every one,
// while the machines of nodes that root takes for lost are replaced: another one ends it.
func TestCrashDuringForget(t *testing.T) {
	t.Parallel()
	crashEverywhere(t, size{ControlPlanes: 3, Workers: 2}, 12, func(t *testing.T, sz size, c lab.Config, p *crashPoint) ([]crashPoint, int) {
		return hungWith(t, sz, c, p, "", func(s *sim, g *guard, node string) {
			if s.Agent == nil {
				return
			}
			takeBack := g.loses(s.generations()[node])
			if cluster.ReasonOf(s.Cluster().Forget(node, false)) != "" { // while it seems to answer, and when it is done
				takeBack()
			}
		})
	})
}
