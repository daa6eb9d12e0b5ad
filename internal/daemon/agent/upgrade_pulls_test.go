package agent_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// TestImagesOfKubernetesFirst: while one node cannot pull the images of a hop of Kubernetes no node gets any of it. When it can, the
// hop begins.
func TestImagesOfKubernetesFirst(t *testing.T) {
	t.Parallel()
	inClusterOf(t, size{ControlPlanes: 1, Workers: 2}, "v1.13.9", "v1.35.10", func(s *sim, push func(what, from, to string), w *turns) {
		s.Lab.World.Inject(world.Fault{System: "talos", Op: "machine.ImageService/Pull", Subject: "dev-wk-2", Kind: world.Answer, Status: 14, Text: "the registry does not answer"})
		push("another kubernetes", "kubernetes_version: v1.35.10", "kubernetes_version: v1.36.1")
		s.Until(time.Hour, "held", func(st cluster.Status) bool {
			return slices.ContainsFunc(st.Waiting, func(w cluster.WaitStatus) bool {
				return w.Subject == "dev-cp-1" && w.Reason == cluster.WaitingForPull && strings.HasSuffix(w.Message, "until the images of Kubernetes v1.36.1 are on dev-wk-2")
			})
		})
		time.Sleep(2 * time.Hour)
		s.wantKubernetes("v1.35.10")
		s.Lab.World.Heal()
		s.untilAppliedIn(4*time.Hour, "upgraded")
		s.wantKubernetes("v1.36.1")
	})
}
