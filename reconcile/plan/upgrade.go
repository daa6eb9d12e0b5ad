package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/action"
	"github.com/talos-agent/talos-agent/reconcile/bounds"
	"github.com/talos-agent/talos-agent/reconcile/drift"
	"github.com/talos-agent/talos-agent/reconcile/ha"
	"github.com/talos-agent/talos-agent/reconcile/ladder"
	"github.com/talos-agent/talos-agent/reconcile/readiness"
	"github.com/talos-agent/talos-agent/reconcile/snapshot/retention"
	"github.com/talos-agent/talos-agent/reconcile/upgrade"
)

// Another Talos is one of the things that a node gets in its turn. All nodes that are to have it pull
// its installer first. Where Talos can it is installed beside the one that runs while the node is in
// service, and booted when it is drained; an older one installs it on its way down. Which Talos a
// machine runs after that is what is believed, and nothing that was answered before.

// installer is the image that installs what all nodes are to run now.
func (m *planner) installer() string { return upgrade.Installer(m.d) }

// upgradeIn is the upgrade among what a node is to be given in its turn.
func (m *planner) upgradeIn(n cluster.Node, drifts []drift.Drift) (drift.Drift, bool) {
	i := slices.IndexFunc(drifts, func(dr drift.Drift) bool { return drift.IsUpgrade(m.d, m.o, n, dr) })
	if i < 0 {
		return drift.Drift{}, false
	}
	return drifts[i], true
}

// isBack reports whether a drift is the version of Talos that all nodes ran before, and that is asked for again.
func (m *planner) isBack(dr drift.Drift) bool {
	return m.d.Repository().Back.Talos && dr.Reason == cluster.TalosVersionDrift && ladder.IsOlder(dr.Want, dr.Have)
}

// goesAlone reports whether a drift of Talos is corrected before whatever else takes the node down: that may have to wait
// for the window.
func (m *planner) goesAlone(dr drift.Drift) bool {
	return m.isBack(dr) || m.order().Now && (dr.Reason == cluster.TalosVersionDrift || dr.Reason == cluster.SchematicDrift)
}

// order is what an administrator lets the upgrade of this revision do.
func (m *planner) order() cluster.UpgradeOrder {
	return m.o.Facts.UpgradeOrder(drift.Attempt(m.d, m.o.Facts))
}

// isPassed reports whether a node is not Ready and an administrator has ordered not to wait for it.
func (m *planner) isPassed(name string) bool {
	return m.plan.Phases[name] != cluster.PhaseReady && slices.Contains(m.order().Despite, name)
}

// upgrades reports whether some fields of a node have another version among them: its Talos, or what its config has of
// Kubernetes. alone: they are nothing else.
func (m *planner) upgrades(n cluster.Node, fields []string) (is, alone bool) {
	if up, ok := drift.UpgradeOf(m.d, m.o, n); ok && slices.Contains(fields, up.Field) {
		return true, len(fields) == 1
	}
	asked := m.d.Repository()
	is = (asked.Back.Kubernetes || asked.IsHop(cluster.HopKubernetes)) && slices.Contains(fields, drift.FieldConfig)
	return is, is && len(fields) == 1 && m.o.Machines[n.Name].Summary.OnlyImages(asked.Configs[n.Name].Summary)
}

// goesBack reports whether some fields of a node are a version that all nodes ran before, and nothing else.
func (m *planner) goesBack(n cluster.Node, fields []string) bool {
	if len(fields) == 0 && upgrade.BootsAnother(m.d, m.o, n) {
		return true // in what it boots next
	}
	_, alone := m.upgrades(n, fields)
	up, ok := drift.UpgradeOf(m.d, m.o, n)
	return alone && (ok && m.isBack(up) || m.d.Repository().Back.Kubernetes && fields[0] == drift.FieldConfig)
}

