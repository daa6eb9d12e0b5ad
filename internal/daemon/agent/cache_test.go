package agent_test

import (
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/agent"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// TestCacheDeletedInUse: the cache holds nothing that cannot be fetched again, and
// may be deleted at any time.
func TestCacheDeletedInUse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, size{ControlPlanes: 1, Workers: 1}, lab.Config{})
		defer s.Close()
		dir := t.TempDir() + "/cache"
		s.Boot(func(c *agent.Config) { c.CacheDir, c.Factory.CacheDir = dir, dir+"/images" })
		s.UntilReady(20 * time.Minute)
		for _, more := range []size{{ControlPlanes: 1, Workers: 1}, {ControlPlanes: 1, Workers: 2}} {
			must(os.RemoveAll(dir))
			s.Push(more.Files(), more.String())
			must(s.Agent.Reconcile("dev"))
			time.Sleep(time.Minute)
			if st := s.Status(); st.Condition == cluster.Stalled {
				t.Errorf("%s: %s", st.Condition, st.Message)
			}
			s.UntilReady(10 * time.Minute)
			s.CheckRules(more)
		}
		s.Halt()
	})
}

// TestReplacementWithoutTheImage: a node that is to have another machine keeps the one that it
// has while the image is neither in the cache nor seen on the host, and the factory does not
// give it. That it is on the host is enough.
func TestReplacementWithoutTheImage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 2}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		dir := t.TempDir() + "/cache"
		s.Boot(func(c *agent.Config) { c.CacheDir, c.Factory.CacheDir = dir, dir+"/images" })
		s.UntilReady(20 * time.Minute)
		first, files := s.generations(), sz.Files()
		s.Lab.World.Inject(world.Fault{System: "factory", Kind: world.Answer, Status: 503, Text: "service temporarily unavailable"})
		must(os.RemoveAll(dir + "/images"))
		replace := func(name string) {
			t.Helper()
			changed(t, files, "inventory/dev/nodes.yaml", "{name: "+name+",", "{name: "+name+", replace: now,")
			s.Push(files, "a new machine for "+name)
		}
		replace("dev-wk-1")
		s.UntilReady(2 * time.Hour)
		s.Lab.World.Inject(world.Fault{System: "pve", Op: "GET /nodes/{node}/storage/{storage}/content", Subject: "local", Kind: world.EmptyList})
		replace("dev-wk-2")
		s.Until(time.Hour, "waiting for the image", func(st cluster.Status) bool { return waitFor(st, "dev-wk-2", cluster.WaitingForImage) != "" })
		time.Sleep(time.Hour)
		if got := s.generations(); got["dev-wk-1"] == first["dev-wk-1"] || got["dev-wk-2"] != first["dev-wk-2"] || len(s.cordoned()) > 0 {
			t.Errorf("machines %v, and before %v; cordoned: %v", got, first, s.cordoned())
		}
		s.Lab.World.Heal()
		s.UntilReady(2 * time.Hour)
		if s.generations()["dev-wk-2"] == first["dev-wk-2"] {
			t.Error("dev-wk-2 has the machine that it had")
		}
		s.Quiet(10 * time.Minute)
		s.CheckRules(sz)
		s.Halt()
	})
}
