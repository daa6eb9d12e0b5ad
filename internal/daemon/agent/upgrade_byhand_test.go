package agent_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/safe"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	talosresource "github.com/siderolabs/talos/pkg/machinery/resources/config"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestKubernetesUpgradedByHand: a Kubernetes that somebody has upgraded the whole cluster to while no agent ran is not taken back, for
// nobody has asked for that: it is reported, and a push of that version ends it. That can be taken back then.
func TestKubernetesUpgradedByHand(t *testing.T) {
	t.Parallel()
	inClusterOf(t, size{ControlPlanes: 1, Workers: 2}, "v1.13.9", "v1.35.10", func(s *sim, push func(what, from, to string), w *turns) {
		file, err := s.Cluster().Talosconfig()
		must(err)
		opened, err := clientconfig.FromBytes(file)
		must(err)
		time.Sleep(10 * time.Minute)
		s.Halt()
		for _, address := range []string{"10.10.0.11", "10.10.0.41", "10.10.0.42"} {
			must(s.askTalosAs(opened, address, func(ctx context.Context, c *client.Client) error {
				found, err := safe.StateGetByID[*talosresource.MachineConfig](ctx, c.COSI, talosresource.ActiveID)
				if err != nil {
					return err
				}
				config, err := found.Provider().Bytes()
				if err != nil {
					return err
				}
				_, err = c.ApplyConfiguration(ctx, &machineapi.ApplyConfigurationRequest{Data: []byte(strings.ReplaceAll(string(config), "v1.35.10", "v1.36.1")), Mode: machineapi.ApplyConfigurationRequest_NO_REBOOT})
				return err
			}))
			time.Sleep(5 * time.Minute)
		}
		s.Boot()
		s.Until(time.Hour, "reported", func(st cluster.Status) bool {
			return st.Condition == cluster.Stalled && strings.Contains(st.Message, "v1.36.1") && len(st.Running) == 0
		})
		time.Sleep(3 * time.Hour)
		s.wantKubernetes("v1.36.1")
		push("docs", "", "")
		time.Sleep(time.Hour)
		s.wantKubernetes("v1.36.1")
		push("what runs", "kubernetes_version: v1.35.10", "kubernetes_version: v1.36.1")
		s.untilAppliedIn(time.Hour, "as it runs")
		push("back", "kubernetes_version: v1.36.1", "kubernetes_version: v1.35.10")
		s.untilAppliedIn(4*time.Hour, "back")
		s.wantKubernetes("v1.35.10")
	})
}
