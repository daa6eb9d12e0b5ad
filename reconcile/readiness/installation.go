package readiness

import (
	"fmt"
	"slices"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// installWithin is how long a machine may take to install itself: it gives a registry that does not answer twenty minutes.
const installWithin = 20 * time.Minute

// mayInstall reports whether the machine of a node still has to install itself from the medium in its drive, or is doing so: Kubernetes
// knows no node of it. Where that cannot be seen, only one of a cluster that never worked counts: any other may have been a node for long.
func mayInstall(n cluster.Node, vm cluster.VM, o cluster.Observed) bool {
	_, settled := o.Facts.Settled[n.Name]
	_, joined := o.Nodes.Value[n.Name]
	return vm.Hardware.Value.Medium != "" && !joined && (o.Nodes.Known || !settled && !o.Facts.WasReady() && !o.Facts.Lost)
}

// AwaitInstallation is the wait for a machine that answers, and has been installing itself for longer than it should: it boots its medium
// again and again, or pulls its installer in vain. Each attempt by itself is short.
func AwaitInstallation(n cluster.Node, vm cluster.VM, o cluster.Observed) (w cluster.Wait, late bool) {
	stages := []string{"maintenance", "installing", "booting"}
	if vm.Power != cluster.PowerRunning || vm.Uptime <= installWithin || !slices.Contains(stages, o.Machines[n.Name].Stage) || !mayInstall(n, vm, o) {
		return cluster.Wait{}, false
	}
	return cluster.Wait{Subject: n.Name, Reason: cluster.WaitingForTalos, About: "installation", Message: "its machine has not installed itself since its vm was started", Within: installWithin, Began: o.Now.Add(-vm.Uptime),
		Hint: fmt.Sprintf("`talos-agent console %s` shows what keeps it; mostly no registry gives the installer that its config names", n.Name)}, true
}
