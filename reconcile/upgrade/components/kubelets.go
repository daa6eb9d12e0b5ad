package components

import (
	"slices"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
)

// giveKubelet gives nodes their kubelet, or returns why none has it now: the canary first, then the control planes, then the workers.
func giveKubelet(to string, s cluster.Spec, o cluster.Observed, planes, workers []*node) cluster.Wait {
	if why := awaitSoak(to, s, o, slices.Concat(planes, workers)); why.Reason != "" {
		return why
	}
	if waits, why := giveCanary(to, s.Canary, planes, workers); waits {
		return why
	}
	if taken, why := giveVersion(to, kubelet, planes, 1); taken || why.Reason != "" {
		return why
	}
	_, why := giveVersion(to, kubelet, workers, max(1, s.MaxUnavailable))
	return why
}

// giveCanary gives the canary its kubelet before any other node has one. waits is whether the others wait for it; why is what it
// waits for itself. A node that does not come up with the kubelet that it was given is the first to get a newer one
// all the same, for the canary waits until the others of its role are Ready.
func giveCanary(to, canary string, planes, workers []*node) (waits bool, why cluster.Wait) {
	isCanary := func(n *node) bool { return n.Name == canary && !n.Locked && !n.passed }
	for _, group := range [][]*node{planes, workers} {
		isMidway := findMidway(kubelet, group)
		if slices.ContainsFunc(group, func(n *node) bool {
			return n.lacks != "" && isOlder(n.has.Kubelet, to) && isMidway(n) && !n.Locked && !isCanary(n)
		}) {
			return false, cluster.Wait{}
		}
	}
	for _, group := range [][]*node{planes, workers} {
		i := slices.IndexFunc(group, isCanary)
		if i < 0 {
			continue
		}
		c, isMidway := group[i], findMidway(kubelet, group)
		if !isOlder(c.has.Kubelet, to) || c.lacks != "" && !isMidway(c) {
			return c.lacks != "", c.await()
		}
		for _, n := range group {
			if n != c && n.lacks != "" && !n.passed {
				return true, n.await()
			}
		}
		c.has.Kubelet = to
		return true, cluster.Wait{}
	}
	return false, cluster.Wait{}
}

// awaitSoak is why no other node has its kubelet yet: one that has it was not Ready with it for as long as the inventory asks for.
// A Node object stays Ready while its kubelet restarts, so that this counts from the machine config, too. Without a reason: nothing.
func awaitSoak(to string, s cluster.Spec, o cluster.Observed, nodes []*node) cluster.Wait {
	isLeft := func(n *node) bool { return !n.Locked && isOlder(n.has.Kubelet, to) }
	if s.Soak == 0 || !slices.ContainsFunc(nodes, isLeft) {
		return cluster.Wait{}
	}
	var name string
	var until time.Time
	for _, n := range nodes {
		since := o.Nodes.Value[n.Name].ReadySince
		if given := o.Machines[n.Name].ConfigSince; given.After(since) {
			since = given
		}
		if end := since.Add(s.Soak); n.has.Kubelet == to && !n.passed && !since.IsZero() && end.After(o.Now) && end.After(until) {
			name, until = n.Name, end
		}
	}
	if name == "" {
		return cluster.Wait{}
	}
	w := awaitHop("the next kubelet follows when %s has been Ready with its own for %v, at %s", name, s.Soak, text.Moment(until))
	w.Reason, w.About = cluster.WaitingForSoak, name
	return w
}