// lacksInstaller reports whether a node is to be upgraded and its machine has not pulled what for.
func (m *planner) lacksInstaller(n cluster.Node) bool {
	_, upgrades := m.upgradeIn(n, m.turnOf(n))
	in, begun := upgrade.InstallOf(m.o, n)
	return upgrades && !(begun && in.Image == m.installer()) && !n.Locked && upgrade.FailedInstall(m.d, m.o, n) == "" && m.o.Machines[n.Name].Installer != m.installer()
}

// planReturn waits for a node whose machine does not answer. Where that is since the reboot of its upgrade its VM is reset, once,
// and reported when that does not help.
func (m *planner) planReturn(n cluster.Node, vm cluster.VM) {
	back := upgrade.JudgeReturn(m.d, m.o, m.p, n)
	m.waitForSilent(n, cluster.Wait{Subject: n.Name, Reason: cluster.NodeUnreachable, Message: fmt.Sprintf("its vm runs but nothing answers at %s:50000%s", n.IP, readiness.LockedBy(vm)) + back.Note, Within: seeWithin, Hint: readiness.HintOfSilent(n, vm, m.o)})
	if m.plan.Blocked = append(m.plan.Blocked, back.Stopped...); back.Due {
		m.do(action.ResetVM{Node: n, Boot: m.o.Facts.Restarts[n.Name].Boot})
	}
}

// isRepeated reports whether what a node was taken down for shows nothing of its upgrade: it is not known how
// its installer ended, so that it is run once more, or it was in this boot.
func (m *planner) isRepeated(n cluster.Node, drifts []drift.Drift) bool {
	_, upgrades := m.upgradeIn(n, drifts)
	_, begun := upgrade.InstallOf(m.o, n)
	return upgrades && (begun || upgrade.MayRepeat(m.d, m.o, n))
}

// returnsFirst reports whether a node that works is out of service for a turn, and goes back into service before it is upgraded: it
// was not drained for that, or has nothing installed and would wait for another one, or that has failed, or is upgraded once more, which Talos can in service.
func (m *planner) returnsFirst(n cluster.Node, drifts []drift.Drift) bool {
	turn := m.o.Nodes.Value[n.Name].Turn
	up, ok := m.upgradeIn(n, drifts)
	if !ok || turn == "" || m.plan.Phases[n.Name] != cluster.PhaseReady {
		return false
	}
	if upgrade.FailedInstall(m.d, m.o, n) != "" {
		return true
	}
	again := ladder.UsesLifecycle(m.o.Machines[n.Name].Talos) && upgrade.MayRepeat(m.d, m.o, n)
	return again || !slices.Contains(strings.Split(turn, "."), drift.PartOfTurn(up)) || !upgrade.IsPending(m.d, m.o, n) && m.turnBefore(n) != ""
}

// isPending reports whether a node is to be upgraded, and its machine has, or may have, another Talos installed that it does not run:
// what for, or what another commit asked for, which is installed over before any other node is begun with.
func (m *planner) isPending(n cluster.Node) bool {
	if n.Locked || !upgrade.IsPending(m.d, m.o, n) && !upgrade.HasUnbooted(m.o, n) {
		return false
	}
	_, upgrades := m.upgradeIn(n, m.turnOf(n))
	return upgrades
}

// blockFailedInstall reports a node on whose machine the installer has failed, or that was rolled back, and whether it is one.
func (m *planner) blockFailedInstall(n cluster.Node, drifts []drift.Drift) bool {
	up, ok := m.upgradeIn(n, drifts)
	reason, message, hint := upgrade.DescribeFailed(m.d, m.o, n)
	if !ok || reason == "" {
		return false
	}
	m.blockDrift(cluster.Block{Subject: n.Name, Reason: reason, About: up.Want, Message: message, Hint: hint}, m.describe(n, up))
	return true
}

