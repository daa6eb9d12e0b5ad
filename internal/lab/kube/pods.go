package kube

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/talos-agent/talos-agent/internal/lab/kube/containers"
	"github.com/talos-agent/talos-agent/internal/lab/kube/events"
	"github.com/talos-agent/talos-agent/internal/lab/kube/rules"
)

const (
	hashOfTemplate = "pod-template-hash"
	hashOfSet      = "controller-revision-hash"

	// scheduleBackoff is how long the scheduler waits before it tries a pod again for
	// which there was no node, and flushUnschedulable after what time it does even if
	// nothing has changed.
	// Source: kubernetes v1.35, pkg/scheduler/backend/queue.
	scheduleBackoff    = 10 * time.Second
	flushUnschedulable = 5 * time.Minute
	// pullBackoff is how long a kubelet waits, in the end, before it asks for an image
	// again.
	// Source: kubernetes v1.35, pkg/kubelet, imageBackOffPeriod and MaxImageBackOff.
	pullBackoff = 5 * time.Minute
)

// tendPod brings a placed pod one step on, or lets it go.
func (cl *cluster) tendPod(key string) {
	p := cl.pods[key]
	if p == nil || p.node == "" {
		return
	}
	n, k := cl.nodes[p.node], cl.kubelets[p.node]
	if n == nil {
		cl.collectOrphans(p.node)
		return
	}
	switch {
	case p.deleting && k.isAlive():
		cl.endPod(p, k)
	case p.deleting && !n.ready && n.IsOutOfService():
		cl.collectTerminating(p)
	case p.deleting || p.finished || p.mirror || p.running:
	case !k.isAlive() || !p.hostNetwork && !n.ready || p.starting:
	case !cl.admitPod(p, n):
	case !cl.attachVolumes(p) || cl.pullFails(p):
	case cl.isNetwork(p) && !k.network:
		k.connectNetwork()
	case cl.isNetwork(p) && k.connecting:
		// It was the network's coming up that took the time.
		k.connecting = false
		cl.startPod(p)
	default:
		p.starting = true
		cl.scheduleAfter(cl.c.world.Latency.Pods, func() {
			p.starting = false
			if cl.pods[key] != p || p.running || p.deleting {
				return
			}
			if n := cl.nodes[p.node]; n != nil && cl.kubelets[p.node].isAlive() && (p.hostNetwork || n.ready) {
				cl.startPod(p)
				return
			}
			cl.dirty[ref{resPods, key}] = true // its node went away meanwhile
		})
	}
}

// admitPod is the kubelet's look at a pod that it is given: one that does not fit fails.
func (cl *cluster) admitPod(p *pod, n *node) bool {
	reason, message := n.Reject(p.needs, n.sumNeeds(p))
	o := cl.store.getObject(resPods, p.key)
	if p.admitted = p.admitted || p.daemon || reason == "" || o == nil; p.admitted {
		return true
	}
	cl.record(events.RejectPod(o.body, reason, message))
	cl.store.updateStatus(resPods, p.key, func(o map[string]any) bool {
		containers.Reject(o, reason, message)
		return true
	})
	return false
}

// findNetwork is the name of the DaemonSet that brings the pod network, which
// lives in kube-system.
func (cl *cluster) findNetwork() string {
	if cl.cni == "none" {
		return "cilium"
	}
	return "kube-flannel"
}

// isNetwork reports whether a pod is the pod network's on its node.
func (cl *cluster) isNetwork(p *pod) bool {
	o := cl.store.getObject(resDaemonSets, objectKey("kube-system", cl.findNetwork()))
	return o != nil && rules.TextAt(o.body, "metadata", "uid") == p.owner
}

// pullFails reports whether an image of a pod cannot be pulled, and makes the pod
// show it: the first container that lacks one waits, those behind it do not begin.
func (cl *cluster) pullFails(p *pod) bool {
	o := cl.store.getObject(resPods, p.key)
	if o == nil {
		return false
	}
	for _, list := range []string{"initContainers", "containers"} {
		for _, c := range rules.MapsAt(o.body, "spec", list) {
			image := rules.TextAt(c, "image")
			if cl.c.canPull(image) || cl.c.pulled[cl.kubelets[p.node].imageKey(image)] {
				continue
			}
			if !p.pulling {
				p.pulling = true
				cl.record(events.FailPull(o.body, c, containers.PullError(image))...)
				cl.scheduleAfter(pullBackoff, func() {
					p.pulling = false
					cl.dirty[ref{resPods, p.key}] = true
				})
			}
			status := rules.MapAt(o.copyBody(), "status")
			containers.FailPull(o.body, status, list, image)
			cl.setStatus(ref{resPods, p.key}, status)
			return true
		}
	}
	return false
}

