package kube

import (
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/talos-agent/talos-agent/internal/lab/kube/containers"
	"github.com/talos-agent/talos-agent/internal/lab/kube/events"
	"github.com/talos-agent/talos-agent/internal/lab/kube/rules"
)

const (
	// reportsEnd is how long after the end of its containers a kubelet removes a pod
	// from the API.
	// Recorded: the ended pod is seen once, and not half a second later.
	reportsEnd = 500 * time.Millisecond
	// orphanedAfter is how long pods whose node has no object stay.
	// Source: kubernetes v1.36, pkg/controller/podgc: in quarantine for 40 s, looked
	// at each 20 s.
	orphanedAfter    = 50 * time.Second
	terminatingAfter = 20 * time.Second // on a node that is out of service
)

// ending is how a kubelet ends a pod.
type ending struct {
	by       *kubelet
	took     time.Duration
	removing bool
}

// endPod ends the containers of a pod that is being deleted, and removes it then.
func (cl *cluster) endPod(p *pod, k *kubelet) {
	o := cl.store.getObject(resPods, p.key)
	if o == nil {
		return
	}
	if p.ending == nil || p.ending.by != k {
		p.ending = &ending{by: k}
	}
	e := p.ending
	if !p.running || p.mirror {
		if e.removing {
			return
		}
		e.removing = true
		cl.scheduleAfter(reportsEnd, func() {
			e.removing = false
			if cl.pods[p.key] == p && k.isAlive() {
				cl.forceAway(p)
				cl.mirrorPods(p.node)
			}
		})
		return
	}
	grace := time.Duration(rules.NumberAt(o.body, "metadata", "deletionGracePeriodSeconds")) * time.Second
	took, killed := rules.StopTime(o.body, grace)
	if e.took > 0 && took >= e.took {
		return // it is under way, and nobody shortened the grace
	}
	if e.took == 0 {
		cl.record(events.Kill(o.body)...)
	}
	e.took = took
	cl.scheduleAfter(took, func() {
		if cl.pods[p.key] != p || p.ending != e || e.took != took || !k.isAlive() {
			return
		}
		cl.store.updateStatus(resPods, p.key, func(o map[string]any) bool {
			containers.End(o, killed)
			return true
		})
	})
}

// forceAway removes a pod without waiting for its containers.
func (cl *cluster) forceAway(p *pod) {
	uid := types.UID(p.uid)
	_, _, err := cl.store.dropObject(resPods, p.key, metav1.DeleteOptions{GracePeriodSeconds: new(int64), Preconditions: &metav1.Preconditions{UID: &uid}})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		cl.c.world.Log.Warn("lab kubelet cannot remove pod", "pod", p.key, "err", err)
	}
}

// stopPod makes a pod wait again: its containers ended with the machine's last boot,
// and will be started again.
func (cl *cluster) stopPod(p *pod) {
	cl.dirty[ref{resPods, p.key}] = true
	if !p.running || p.mirror {
		return
	}
	cl.store.updateStatus(resPods, p.key, func(o map[string]any) bool {
		containers.Restart(o)
		return true
	})
}

// setPodReady sets whether a pod counts as ready, without a change of its
// containers.
func (cl *cluster) setPodReady(p *pod, ready bool) {
	status := "False"
	if ready {
		status = "True"
	}
	// What is kept of the pod may be older than that it is not: a node that is found lost
	// may be back at once.
	if !p.running || p.finished || !ready && !p.ready {
		return
	}
	cl.store.updateStatus(resPods, p.key, func(o map[string]any) bool {
		s := rules.EnsureMap(o, "status")
		s["conditions"] = rules.SetCondition(rules.ListAt(s, "conditions"), "Ready", status, "", "")
		return true
	})
}

// collectOrphans removes the pods of a node without an object, after a while.
func (cl *cluster) collectOrphans(node string) {
	if cl.orphaned[node] {
		return
	}
	cl.orphaned[node] = true
	cl.scheduleAfter(orphanedAfter, func() {
		pods := cl.boundTo(node)
		delete(cl.orphaned, node)
		for _, p := range pods {
			if cl.nodes[node] == nil {
				cl.forceAway(p)
			}
		}
	})
}

// collectTerminating removes a pod, after a while, that ends on a machine that is declared off.
func (cl *cluster) collectTerminating(p *pod) {
	cl.scheduleAfter(terminatingAfter, func() {
		if n := cl.nodes[p.node]; cl.pods[p.key] == p && n != nil && !n.ready && n.IsOutOfService() {
			cl.forceAway(p)
		}
	})
}

// boundTo returns the pods of a node, which may have no object, in the order of their
// names.
func (cl *cluster) boundTo(node string) []*pod {
	if !cl.orphaned[node] {
		return cl.podsOf(node)
	}
	return slices.DeleteFunc(byKey(cl.pods), func(p *pod) bool { return p.node != node })
}