// planSupply looks for the installers of all hops before the first of them is begun, and reports those that are not there.
func (m *planner) planSupply() {
	if m.supply = upgrade.JudgeSupply(m.d, m.o); len(m.supply.Ask) > 0 {
		m.do(action.CheckInstallers{Cluster: m.d.Spec.Name, Images: m.supply.Ask})
	}
	m.plan.Blocked = slices.Concat(m.plan.Blocked, m.supply.Blocks(m.d.Spec.Name), upgrade.BlockRollbacks(m.d, m.o))
}

// holdIf waits where something holds, and reports whether it does.
func (m *planner) holdIf(w cluster.Wait, holds bool) bool {
	if holds {
		m.wait(w)
	}
	return holds
}

// planInstaller has the machine of a node that is to be upgraded pull the installer, in service. One whose next boot would run
// what was taken back, whatever it is booted for, gets what it runs for that.
func (m *planner) planInstaller(n cluster.Node) {
	left := ""
	switch {
	case n.Locked:
		left = "it is locked in the inventory"
	case m.appliesNothing():
		left = "apply is off"
	case m.isHeld():
		left = "a machine is another one than the inventory has"
	}
	if w := upgrade.AwaitOverwritten(m.d, m.o, n, left); w.Reason != "" && len(m.turnOf(n)) == 0 && !m.isRunning(cluster.InstallTalos, n.Name) && !m.isRunning(cluster.UpgradeTalos, n.Name) {
		m.wait(w)
		return
	}
	if mach := m.o.Machines[n.Name]; left == "" && upgrade.BootsAnother(m.d, m.o, n) {
		const change = "what its next boot runs, which was taken back"
		if b := upgrade.BlockOverwrite(m.d, m.o, n); b.Reason != "" {
			m.blockDrift(b, b.Drift)
			return
		}
		if mach.Installer != m.installer() {
			m.do(action.PullInstaller{Node: n, Image: m.installer(), For: change})
		} else {
			m.do(action.InstallTalos{Node: n, Image: m.installer(), Boot: mach.BootID, For: change, From: mach.Talos, Version: m.d.Repository().Spec.Versions.Talos})
		}
		return
	}
	if m.isHeld() || m.supply.Holds() || !m.lacksInstaller(n) {
		return
	}
	if up, ok := m.upgradeIn(n, m.turnOf(n)); ok && (m.plan.Phases[n.Name] == cluster.PhaseReady || m.isBack(up)) {
		m.do(action.PullInstaller{Node: n, Image: m.installer(), For: up.Change(), Fields: []string{up.Field}})
	}
}

// prepareUpgrade does what comes before a node is drained for another Talos, and reports whether that
// is not done yet.
func (m *planner) prepareUpgrade(n cluster.Node, kn cluster.KubeNode, drifts []drift.Drift) bool {
	up, ok := m.upgradeIn(n, drifts)
	if !ok {
		return false
	}
	mach := m.o.Machines[n.Name]
	in, _ := upgrade.InstallOf(m.o, n)
	w := cluster.Wait{Subject: n.Name, Reason: cluster.WaitingForInstaller, Drift: m.describe(n, up)}
	switch {
	case kn.Turn != "" && !m.isRunning(cluster.UpgradeTalos, n.Name) && m.holdHopForEtcd(n, w.Drift, true): // an alarm that has come up since
		return true
	case upgrade.IsInstalled(m.d, m.o, n): // that may have been long ago
		return kn.Turn == "" && m.holdUpgrade(n, w)
	case m.isRunning(cluster.InstallTalos, n.Name), m.isRunning(cluster.UpgradeTalos, n.Name):
		return true
	case upgrade.MayRun(m.o, n):
		w.About, w.Within = in.Boot, upgrade.InstallWithin
		w.Message = fmt.Sprintf("it is not known how the installation of %s ended, which may go on; at %s it is %s", in.Image, text.Moment(in.At.Add(upgrade.InstallWithin)), upgrade.AfterInstall(m.d, in))
		m.wait(w)
		return true
	case kn.Turn == "" && (m.holdIf(m.supply.Wait(n.Name, w.Drift)) || m.holdUpgrade(n, w)):
		return true
	case !ladder.UsesLifecycle(mach.Talos): // it installs on its way down
		return false
	}
	m.doUnless(action.InstallTalos{Node: n, Image: m.installer(), Boot: mach.BootID, For: drift.DescribeChange([]drift.Drift{up}), Fields: drift.Fields([]drift.Drift{up}), From: mach.Talos, Version: m.d.Repository().Spec.Versions.Talos}, m.gateOf(n, kn, drifts))
	return true
}

