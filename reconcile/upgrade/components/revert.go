package components

import (
	"slices"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/ladder"
)

// Revert is Next for a version that some nodes have left already, and that a person has asked for
// again: it takes the steps back, in the reverse order. The kubelets, schedulers and controller
// managers come first, because none may be newer than a kube-apiserver. What is older than that version
// stays so, for Next.
//
// A node that does not come up with the newer version gets its step whatever the others do: it is out
// of service already. The others get theirs one after the other, as in Next, and none while a node is out of
// service for its turn: two kinds of change are never under way at once.
func Revert(to string, s cluster.Spec, o cluster.Observed) (next map[string]cluster.Components, waiting cluster.Wait) {
	nodes := lookAtAll(s, o)
	fillUnseen(nodes)
	waiting = takeBack(to, s, o, nodes)
	for i := range nodes {
		if n := &nodes[i]; isOlder(to, n.has.Proxy) && !isOlder(to, n.has.Kubelet) {
			n.has.Proxy = n.has.Kubelet // goes with it here, too
		}
	}
	return collect(nodes), waiting
}

// takeBack gives nodes the next step back, or returns why there is none.
func takeBack(to string, s cluster.Spec, o cluster.Observed, nodes []node) cluster.Wait {
	if ladder.KnownVersion(to) == "" {
		return awaitHop("%q is not a version of Kubernetes", to)
	}
	for _, n := range nodes {
		for _, p := range partsOf(n.Node) {
			if minors, ok := ladder.MinorsApart(to, *p.of(&n.has)); ok && minors > apiServersApart {
				return awaitHop("%s has %s %s, and %s is more than one minor version older", n.Name, p.name, *p.of(&n.has), to)
			}
		}
	}
	if why := awaitTurn(to, nodes); why.Reason != "" {
		return why
	}
	planes, workers := splitRoles(nodes)
	if taken, why := giveOlder(to, kubelet, workers, max(1, s.MaxUnavailable)); taken || why.Reason != "" {
		return why
	}
	if taken, why := giveOlder(to, kubelet, planes, 1); taken || why.Reason != "" {
		return why
	}
	for _, p := range slices.Backward(planeParts) {
		if p.name == apiServer && slices.ContainsFunc(planes, func(n *node) bool { return isOlder(to, n.has.APIServer) }) {
			if why := findNewer(to, o, nodes); why.Reason != "" {
				return why
			}
		}
		if taken, why := giveOlder(to, p, planes, 1); taken || why.Reason != "" {
			return why
		}
	}
	return cluster.Wait{}
}

// awaitTurn is the wait for a node that is out of service for its turn and comes back from it, without a reason where there is none,
// or where a node does not come up with a version that is newer than the one that is asked for: that one is not kept down for it.
func awaitTurn(to string, nodes []node) (why cluster.Wait) {
	for _, n := range nodes {
		switch {
		case n.inTurn && !n.Locked && why.Reason == "":
			why = cluster.Wait{Subject: n.Name, Reason: cluster.WaitingForHop, Message: "it is out of service for its turn"}
		case !n.inTurn && n.answers && n.lacks != "" && hasNewer(n, to):
			return cluster.Wait{}
		}
	}
	return why
}

// findNewer is what is newer than a version besides kube-apiservers, and so forbids that one of them
// goes back to it, without a reason where that is nothing.
func findNewer(to string, o cluster.Observed, nodes []node) cluster.Wait {
	for _, n := range nodes {
		for _, p := range partsOf(n.Node) {
			if p.name != apiServer && (isOlder(to, *p.of(&n.has)) || isOlder(to, *p.of(&n.runs))) {
				return awaitHop("%s still has a %s that is newer than %s", n.Name, p.name, to)
			}
		}
	}
	kubelets := map[string]string{}
	for name, kn := range o.Nodes.Value {
		kubelets[name] = kn.Kubelet
	}
	for _, name := range sortedNames(kubelets) { // of nodes that the inventory does not have, too
		if isOlder(to, kubelets[name]) {
			return awaitHop("%s still runs kubelet %s", name, kubelets[name])
		}
	}
	return cluster.Wait{}
}

// hasNewer reports whether a node has a component that is newer than a version.
func hasNewer(n node, than string) bool {
	return slices.ContainsFunc(partsOf(n.Node), func(p part) bool { return isOlder(than, *p.of(&n.has)) })
}

// giveOlder gives a component of an older version to a node of a group that does not come up with the
// newer one, or to as many as may be between two versions at once, with those that lack something.
// Of these a node that answers is none while it has another component of a newer version: it may lack
// just what that brought, and that one comes back later. taken is whether it did; why is what the next one
// waits for, without a reason where no node is left.
func giveOlder(to string, p part, group []*node, atOnce int) (taken bool, why cluster.Wait) {
	var down, up []*node
	isLeft, locked := false, cluster.Wait{}
	for _, n := range group {
		isPending := isOlder(to, *p.of(&n.has))
		isLeft = isLeft || isPending
		switch {
		case isPending && n.Locked:
			locked = n.awaitUnlock(p)
		case isPending && n.lacks != "" && n.answers && !n.inTurn:
			down = append(down, n)
		case isPending && n.lacks == "":
			up = append(up, n)
		}
		if n.lacks != "" && !(n.answers && hasNewer(*n, to) && *p.of(&n.runs) == *p.of(&n.has)) {
			if atOnce--; why.Reason == "" {
				why = n.await()
			}
		}
	}
	if len(down) > 0 {
		*p.of(&down[0].has) = to
		return true, cluster.Wait{}
	}
	for _, n := range up[:min(len(up), max(0, atOnce))] {
		*p.of(&n.has) = to
		taken = true
	}
	switch {
	case taken, !isLeft:
		return taken, cluster.Wait{}
	case why.Reason == "":
		return false, locked
	}
	return false, why
}
