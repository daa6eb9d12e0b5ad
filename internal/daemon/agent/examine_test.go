package agent_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// TestExaminationsAreShared: whoever may only read can ask for an examination as often
// as they like, and Proxmox VE is asked once.
func TestExaminationsAreShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, size{ControlPlanes: 1}, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		asked := func() int {
			return s.Lab.World.CountCalls(func(c world.CallRecord) bool { return c.System == "pve" && c.Op == "GET /version" })
		}
		look := func(fresh bool) {
			if exam, err := s.Agent.Examine(t.Context(), fresh); err != nil || len(exam.Checks) == 0 {
				t.Errorf("%+v, %v", exam, err)
			}
		}
		before := asked()
		look(true)
		once := asked() - before
		if once == 0 {
			t.Fatal("nothing was asked")
		}
		time.Sleep(time.Minute)
		before = asked()
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() { look(false) })
		}
		wg.Wait()
		for range 20 {
			look(false)
		}
		if n := asked() - before; n != once {
			t.Errorf("asked %d times for forty, and %d times for one", n, once)
		}
		time.Sleep(10 * time.Second)
		look(false) // what is older counts no more
		look(true)  // nor what is not, for root
		if n := asked() - before; n != 3*once {
			t.Errorf("asked %d times for three, and %d times for one", n, once)
		}
		s.Halt()
	})
}
