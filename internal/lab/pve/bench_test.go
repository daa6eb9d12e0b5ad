package pve

import (
	"fmt"
	"testing"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// BenchmarkResources is the list an agent reads in every pass, as its own
// pool-scoped token sees it.
func BenchmarkResources(b *testing.B) {
	for _, n := range []int{3, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			l := newTestLab(b, Config{Addr: "127.0.0.1:0"}, world.Config{Network: world.Loopback{}, Speed: 1000})
			defer l.close()
			for i := range n {
				if err := l.pve.CreateForeign(1000+i, Foreign{Pool: "talos", Config: map[string]string{"name": fmt.Sprint("n", i), "tags": "a;b"}}); err != nil {
					b.Fatal(err)
				}
			}
			l.pve.updateStatistics()
			for b.Loop() {
				l.ok("GET", "/cluster/resources?type=vm", "")
			}
		})
	}
}