// awaitsPurpose reports whether a node stays out of service because it is not known yet what its turn is for.
func (m *planner) awaitsPurpose(n cluster.Node) bool {
	_, failed := m.backoffs[action.RegisterSchematic{Cluster: m.d.Spec.Name}.Info().ID()]
	return !m.isHeld() && m.holdIf(upgrade.AwaitPurpose(m.d, m.o, n, failed, apiWithin))
}

// endsTurn reports whether a node that works is out of service for a turn that is over, or that ends before its upgrade.
func (m *planner) endsTurn(n cluster.Node) bool {
	turn := m.o.Nodes.Value[n.Name].Turn
	return turn != "" && turn != cluster.TurnRemoval && !n.Locked && (len(m.turnOf(n)) == 0 || m.returnsFirst(n, m.turnOf(n)))
}

// nodesBefore are the waits for nodes that others wait for before they are upgraded.
func (m *planner) nodesBefore() []cluster.Wait {
	if m.befores != nil {
		return m.befores
	}
	m.befores = []cluster.Wait{}
	for _, n := range m.d.Spec.Nodes {
		var w cluster.Wait
		switch {
		case upgrade.FailedInstall(m.d, m.o, n) != "":
			w = cluster.Wait{About: n.Name, Reason: cluster.WaitingForTurn, Message: fmt.Sprintf("waits to be upgraded, because %s", upgrade.DescribeStop(m.d, m.o, n))}
		case upgrade.RollsBack(m.d, m.o, n):
			w = cluster.Wait{About: n.Name, Reason: cluster.WaitingForTurn, Message: fmt.Sprintf("waits to be upgraded, because %s is rolled back", n.Name)}
		case m.isPassed(n.Name):
			continue
		case m.plan.Phases[n.Name] != cluster.PhaseReady:
			w = cluster.Wait{About: n.Name, Reason: cluster.WaitingForHop, Message: fmt.Sprintf("waits to be upgraded until %s is Ready", n.Name),
				Hint: fmt.Sprintf("`talos-agent status %s` shows what it lacks; `talos-agent upgrade %[1]s --despite %[2]s` does not wait for it; one that is lost: take it out of nodes.yaml, or give it another `replace`", m.d.Spec.Name, n.Name)}
		case m.isPending(n):
			w = cluster.Wait{About: n.Name, Reason: cluster.WaitingForTurn, Message: fmt.Sprintf("waits to be upgraded until %s runs what was installed on it", n.Name)}
			if !upgrade.IsPending(m.d, m.o, n) {
				w.Message = fmt.Sprintf("waits to be upgraded until what an earlier push had installed on %s, which it does not run, is installed over and booted", n.Name)
			}
		case m.endsTurn(n):
			w = cluster.Wait{About: n.Name, Reason: cluster.WaitingForTurn, Message: fmt.Sprintf("waits to be upgraded until %s is back in service", n.Name)}
		case ha.CannotFollow(m.o, m.o.VMs[n.Name]) && !slices.Contains(m.order().Despite, n.Name): // it could not follow
			w = ha.AwaitFree(m.o, m.d.Spec.Name, n, m.o.VMs[n.Name], lockWithin)
		case m.lacksInstaller(n):
			w = cluster.Wait{About: n.Name, Reason: cluster.WaitingForInstaller, Message: fmt.Sprintf("waits to be upgraded until %s has the installer, too", n.Name)}
		default:
			continue
		}
		m.befores = upgrade.AddBefore(m.befores, w)
	}
	return m.befores
}

