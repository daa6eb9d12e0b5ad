package talos_test

import (
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

func TestBringUp(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.bring("v1.13.9", cp(1), cp(2), cp(3), wk(1))
		l.wantStage(cp(1), booting)
		l.wantStage(wk(1), running)
		l.bootstrap(cp(1))
		time.Sleep(3 * time.Minute)
		for _, n := range []node{cp(1), cp(2), cp(3), wk(1)} {
			if v := l.view(n); v.Stage != running || !v.Ready {
				t.Errorf("%s: %+v", n.name, v)
			}
		}
		for _, e := range l.world.Story() {
			t.Log(e.At, e.Subject, e.Text)
		}
		total, chain := l.world.LongestChain()
		t.Log(total, world.ChainText(chain))
		l.wantViolations()
	})
}
