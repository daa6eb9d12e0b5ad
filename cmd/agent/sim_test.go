package main

import (
	"bytes"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/daemontest"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/terminal"
)

// size is a cluster to simulate.
type size = daemontest.Size

// atOnce is how many nodes are brought up at once where their number is all that
// matters. While a VM is made every look at the host asks for it by itself.
const atOnce = 100

// sim is a simulation, with what these tests do besides.
type sim struct {
	*daemontest.Sim
	configs    map[string]*byte // by node, where the digest of the last one is
	renderings int
}

func newSim(t testing.TB, sz size, c lab.Config) *sim {
	return &sim{Sim: daemontest.New(t, sz, c), configs: map[string]*byte{}}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// describe is a status for the output of a test that fails.
func describe(st cluster.Status) string {
	var b bytes.Buffer
	p := terminal.NewPlain(&b)
	p.PrintStatus(st)
	return b.String()
}