// holdUpgrade waits with the upgrade of a node that is in service, and reports whether it does: until
// every other node is Ready, and has what the others need to follow. One that goes back waits for none of
// that, but for another one on which that has failed. It is asked before the installation and, where that is
// not the same step, once more before the drain: a window may have closed in between, for a week.
func (m *planner) holdUpgrade(n cluster.Node, w cluster.Wait) bool {
	back, installed := m.goesBack(n, drift.Fields(m.turnOf(n))), upgrade.IsInstalled(m.d, m.o, n)
	for _, other := range m.nodesBefore() {
		of, _ := m.nodeNamed(other.About)
		failed, rolls := upgrade.FailedInstall(m.d, m.o, of) != "", upgrade.RollsBack(m.d, m.o, of)
		if back && !failed && !rolls && !upgrade.IsPending(m.d, m.o, of) && (!m.isPending(of) || ha.CannotFollow(m.o, m.o.VMs[of.Name])) {
			continue // who knows when it can be begun with
		}
		begun := installed || other.Reason == cluster.WaitingForTurn && !rolls && m.isPending(n)
		if upgrade.IsBefore(other, n.Name, back, begun, failed, m.o.Nodes.Value[other.About].Turn != "") {
			other.Subject, other.Drift, other.Message = n.Name, w.Drift, upgrade.WordWait(other.Message, back)
			m.wait(other)
			return true
		}
	}
	if !back {
		if w.Reason, w.Message = upgrade.AwaitsManifests(m.d, m.o); w.Reason != "" {
			m.wait(w)
			return true
		}
		w.Reason = cluster.WaitingForInstaller
	}
	if !back && m.holdByGate(n, w.Drift) || m.holdHopForEtcd(n, w.Drift, false) {
		return true
	}
	if name, until := upgrade.FindSoaking(m.d, m.o); name != "" && !back && !m.order().Now {
		w.Reason, w.About, w.Message = cluster.WaitingForSoak, name, fmt.Sprintf("waits to be upgraded until %s has been Ready for %v, at %s", name, m.d.Spec.Soak, text.Moment(until))
		m.wait(w)
		return true
	}
	if !installed && m.lacksInstaller(n) {
		w.Message = upgrade.WordWait("waits to be upgraded until it has the installer", back)
		m.wait(w)
		return true
	}
	return false
}

// holdByGate waits with what a hop changes of a node until the gates of the inventory hold, and reports whether it does.
// It comes before the snapshot, which must be a fresh one.
func (m *planner) holdByGate(n cluster.Node, drifts []cluster.FieldDifference) bool {
	closed := upgrade.ClosedGates(m.d, m.o, m.p)
	for _, w := range closed {
		w.Subject, w.Drift = n.Name, drifts
		m.wait(w)
	}
	return len(closed) > 0
}

// holdForPulls has all nodes pull the images of a hop of Kubernetes before its first step, and reports whether that waits for them.
func (m *planner) holdForPulls(n cluster.Node, drifts []cluster.FieldDifference) bool {
	lacking, w := upgrade.AwaitPulls(m.d, m.o, n.Name, func(n cluster.Node) bool { return m.isPassed(n.Name) || m.keepsConfig(n) })
	for _, other := range lacking {
		m.do(action.PullImages{Node: other, Images: m.o.Machines[other.Name].Unpulled, Ahead: true})
	}
	w.Drift = drifts
	return m.holdIf(w, len(lacking) > 0)
}

// gateOf is what holds the next step of a node for the Jobs of gates; nil: its turn has begun, or brings no upgrade, or one that
// goes back.
func (m *planner) gateOf(n cluster.Node, kn cluster.KubeNode, drifts []drift.Drift) func(action.Info) bool {
	if _, upgrades := m.upgradeIn(n, drifts); !upgrades || kn.Turn != "" || m.goesBack(n, drift.Fields(drifts)) {
		return nil
	}
	return m.holdByJob
}

