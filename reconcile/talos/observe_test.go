package talos

import (
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

func TestBringUp(t *testing.T) {
	nodes := []cluster.Node{cp(1), cp(2), cp(3), wk(1)}
	inBubble(t, newest, nodes, func(b *bench) {
		start := time.Now()
		b.bringUp(nodes...)
		t.Log(time.Since(start))
		o := b.observe()
		t.Logf("%+v", o.Machines)
		t.Logf("%+v", o.Members)
		t.Log(b.log.String())
		t.Log(b.calls())
		b.wantNoViolations()
	})
}
