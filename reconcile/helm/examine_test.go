package helm

import (
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// TestLook: a chart that could be fetched is distinguished from one that could
// not, and nothing is kept.
func TestLook(t *testing.T) {
	bubble(t, func(b *bench) {
		b.config.Dial = b.world.Net.DialContext
		one := b.addon("web", "apps", "podinfo", "6.9.0", nil).Chart
		for _, chart := range []cluster.Chart{one, b.oci("web", "podinfo", "6.9.0").Chart} {
			host, err := Look(ctx, b.config, chart)
			if err != nil || !strings.Contains(chart.Ref(), host) || host == "" {
				b.Errorf("%s: asked %s: %v", chart.Ref(), host, err)
			}
			chart.Version = "0.0.1"
			_, err = Look(ctx, b.config, chart)
			mustFail(b, err, "", "version")
			chart.Version = "6.9.0"
			other := b.config
			other.CA = nil
			_, err = Look(ctx, other, chart)
			mustFail(b, err, "certificate", "")
		}
		moved := b.config
		moved.Mirrors = map[string]string{"https://charts.example.org": one.Repository}
		one.Repository = "https://charts.example.org"
		if host, err := Look(ctx, moved, one); err != nil || host == "charts.example.org" {
			b.Errorf("over a mirror: asked %s: %v", host, err)
		}
		if host, err := Look(ctx, b.config, cluster.Chart{Path: "charts/x"}); err != nil || host != "" {
			b.Errorf("a chart of the inventory's repository: asked %s: %v", host, err)
		}
		if err := LookRegistry(ctx, b.config, b.registry.URL()); err != nil {
			b.Errorf("the registry: %v", err)
		}
		mustFail(b, LookRegistry(ctx, b.config, b.charts.URL()), "404", "")
		mustFail(b, LookRegistry(ctx, b.config, "nowhere.lab"), "ask nowhere.lab", "way")
		b.world.Inject(world.Fault{System: "charts", Kind: world.LoseRequest})
		_, err := Look(ctx, b.config, b.addon("web", "apps", "podinfo", "6.9.0", nil).Chart)
		mustFail(b, err, "ask", "way")
	})
}
