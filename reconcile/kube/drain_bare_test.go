package kube

import (
	"fmt"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestDrainNamesPodsWithoutController: what nobody starts again is named before the first
// pod is evicted, a few by name, as long as it is there.
func TestDrainNamesPodsWithoutController(t *testing.T) {
	onDrains(t, 1, func(b *drains) {
		b.addDeployment("aweb", 2, nil)
		for i := range mostNamed + 2 {
			b.addPod(fmt.Sprintf("bare-%d", i), nil)
		}
		if err := b.drain(cluster.Drain{}); err != nil {
			t.Fatal(err)
		}
		const want = "deletes pods that no controller starts again: default/bare-0, default/bare-1, default/bare-2, default/bare-3, default/bare-4, and 2 more"
		if p := b.progress[0]; p.Done != 0 || p.Waits != want {
			t.Errorf("the first progress is %+v", p)
		}
		if p := b.progress[len(b.progress)-1]; p.Done != p.Total || p.Waits != "" {
			t.Errorf("the last progress is %+v", p)
		}
		_, log := b.asked("")
		named, evicted := strings.Index(log, `level=WARN msg="a drain deletes pods that no controller starts again"`), strings.Index(log, "pod evicted")
		if named < 0 || evicted < named || strings.Count(log, "a drain deletes pods") != 1 || !strings.Contains(log, `detail="default/bare-0, `) {
			t.Errorf("log:\n%s", log)
		}
	})
}
