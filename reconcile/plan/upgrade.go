package plan

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/action"
	"github.com/talos-agent/talos-agent/reconcile/drift"
	"github.com/talos-agent/talos-agent/reconcile/ladder"
)

// Another Talos is one of the things that a node gets in its turn. All nodes that are to have it pull
// its installer first. Where Talos can it is installed beside the one that runs while the node is in
// service, and booted when it is drained; an older one installs it on its way down. Which Talos a
// machine runs after that is what is believed, and nothing that was answered before.

// installWithin is how long an installer may run of which it is not known how it ended: it goes on
// without who asked for it, and the machine is not rebooted meanwhile.
const installWithin = 15 * time.Minute

// installer is the image that installs what all nodes are to run now.
func (m *planner) installer() string {
	asked := m.d.Repository()
	return asked.Spec.Installer(asked.Schematic)
}

// upgradeIn is the upgrade among what a node is to be given in its turn.
func (m *planner) upgradeIn(n cluster.Node, drifts []drift.Drift) (drift.Drift, bool) {
	i := slices.IndexFunc(drifts, func(dr drift.Drift) bool { return drift.IsUpgrade(m.d, m.o, n, dr) })
	if i < 0 {
		return drift.Drift{}, false
	}
	return drifts[i], true
}

// installOf is what was asked for last to be installed on a machine, if that was during the boot that
// it runs since.
func (m *planner) installOf(n cluster.Node) (in cluster.Install, ok bool) {
	in, noted := m.o.Facts.Installs[n.Name]
	boot := m.o.Machines[n.Name].BootID
	return in, noted && boot != "" && in.Boot == boot
}

// failedInstall is why the installation of what a node is to have has failed at this revision; "" : it has not.
func (m *planner) failedInstall(n cluster.Node) string {
	if in := m.o.Facts.Installs[n.Name]; in.Image == m.installer() && in.Revision == m.d.Repository().Revision {
		return in.Failed
	}
	return ""
}

// isInstalled reports whether the next boot of a machine runs what it is to run, or may: how the
// installation ended is not known, and it has had its time.
func (m *planner) isInstalled(n cluster.Node) bool {
	in, ok := m.installOf(n)
	return ok && in.Failed == "" && (in.Done || m.o.Now.Sub(in.At) >= installWithin)
}

// lacksInstaller reports whether a node is to be upgraded and its machine has not pulled what for.
func (m *planner) lacksInstaller(n cluster.Node) bool {
	_, upgrades := m.upgradeIn(n, m.turnOf(n))
	_, begun := m.installOf(n)
	return upgrades && !begun && !n.Locked && m.failedInstall(n) == "" && m.o.Machines[n.Name].Installer != m.installer()
}

// blockFailedInstall reports a node on whose machine the installer has failed, and whether it is one.
func (m *planner) blockFailedInstall(n cluster.Node, drifts []drift.Drift) bool {
	up, ok := m.upgradeIn(n, drifts)
	failed := m.failedInstall(n)
	if !ok || failed == "" {
		return false
	}
	m.blockDrift(cluster.Block{Subject: n.Name, Reason: cluster.UpgradeFailed, About: up.Want, Message: fmt.Sprintf("the installer of Talos %s failed, and it runs on as it was: %s", m.d.Repository().Spec.Versions.Talos, failed),
		Hint: "see what the installer has printed; a push has it tried again, and talos_version or talos.schematic set back ends it"}, m.describe(n, up))
	return true
}

// planInstaller has the machine of a node that is to be upgraded pull the installer, in service.
func (m *planner) planInstaller(n cluster.Node) {
	if m.plan.Phases[n.Name] != cluster.PhaseReady || m.isHeld() || !m.lacksInstaller(n) {
		return
	}
	if up, ok := m.upgradeIn(n, m.turnOf(n)); ok {
		m.do(action.PullInstaller{Node: n, Image: m.installer(), For: up.Change()})
	}
}

// prepareUpgrade does what comes before a node is drained for another Talos, and reports whether that
// is not done yet.
func (m *planner) prepareUpgrade(n cluster.Node, kn cluster.KubeNode, drifts []drift.Drift) bool {
	up, ok := m.upgradeIn(n, drifts)
	if !ok || m.isInstalled(n) {
		return false
	}
	mach := m.o.Machines[n.Name]
	in, begun := m.installOf(n)
	w := cluster.Wait{Subject: n.Name, Reason: cluster.WaitingForInstaller, Drift: m.describe(n, up)}
	switch {
	case m.isRunning(cluster.InstallTalos, n.Name), m.isRunning(cluster.UpgradeTalos, n.Name):
		return true
	case begun && in.Failed == "":
		w.About, w.Within = in.Boot, installWithin
		w.Message = fmt.Sprintf("it is not known how the installation of %s ended, which may go on; it is rebooted when %v have passed since, and then runs what it runs", in.Image, installWithin)
		m.wait(w)
		return true
	case kn.Turn == "" && m.holdUpgrade(n, w):
		return true
	case !ladder.UsesLifecycle(mach.Talos): // it installs on its way down
		return false
	}
	m.do(action.InstallTalos{Node: n, Image: m.installer(), Boot: mach.BootID, For: drift.DescribeChange([]drift.Drift{up}), Fields: drift.Fields([]drift.Drift{up}), Version: m.d.Repository().Spec.Versions.Talos})
	return true
}

