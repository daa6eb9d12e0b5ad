package components

import (
	"slices"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/ladder"
)

// How many minor versions older than a kube-apiserver another one may be, and a kubelet or kube-proxy.
const (
	apiServersApart = 1
	kubeletsApart   = 3
)

// Next is what the nodes of a cluster are to have now, by name, on the way of a hop to a version of
// Kubernetes: what they have, and in it the next step that may be taken. Where none may be, waiting is
// why; without a reason as well when all is done. A node that is missing has components of which nothing is known,
// and is to be left alone. The subject of waiting is the node that is waited for, where it is one.
//
// The canary of the inventory has its kubelet before all others, which no kube-apiserver is older than by then, and between the
// kubelets of nodes as much time passes as the inventory asks for. Neither is about the other components: these come in
// the order that Kubernetes demands, and a pod that does not start takes no node out of service.
//
// Of the control planes one has a step at a time, of one component: the next comes when it runs
// that, shows it to Kubernetes, and is Ready as the others are. Workers get their kubelet as many at
// a time as may be unavailable. A node that was given a version which does not come up on it is the
// first to get a newer one. Nothing gets an older version than it has. The first step of all comes when
// every node is Ready; a hop that has begun goes on for the nodes of one role while one of another role is not.
//
// The version of kube-proxy in the machine config of a control plane goes with its kubelet: no process
// of the node is of it. Talos makes the DaemonSet with it where there is none, and leaves one that
// is there as it is (Talos' ManifestApplyController): its own image changes when the bootstrap
// manifests are applied, at the end of the hop.
//
// despite are nodes for which no other one waits while they lack something. What must not be newer than they
// are still is not.
func Next(to string, s cluster.Spec, o cluster.Observed, despite ...string) (next map[string]cluster.Components, waiting cluster.Wait) {
	nodes := lookAtAll(s, o)
	for i, n := range nodes {
		nodes[i].passed = n.lacks != "" && slices.Contains(despite, n.Name)
	}
	fillUnseen(nodes)
	waiting = giveStep(to, s, o, nodes)
	return collect(nodes), waiting
}

// collect is what nodes have by now, by name, without those of which not all is known.
func collect(nodes []node) map[string]cluster.Components {
	out := map[string]cluster.Components{}
	for _, n := range nodes {
		if slices.ContainsFunc(partsOf(n.Node), func(p part) bool { return *p.of(&n.has) == "" }) {
			continue
		}
		if n.Role == cluster.ControlPlane && (n.has.Proxy == "" || isOlder(n.has.Proxy, n.has.Kubelet)) {
			n.has.Proxy = n.has.Kubelet
		}
		out[n.Name] = n.has
	}
	return out
}

// giveStep gives nodes the next step, or returns why there is none.
func giveStep(to string, s cluster.Spec, o cluster.Observed, nodes []node) cluster.Wait {
	if ladder.KnownVersion(to) == "" {
		return awaitHop("%q is not a version of Kubernetes", to)
	}
	planes, workers := splitRoles(nodes)
	for _, p := range planeParts {
		why := findSkew(to, p, o, planes)
		if why.Reason == "" && p.name == apiServer {
			why = findLacking(nodes)
		}
		if why.Reason != "" {
			return why
		}
		if taken, why := giveVersion(to, p, planes, 1); taken || why.Reason != "" {
			return why
		}
	}
	if why := findSkew(to, kubelet, o, planes); why.Reason != "" {
		return why
	}
	return giveKubelet(to, s, o, planes, workers)
}

// findLacking is what a node lacks, of whatever role, before the first step of a hop, without a reason where that is nothing, or it has begun. One that is locked
// holds only those of its role.
func findLacking(nodes []node) (why cluster.Wait) {
	least := ""
	for _, n := range nodes {
		for _, p := range partsOf(n.Node) {
			least = oldestOf(least, *p.of(&n.has))
		}
	}
	for _, n := range nodes {
		if hasNewer(n, least) {
			return cluster.Wait{}
		}
		if why.Reason == "" && n.lacks != "" && !n.passed && !n.Locked {
			why = n.await()
		}
	}
	return why
}

