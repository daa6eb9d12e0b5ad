package agent_test

import (
	"runtime/debug"
	"testing"

	"go.uber.org/goleak"

	"github.com/talos-agent/talos-agent/internal/daemon/daemontest"
	"github.com/talos-agent/talos-agent/internal/lab"
)

func TestMain(m *testing.M) {
	// Thousands of clusters are brought up in here: memory for time.
	debug.SetGCPercent(400)
	goleak.VerifyTestMain(m)
}

// size is a cluster to simulate.
type size = daemontest.Size

// sim is a simulation, with what these tests do besides.
type sim struct{ *daemontest.Sim }

func newSim(t testing.TB, sz size, c lab.Config) *sim { return &sim{daemontest.New(t, sz, c)} }

func must(err error) {
	if err != nil {
		panic(err)
	}
}