// holdUpgrade waits with the upgrade of a node that is in service, and reports whether it does: until
// every other node is Ready, and has what the others need to follow.
func (m *planner) holdUpgrade(n cluster.Node, w cluster.Wait) bool {
	for _, other := range m.d.Spec.Nodes {
		switch {
		case other.Name == n.Name:
			continue
		case m.failedInstall(other) != "":
			w.Reason, w.About, w.Message = cluster.WaitingForTurn, other.Name, fmt.Sprintf("waits to be upgraded, because the installation on %s failed", other.Name)
		case m.plan.Phases[other.Name] != cluster.PhaseReady:
			w.Reason, w.About, w.Message = cluster.WaitingForHop, other.Name, fmt.Sprintf("waits to be upgraded until %s is Ready", other.Name)
			w.Hint = fmt.Sprintf("`talos-agent status %s` shows what it lacks; one that is lost: take it out of nodes.yaml, or give it another `replace`", m.d.Spec.Name)
		case m.lacksInstaller(other):
			w.About, w.Message = other.Name, fmt.Sprintf("waits to be upgraded until %s has the installer, too", other.Name)
		default:
			continue
		}
		m.wait(w)
		return true
	}
	if m.lacksInstaller(n) {
		w.Message = "waits to be upgraded until it has the installer"
		m.wait(w)
		return true
	}
	return false
}

// awaitVersions waits with the upgrade of a node until it is known what all nodes run, and reports
// whether it does.
func (m *planner) awaitVersions(n cluster.Node, dr drift.Drift) bool {
	asked := m.d.Repository()
	isVersion := dr.Reason == cluster.TalosVersionDrift || dr.Reason == cluster.KubernetesDrift
	if !isVersion || asked.NoWay != "" || len(asked.Hops) > 0 || !ladder.IsOlder(dr.Have, dr.Want) {
		return false
	}
	m.wait(cluster.Wait{Subject: n.Name, Reason: cluster.RunningConfigUnknown, About: dr.Field, Message: "waits to be upgraded until it is known which versions all nodes run, to change " + dr.Change(), Within: apiWithin, Drift: m.describe(n, dr)})
	return true
}

// planHops waits with the hop of Kubernetes that the nodes make now, whose next step follows from how
// the one before ended, and with the hops that come after the first.
func (m *planner) planHops() {
	asked := m.d.Repository()
	name := m.d.Spec.Name
	if len(asked.Hops) > 0 && asked.Hops[0].Kind == cluster.HopKubernetes {
		m.wait(cluster.Wait{Subject: name, Reason: cluster.WaitingForHop, About: asked.Hops[0].String(), Message: fmt.Sprintf("%s comes to the nodes one component after the other%s", asked.Hops[0], text.Colon(asked.StageWaits))})
	} else if asked.StageWaits != "" {
		m.wait(cluster.Wait{Subject: name, Reason: cluster.WaitingForHop, About: "back", Message: fmt.Sprintf("Kubernetes goes back to %s, one component after the other: %s", asked.Spec.Versions.Kubernetes, asked.StageWaits)})
	}
	for i := 1; i < len(asked.Hops); i++ {
		m.wait(cluster.Wait{Subject: name, Reason: cluster.WaitingForHop, About: asked.Hops[i].String(), Message: fmt.Sprintf("%s comes after %s", asked.Hops[i], asked.Hops[i-1])})
	}
}

// blockFellBack reports a node that was rebooted for another Talos and runs the one from before.
func (m *planner) blockFellBack(n cluster.Node, up drift.Drift) {
	m.blockDrift(cluster.Block{Subject: n.Name, Reason: cluster.UpgradeFellBack, About: up.Want, Message: fmt.Sprintf("it was rebooted to change %s, and has %s all the same: the new Talos did not start, or was not installed", up.Change(), up.Has()),
		Hint: fmt.Sprintf("its console, and `talosctl -n %s dmesg`, may show why; a push has it tried again, and talos_version or talos.schematic set back ends it", n.IP)}, m.describe(n, up))
}

// EndedInstalls lists the nodes whose machines run what was installed on them, and those that the
// inventory no longer has.
func EndedInstalls(d cluster.Desired, o cluster.Observed) []string {
	var out []string
	for name, in := range o.Facts.Installs {
		n, stays := d.Spec.Node(name)
		mach := o.Machines[name]
		_, behind := drift.UpgradeOf(d, o, n)
		if !stays || mach.Reach == cluster.Configured && mach.Talos != "" && cmp.Or(mach.BootID, in.Boot) != in.Boot && !behind {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}