// splitRoles are the control planes and the workers of some nodes.
func splitRoles(nodes []node) (planes, workers []*node) {
	for i := range nodes {
		if nodes[i].Role == cluster.ControlPlane {
			planes = append(planes, &nodes[i])
		} else {
			workers = append(workers, &nodes[i])
		}
	}
	return planes, workers
}

// findSkew is what forbids the step of a component by the versions of others, without a reason where that is nothing, or there
// is no such step.
func findSkew(to string, p part, o cluster.Observed, planes []*node) cluster.Wait {
	servers := apiServers(o)
	if p.name != apiServer {
		for _, pod := range sortedNames(servers) {
			if v := servers[pod]; v == "" || isOlder(v, to) {
				return awaitHop("%s is not yet seen to run %s", pod, to) // of a node that the inventory does not have
			}
		}
		return cluster.Wait{}
	}
	if !slices.ContainsFunc(planes, func(n *node) bool { return isOlder(n.has.APIServer, to) }) {
		return cluster.Wait{}
	}
	for _, pod := range sortedNames(servers) {
		if minors, ok := ladder.MinorsApart(servers[pod], to); !ok || minors > apiServersApart {
			return awaitHop("%s runs %s, and no other may be newer by more than one minor version, as %s is", pod, orUnknown(servers[pod]), to)
		}
	}
	if !o.Nodes.Known {
		return awaitHop("the kubelets are not seen: %s", o.Nodes.Why)
	}
	older := map[string]string{}
	for name, kn := range o.Nodes.Value {
		if kn.Kubelet != "" {
			older["kubelet of "+name] = kn.Kubelet
		}
	}
	for name, pod := range o.SystemPods.Value {
		if pod.Proxy != "" {
			older[name] = ladder.VersionOf(pod.Proxy)
		}
	}
	for _, name := range sortedNames(older) {
		if minors, ok := ladder.MinorsApart(older[name], to); ok && minors > kubeletsApart {
			return awaitHop("%s is %s, and no kube-apiserver may be newer by more than three minor versions, as %s is", name, older[name], to)
		}
	}
	return cluster.Wait{}
}

func orUnknown(version string) string {
	if version == "" {
		return "a version that is not known"
	}
	return version
}

// giveVersion gives a component of a version to as many nodes of a group as may be between two versions
// at once, with those that are so now. taken is whether it did; why is what the next one waits for.
func giveVersion(to string, p part, group []*node, atOnce int) (taken bool, why cluster.Wait) {
	isMidway := findMidway(p, group)
	isPending := func(n *node) bool { return isOlder(*p.of(&n.has), to) }
	var midway, settled []*node
	var locked cluster.Wait
	for _, n := range group {
		switch {
		case n.lacks != "" && isPending(n) && isMidway(n) && !n.Locked:
			midway = append(midway, n)
		case n.passed:
		case n.lacks != "":
			atOnce--
			if why.Reason == "" {
				why = n.await()
			}
		case isPending(n) && n.Locked:
			locked = n.awaitUnlock(p)
			if n.Role == cluster.ControlPlane {
				return false, locked
			}
		case isPending(n):
			settled = append(settled, n)
		}
	}
	for _, n := range append(midway, settled...) {
		if atOnce <= 0 {
			break
		}
		*p.of(&n.has) = to
		taken, atOnce = true, atOnce-1
	}
	if !taken && why.Reason == "" {
		why = locked
	} else if taken {
		why = cluster.Wait{}
	}
	return taken, why
}

// findMidway is which nodes of a group have another version of a component than they had before: one that
// lacks something does not come up with it.
func findMidway(p part, group []*node) func(*node) bool {
	least := ""
	for _, n := range group {
		least = oldestOf(least, *p.of(&n.has))
	}
	return func(n *node) bool {
		has, runs := *p.of(&n.has), *p.of(&n.runs)
		return n.answers && (runs != "" && runs != has || isOlder(least, has))
	}
}