// holdByJob waits with what nothing else holds until the Jobs of the gates have succeeded, and starts them for that. It reports whether
// it does.
func (m *planner) holdByJob(i action.Info) bool {
	a, waits := upgrade.FindAwaitedJob(m.d, m.o)
	if !waits {
		return false
	}
	if a.Wait.Subject, a.Wait.Drift = i.Subject, m.driftOfAction(i); a.Start {
		m.do(action.StartJob{Gate: a.Gate, Name: a.Name, Revision: drift.Attempt(m.d, m.o.Facts)})
	} else if a.Old.Name != "" {
		m.do(action.DeleteJob{Job: a.Old, Why: "to start it once more"})
	}
	m.wait(a.Wait)
	return true
}

// holdHopForEtcd waits with what a hop changes of a node until etcd has no alarm and, where it has not begun, there is a snapshot of
// what it has, and reports whether it does.
func (m *planner) holdHopForEtcd(n cluster.Node, drifts []cluster.FieldDifference, begun bool) bool {
	switch w, b := upgrade.JudgeEtcd(m.d, m.o, m.etcd, n, begun); {
	case w.Reason != "":
		w.Within, w.Drift = etcdWithin, drifts
		m.wait(w)
		return true
	case b.Reason != "":
		m.blockDrift(b, drifts)
		return true
	case begun:
		return false
	}
	w, lacks := m.lackSnapshot(retention.BeforeUpgrade)
	if lacks {
		w.Subject, w.About, w.Message, w.Drift = n.Name, "upgrade", "waits to be upgraded: "+w.Message, drifts
		m.wait(w)
	}
	return lacks
}

// canaryBefore is the node that the cluster has upgraded before all others, while it is to be, or is in its turn, and whether
// a node is behind it: the canary itself waits for none.
func (m *planner) canaryBefore(n cluster.Node) (canary string, before bool) {
	canary = m.d.Spec.Canary
	c, there := m.nodeNamed(canary)
	if !there || c.Locked || m.d.Repository().Back.Talos {
		return "", false
	}
	if _, upgrades := m.upgradeIn(c, m.turnOf(c)); !upgrades && m.o.Nodes.Value[canary].Turn == "" {
		return "", false
	}
	if _, upgrades := m.upgradeIn(n, m.turnOf(n)); !upgrades {
		return "", false
	}
	if canary == n.Name {
		return "", true
	}
	return canary, true
}

// planHops waits with the hop of Kubernetes that the nodes make now, whose next step follows from how
// the one before ended, and with the hops that come after the first.
func (m *planner) planHops() {
	asked := m.d.Repository()
	name := m.d.Spec.Name
	if asked.Held != "" {
		b := cluster.Block{Subject: name, Reason: asked.Held, About: "upgrade", Message: fmt.Sprintf("the inventory asks for other versions, and %s; it would be upgraded to %s", asked.HeldBy, cluster.DescribeHops(asked.Hops)+upgrade.DescribeRemovedOnWay(m.d, m.o)),
			Hint: "set the versions back; or " + bounds.HintOff(m.d.Spec, m.p) + m.whereSwitch("upgrade", m.p.Upgrade > m.d.Spec.Upgrade)}
		if asked.Held == cluster.ChangeUnapproved {
			b.Hint = m.approveHint() + "; or set the versions back"
		}
		m.blockDrift(b, drift.OfWay(m.d, m.o))
		return
	}
	m.plan.Waiting = append(m.plan.Waiting, upgrade.WaitsOfWay(m.d, m.o, m.supply)...)
	m.plan.Blocked = append(m.plan.Blocked, upgrade.BlockLocked(m.d, m.o)...)
}

