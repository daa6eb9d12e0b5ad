package terminal

import (
	"fmt"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
)

// printUpgrade prints how far the way to other versions is, where a cluster is on one. Nothing of
// it goes on while the cluster is suspended.
func (p Printer) printUpgrade(u *cluster.UpgradeStatus, suspended bool) {
	if u == nil {
		return
	}
	way, has := "upgrade to", "the first"
	if u.Back {
		way = "goes back to"
	}
	if u.Back && len(u.Hops) == 1 {
		has = "it"
	}
	if u.NoWay != "" {
		p.Printf("  no way to the versions that are asked for: %s", u.NoWay)
	} else {
		p.Printf("  %s %s: %d of %s have %s", way, strings.Join(u.Hops, ", then "), u.Upgraded, text.Count(u.Nodes, "node"), has)
	}
	if u.Progress != "" {
		p.Printf(" (%s)", u.Progress)
	}
	switch {
	case u.Held != "":
		p.Printf("; %s: %s", p.Paint("held", Yellow), u.Held)
	case !u.StuckSince.IsZero():
		p.Printf("; %s for %s", p.Paint("stuck", Red), p.formatAge(u.StuckSince))
	}
	switch {
	case u.Order.IsZero():
	case suspended:
		p.Printf("; once resumed it goes on %s", u.Order)
	case u.Held != "" || !u.StuckSince.IsZero():
		p.Printf("; once that has ended it goes on %s", u.Order)
	default:
		p.Printf("; goes on %s", u.Order)
	}
	p.Printf("\n")
}

// Upgrade is how far the way of a cluster to other versions is, what runs, and what holds it.
type Upgrade struct {
	Cluster string `json:"cluster"`
	// Upgrade is the way; nil: it is on none, and Message is why.
	Upgrade *cluster.UpgradeStatus `json:"upgrade,omitempty"`
	Message string                 `json:"message,omitempty"`
	// Suspended: nothing goes on until the cluster is resumed.
	Suspended bool `json:"suspended,omitempty"`
	// Stalled is what the cluster is Stalled for, unless that is about an addon; it is not among the others.
	Stalled *cluster.Block          `json:"stalled,omitempty"`
	Running []cluster.RunningStatus `json:"running"`
	Blocked []cluster.Block         `json:"blocked"`
	Waiting []cluster.WaitStatus    `json:"waiting"`
}

// UpgradeOf is the upgrade of a cluster, by its status.
func UpgradeOf(s cluster.Status) Upgrade {
	u := Upgrade{Cluster: s.Cluster, Upgrade: s.Upgrade, Suspended: s.Suspended && !s.Destroying, Running: append([]cluster.RunningStatus{}, s.Running...), Blocked: []cluster.Block{}, Waiting: []cluster.WaitStatus{}}
	if s.Upgrade == nil {
		u.Message = describeNoUpgrade(s)
	}
	cause := s.Cause()
	if s.Condition == cluster.Stalled && !isAddon(s, s.Concerns) {
		u.Stalled = &cluster.Block{Subject: cause.Subject, Reason: cause.Reason, About: cause.About, Message: s.Message, Hint: s.Hint, Since: s.Since}
	}
	isShown := func(key cluster.Key) bool {
		return key.Reason.Holds() != cluster.HoldsNothing && !isAddon(s, key.Subject) && !(u.Stalled != nil && key == cause)
	}
	for _, b := range s.Blocked {
		if isShown(b.Key()) {
			u.Blocked = append(u.Blocked, b)
		}
	}
	for _, w := range s.Waiting {
		if isShown(w.Key()) {
			u.Waiting = append(u.Waiting, w)
		}
	}
	return u
}

