package agent_test

import (
	"flag"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/daemontest"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// crashPoint is an instant at which an agent dies: before or after a call
// reached the world, or a write reached the disk. It is named by what the agent
// asked, not by a count of everything, so that it means the same in every run.
type crashPoint struct {
	call  world.Call
	nth   int
	after bool
	step  int // of the disk, instead of a call
}

func (c crashPoint) String() string {
	when := "before"
	if c.after {
		when = "after"
	}
	if c.step > 0 {
		return fmt.Sprintf("%s write %d", when, c.step)
	}
	return fmt.Sprintf("%s %s %s %s no. %d", when, c.call.System, c.call.Op, c.call.Subject, c.nth)
}

// hurry is by how much faster the simulated host is where a run only looks for
// broken rules: what takes long is polled less often, and a run costs half.
const hurry = 10

// runHurried makes a run of a hurried world, and one at natural speed if what it
// was made for did not come up: a poll may be missing from a short wait.
func runHurried(t *testing.T, run func(lab.Config) (struck int)) (struck int) {
	t.Helper()
	if struck = run(lab.Config{Speed: hurry}); struck == 0 && !t.Failed() {
		struck = run(lab.Config{})
	}
	return struck
}

// repeats is how often the same call counts as a crash point of its own: a poll
// is much like the poll before it.
const repeats = 2

// crashPoints runs a bring-up undisturbed and lists every instant at which it
// could have been cut off.
func crashPoints(t *testing.T, sz size) []crashPoint {
	t.Helper()
	var points []crashPoint
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		for _, c := range s.Lab.World.Calls() {
			if c.N <= repeats {
				points = append(points, crashPoint{call: c.Call, nth: c.N}, crashPoint{call: c.Call, nth: c.N, after: true})
			}
		}
		for n := range s.Disk.Steps {
			points = append(points, crashPoint{step: n + 1}, crashPoint{step: n + 1, after: true})
		}
		s.Halt()
	})
	return points
}

var (
	allCrashes = flag.Bool("all-crashes", false, "run every crash point")
	firstCrash = flag.Int("first-crash", 0, "where one crash point in so many is run: the number of the first one")
)

// every is how many crash points there are to one that is run.
func every(t testing.TB, part int) int {
	if *allCrashes {
		return 1
	}
	return part * daemontest.Thin(t)
}

// isRun reports whether the crash point with a number is run, of which there is one in so many.
func isRun(t testing.TB, i, part int) bool {
	n := every(t, part)
	return i%n == *firstCrash%n
}

// TestEveryCrash kills the agent at every instant of a bring-up, starts it
// again, and wants the same cluster in the end, made once.
func TestEveryCrash(t *testing.T) {
	t.Parallel()
	// A larger cluster repeats much of what a small one does, so that of it a
	// part is enough for every day.
	for sz, part := range map[size]int{{ControlPlanes: 1, Workers: 2}: 1, {ControlPlanes: 3, Workers: 3}: 5} {
		t.Run(sz.String(), func(t *testing.T) {
			points := crashPoints(t, sz)
			if len(points) < 100 {
				t.Fatalf("only %d crash points were found", len(points))
			}
			var tally tally
			t.Run("all", func(t *testing.T) {
				for i, p := range points {
					if isRun(t, i, part) {
						t.Run(p.String(), func(t *testing.T) {
							t.Parallel()
							synctest.Test(t, func(t *testing.T) {
								tally.add(runHurried(t, func(c lab.Config) int { return crashAt(t, sz, c, p) }))
							})
						})
					}
				}
			})
			tally.judge(t, len(points))
		})
	}
}

// tally counts the runs and in how many the agent really died where it should:
// a call that is made only now and then may not come up.
type tally struct{ ran, died atomic.Int64 }

func (n *tally) add(deaths int) {
	n.ran.Add(1)
	if deaths > 0 {
		n.died.Add(1)
	}
}

func (n *tally) judge(t *testing.T, points int) {
	t.Helper()
	ran, died := n.ran.Load(), n.died.Load()
	t.Logf("%d crash points, %d run, in %d of them the agent died", points, ran, died)
	if ran == 0 || died*100 < ran*85 {
		t.Errorf("in only %d of %d runs the agent died where it should: the test proves nothing", died, ran)
	}
}

