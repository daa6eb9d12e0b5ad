package upgrade

import (
	"cmp"
	"slices"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/bounds"
	"github.com/talos-agent/talos-agent/reconcile/drift"
)

// Hold returns why the hops of a stage are not made, by the switches of the inventory and of the host, and the
// switch for people; "" : they are. An approval is for the whole way, or what is left of it. Without a hop
// there is nothing to hold: versions that are set back in the middle of one lead back. While Kubernetes goes back, no hop
// is made either.
func (s Stage) Hold(snap cluster.Snapshot, p cluster.Policy, f cluster.Facts) (why cluster.Reason, by string) {
	if len(s.Hops) == 0 || s.Back.Kubernetes {
		return "", ""
	}
	if why, by = switchOf(snap, p); why == cluster.ChangeUnapproved && f.ApprovedHops(snap.Revision, s.Hops) {
		return "", ""
	}
	return why, by
}

// switchOf is which switch of the inventory or of the host holds upgrades, and the same for people; "": none.
func switchOf(snap cluster.Snapshot, p cluster.Policy) (why cluster.Reason, by string) {
	mode, rule := bounds.Upgrade(snap.Spec, p)
	name := cmp.Or(rule, "upgrade is "+mode.String())
	switch {
	case mode == cluster.UpgradeOff:
		return cluster.ApplyingOff, name
	case snap.Spec.ApplyOff, p.ApplyOff:
		return cluster.ApplyingOff, "apply is off"
	case mode == cluster.UpgradeApproved:
		return cluster.ChangeUnapproved, name
	case snap.Spec.ApplyApproved, p.ApplyApproved:
		return cluster.ChangeUnapproved, "apply is approve"
	}
	return "", ""
}

// holdsImage is which switch holds other extensions or kernel arguments with the same versions, for people; "": none holds what a plan blocks
// of them. Each node's is held, and approved, by itself.
func holdsImage(snap cluster.Snapshot, p cluster.Policy, blocked []cluster.Block) string {
	isHeld := slices.ContainsFunc(blocked, func(b cluster.Block) bool {
		return (b.Reason == cluster.ApplyingOff || b.Reason == cluster.ChangeUnapproved) &&
			slices.ContainsFunc(b.Drift, func(f cluster.FieldDifference) bool { return f.Field == drift.FieldSchematic })
	})
	if !isHeld {
		return ""
	}
	_, by := switchOf(snap, p)
	return by
}
