package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/action"
	"github.com/talos-agent/talos-agent/reconcile/drift"
	"github.com/talos-agent/talos-agent/reconcile/quorum"
	"github.com/talos-agent/talos-agent/reconcile/readiness"
)

// planAddons plans charts and releases. Charts are fetched from the first moment
// on, so that they lie ready when the API comes up.
func (m *planner) planAddons() {
	m.planLeft()
	if len(m.d.Spec.Addons) == 0 {
		if m.anyAPI() && !m.o.Nodes.Known {
			m.wait(cluster.Wait{Subject: m.d.Spec.Name, Reason: cluster.NodesUnknown, Message: "cannot see the nodes in Kubernetes" + text.Colon(m.o.Nodes.Why), Within: apiWithin})
		}
		return
	}
	api := m.anyAPI()
	if !api && m.foundable() {
		m.wait(cluster.Wait{Subject: m.d.Spec.Name, Reason: cluster.WaitingForAPI, Message: "waits for the Kubernetes API of a control plane", Within: apiWithin})
	}
	for _, a := range m.d.Spec.Addons {
		m.planAddon(a, api)
	}
}

// anyAPI reports whether a kube-apiserver answers on any control plane's own address.
func (m *planner) anyAPI() bool {
	for _, n := range m.d.Spec.ControlPlanes() {
		if s := m.o.APIs[n.Name]; s.Known && s.Value {
			return true
		}
	}
	return false
}

// foundable reports whether the cluster has come far enough for its API to be worth waiting for.
func (m *planner) foundable() bool { return quorum.WasSeen(m.o) || m.o.Facts.BootstrapSent() }

func (m *planner) planAddon(a cluster.Addon, api bool) {
	chart, asked := m.o.Charts[a.Name]
	rel, installed := m.o.Releases.Value[a.Name]
	installed = installed && rel.Namespace == a.Namespace
	settled := installed && m.o.Releases.Known && a.Ownership == cluster.BootstrapOnly && rel.Status == "deployed"
	if !settled && (!asked || !chart.Known) {
		m.do(action.FetchChart{Addon: a})
	}
	if !api {
		return
	}
	if !m.o.Releases.Known {
		m.wait(cluster.Wait{Subject: a.Name, Reason: cluster.ReleasesUnknown, Message: "cannot see the releases in the cluster: " + cmp.Or(m.o.Releases.Why, "there is no answer yet"), Within: seeWithin})
		return
	}
	if settled && rel.Digest != "" && !rel.Ready && !m.o.Facts.WasReady() {
		m.waitForAddon(a, rel) // later, somebody else manages it
	}
	if settled && rel.Managed && rel.Digest != "" {
		m.do(action.MarkAddon{Addon: a})
	}
	if !installed || rel.Digest != "" { // else it is whoever's the release is
		m.planNamespace(a)
	}
	if m.isRunning(cluster.InstallAddon, a.Name) || settled {
		return
	}
	if dep := readiness.UnmetDependency(m.d, m.o, a); dep != "" && !installed {
		m.wait(cluster.Wait{Subject: a.Name, Reason: cluster.WaitingForAddon, About: dep, Message: "waits for addon " + dep})
		return
	}
	if !chart.Known {
		if !m.isRunning(cluster.FetchChart, a.Name) {
			m.wait(cluster.Wait{Subject: a.Name, Reason: cluster.WaitingForChart, Message: "waits for its chart" + text.Colon(chart.Why)})
		}
		return
	}
	switch {
	case !installed && readiness.MayHaveFlannel(m.d, m.o, a):
		m.wait(cluster.Wait{Subject: a.Name, Reason: cluster.FixedConfigChanged, Message: "waits until it is seen that no control plane runs with Flannel: the inventory has another container network, and the cluster keeps the one it was made with",
			Hint: "write `cni: flannel` in cluster.yaml again; another container network needs another cluster"})
	case !installed:
		if do := (action.InstallAddon{Addon: a, Digest: chart.Value.Release}); !m.o.Facts.WasInstalled(a) || !m.holdEdit(do.Info(), "somebody has uninstalled it, and it", drift.OfAddon(m.o, a)) {
			m.do(do)
		}
	case m.planRollback(a, rel, chart.Value.Release):
	case rel.Status == "deployed" && rel.Digest == chart.Value.Release:
		if good := a.RollBack && rel.Ready && !rel.Good; a.Ownership == cluster.Managed && (!rel.Managed || good) {
			m.do(action.MarkAddon{Addon: a, Good: good})
		}
		if rel.ToPutBack() != "" && a.Ownership == cluster.Managed {
			m.putBack(a, rel, chart.Value.Release)
		} else if !rel.Ready {
			m.waitForAddon(a, rel)
		}
	case rel.Digest == "" && a.Ownership == cluster.Managed:
		m.blockDrift(cluster.Block{Subject: a.Name, Reason: cluster.ReleaseForeign, Message: fmt.Sprintf("a release %s that is not ours is installed in %s", a.Name, rel.Namespace),
			Hint: "say `ownership: bootstrap-only` to leave it to whoever installed it, or uninstall it"}, drift.OfAddon(m.o, a))
	case a.Ownership == cluster.BootstrapOnly && rel.Digest == "":
		// Whoever installed it manages it, broken or not.
	case rel.Status == "uninstalling" && m.o.Now.Sub(rel.Changed) < abandonedAfter:
		m.wait(cluster.Wait{Subject: a.Name, Reason: cluster.ReleaseUninstalling, Message: "its release is being uninstalled", Within: taskWithin})
	default:
		m.upgrade(action.InstallAddon{Addon: a, Digest: chart.Value.Release, Status: rel.Status, Drift: drift.OfAddon(m.o, a)}, rel)
	}
}

