package helm

import (
	"fmt"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// BenchmarkObserve is a pass in which nothing changed, with so many addons.
func BenchmarkObserve(b *testing.B) {
	for _, addons := range []int{1, 3, 20} {
		b.Run(fmt.Sprint(addons), func(b *testing.B) {
			w := newBench(b, world.Config{Speed: 1000}, "10.0.0")
			w.serve("flannel")
			w.join(2)
			var wanted []cluster.Addon
			for i := range addons {
				wanted = append(wanted, w.addon(fmt.Sprintf("web-%02d", i), "apps", "podinfo", "6.9.0", map[string]any{"message": fmt.Sprint(i)}))
			}
			w.want(wanted...)
			for _, a := range wanted {
				w.settle(a, time.Minute)
			}
			b.ReportAllocs()
			for b.Loop() {
				if o := w.look(); len(o.Releases.Value) != addons {
					b.Fatal(o.Releases)
				}
			}
		})
	}
}

// BenchmarkUpgrade is an upgrade of a small chart, whole: chart from the cache,
// rendering, and the calls of the API.
func BenchmarkUpgrade(b *testing.B) {
	w := newBench(b, world.Config{Speed: 1000}, "10.0.0")
	w.serve("flannel")
	w.join(1)
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		n++
		a := w.addon("web", "apps", "podinfo", "6.9.0", map[string]any{"message": fmt.Sprint(n)})
		w.want(a)
		if err := w.install(a); err != nil {
			b.Fatal(err)
		}
	}
}