// crashAt brings a cluster up with one crash on the way, and returns how often
// the agent died.
func crashAt(t *testing.T, sz size, c lab.Config, p crashPoint) (deaths int) {
	s := newSim(t, sz, c)
	defer s.Close()
	s.arm(p)
	s.Boot()
	s.UntilReady(30 * time.Minute)
	if t.Failed() {
		return s.Deaths
	}
	s.Quiet(10 * time.Minute)
	s.CheckRules(sz)
	s.Halt()
	return s.Deaths
}

// armAt sets the trap at a crash point of a story that begins now, if there is one. What it returns
// lists the points of the story when it has ended, where there is none.
func (s *sim) armAt(p *crashPoint) (points func() []crashPoint) {
	if p != nil {
		s.arm(*p)
		return func() []crashPoint { return nil }
	}
	calls, steps := len(s.Lab.World.Calls()), s.Disk.Steps
	return func() []crashPoint { return s.pointsSince(calls, steps) }
}

// arm sets the trap at a crash point; writes are counted from now on.
func (s *sim) arm(p crashPoint) {
	if p.step > 0 {
		s.Disk.DieAt = s.Disk.Steps + p.step
		if p.after {
			s.Disk.DieAt = -s.Disk.DieAt
		}
		return
	}
	kind := world.CrashBefore
	if p.after {
		kind = world.CrashAfter
	}
	s.Lab.World.Inject(world.Fault{System: p.call.System, Op: p.call.Op, Subject: p.call.Subject, Nth: p.nth, Kind: kind})
}

// TestCrashDuringTearDown kills the agent at every instant of a tear-down.
func TestCrashDuringTearDown(t *testing.T) {
	t.Parallel()
	sz := size{ControlPlanes: 1, Workers: 1}
	var points []crashPoint
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		before := len(s.Lab.World.Calls())
		steps := s.Disk.Steps
		s.destroy()
		seen := map[world.Call]int{}
		for _, c := range s.Lab.World.Calls()[before:] {
			if seen[c.Call]++; seen[c.Call] <= repeats && c.System == "pve" {
				points = append(points, crashPoint{call: c.Call, nth: seen[c.Call]}, crashPoint{call: c.Call, nth: seen[c.Call], after: true})
			}
		}
		for n := steps; n < s.Disk.Steps; n++ {
			points = append(points, crashPoint{step: n - steps + 1}, crashPoint{step: n - steps + 1, after: true})
		}
		s.Halt()
	})
	var tally tally
	t.Run("all", func(t *testing.T) {
		for i, p := range points {
			if isRun(t, i, 1) {
				t.Run(p.String(), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						tally.add(runHurried(t, func(c lab.Config) int { return tearDownWith(t, sz, c, p) }))
					})
				})
			}
		}
	})
	tally.judge(t, len(points))
}

// tearDownWith tears a Ready cluster down with one crash on the way.
func tearDownWith(t *testing.T, sz size, c lab.Config, p crashPoint) (deaths int) {
	s := newSim(t, sz, c)
	defer s.Close()
	s.Boot()
	s.UntilReady(20 * time.Minute)
	s.arm(p)
	s.destroy()
	if t.Failed() {
		return s.Deaths
	}
	s.CheckRules(size{})
	s.Quiet(10 * time.Minute)
	if !slices.ContainsFunc(s.Lab.PVE.Volumes("pve1", "local"), func(v volume) bool { return v.Content == "import" }) {
		t.Error("the image is gone: it is kept, to be found again")
	}
	s.Halt()
	return s.Deaths
}

// destroy tears the cluster down, asking again when the agent died before it
// had made the decision durable.
func (s *sim) destroy() {
	s.T.Helper()
	s.Until(20*time.Minute, "destroyed", func(st cluster.Status) bool {
		if st.Condition == cluster.Suspended && len(st.Running) == 0 && !s.left() {
			return true
		}
		if !st.Suspended && st.Condition != cluster.Unknown && s.Agent != nil {
			// What a person would do who sees that nothing happens.
			if err := s.Cluster().Destroy(nil, nil); err != nil && !s.IsDead() {
				s.T.Errorf("destroy: %v", err)
			}
		}
		return false
	})
}

// left reports whether VMs of the cluster are left.
func (s *sim) left() bool {
	return slices.ContainsFunc(s.Lab.PVE.VMs(), func(vm vmView) bool { return vm.Pool == "talos" })
}
