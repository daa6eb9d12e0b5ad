package plan

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
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
			})
			b.Run("forecast", func(b *testing.B) {
				for b.Loop() {
					f := Forecast(w.d, w.o, w.p)
					b.ReportMetric(float64(len(f.Steps)), "steps")
				}
			})
		})
	}
}
