package upgrade

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/drift"
	"github.com/talos-agent/talos-agent/reconcile/ladder"
	"github.com/talos-agent/talos-agent/reconcile/upgrade/components"
)

// StatusOf is how far a cluster has come on its way to the versions of its inventory, or to other extensions with the same ones; nil at
// the end of it. blocked is what its plan blocks.
func StatusOf(d cluster.Desired, p cluster.Policy, blocked []cluster.Block, facts cluster.Facts, seen Seen) *cluster.UpgradeStatus {
	asked := d.Repository()
	hops, upgraded, back := wayOf(asked, seen)
	out := &cluster.UpgradeStatus{Hops: []string{}, Upgraded: upgraded, Nodes: len(d.Spec.Nodes), Back: back, Held: asked.HeldBy, Order: facts.UpgradeOrder(drift.Attempt(d, facts))}
	for _, hop := range hops {
		out.Hops = append(out.Hops, hop.String())
	}
	switch {
	case !back && asked.NoWay != "":
		out.NoWay = asked.NoWay
		return out
	case len(hops) == 0:
		has, lack := countImages(asked, seen.Observed)
		if lack == 0 {
			return nil
		}
		out.Hops, out.Upgraded, out.Held = []string{describeImage(asked)}, has, holdsImage(asked.Snapshot, p, blocked)
	case hops[0].Kind == cluster.HopKubernetes && !back:
		out.Progress = components.CountAt(hops[0].To, d.Spec, seen.Observed)
	case hops[0].Kind == cluster.HopTalos && !back:
		out.Progress = describeInTurn(hops[0].To, asked.Spec, seen)
	}
	return out
}

// describeInTurn names the nodes that run a Talos already and are not counted among those that have it, because their turn has not
// ended.
func describeInTurn(to string, s cluster.Spec, seen Seen) string {
	var names []string
	for _, n := range s.Nodes {
		mach := seen.Observed.Machines[n.Name]
		if mach.Reach == cluster.Configured && mach.Talos != "" && !ladder.IsOlder(mach.Talos, to) && ladder.IsOlder(seen.Ran[n.Name].Talos, to) {
			names = append(names, n.Name)
		}
	}
	switch len(names) {
	case 0:
		return ""
	case 1:
		return names[0] + " runs it, and its turn has not ended"
	}
	return text.JoinSome(names, 5, ", ") + " run it, and their turns have not ended"
}

// countImages is how many machines run the extensions and kernel arguments of the inventory, and how many do not, or are on their way to them.
func countImages(asked cluster.Desired, o cluster.Observed) (has, lack int) {
	for _, n := range asked.Spec.Nodes {
		mach := o.Machines[n.Name]
		up, differs := drift.UpgradeOf(asked, o, n)
		switch {
		case differs && up.Reason == cluster.SchematicDrift, mach.Reach != cluster.Configured && boots(asked, o, n):
			lack++
		case mach.Reach == cluster.Configured:
			has++
		}
	}
	return has, lack
}

// boots reports whether what all nodes are to run was installed last on the machine of one. Where a user has had that boot what it ran
// before, which is noted with the same image, it is on its way back.
func boots(asked cluster.Desired, o cluster.Observed, n cluster.Node) bool {
	in := o.Facts.Installs[n.Name]
	return asked.Schematic != "" && !in.Back && in.Image == Installer(asked)
}

// describeImage is what all nodes are to run where that is the version that they run with other extensions or kernel arguments.
func describeImage(asked cluster.Desired) string {
	var words []string
	if all := asked.Spec.Schematic.Extensions; len(all) > 0 {
		words = append(words, "the extensions "+strings.Join(all, ", "))
	} else {
		words = append(words, "no extensions")
	}
	if all := asked.Spec.Schematic.ExtraKernelArgs; len(all) > 0 {
		words = append(words, "the kernel arguments "+strings.Join(all, " "))
	}
	return fmt.Sprintf("Talos %s with %s (schematic %.12s)", asked.Spec.Versions.Talos, strings.Join(words, " and "), asked.Schematic)
}

// waysBack is what of the versions of a cluster goes back, Kubernetes before Talos.
func waysBack(asked cluster.Desired) (hops []cluster.Hop) {
	if asked.Back.Kubernetes {
		hops = append(hops, cluster.Hop{Kind: cluster.HopKubernetes, To: asked.Spec.Versions.Kubernetes})
		if goal := asked.Goal.Kubernetes; goal != "" && goal != asked.Spec.Versions.Kubernetes {
			hops = append(hops, cluster.Hop{Kind: cluster.HopKubernetes, From: asked.Spec.Versions.Kubernetes, To: goal})
		}
	}
	if asked.Back.Talos || asked.Back.Kubernetes && len(asked.Hops) == 0 && ladder.IsOlder(asked.Goal.Talos, asked.Spec.Versions.Talos) {
		hops = append(hops, cluster.Hop{Kind: cluster.HopTalos, To: asked.Goal.Talos})
	}
	return hops
}

