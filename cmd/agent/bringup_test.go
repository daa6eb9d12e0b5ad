package main

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

func TestBringUp(t *testing.T) {
	for _, sz := range []size{{1, 2}, {3, 3}} {
		t.Run(sz.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSim(t, sz, lab.Config{})
				defer s.close()
				s.boot()
				took := s.untilReady(20 * time.Minute)
				chain, links := s.lab.World.LongestChain()
				t.Logf("Ready after %v; longest chain %v: %s", took, chain, world.ChainText(links))
				if t.Failed() {
					return
				}
				s.quiet(15 * time.Minute)
				s.lawful(sz)
				s.halt()
			})
		})
	}
}
