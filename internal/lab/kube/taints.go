package kube

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/talos-agent/talos-agent/internal/lab/kube/events"
	"github.com/talos-agent/talos-agent/internal/lab/kube/rules"
)

// tendNode keeps the taint of a cordoned node, and evicts pods that do not tolerate
// the taints of a node.
func (cl *cluster) tendNode(key string) {
	_, name := splitKey(key)
	n := cl.nodes[name]
	if n == nil {
		return
	}
	tainted := slices.ContainsFunc(n.Taints, func(t corev1.Taint) bool {
		return t.Key == corev1.TaintNodeUnschedulable && t.Effect == corev1.TaintEffectNoSchedule
	})
	if n.Unschedulable != tainted {
		cl.store.updateObject(resNodes, key, func(o map[string]any) bool {
			rules.WriteAs(rules.Controllers, o, func() {
				spec := rules.EnsureMap(o, "spec")
				if !rules.BoolAt(spec, "unschedulable") {
					rules.RemoveTaint(spec, corev1.TaintNodeUnschedulable)
					return
				}
				rules.NoteTaint(spec, corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule)
			})
			return true
		})
		if o := cl.store.getObject(resNodes, key); o != nil && cl.kubelets[name].isAlive() {
			cl.record(events.Cordon(o.body))
		}
	}
	cl.executeTaints(n)
}

// executeTaints deletes the pods of a node whose time there is over, and looks again
// when the next one's is.
func (cl *cluster) executeTaints(n *node) {
	if !n.executes {
		for _, p := range byKey(n.pods) {
			cl.welcomePod(p)
		}
		return
	}
	var next time.Time
	now := time.Now()
	for _, p := range byKey(n.pods) {
		if p.deleting {
			continue
		}
		if o := cl.store.getObject(resPods, p.key); p.tolerations == nil && o != nil {
			p.tolerations = rules.TolerationsOf(o.body)
		}
		wait, ever := n.StayOf(p.tolerations)
		if ever {
			cl.welcomePod(p)
			continue
		}
		if p.unwelcome.IsZero() {
			p.unwelcome = now
		}
		due := p.unwelcome.Add(cl.c.world.Scale(wait))
		if !due.After(now) {
			ns, name := splitKey(p.key)
			cl.record(events.EvictByTaint(ns, name, false))
			cl.disruptPod(p, "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")
			cl.dropObject(resPods, p.key)
			continue
		}
		if next.IsZero() || due.Before(next) {
			next = due
		}
	}
	if next.IsZero() || !n.nextLook.IsZero() && !next.Before(n.nextLook) {
		return
	}
	n.nextLook = next
	cl.c.scheduleAt(next, func() {
		if n.nextLook.Equal(next) {
			n.nextLook = time.Time{}
		}
		cl.dirty[ref{resNodes, objectKey("", n.Name)}] = true
	})
}

// welcomePod cancels the deletion of a pod by the taints of its node.
func (cl *cluster) welcomePod(p *pod) {
	if !p.unwelcome.IsZero() && !p.deleting {
		ns, name := splitKey(p.key)
		cl.record(events.EvictByTaint(ns, name, true))
	}
	p.unwelcome = time.Time{}
}

// disruptPod writes into a pod why it is about to be deleted.
func (cl *cluster) disruptPod(p *pod, reason, message string) {
	cl.store.updateStatus(resPods, p.key, func(o map[string]any) bool {
		status := rules.EnsureMap(o, "status")
		status["conditions"] = rules.SetCondition(rules.ListAt(status, "conditions"), "DisruptionTarget", "True", reason, message)
		return true
	})
}