// wayOf is the whole way of a cluster to the versions of its inventory: those that go back come first. It returns how many nodes
// have the first, too, and whether that goes back.
func wayOf(asked cluster.Desired, seen Seen) (hops []cluster.Hop, upgraded int, back bool) {
	hops = waysBack(asked)
	back = len(hops) > 0
	if hops = append(hops, asked.Hops...); !back {
		if len(hops) > 0 {
			upgraded = seen.Ran.CountAt(hops[0])
		}
		return hops, upgraded, false
	}
	for _, n := range asked.Spec.Nodes {
		one, newer := cluster.Spec{Nodes: []cluster.Node{n}}, components.HasNewer
		if hops[0].Kind == cluster.HopTalos {
			newer = func(than string, s cluster.Spec, _ cluster.Observed) bool { return hasNewerTalos(than, s, seen) }
		}
		if seen.Ran[n.Name] != (cluster.Versions{}) && !newer(hops[0].To, one, seen.Observed) {
			upgraded++
		}
	}
	return hops, upgraded, true
}

// ofUpgrades are the actions that upgrades consist of, and turns that may be for one.
var ofUpgrades = []cluster.ActionKind{cluster.CheckInstallers, cluster.PullInstaller, cluster.InstallTalos, cluster.UpgradeTalos, cluster.RollBackTalos, cluster.PullImages, cluster.ChangeConfig, cluster.DrainNode,
	cluster.RebootNode, cluster.ShutDownVM, cluster.StartVM, cluster.ResetVM, cluster.UncordonNode, cluster.StartJob, cluster.DeleteJob, cluster.SyncManifests}

// ends are the reasons of waits that end without anybody doing anything, or by what somebody has chosen for upgrades.
var ends = []cluster.Reason{cluster.WaitingForSoak, cluster.WaitingForWindow, cluster.WaitingForGate, cluster.WaitingForSnapshot}

// failures are what ends an upgrade until another commit comes, whatever else waits.
var failures = []cluster.Reason{cluster.UpgradeFailed, cluster.UpgradeFellBack, cluster.UpgradeStuck, cluster.RolledBack, cluster.RollbackNotTaken}

// Standing is whether an upgrade does not go on, and at what: as long as that is the same it has stood there since the first time, a retry
// in between is no progress.
type Standing struct {
	Is bool
	At string
}

// StandingOf is whether the upgrade of a cluster does not go on, by its status and the actions that are to begin: it is Stalled, and nothing of
// the upgrade runs, begins, or waits for what comes by itself. One that is held is not asked to go on, nor is a way that there is not,
// where all nodes run the same.
func StandingOf(d cluster.Desired, s cluster.Status, seen Seen, begins []cluster.ActionKind, running []cluster.Running) Standing {
	u := s.Upgrade
	if u == nil || u.Held != "" || s.Condition != cluster.Stalled || s.Reason == cluster.ApplyingOff || s.Reason == cluster.ChangeUnapproved || u.NoWay != "" && !seen.Ran.differ() {
		return Standing{}
	}
	goes := slices.ContainsFunc(begins, func(k cluster.ActionKind) bool { return slices.Contains(ofUpgrades, k) }) ||
		slices.ContainsFunc(running, func(r cluster.Running) bool { return slices.Contains(ofUpgrades, r.Kind) && !isLate(s, r) })
	waits := slices.ContainsFunc(s.Waiting, func(w cluster.WaitStatus) bool {
		_, node := d.Spec.Node(w.Subject)
		return node && !w.Overdue && (w.Within > 0 || slices.Contains(ends, w.Reason))
	})
	asked := d.Repository()
	return Standing{Is: !goes && !(waits && !slices.Contains(failures, s.Reason)),
		At: fmt.Sprint(drift.Attempt(d, seen.Observed.Facts), asked.Goal, u.Hops, u.Upgraded, u.Progress, s.Cause())}
}

// isLate reports whether an action runs for longer than it should.
func isLate(s cluster.Status, r cluster.Running) bool {
	return slices.ContainsFunc(s.Waiting, func(w cluster.WaitStatus) bool {
		return w.Overdue && w.Subject == cmp.Or(r.Node, r.Subject) && (w.Reason == cluster.ActionOverdue || w.Reason == cluster.TaskOverdue)
	})
}

// differ reports whether nodes are known to run several versions of one kind.
func (r Ran) differ() bool {
	var first cluster.Versions
	for _, v := range r {
		if first.Talos = cmp.Or(first.Talos, v.Talos); v.Talos != "" && v.Talos != first.Talos {
			return true
		}
		if first.Kubernetes = cmp.Or(first.Kubernetes, v.Kubernetes); v.Kubernetes != "" && v.Kubernetes != first.Kubernetes {
			return true
		}
	}
	return false
}

// Clock is since when an upgrade stands where it stands. The zero value is that of an agent that has not looked yet.
type Clock struct {
	at     string
	since  time.Time
	looked bool
}

// Stamp takes another look, and sets in a status since when its upgrade stands; zero: it does not. What an agent sees at its first look stands
// as long as the condition of the cluster lasts, which it knows from the agent before it.
func (c *Clock) Stamp(s *cluster.Status, now Standing, at time.Time) {
	if s.Condition == cluster.Unknown {
		return
	}
	if now.Is && s.Upgrade != nil {
		if since := at.UTC(); c.at != now.At {
			if !c.looked {
				since = s.Since
			}
			c.at, c.since = now.At, since
		}
		s.Upgrade.StuckSince = c.since
	}
	c.looked = true
}