// CanPull implements world.Containers.
func (c *Clusters) CanPull(image string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.canPull(image)
}

// canPull reports whether the registry of an image gives it out.
func (c *Clusters) canPull(image string) bool {
	host := rules.RegistryOf(image)
	name, _, _ := strings.Cut(host, ":")
	return !c.closedRegistries[host] && !strings.HasSuffix(name, ".invalid")
}

// imageKey names an image on the disk of a kubelet's machine.
func (k *kubelet) imageKey(image string) string { return "image/" + k.machine() + "/" + image }

// startPod makes a pod run, and end if it is not meant to run for ever.
func (cl *cluster) startPod(p *pod) {
	n := cl.nodes[p.node]
	k := cl.kubelets[p.node]
	var exit Exit
	if o := cl.store.getObject(resPods, p.key); o != nil {
		has := func(image string) bool { return cl.c.pulled[k.imageKey(image)] }
		cl.record(events.Start(o.body, containers.All(o.body), has, cl.c.world.Latency.Pods)...)
	}
	cl.store.updateStatus(resPods, p.key, func(o map[string]any) bool {
		for _, c := range containers.All(o) {
			image := rules.TextAt(c, "image")
			cl.c.pulled[k.imageKey(image)], exit = true, cl.c.exits[image]
		}
		host, own := k.k.Address.String(), k.k.Address.String()
		if !p.hostNetwork {
			own = cmp.Or(rules.TextAt(o, "status", "podIP"), n.nextIP())
		}
		containers.Start(o, host, own)
		if exit.Hangs = exit.Hangs || containers.RunsForEver(o); !exit.Hangs && exit.After == 0 {
			containers.Finish(o, exit)
		}
		return true
	})
	if !exit.Hangs && exit.After > 0 {
		cl.scheduleAfter(exit.After, func() {
			if cl.pods[p.key] == p && p.running && !p.deleting && k.isAlive() {
				cl.store.updateStatus(resPods, p.key, func(o map[string]any) bool { containers.Finish(o, exit); return true })
			}
		})
	}
}

// nextIP gives a pod an address of its node.
func (n *node) nextIP() string {
	n.addresses++
	addr := rules.NthAddr(rules.FirstRange(n.podCIDR), 1+n.addresses%253)
	if !addr.IsValid() {
		return ""
	}
	return addr.String()
}

// podsOf returns the pods on a node, in the order of their names.
func (cl *cluster) podsOf(node string) []*pod {
	if n := cl.nodes[node]; n != nil {
		return byKey(n.pods)
	}
	return nil
}

func byKey(pods map[string]*pod) []*pod {
	out := make([]*pod, 0, len(pods))
	for _, k := range slices.Sorted(maps.Keys(pods)) {
		out = append(out, pods[k])
	}
	return out
}

// dropObject deletes an object as a controller does; one that does not exist is no
// error.
func (cl *cluster) dropObject(res *resource, key string) {
	if _, _, err := cl.store.dropObject(res, key, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		cl.c.world.Log.Warn("lab controller cannot delete", "resource", res.name, "object", key, "err", err)
	}
}

// ownedBy is a reference to an object's controller.
func ownedBy(res *resource, o *object) map[string]any {
	return map[string]any{
		"apiVersion": res.apiVersion(), "kind": res.kind, "name": rules.TextAt(o.body, "metadata", "name"),
		"uid": rules.TextAt(o.body, "metadata", "uid"), "controller": true, "blockOwnerDeletion": true,
	}
}

// placePods finds nodes for the pods that have none, oldest first.
func (cl *cluster) placePods() {
	var homeless []*pod
	for _, p := range cl.pods {
		if p.node == "" && !p.finished && !p.deleting {
			homeless = append(homeless, p)
		}
	}
	slices.SortFunc(homeless, func(a, b *pod) int { return cmp.Compare(a.since, b.since) })
	waits := false
	for _, p := range homeless {
		cl.placePod(p)
		waits = waits || p.node == ""
	}
	if waits && !cl.retrying {
		cl.retrying = true
		cl.scheduleAfter(flushUnschedulable, func() { cl.retrying, cl.unplaced = false, true })
	}
}