// planManifests applies what the control planes render, once the nodes have made a hop, to what Talos deployed before
// it. It is no part of the hop, and waits for an approval of its own where changes are approved: what
// it changes is known only then.
func (m *planner) planManifests() {
	w := upgrade.WaitForManifests(m.d, m.o, apiWithin)
	for _, phase := range m.plan.Phases {
		if phase != cluster.PhaseReady {
			return
		}
	}
	name, why := m.d.Spec.Name, w.Message
	if w.Reason == "" || !m.o.Facts.WasReady() || m.isHeld() { // until it was Ready once Talos deploys them
		return
	}
	if w.Reason != cluster.ManifestsOutdated {
		m.wait(w)
		return
	}
	a := action.SyncManifests{Cluster: name, Manifests: m.o.Manifests.Value}
	if i := slices.IndexFunc(m.d.Spec.Addons, func(a cluster.Addon) bool {
		return readiness.LacksAddon(m.o, a) || m.isPlanned(cluster.InstallAddon, a.Name) || m.isPlanned(cluster.FetchChart, a.Name)
	}); i >= 0 && upgrade.Deletes(m.o) {
		m.wait(cluster.Wait{Subject: name, Reason: w.Reason, About: m.d.Spec.Addons[i].Name, Message: fmt.Sprintf("waits until addon %s, which may take the place of what is deleted, is ready: %s", m.d.Spec.Addons[i].Name, a.Info().Text), Within: etcdWithin,
			Hint: "where it is to have the same objects, which Helm does not take over: `kubectl delete` those"})
		return
	}
	if i := slices.IndexFunc(m.d.Spec.ControlPlanes(), func(n cluster.Node) bool { return len(drift.Fixed(m.d, m.o, n)) > 0 }); i >= 0 && upgrade.Deletes(m.o) {
		m.wait(cluster.Wait{Subject: name, Reason: w.Reason, About: "config", Message: fmt.Sprintf("waits until %s has the machine config of the inventory, of which somebody changed what the cluster was made with: %s", m.d.Spec.ControlPlanes()[i].Name, a.Info().Text),
			Hint: "`talos-agent diff " + name + "` shows it: set it back with `talosctl apply-config`"})
		return
	}
	mode, _ := bounds.Upgrade(m.d.Spec, m.p)
	opens, ever := m.d.Spec.Window.OpensWith(m.p.Window, m.o.Now)
	switch {
	case m.appliesNothing() || mode == cluster.UpgradeOff:
		m.blockDrift(cluster.Block{Subject: name, Reason: cluster.ApplyingOff, About: "manifests", Message: why, Hint: "set `apply: auto` and `upgrade: auto`, or `talosctl upgrade-k8s` to the version that the nodes run"}, a.Manifests.Differences())
	case (m.asksApproval() || mode == cluster.UpgradeApproved) && !m.o.Facts.Approved(m.d.Repository().Revision, a.Info().Step()):
		m.blockDrift(cluster.Block{Subject: name, Reason: cluster.ChangeUnapproved, About: "manifests", Message: why, Hint: m.approveHint()}, a.Manifests.Differences())
	case (!ever || opens.After(m.o.Now)) && !m.order().Now && !upgrade.WentBack(m.d, m.o):
		m.wait(cluster.Wait{Subject: name, Reason: cluster.WaitingForWindow, About: "manifests", Message: fmt.Sprintf("waits for its window, which opens at %s: %s", text.Moment(opens), a.Info().Text), Drift: a.Manifests.Differences()})
	default:
		m.do(a)
	}
}

// blockFellBack reports a node that was rebooted for another Talos and runs the one from before.
func (m *planner) blockFellBack(n cluster.Node, up drift.Drift) {
	m.blockDrift(cluster.Block{Subject: n.Name, Reason: cluster.UpgradeFellBack, About: up.Want, Message: fmt.Sprintf("it was rebooted to change %s, and has %s all the same: the new Talos did not start, or was not installed", up.Change(), up.Has()),
		Hint: "`talos-agent status " + m.d.Spec.Name + "` shows what the boot that failed printed; " + upgrade.RetriedBy(m.d) + ", and talos_version or talos.schematic set back ends it"}, m.describe(n, up))
}
