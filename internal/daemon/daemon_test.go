package daemon

import (
	"runtime/debug"
	"testing"
)

func TestGCUnlessSetOtherwise(t *testing.T) {
	before := debug.SetGCPercent(100)
	t.Cleanup(func() { debug.SetGCPercent(before) })
	setGC("100")
	if got := debug.SetGCPercent(100); got != 100 {
		t.Errorf("GOGC=100 became %d", got)
	}
	setGC("")
	if got := debug.SetGCPercent(100); got != idleGC {
		t.Errorf("without GOGC it is %d, want %d", got, idleGC)
	}
}
