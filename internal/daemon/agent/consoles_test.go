package agent_test

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
	"github.com/talos-agent/talos-agent/internal/lab/talos/installer"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// node is the status of a node of a simulation.
func (s *sim) node(name string) cluster.NodeStatus {
	for _, n := range s.Status().Nodes {
		if n.Name == name {
			return n
		}
	}
	return cluster.NodeStatus{}
}

// TestConsoleOfNoVM: of a node that has no VM nothing is asked of Proxmox VE, whose
// refusal would be about permissions.
func TestConsoleOfNoVM(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, size{ControlPlanes: 1, Workers: 1}, lab.Config{})
		defer s.Close()
		s.Lab.World.Inject(world.Fault{System: "pve", Op: "POST /nodes/{node}/qemu", Kind: world.Answer, Subject: "541", Status: 500, Text: "no space left"})
		s.Boot()
		s.Until(time.Hour, "one node is there", func(cluster.Status) bool {
			return s.node("dev-cp-1").Phase == cluster.PhaseReady && s.node("dev-wk-1").Phase == cluster.PhaseAbsent
		})
		err := s.Cluster().Console(t.Context(), "dev-wk-1", nil)
		if err == nil || err.Error() != "dev-wk-1 has no VM" || fault.HintOf(err) != "`talos-agent status dev` shows what it waits for" {
			t.Errorf("%v -> %s", err, fault.HintOf(err))
		}
		if s.Lab.World.CountCalls(func(c world.CallRecord) bool { return strings.HasSuffix(c.Op, "/termproxy") }) > 0 {
			t.Error("Proxmox VE was asked for a console")
		}
	})
}

// TestConsoleOfAMachineThatDoesNotComeUp: what a VM prints is shown as soon as it
// is overdue, read rarely, left to a person who wants it, and forgotten when the
// machine is there.
func TestConsoleOfAMachineThatDoesNotComeUp(t *testing.T) {
	t.Parallel()
	for _, flavour := range []string{"9.2", "8.4"} {
		t.Run(flavour, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSim(t, size{ControlPlanes: 1, Workers: 1}, lab.Config{Flavour: flavour})
				defer s.Close()
				const name = "dev-wk-1"
				s.Lab.World.Inject(world.Fault{System: "pve", Op: "POST /nodes/{node}/qemu/{vmid}/status/start", Subject: "541", Kind: world.NeverUp})
				s.Boot()
				terminals := func() int {
					return s.Lab.World.CountCalls(func(c world.CallRecord) bool { return strings.HasSuffix(c.Op, "/termproxy") })
				}
				s.Until(time.Hour, "the console is shown", func(st cluster.Status) bool {
					if n := s.node(name); n.Console == nil && n.Phase != cluster.PhaseUnreachable && n.Phase != cluster.PhaseBooting && terminals() > 0 {
						t.Fatalf("a console is read of a node that is %s", n.Phase)
					}
					return s.node(name).Console != nil
				})
				tail := s.node(name).Console
				if !slices.Contains(tail.Lines, "Booting from Hard Disk...") || strings.Contains(fmt.Sprint(tail.Lines), "serial terminal") {
					t.Errorf("console %+v", tail)
				}
				time.Sleep(3 * time.Hour)
				if n := terminals(); n < 4 || n > 8 {
					t.Errorf("the console was read %d times in some hours", n)
				}
				if flavour == "9.2" {
					ctx, cancel := context.WithTimeout(t.Context(), 2*time.Hour)
					defer cancel()
					before, printed := terminals(), ""
					if err := s.Cluster().Console(ctx, name, func(text string) error { printed += text; return nil }); err != nil {
						t.Error(err)
					}
					if n := terminals() - before; n != 1 || !strings.Contains(printed, "Booting from Hard Disk...") {
						t.Errorf("a person printed %q, and %d terminals were opened", printed[:min(len(printed), 200)], n)
					}
				}
				if err := s.Cluster().Console(t.Context(), "dev-wk-7", nil); err == nil || fault.HintOf(err) != "its nodes are dev-cp-1, dev-wk-1" {
					t.Errorf("a node that is not there: %v", err)
				}
				s.Lab.World.Heal()
				for _, do := range []func(int) error{s.Lab.PVE.Stop, s.Lab.PVE.Start} {
					if err := do(541); err != nil && !strings.Contains(err.Error(), "already running") {
						t.Fatal(err)
					}
				}
				s.UntilReady(time.Hour)
				if n := s.node(name); n.Console != nil {
					t.Errorf("a node that is %s still shows what its console printed", n.Phase)
				}
			})
		})
	}
}

// TestConsoleDuringAnUpgrade: what a machine prints while it reboots for another Talos is left to a person who reads it, and asked
// for no more where Proxmox VE lets nobody at it; and that holds up nothing.
func TestConsoleDuringAnUpgrade(t *testing.T) {
	t.Parallel()
	sz := size{ControlPlanes: 1, Workers: 3}
	t.Run("of a worker a person reads it", func(t *testing.T) {
		inClusterOf(t, sz, "v1.13.8", "v1.36.1", func(s *sim, push func(what, from, to string), w *turns) {
			before := len(s.Lab.World.Calls())
			ctx, leave := context.WithCancel(s.T.Context())
			defer leave()
			printed := make(chan string, 1)
			go func() {
				var all strings.Builder
				if err := s.Cluster().Console(ctx, "dev-wk-1", func(text string) error { all.WriteString(text); return nil }); err != nil {
					all.WriteString(err.Error())
				}
				printed <- all.String()
			}()
			push("another talos", "talos_version: v1.13.8", "talos_version: v1.13.9")
			s.untilAppliedIn(4*time.Hour, "upgraded")
			s.wantTalos("v1.13.9")
			leave()
			if all := <-printed; !strings.Contains(all, "booting Talos v1.13.9") {
				s.T.Errorf("a person saw:\n%s", all)
			}
			time.Sleep(time.Second)
			s.wantNoConsole(before, 4) // the person's and the agent's of the other nodes
		})
	})
	t.Run("Proxmox VE refuses", func(t *testing.T) {
		inClusterWith(t, sz, lab.Config{Flavour: "8.4"}, "v1.13.8", "v1.36.1", func(s *sim, push func(what, from, to string), w *turns) {
			s.Lab.PVE.SetVersion("8.4.1")
			s.Lab.Talos.SpoilImage("v1.13.9", installer.CrashesOnBoot)
			before := len(s.Lab.World.Calls())
			push("a bad one", "talos_version: v1.13.8", "talos_version: v1.13.9")
			for i, commit := range []string{"one more", "and a good one"} {
				s.Until(4*time.Hour, "stopped", func(st cluster.Status) bool {
					return st.Reason == cluster.UpgradeFellBack && len(st.Running) == 0 && st.Applied == st.Revision && s.timesInstalled(before)["dev-cp-1"] == i+1
				})
				if tail := s.node("dev-cp-1").Console; tail == nil || len(tail.Lines) > 0 || !strings.Contains(tail.Note, "does not take the agent's token") {
					s.T.Errorf("shown of the console: %+v", tail)
				}
				if i > 0 {
					s.Lab.Talos.SpoilImage("v1.13.9", installer.Sound)
				}
				pushComment(push, commit)
			}
			s.untilAppliedIn(4*time.Hour, "upgraded")
			s.wantTalos("v1.13.9")
			if n := len(s.consolesOpened(before)); n != 1 {
				s.T.Errorf("it was asked %d times", n)
			}
		})
	})
}
