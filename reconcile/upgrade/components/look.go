package components

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/ladder"
	"github.com/talos-agent/talos-agent/reconcile/readiness"
)

// part is a component of Kubernetes on a node.
type part struct {
	name  string // of its static pod
	of    func(*cluster.Components) *string
	image func(cluster.Images) string // that a machine config names
}

// planeParts are what only control planes have, in the order in which they are upgraded.
var planeParts = []part{
	{apiServer, func(c *cluster.Components) *string { return &c.APIServer }, func(i cluster.Images) string { return i.APIServer }},
	{"kube-controller-manager", func(c *cluster.Components) *string { return &c.ControllerManager }, func(i cluster.Images) string { return i.ControllerManager }},
	{"kube-scheduler", func(c *cluster.Components) *string { return &c.Scheduler }, func(i cluster.Images) string { return i.Scheduler }},
}

// apiServer is the name of the component that no other may be newer than.
const apiServer = "kube-apiserver"

// kubelet is what every node has.
var kubelet = part{"kubelet", func(c *cluster.Components) *string { return &c.Kubelet }, func(i cluster.Images) string { return i.Kubelet }}

// partsOf are the components of a node.
func partsOf(n cluster.Node) []part {
	if n.Role == cluster.ControlPlane {
		return append(planeParts[:len(planeParts):len(planeParts)], kubelet)
	}
	return []part{kubelet}
}

// node is a node as it is seen. A version that is not known is "".
type node struct {
	cluster.Node
	has   cluster.Components // by its machine config, else what runs
	runs  cluster.Components // by what Kubernetes shows
	lacks string             // what it lacks to run what it has, and to be Ready; "" : nothing
	why   cluster.Reason     // of what it lacks
	// answers: its machine shows its config, and would take another one.
	answers bool
	// inTurn: it is out of service for its turn, and was not NotReady for longer than a boot takes.
	inTurn bool
	// passed: others do not wait for it, whatever it lacks.
	passed bool
}

// lookAtAll is the nodes of a cluster as they are seen.
func lookAtAll(s cluster.Spec, o cluster.Observed) []node {
	out := make([]node, len(s.Nodes))
	for i, n := range s.Nodes {
		out[i] = lookAt(n, o)
	}
	return out
}

func lookAt(n cluster.Node, o cluster.Observed) node {
	out := lookAtVersions(n, o)
	out.why, out.lacks = findLack(out, o)
	kn := o.Nodes.Value[n.Name]
	isDown := !kn.Ready && !kn.NotReadySince.IsZero() && o.Now.Sub(kn.NotReadySince) >= readiness.BootWithin
	out.inTurn = kn.Turn != "" && kn.Cordoned && !isDown
	return out
}

// lookAtVersions is a node without what it lacks, which takes a look at all pods.
func lookAtVersions(n cluster.Node, o cluster.Observed) node {
	out := node{Node: n}
	mach := o.Machines[n.Name]
	out.answers = mach.Reach == cluster.Configured && mach.Summary.Images != (cluster.Images{})
	for _, p := range partsOf(n) {
		runs := ladder.VersionOf(o.SystemPods.Value[p.name+"-"+n.Name].Static.Image)
		if p.name == kubelet.name {
			runs = ladder.KnownVersion(o.Nodes.Value[n.Name].Kubelet)
		}
		*p.of(&out.runs), *p.of(&out.has) = runs, runs
		if config := ladder.VersionOf(p.image(mach.Summary.Images)); out.answers && config != "" {
			*p.of(&out.has) = config
		}
	}
	if n.Role == cluster.ControlPlane && out.answers {
		out.has.Proxy = ladder.VersionOf(mach.Summary.Images.Proxy)
	}
	return out
}

// findLack is what a node lacks. That its machine shows its static pods as its config has them, and
// Kubernetes the same ones, and Ready, counts together: each of these may be from before.
func findLack(n node, o cluster.Observed) (why cluster.Reason, lacks string) {
	mach := o.Machines[n.Name]
	if !n.answers {
		return cluster.NodeUnreachable, "its machine does not answer with its config"
	}
	if l := readiness.Lacking(n.Node, o); l.Reason != "" {
		return l.Reason, l.Message
	}
	for _, p := range partsOf(n.Node) {
		has, runs := *p.of(&n.has), *p.of(&n.runs)
		switch {
		case ladder.VersionOf(p.image(mach.Summary.Images)) == "":
			return cluster.WaitingForHop, "the version of its " + p.name + " in its machine config is not known"
		case runs == "":
			return cluster.WaitingForHop, "which " + p.name + " it runs is not known"
		case runs != has:
			return cluster.WaitingForHop, fmt.Sprintf("its %s is still %s, and its machine config has %s", p.name, runs, has)
		case p.name != kubelet.name && ladder.VersionOf(mach.StaticPods[p.name].Image) != has:
			return cluster.WaitingForHop, "its machine has not taken the " + p.name + " of its config yet"
		}
	}
	return "", ""
}

// await is the wait for a node that lacks something; without a reason for one that lacks nothing.
func (n node) await() cluster.Wait {
	return cluster.Wait{Subject: n.Name, Reason: n.why, Message: n.lacks}
}

