package main

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/daemontest"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// measureBringUp compares the virtual time from push to Ready with the longest
// chain of what the lab itself took: nobody could have been faster. Then it
// counts what is rendered although nothing changes.
func measureBringUp(t *testing.T, table *figures) {
	for _, sz := range []size{{ControlPlanes: 1, Workers: 2}, {ControlPlanes: 3, Workers: 10}} {
		synctest.Test(t, func(t *testing.T) {
			s := newSim(t, sz, lab.Config{})
			defer s.Close()
			s.Boot()
			took := s.UntilReady(20 * time.Minute)
			chain, links := s.Lab.World.LongestChain()
			t.Logf("%s: %v; the longest chain is %v: %s", sz, took, chain, world.ChainText(links))
			table.add(figure{what: "bring-up of " + sz.String() + " / longest chain", measured: took.Seconds() / chain.Seconds(), must: 1.10,
				note: fmt.Sprintf("%v / %v of virtual time", took.Round(100*time.Millisecond), chain.Round(100*time.Millisecond))})
			rendered := s.rendered()
			s.Quiet(quietPasses * time.Minute)
			table.add(figure{what: sz.String() + ": configs rendered in quiet passes", measured: float64(s.rendered() - rendered),
				note: fmt.Sprintf("%d passes", quietPasses)})
			s.Halt()
		})
	}
}

// quietPasses are how many passes in which nothing changes make a measurement:
// as many as the audit of all VMs is spread over.
const quietPasses = 10

// passCall is asked exactly once in every pass of a cluster.
const passCall = "GET /cluster/resources"

// askedIn sums up the calls by system, and those to machines by what is asked, too, from one pass to the one that comes n
// later; false: there are not so many yet.
func askedIn(calls []world.CallRecord, n int) (map[string]int, bool) {
	passes := 0
	asked := map[string]int{}
	for _, c := range calls {
		if c.System == "pve" && c.Op == passCall {
			passes++
		}
		if passes > n {
			return asked, true
		}
		if passes > 0 {
			asked[c.System]++
		}
		if passes > 0 && c.System == "talos" {
			asked[c.Op]++
		}
	}
	return nil, false
}

// TestQuietPass holds what a pass costs in which nothing changes: the list, the
// tasks and the configurations of ten VMs of Proxmox VE, one question to Git,
// nothing rendered.
func TestQuietPass(t *testing.T) {
	for i, sz := range []size{{ControlPlanes: 1, Workers: 2}, {ControlPlanes: 3, Workers: 7}} {
		if i%daemontest.Thinner != 0 {
			continue
		}
		t.Run(sz.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSim(t, sz, lab.Config{})
				defer s.Close()
				s.Boot()
				s.UntilReady(20 * time.Minute)
				time.Sleep(3 * time.Minute) // what came up last is read once more
				rendered := s.rendered()
				s.Quiet((quietPasses + 2) * time.Minute)
				asked, ok := askedIn(s.Lab.World.Calls(), quietPasses)
				if !ok {
					t.Fatalf("there were fewer than %d passes in as many minutes", quietPasses)
				}
				nodes := sz.ControlPlanes + sz.Workers
				if most := quietPasses * (2 + min(nodes, 10)); asked["pve"] > most {
					t.Errorf("%d passes asked Proxmox VE %d times, want at most %d", quietPasses, asked["pve"], most)
				}
				if asked["git"] != quietPasses {
					t.Errorf("%d passes asked Git %d times", quietPasses, asked["git"])
				}
				// Machines are watched; the members of etcd cannot be, and are asked for once in 50 s at most, and their alarms once in five minutes.
				members, alarms := asked["machine.MachineService/EtcdMemberList"], asked["machine.MachineService/EtcdStatus"]
				if least, most := (quietPasses-1)*sz.ControlPlanes, quietPasses*sz.ControlPlanes*60/50; members < least || members > most {
					t.Errorf("%d passes asked for members %d times, want %d to %d", quietPasses, members, least, most)
				}
				if most := (quietPasses/5 + 1) * sz.ControlPlanes; alarms > most || asked["talos"] != members+alarms {
					t.Errorf("%d passes asked for the state of members %d times, want at most %d, and machines %d times in all", quietPasses, alarms, most, asked["talos"])
				}
				if n := s.rendered() - rendered; n != 0 {
					t.Errorf("%d configs were rendered although nothing changed", n)
				}
				t.Log(asked)
				s.Halt()
			})
		})
	}
}

// killedAt are the changes at which an agent is killed along a bring-up: each
// reaches the host before its answer can reach the agent.
var killedAt = []string{
	"POST /nodes/{node}/qemu", "PUT /nodes/{node}/qemu/{vmid}/resize", "POST /nodes/{node}/qemu/{vmid}/status/start",
	"machine.MachineService/ApplyConfiguration", "machine.MachineService/Bootstrap",
}

// changesHost reports whether a call changes the host or a machine: what must
// not be asked for twice.
func changesHost(c world.CallRecord) bool {
	return c.Mutating && (c.System == "pve" || c.System == "talos")
}

// TestKilledAgentRepeatsNothing kills the agent when a change was carried out
// and before it learns so. The next one sees what came of it.
func TestKilledAgentRepeatsNothing(t *testing.T) {
	for i, op := range killedAt {
		if i%daemontest.Thinner != 0 {
			continue
		}
		t.Run(op, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSim(t, size{ControlPlanes: 1, Workers: 2}, lab.Config{})
				defer s.Close()
				s.Lab.World.Inject(world.Fault{Op: op, Nth: 1, Kind: world.CrashAfter})
				s.Boot()
				s.UntilReady(20 * time.Minute)
				if s.Deaths != 1 {
					t.Fatalf("the agent died %d times, want once", s.Deaths)
				}
				for _, c := range s.Lab.World.Calls() {
					if changesHost(c) && c.N > 1 {
						t.Errorf("asked for again: %s %s", c.Op, c.Subject)
					}
				}
				s.Halt()
			})
		})
	}
}

// rendered counts the machine configs that were seen to be rendered: the digest of
// one that is rendered again lies elsewhere in memory.
func (s *sim) rendered() int {
	s.T.Helper()
	c, ok := s.Cluster().(interface {
		Desired() (cluster.Desired, bool)
	})
	if !ok {
		s.T.Fatal("a cluster has no configs")
	}
	d, ok := c.Desired()
	if !ok || len(d.Configs) == 0 {
		s.T.Fatal("nothing is rendered yet")
	}
	for name, config := range d.Configs {
		if at := unsafe.StringData(config.Digest); s.configs[name] != at {
			s.configs[name] = at
			s.renderings++
		}
	}
	return s.renderings
}