// PrintUpgrade prints the upgrade of a cluster: first what that is Stalled for.
func (p Printer) PrintUpgrade(u Upgrade) {
	if u.Upgrade == nil {
		p.Printf("%s: %s\n", u.Cluster, u.Message)
	} else {
		p.Printf("%s:\n", u.Cluster)
		p.printUpgrade(u.Upgrade, u.Suspended)
	}
	if u.Suspended {
		p.Printf("  %s: nothing goes on\n", p.Paint("suspended", Yellow))
		p.printHint("    ", fmt.Sprintf("`talos-agent resume %s` goes on", u.Cluster))
	}
	for _, r := range u.Running {
		p.Printf("  runs    %s %s (for %s)\n", r.Action, r.Subject, p.formatRunning(r))
	}
	if u.Stalled != nil {
		p.Printf("  %s %s\n", p.Paint("stalled", Red), u.Stalled.Message)
		p.printHint("    ", u.Stalled.Hint)
	}
	for _, b := range u.Blocked {
		p.Printf("  %s %s: %s\n", p.Paint("blocked", Red), b.Subject, b.Message)
		p.printHint("    ", b.Hint)
	}
	for _, w := range u.Waiting {
		p.Printf("  %s %s: %s\n", p.Paint("waits", Yellow), w.Subject, w.Message)
		p.printHint("    ", w.Hint)
	}
}

// isAddon reports whether something is an addon of a cluster, for which no upgrade waits.
func isAddon(s cluster.Status, subject string) bool {
	return slices.ContainsFunc(s.Addons, func(a cluster.AddonStatus) bool { return a.Name == subject })
}

// describeNoUpgrade is why a cluster is not on a way to other versions: none are asked for, or it is not known what its nodes run.
func describeNoUpgrade(s cluster.Status) string {
	var unknown []string
	for _, n := range s.Nodes {
		if n.Talos == "" || n.Kubernetes == "" {
			unknown = append(unknown, n.Name)
		}
	}
	switch {
	case s.Condition == cluster.Unknown:
		return "what its nodes run is not known: " + s.Message
	case len(unknown) > 0:
		return "what runs is not known of " + text.JoinSome(unknown, 5, ", ")
	}
	return "no other versions are asked for than its nodes run"
}

// PrintOrder prints what an order about an upgrade has changed, and what still holds that, by the status from before it.
func (p Printer) PrintOrder(before cluster.Status, order cluster.UpgradeOrder) {
	passes := func(w cluster.WaitStatus) bool {
		return order.Now && (w.Reason == cluster.WaitingForWindow || w.Reason == cluster.WaitingForSoak) || slices.Contains(order.Despite, w.About)
	}
	switch holds, lifts := findHold(before, order.Now, passes), slices.ContainsFunc(before.Waiting, passes) || order.Now && slices.ContainsFunc(before.Blocked, func(b cluster.Block) bool { return isRetried(b.Reason) }); {
	case holds != "":
		p.Printf("%s: noted: %s; still held: %s\n", before.Cluster, order, holds)
	case lifts || slices.ContainsFunc(before.Nodes, func(n cluster.NodeStatus) bool {
		return n.Phase != cluster.PhaseReady && slices.Contains(order.Despite, n.Name)
	}):
		p.Printf("%s: the upgrade goes on %s\n", before.Cluster, order)
	default:
		p.Printf("%s: noted: %s; it waits for nothing of that now\n", before.Cluster, order)
	}
}

// isRetried reports whether an order that an upgrade goes on now has tried again what has failed.
func isRetried(reason cluster.Reason) bool {
	return reason == cluster.UpgradeFailed || reason == cluster.UpgradeFellBack
}

// findHold is the first that holds an upgrade and that an order does not pass, for people; "" : nothing.
func findHold(s cluster.Status, now bool, passes func(cluster.WaitStatus) bool) string {
	for _, b := range s.Blocked {
		if b.Reason.Holds() != cluster.HoldsNothing && !isAddon(s, b.Subject) && !(now && isRetried(b.Reason)) {
			return fmt.Sprintf("%s: %s", b.Subject, b.Message)
		}
	}
	for _, w := range s.Waiting {
		if (w.Reason.Holds() == cluster.HoldsOrder || w.Overdue && w.Reason.Holds() == cluster.HoldsUpgrade) && !passes(w) {
			return fmt.Sprintf("%s: %s", w.Subject, w.Message)
		}
	}
	return ""
}
