package agent_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// TestEveryStop tells the agent to stop as a call of a bring-up reaches the
// other side, for every call that changes something and a part of the others.
// Nothing may be asked of anybody after that, it must be out in ten seconds, and
// the next agent must finish what was begun.
func TestEveryStop(t *testing.T) {
	t.Parallel()
	sz := size{ControlPlanes: 1, Workers: 2}
	var points []world.CallRecord
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		for i, c := range s.Lab.World.Calls() {
			if c.N <= repeats && (c.Mutating || i%5 == 0) {
				points = append(points, c)
			}
		}
		s.Halt()
	})
	var tally tally
	t.Run("all", func(t *testing.T) {
		for i, p := range points {
			if isRun(t, i, 1) {
				t.Run(fmt.Sprintf("%s %s %s no. %d", p.System, p.Op, p.Subject, p.N), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						tally.add(runHurried(t, func(c lab.Config) int { return stopAt(t, sz, c, p) }))
					})
				})
			}
		}
	})
	tally.judge(t, len(points))
}

// stopAt brings a cluster up with one stop on the way, and returns whether it
// came to that.
func stopAt(t *testing.T, sz size, c lab.Config, p world.CallRecord) (stops int) {
	s := newSim(t, sz, c)
	defer s.Close()
	told := make(chan time.Time, 1)
	var mu sync.Mutex
	var stopped time.Time
	s.Lab.World.OnCall(func(c world.CallRecord) {
		s.Witness(c)
		mu.Lock()
		defer mu.Unlock()
		switch now := time.Now(); {
		case stopped.IsZero() && c.Call == p.Call && c.N == p.N:
			s.Signal()
			stopped = now
			told <- now
		// What arrives in the same instant of virtual time was on its way.
		case !stopped.IsZero() && now.After(stopped):
			t.Errorf("%v after the agent was told to stop it asked %s %s %s", now.Sub(stopped), c.System, c.Op, c.Subject)
		}
	})
	s.Boot()
	select {
	case <-told:
		stops = 1
	case <-time.After(20 * time.Minute): // the call did not come up this time
	}
	began := time.Now()
	s.Halt()
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("stopping took %v", took)
	}
	s.Lab.World.OnCall(s.Witness)
	s.Boot()
	s.UntilReady(30 * time.Minute)
	s.CheckRules(sz)
	s.Halt()
	return stops
}
