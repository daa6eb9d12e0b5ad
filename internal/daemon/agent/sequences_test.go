package agent_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/constants"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/talos"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// TestRebootBesideAnotherSequence: somebody restarts or resets a node in the moment in which the
// agent is about to reboot it for a new machine config. Talos answers OK and does nothing: why is
// shown, the agent takes the node down no more often than the new config needs, and it has that in the
// end.
func TestRebootBesideAnotherSequence(t *testing.T) {
	t.Parallel()
	reset := func(graceful bool) func(context.Context, *client.Client) error {
		return func(ctx context.Context, c *client.Client) error {
			wipe := []*machineapi.ResetPartitionSpec{{Label: constants.StatePartitionLabel, Wipe: true}, {Label: constants.EphemeralPartitionLabel, Wipe: true}}
			return c.ResetGeneric(ctx, &machineapi.ResetRequest{Graceful: graceful, Reboot: true, SystemPartitionsToWipe: wipe})
		}
	}
	for _, tc := range []struct {
		name   string
		sz     size
		node   string
		theirs func(context.Context, *client.Client) error
		shown  string // in the status, while the agent waits
		failed string // of the action, "": it does not
		story  map[string]int
	}{
		{"reboot", size{ControlPlanes: 1, Workers: 2}, "dev-wk-1", func(ctx context.Context, c *client.Client) error { return c.Reboot(ctx) },
			"refused by Talos, because another sequence runs: reboot, in phase ", "", map[string]int{"reboots": 1, "is reset": 0}},
		{"reset", size{ControlPlanes: 1, Workers: 2}, "dev-wk-1", reset(false),
			"refused by Talos, because another sequence runs: reset, in phase ", "it went down, and not to boot again: refused by Talos, because another sequence runs: reset, in phase ",
			map[string]int{"is reset": 1, "reboots": 1}}, // from the reset it has the config of the others; then it is its turn
		{"reset that fails", size{ControlPlanes: 3, Workers: 1}, "dev-cp-1", reset(true),
			"stops: it is resetting: refused by Talos, because another sequence runs: reset, in phase leave", "", map[string]int{"reboots": 0, "is reset": 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSim(t, tc.sz, lab.Config{})
				defer s.Close()
				log := &lockedBuffer{}
				s.Log = slog.New(slog.NewTextHandler(log, nil))
				s.Boot()
				s.UntilReady(20 * time.Minute)
				var begun atomic.Bool
				boot := s.bootOf(tc.node)
				address := map[string]string{"dev-wk-1": "10.10.0.41", "dev-cp-1": "10.10.0.11"}[tc.node]
				s.Lab.World.OnCall(func(c world.CallRecord) {
					s.Witness(c)
					if !strings.HasSuffix(c.Op, "/Events") || c.Subject != tc.node || !begun.CompareAndSwap(false, true) {
						return
					}
					s.touch()
					if tc.sz.ControlPlanes > 1 { // so that it cannot leave etcd
						must(s.Lab.Talos.Kill(s.vmidOf("dev-cp-3")))
					}
					must(s.askTalos(address, tc.theirs))
				})
				files := tc.sz.Files()
				role := "worker"
				if tc.sz.ControlPlanes > 1 {
					role = "controlplane"
				}
				changed(t, files, "inventory/dev/cluster.yaml", "cni: cilium\n", "cni: cilium\npatches: {"+role+": [patches/proxy.yaml]}\n")
				files["inventory/dev/patches/proxy.yaml"] = []byte("machine: {env: {https_proxy: \"http://10.10.0.1:3128\"}}\n")
				s.Push(files, "a proxy")
				s.Until(time.Hour, "shown why", func(st cluster.Status) bool {
					return slices.ContainsFunc(st.Running, func(r cluster.RunningStatus) bool {
						return r.Action == cluster.RebootNode && r.Subject == tc.node && strings.Contains(r.Waits, tc.shown)
					})
				})
				if tc.sz.ControlPlanes > 1 {
					s.Until(time.Hour, "its reset has failed, and it has booted as it is", func(cluster.Status) bool {
						return slices.ContainsFunc(s.Lab.Talos.Machines(), func(m talos.MachineView) bool {
							return m.Node == tc.node && m.BootID != boot && m.NodeReady
						})
					})
					must(s.Lab.PVE.Stop(s.vmidOf("dev-cp-3")))
					must(s.Lab.PVE.Start(s.vmidOf("dev-cp-3")))
				}
				s.UntilReady(2 * time.Hour)
				for what, want := range tc.story {
					if n := s.timesReported(tc.node, what); n != want {
						t.Errorf("%s %s %d times, want %d\n%s", tc.node, what, n, want, s.Story(60))
					}
				}
				switch failed := strings.Contains(log.String(), "action failed"); {
				case failed != (tc.failed != ""), failed && !strings.Contains(log.String(), tc.failed):
					t.Errorf("log %s, want %q", log, tc.failed)
				}
				s.Quiet(10 * time.Minute)
				s.CheckRules(tc.sz)
				s.Halt()
			})
		})
	}
}

// timesReported is how often the lab had something to report of a node.
func (s *sim) timesReported(node, what string) (n int) {
	for _, e := range s.Lab.World.Events() {
		if e.Subject == node && e.Text == what {
			n++
		}
	}
	return n
}