// placePod finds a node for one pod: of those that fit, the one with the fewest
// pods of the same owner, then the fewest pods.
func (cl *cluster) placePod(p *pod) {
	o := cl.store.getObject(resPods, p.key)
	if o == nil {
		return
	}
	spec, err := rules.PodSpec(rules.MapAt(o.body, "spec"))
	if err != nil {
		cl.c.world.Log.Warn("lab scheduler cannot read pod", "pod", p.key, "err", err)
		return
	}
	ns, _ := splitKey(p.key)
	taken := cl.takenPlaces(spec, ns, p)
	var refused rules.Verdict
	var best *node
	for _, name := range slices.Sorted(maps.Keys(cl.nodes)) {
		n := cl.nodes[name]
		if why := n.RefusePod(spec, spec.Tolerations, false); why != "" {
			refused.Refuse(true, why)
			continue
		}
		if lacks, never := n.LackFor(p.needs, n.sumNeeds(nil)); len(lacks) > 0 {
			refused.Refuse(never, lacks...)
			continue
		}
		if taken.HasNode(&n.Node) {
			refused.Refuse(false, "node(s) didn't match pod anti-affinity rules")
			continue
		}
		if best == nil || cmp.Or(cmp.Compare(n.countPods(p.owner), best.countPods(p.owner)), cmp.Compare(len(n.pods), len(best.pods))) < 0 {
			best = n
		}
	}
	if best == nil {
		if now := time.Now(); now.Sub(p.refused) >= cl.c.world.Scale(scheduleBackoff) {
			p.refused = now
			cl.record(events.FailSchedule(o.body, refused.String(), cl.up[0].cp.Node))
		}
		status := rules.MapAt(o.copyBody(), "status")
		status["conditions"] = rules.SetCondition(rules.ListAt(status, "conditions"), "PodScheduled", "False", "Unschedulable", refused.String())
		cl.setStatus(ref{resPods, p.key}, status)
		return
	}
	best.pods[p.key], p.node = p, best.Name
	cl.record(events.Schedule(o.body, best.Name, cl.up[0].cp.Node))
	cl.store.updateObject(resPods, p.key, func(o map[string]any) bool {
		rules.EnsureMap(o, "spec")["nodeName"] = best.Name
		status := rules.EnsureMap(o, "status")
		status["conditions"] = rules.SetCondition(rules.ListAt(status, "conditions"), "PodScheduled", "True", "", "")
		status["containerStatuses"] = containers.States(o, "containers", false, containers.Waiting())
		return true
	})
}

// sumNeeds is what the pods on the node ask for, beside one that was not admitted: those that were.
func (n *node) sumNeeds(beside *pod) rules.Amounts {
	var used rules.Amounts
	for _, p := range n.pods {
		if !p.finished && (beside == nil || p != beside && (p.admitted || p.mirror)) {
			used = used.Plus(p.needs)
		}
	}
	return used
}

// countPods is how many pods of an owner are on the node.
func (n *node) countPods(owner string) int {
	c := 0
	for _, p := range n.pods {
		if p.owner == owner {
			c++
		}
	}
	return c
}

// takenPlaces returns where pods are that a pod must keep away from.
func (cl *cluster) takenPlaces(spec *corev1.PodSpec, ns string, self *pod) rules.Places {
	if spec.Affinity == nil || spec.Affinity.PodAntiAffinity == nil {
		return nil
	}
	out := rules.Places{}
	for _, term := range spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
		sel, err := metav1.LabelSelectorAsSelector(term.LabelSelector)
		if err != nil {
			continue // the server refuses such a selector
		}
		for _, p := range cl.pods {
			where, _ := splitKey(p.key)
			in := where == ns && len(term.Namespaces) == 0 || slices.Contains(term.Namespaces, where)
			n := cl.nodes[p.node]
			if p == self || n == nil || p.finished || !in || !sel.Matches(labels.Set(p.labels)) {
				continue
			}
			if out[term.TopologyKey] == nil {
				out[term.TopologyKey] = map[string]bool{}
			}
			out[term.TopologyKey][n.Labels[term.TopologyKey]] = true
		}
	}
	return out
}
