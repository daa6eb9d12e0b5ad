package agent_test

import (
	"flag"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/talos-agent/talos-agent/internal/daemon/daemontest"
	"github.com/talos-agent/talos-agent/internal/lab"
)

func TestMain(m *testing.M) {
	// Thousands of clusters are brought up in here: memory for time.
	debug.SetGCPercent(400)
	flag.Parse()
	if chosen := flag.Lookup("test.run").Value; daemontest.Thinner > 1 && testing.Short() && chosen.String() == "" {
		if err := chosen.Set("^(" + strings.Join(raced, "|") + ")$"); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}

// size is a cluster to simulate.
type size = daemontest.Size

// sim is a simulation, with what these tests do besides.
type sim struct {
	*daemontest.Sim

	mu      sync.Mutex
	asked   []askedInstall // of machines, so far
	fetched string         // the commit that the agent has read last
	resets  []string       // of which VM, with what installed, for which commit
	alarmed time.Time      // since when etcd has an alarm; zero: it has none
	back    bool           // the versions of before were pushed
	touched time.Time      // when people, or the host, had a hand in a node last
	hops    hops
}

func newSim(t testing.TB, sz size, c lab.Config) *sim {
	s := &sim{Sim: daemontest.New(t, sz, c)}
	s.Lab.World.OnCall(s.Witness)
	s.Lab.World.OnConfig(s.judgeGiven)
	return s
}

// inReadyCluster plays a story in virtual time over a cluster of these files, from when it is Ready,
// and stops the agent in the end.
func inReadyCluster(t *testing.T, sz size, files map[string][]byte, story func(t *testing.T, s *sim)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Push(files, "the cluster")
		s.Boot()
		s.UntilReady(30 * time.Minute)
		story(t, s)
		s.Halt()
	})
}

// bootOf is the boot of a node's machine, "" when it has none.
func (s *sim) bootOf(node string) string {
	for _, m := range s.Lab.Talos.Machines() {
		if m.Node == node {
			return m.BootID
		}
	}
	return ""
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
