package plan

import (
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/effect"
)

// behind is a cluster of three control planes and some workers that run another Talos than the inventory has.
func behind(t testing.TB, workers int) *world {
	w := newWorld(3, workers)
	for i := range w.d.Spec.Nodes {
		w.d.Spec.Nodes[i].IP = netip.AddrFrom4([4]byte{10, 10, byte(1 + i/200), byte(1 + i%200)})
	}
	for _, line := range []string{"memory 99999", "policy vmids 400-5000", "image stored"} {
		w.run(t, line)
	}
	for !w.step().Converged() {
	}
	for _, line := range []string{"agree", "created 5h", "facts bootstrap=cp-1 done was-ready", "runs v1.13.9 v1.36.1", "settled", "versions v1.14.1 v1.36.1"} {
		w.run(t, line)
	}
	w.stage()
	return w
}

// TestForecastIsBounded: the plan of a large cluster ends, and shows where.
func TestForecastIsBounded(t *testing.T) {
	w := behind(t, 42)
	if f := Forecast(w.d, w.o, w.p); len(f.Steps) != 5*45 || strings.Contains(strings.Join(f.Notes, " "), "this is not all") {
		t.Errorf("%d steps, and %q", len(f.Steps), f.Notes)
	}
	f := runForward(w.d, w.o, w.p, 100)
	if len(f.Steps) >= 5*45 || len(f.Notes) == 0 || !strings.Contains(f.Notes[0], fmt.Sprintf("after these %d steps", len(f.Steps))) {
		t.Errorf("%d steps, and %q", len(f.Steps), f.Notes)
	}
}

// TestPlanGrowsLinearly: what a pass of a cluster, and a forecast of so many rounds, take is in proportion to its nodes, by count of
// what they allocate: a comparison of every node with every other one is not.
func TestPlanGrowsLinearly(t *testing.T) {
	small, large := behind(t, 47), behind(t, 397) // 50 and 400 nodes
	const times = 400.0 / 50
	isDown := func(w *world) cluster.Observed {
		o := effect.Clone(w.o)
		for name, mach := range o.Machines {
			mach.Reach = cluster.Silent
			o.Machines[name] = mach
		}
		return o
	}
	for what, run := range map[string]func(*world){
		"pass":             func(w *world) { Make(w.d, w.o, w.p) },
		"pass, none Ready": func(w *world) { Make(w.d, isDown(w), w.p) },
		"forecast":         func(w *world) { runForward(w.d, w.o, w.p, 10) },
	} {
		count := func(w *world) (objects, bytes float64) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			run(w)
			runtime.ReadMemStats(&after)
			return float64(after.Mallocs - before.Mallocs), float64(after.TotalAlloc - before.TotalAlloc)
		}
		count(small) // what is made once is not counted
		objects, bytes := count(small)
		more, moreBytes := count(large)
		t.Logf("%s: %.2f and %.2f times for %.0f times the nodes", what, more/objects, moreBytes/bytes, times)
		if more > 1.1*times*objects || moreBytes > 1.1*times*bytes {
			t.Errorf("%s: %.0f times the nodes take %.1f times the objects and %.1f times the memory", what, times, more/objects, moreBytes/bytes)
		}
	}
}

// BenchmarkUpgrade measures the plan of a cluster whose nodes run another Talos than the inventory has: of one pass,
// and of all that is going to happen.
func BenchmarkUpgrade(b *testing.B) {
	for _, workers := range []int{30, 97, 997} {
		b.Run(fmt.Sprintf("3+%d", workers), func(b *testing.B) {
			w := behind(b, workers)
			b.Run("pass", func(b *testing.B) {
				for b.Loop() {
					if p := Make(w.d, w.o, w.p); len(p.Actions) == 0 {
						b.Fatal("nothing is done")
					}
				}
				reportPerNode(b, workers+3, 1)
			})
			b.Run("forecast", func(b *testing.B) {
				rounds := 0
				for b.Loop() {
					f := Forecast(w.d, w.o, w.p)
					b.ReportMetric(float64(len(f.Steps)), "steps")
					rounds = f.Steps[len(f.Steps)-1].Round
				}
				reportPerNode(b, workers+3, rounds)
			})
		})
	}
}

// reportPerNode reports what each node takes of a round of the planner, which is the same in a cluster of any size where nothing is
// done for each pair of nodes.
func reportPerNode(b *testing.B, nodes, rounds int) {
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*nodes*rounds), "µs/node/round")
}