// upgrade plans to make a release what the inventory has, unless that is to be left or approved first. One that was begun with it
// is finished, and so is what does not work of a cluster that has not been Ready yet.
func (m *planner) upgrade(do action.InstallAddon, rel cluster.Release) {
	i := do.Info()
	uninstalled := strings.HasPrefix(rel.Status, "uninstall") && m.o.Facts.WasInstalled(do.Addon)
	switch {
	case rel.Edited && m.holdEdit(i, "somebody else has changed its release, and it", do.Drift), uninstalled && m.holdEdit(i, "somebody has uninstalled it, and it", do.Drift):
		return
	case rel.Digest == do.Digest, m.o.Facts.Destroying(), strings.HasPrefix(rel.Status, "pending-"): // it is left half done
	case !m.o.Facts.WasReady() && !rel.Edited && !rel.Ready: // the cluster is being made, and may need it
	case !rel.Edited && m.holdAddon(i, "the inventory has changed", "undo the change", do.Drift):
		return
	}
	m.do(do)
}

// holdEdit holds what puts something of an addon back as the inventory has it, where that is
// only observed, and reports whether it does.
func (m *planner) holdEdit(i action.Info, what string, drifts []cluster.FieldDifference) bool {
	if m.observes() {
		m.blockDrift(cluster.Block{Subject: i.Subject, Reason: cluster.HealingOff, About: string(i.Kind), Message: what + " is left so: heal is observe; else: " + i.Text,
			Hint: "put it back by hand, or set `heal: heal`" + m.whereSwitch("heal", m.p.ObserveOnly)}, drifts)
	}
	return m.observes()
}

// holdAddon holds what the inventory changes of a release that is there, or of its namespace,
// where changes are off or wait for approval, and reports whether it does.
func (m *planner) holdAddon(i action.Info, why, undo string, drifts []cluster.FieldDifference) bool {
	switch {
	case m.appliesNothing():
		m.blockDrift(cluster.Block{Subject: i.Subject, Reason: cluster.ApplyingOff, About: string(i.Kind), Message: why + ", and apply is off; else: " + i.Text,
			Hint: undo + ", or set `apply: auto`" + m.whereSwitch("apply", m.p.ApplyOff)}, drifts)
	case m.asksApproval() && !m.o.Facts.Approved(m.d.Repository().Revision, i.Step()):
		m.blockDrift(cluster.Block{Subject: i.Subject, Reason: cluster.ChangeUnapproved, About: string(i.Kind), Message: why + ", and that waits for approval: apply is approve; then: " + i.Text,
			Hint: undo + "; or " + m.approveHint()}, drifts)
	default:
		return false
	}
	return true
}

// planRollback takes back an upgrade that failed, or is not ready in time, where the inventory wants that, and reports whether it
// does or has done so. What was rolled back is not tried again until the chart or the values are others.
func (m *planner) planRollback(a cluster.Addon, rel cluster.Release, digest string) bool {
	if !a.RollBack || digest == "" {
		return false
	}
	begun := rel.RolledBack == digest
	if begun && rel.Status == "deployed" {
		m.block(cluster.Block{Subject: a.Name, Reason: cluster.ReleaseRolledBack, Message: fmt.Sprintf("its upgrade was not ready within %s, and was rolled back at %s", text.Duration(a.ReadyAfter), text.Moment(rel.Changed)),
			Hint: fmt.Sprintf("correct its chart or values in %s, and push; to have the same tried again, set `on_failure: stop`", a.File)})
		switch {
		case !rel.Ready:
			m.waitForAddon(a, rel)
		case !rel.Good && a.Ownership == cluster.Managed: // the one before it may be pruned
			m.do(action.MarkAddon{Addon: a, Good: true})
		}
		return true
	}
	failed := rel.Status == "failed" || rel.Status == "deployed" && !rel.Ready && rel.ToPutBack() == ""
	since, judged := readiness.JudgedSince(m.d, m.o, m.plan.Phases, rel)
	late := rel.Digest == digest && !rel.Good && failed && judged && m.o.Now.Sub(since) >= a.ReadyAfter
	if rel.Back == 0 || !late && !begun {
		return false
	}
	m.do(action.RollBackAddon{Addon: a, To: rel.Back, Digest: digest})
	return true
}

