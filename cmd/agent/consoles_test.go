package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// node is the status of a node of a simulation.
func (s *sim) node(name string) cluster.NodeStatus {
	for _, n := range s.status().Nodes {
		if n.Name == name {
			return n
		}
	}
	return cluster.NodeStatus{}
}

// TestConsoleOfAMachineThatDoesNotComeUp: what a VM prints is shown as soon as it
// is overdue, read rarely, left to a person who wants it, and forgotten when the
// machine is there.
func TestConsoleOfAMachineThatDoesNotComeUp(t *testing.T) {
	for _, flavour := range []string{"9.2", "8.4"} {
		t.Run(flavour, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSim(t, size{1, 1}, lab.Config{Flavour: flavour})
				defer s.close()
				const name = "dev-wk-1"
				s.lab.World.Inject(world.Fault{System: "pve", Op: "POST /nodes/{node}/qemu/{vmid}/status/start", Subject: "541", Kind: world.NeverUp})
				s.boot()
				terminals := func() int {
					return s.lab.World.CountCalls(func(c world.CallRecord) bool { return strings.HasSuffix(c.Op, "/termproxy") })
				}
				s.until(time.Hour, "the console is shown", func(st cluster.Status) bool {
					if n := s.node(name); n.Console == nil && n.Phase != cluster.PhaseUnreachable && n.Phase != cluster.PhaseBooting && terminals() > 0 {
						t.Fatalf("a console is read of a node that is %s", n.Phase)
					}
					return s.node(name).Console != nil
				})
				tail := s.node(name).Console
				if flavour == "8.4" {
					if len(tail.Lines) != 0 || !strings.Contains(tail.Note, "qm terminal 541") {
						t.Errorf("console %+v", tail)
					}
				} else if !slices.Contains(tail.Lines, "Booting from Hard Disk...") || strings.Contains(fmt.Sprint(tail.Lines), "serial terminal") {
					t.Errorf("console %+v", tail)
				}
				events := s.agent.Events(cluster.EventQuery{Node: name, Last: 1})
				if len(events) != 0 { // the simulation's log is discarded
					t.Errorf("events %v", events)
				}
				time.Sleep(3 * time.Hour)
				if n := terminals(); n < 4 || n > 8 {
					t.Errorf("the console was read %d times in some hours", n)
				}
				if flavour == "9.2" {
					ctx, cancel := context.WithTimeout(t.Context(), 2*time.Hour)
					defer cancel()
					before, heard := terminals(), ""
					if err := s.agent.Console(ctx, "dev", name, func(text string) error { heard += text; return nil }); err != nil {
						t.Error(err)
					}
					if n := terminals() - before; n != 1 || !strings.Contains(heard, "Booting from Hard Disk...") {
						t.Errorf("a person heard %q, and %d terminals were opened", heard[:min(len(heard), 200)], n)
					}
				}
				if err := s.agent.Console(t.Context(), "dev", "dev-wk-7", nil); err == nil || fault.HintOf(err) != "its nodes are dev-cp-1, dev-wk-1" {
					t.Errorf("a node that is not there: %v", err)
				}
				s.lab.World.Heal()
				for _, do := range []func(int) error{s.lab.PVE.Stop, s.lab.PVE.Start} {
					if err := do(541); err != nil && !strings.Contains(err.Error(), "already running") {
						t.Fatal(err)
					}
				}
				s.untilReady(time.Hour)
				if n := s.node(name); n.Console != nil {
					t.Errorf("a node that is %s still shows what its console said", n.Phase)
				}
			})
		})
	}
}
