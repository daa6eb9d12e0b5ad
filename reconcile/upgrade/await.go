package upgrade

import (
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/drift"
	"github.com/talos-agent/talos-agent/reconcile/ladder"
)

// namedWithin is how long the image factory takes at most to name the image of other extensions, as that may have to be asked again.
const namedWithin = time.Hour

// AwaitKnown returns the wait of a node of which it is not known yet what becomes of a drift of its machine, and whether it is one: which
// versions all nodes run, or which image the inventory asks for, is known in a moment, and no way is missing before. A machine
// config that cannot be compared before its machine has other versions waits for these, as long as the machine is to get them.
// within is how long it takes at most to see all versions.
func AwaitKnown(d cluster.Desired, o cluster.Observed, n cluster.Node, dr drift.Drift, within time.Duration) (w cluster.Wait, awaits bool) {
	switch {
	case dr.IsUncompared() && isToChange(d, o, n, within):
		return cluster.Wait{Subject: n.Name, Reason: cluster.ConfigDrift, About: dr.Field, Message: "its machine config is compared with that of the inventory when it has the versions of that"}, true
	case drift.AwaitsImage(d, o, n, dr):
		return cluster.Wait{Subject: n.Name, Reason: cluster.WaitingForInstaller, About: dr.Field, Message: "waits until the image factory has named the image of the inventory, to change " + dr.Change(), Within: namedWithin}, true
	case awaitsVersions(d, dr):
		return cluster.Wait{Subject: n.Name, Reason: cluster.RunningConfigUnknown, About: dr.Field, Message: "waits to be upgraded until it is known which versions all nodes run, to change " + dr.Change(), Within: within}, true
	}
	return cluster.Wait{}, false
}

// AwaitPurpose is the wait of a node that is out of service for a turn of which it is not known yet what it is for, as after a start of the
// agent: until the image factory has answered once, or has failed to, and where another Talos is installed on its machine, or may be, until it
// is known what that is to run.
func AwaitPurpose(d cluster.Desired, o cluster.Observed, n cluster.Node, failed bool, within time.Duration) (cluster.Wait, bool) {
	asked := d.Repository()
	if installed := MayRun(o, n) || HasUnbooted(o, n); !installed && (asked.Schematic != "" || failed) {
		return cluster.Wait{}, false
	}
	for _, dr := range drift.OfMachine(asked, o, n, o.Machines[n.Name]) {
		if w, awaits := AwaitKnown(d, o, n, dr, within); awaits && dr.Reason == cluster.TalosVersionDrift {
			return w, true
		}
	}
	if asked.Schematic != "" {
		return cluster.Wait{}, false
	}
	return cluster.Wait{Subject: n.Name, Reason: cluster.WaitingForFactory, Message: "stays out of service until the image factory has named the image of the inventory", Within: namedWithin}, true
}

// isToChange reports whether the machine of a node is to get other versions, or may be: that is not known yet.
func isToChange(d cluster.Desired, o cluster.Observed, n cluster.Node, within time.Duration) bool {
	for _, dr := range drift.OfMachine(d.Repository(), o, n, o.Machines[n.Name]) {
		if dr.Reason == cluster.ConfigDrift {
			continue
		}
		if _, awaits := AwaitKnown(d, o, n, dr, within); awaits || drift.IsUpgrade(d, o, n, dr) {
			return true
		}
	}
	return false
}

// awaitsVersions reports whether a node has an older version than the inventory and no way leads there, because it is not known yet which
// versions all nodes run.
func awaitsVersions(d cluster.Desired, dr drift.Drift) bool {
	asked := d.Repository()
	isVersion := dr.Reason == cluster.TalosVersionDrift || dr.Reason == cluster.KubernetesDrift
	return isVersion && asked.NoWay == "" && len(asked.Hops) == 0 && ladder.IsOlder(dr.Have, dr.Want)
}