// planLeft uninstalls the releases of ours that no addon has, where the inventory wants that. It comes before anything is
// installed: an addon that has moved to another namespace may need what its old release holds.
func (m *planner) planLeft() {
	if !m.d.Spec.Prune || !m.o.Releases.Known || !m.anyAPI() {
		return
	}
	for _, r := range readiness.ListLeft(m.d, m.o) {
		a := action.UninstallAddon{Release: r.ReleaseName, Status: r.Status}
		begun := r.Status == "uninstalling" || m.isRunning(a.Info().Kind, a.Info().Subject)
		switch {
		case r.Kept != "", !begun && m.holdAddon(a.Info(), "the inventory has changed", "put the addon back", []cluster.FieldDifference{drift.OfLeft(m.o, r)}):
		default:
			m.do(a)
		}
	}
}

// abandonedAfter is how long an uninstallation may go on before it counts as interrupted.
const abandonedAfter = 10 * time.Minute

// putBackAfter is how old a revision is before what is not as it was made is put back: that
// makes a new one, and something in the cluster may delete the object again and again.
const putBackAfter = 5 * time.Minute

// putBack upgrades a release to what it is already, which makes again what somebody has
// deleted of it and sets again what somebody has changed.
func (m *planner) putBack(a cluster.Addon, rel cluster.Release, digest string) {
	do := action.InstallAddon{Addon: a, Digest: digest, Status: rel.Status, PutBack: rel.ToPutBack()}
	switch since := m.o.Now.Sub(rel.Changed); {
	case m.holdEdit(do.Info(), "it is not as the inventory has it, and", drift.OfObjects(m.o, a)):
	case since < putBackAfter:
		m.wait(cluster.Wait{Subject: a.Name, Reason: cluster.AddonNotReady, Message: rel.ToPutBack() + "; it is put back at " + text.Moment(rel.Changed.Add(putBackAfter)), Within: a.ReadyAfter,
			Hint: "the release was changed a moment ago: if this happens again, find out what in the cluster does it"})
	default:
		m.do(do)
	}
}

// planNamespace keeps what an addon asks of its namespace. One that is missing is made by the installation. Whether the inventory
// or somebody else has changed what is there is not seen, so that it is held where either is; not for an addon that is new.
func (m *planner) planNamespace(a cluster.Addon) {
	have, there := m.o.Namespaces[a.Namespace]
	do := action.LabelNamespace{Namespace: a.Namespace, Meta: m.d.Spec.Namespace(a.Namespace)}
	if !there || a.Ownership != cluster.Managed || have.Equal(do.Meta) {
		return
	}
	isNew := func(a cluster.Addon) bool {
		rel, installed := m.o.Releases.Value[a.Name]
		return a.Namespace == do.Namespace && (!installed || rel.Namespace != a.Namespace) && !m.o.Facts.WasInstalled(a)
	}
	settled := m.o.Facts.WasReady() && !slices.ContainsFunc(m.d.Spec.Addons, isNew)
	drifts := drift.OfNamespace(m.d, m.o, a)
	if i := do.Info(); !settled || !m.holdEdit(i, "it is not as its addons ask for, and", drifts) && !m.holdAddon(i, "the inventory or somebody else has changed it", "undo the change", drifts) {
		m.do(do)
	}
}

// waitForAddon waits for the workloads of an addon. Pods that are refused stay refused until somebody does something.
func (m *planner) waitForAddon(a cluster.Addon, rel cluster.Release) {
	if rel.Refused {
		m.wait(cluster.Wait{Subject: a.Name, Reason: cluster.AddonPodsRefused, Message: rel.Why, Within: refusedWithin, Hint: readiness.HintOfRefused(a)})
		return
	}
	message := "becomes ready: " + cmp.Or(rel.Why, "its workloads are not")
	if since, judged := readiness.JudgedSince(m.d, m.o, m.plan.Phases, rel); a.RollBack && !rel.Good && rel.Back > 0 && judged {
		message += fmt.Sprintf("; will be rolled back to revision %d at %s", rel.Back, text.Moment(since.Add(a.ReadyAfter)))
	}
	m.wait(cluster.Wait{Subject: a.Name, Reason: cluster.AddonNotReady, Message: message, Within: a.ReadyAfter,
		Hint: fmt.Sprintf("look at its pods: `kubectl -n %s get pods,events`", a.Namespace)})
}