// awaitUnlock is the wait for a node that is not touched and has another version of a component.
func (n node) awaitUnlock(p part) cluster.Wait {
	return cluster.Wait{Subject: n.Name, Reason: cluster.NodeLocked, Message: "it is locked in the inventory, and keeps " + p.name + " " + *p.of(&n.has)}
}

// awaitHop is the wait for what is about no single node of the inventory.
func awaitHop(format string, args ...any) cluster.Wait {
	return cluster.Wait{Reason: cluster.WaitingForHop, Message: fmt.Sprintf(format, args...)}
}

// Describe is what a step waits for, for people, with the node where it is one; "" : nothing.
func Describe(w cluster.Wait) string {
	if w.Subject == "" {
		return w.Message
	}
	return w.Subject + ": " + w.Message
}

// IsComingUp reports whether a node works, and lacks nothing but to run a component in the version that its machine config has.
func IsComingUp(n cluster.Node, o cluster.Observed) bool {
	seen := lookAt(n, o)
	return seen.answers && readiness.Lacking(n, o).Reason == "" && seen.lacks != ""
}

// isOlder reports whether a version is known and older than another.
func isOlder(a, b string) bool {
	order, ok := ladder.Compare(a, b)
	return ok && order < 0
}

// oldestOf is the oldest of some versions, without those that are not known; "" when none is.
func oldestOf(versions ...string) (out string) {
	for _, v := range versions {
		if out == "" || isOlder(v, out) {
			out = v
		}
	}
	return out
}

// apiServers are the versions of the kube-apiservers that Kubernetes shows, by the name of the pod:
// of control planes that leave, too.
func apiServers(o cluster.Observed) map[string]string {
	out := map[string]string{}
	for name, p := range o.SystemPods.Value {
		if p.Static != (cluster.StaticPod{}) && strings.HasPrefix(name, apiServer+"-") {
			out[name] = ladder.VersionOf(p.Static.Image)
		}
	}
	return out
}

// OldestOn is the oldest version that a component of a node has or runs, "" while none is known.
func OldestOn(n cluster.Node, o cluster.Observed) (version string) {
	seen := lookAtVersions(n, o)
	for _, p := range partsOf(n) {
		version = oldestOf(version, *p.of(&seen.has), *p.of(&seen.runs))
	}
	return version
}

// CountAt is of how many nodes each component is seen to run a version, or a newer one, for people.
func CountAt(version string, s cluster.Spec, o cluster.Observed) string {
	var words []string
	for _, p := range append(planeParts[:len(planeParts):len(planeParts)], kubelet) {
		runs, all := 0, 0
		for _, n := range s.Nodes {
			if n.Role != cluster.ControlPlane && p.name != kubelet.name {
				continue
			}
			seen := lookAtVersions(n, o)
			all++
			if has := *p.of(&seen.runs); has != "" && !isOlder(has, version) {
				runs++
			}
		}
		words = append(words, fmt.Sprintf("%d of %s", runs, text.Count(all, p.name)))
	}
	return strings.Join(words, ", ")
}

// Stay is what the nodes of the cluster have, by name, so that none gets another version.
func Stay(s cluster.Spec, o cluster.Observed) map[string]cluster.Components {
	nodes := lookAtAll(s, o)
	fillUnseen(nodes)
	return collect(nodes)
}

// HasNewer reports whether a component of a node of the cluster is newer than a version, by its config or by what
// Kubernetes shows of its static pods now: a kubelet takes those of a config that goes back a while after it has the
// config. A Kubernetes that does not answer shows none, and holds up nothing.
func HasNewer(than string, s cluster.Spec, o cluster.Observed) bool {
	return slices.ContainsFunc(s.Nodes, func(n cluster.Node) bool {
		seen := lookAtVersions(n, o)
		runs := func(p part) bool { return p.name != kubelet.name && isOlder(than, *p.of(&seen.runs)) }
		return hasNewer(seen, than) || o.SystemPods.Known && slices.ContainsFunc(partsOf(n), runs)
	})
}

// Newest is the newest version that a component of a node of the cluster has or runs, "" while none is known.
func Newest(s cluster.Spec, o cluster.Observed) (version string) {
	for _, n := range s.Nodes {
		seen := lookAtVersions(n, o)
		for _, p := range partsOf(n) {
			for _, v := range []string{*p.of(&seen.has), *p.of(&seen.runs)} {
				if version == "" || isOlder(version, v) {
					version = v
				}
			}
		}
	}
	return version
}

// fillUnseen gives nodes that are not seen, such as those that are to be made, the oldest that others have,
// which is never newer than a kube-apiserver. What no node shows stays unknown.
func fillUnseen(nodes []node) {
	var all cluster.Components
	for _, n := range nodes {
		for _, p := range partsOf(n.Node) {
			*p.of(&all) = oldestOf(*p.of(&all), *p.of(&n.has), *p.of(&n.runs))
		}
	}
	for i := range nodes {
		n := &nodes[i]
		for _, p := range partsOf(n.Node) {
			if has := p.of(&n.has); *has == "" {
				*has = oldestOf(*p.of(&all), all.APIServer)
			}
		}
	}
}

// sortedNames are the names of pods, in a fixed order.
func sortedNames(pods map[string]string) []string { return slices.Sorted(maps.Keys(pods)) }
