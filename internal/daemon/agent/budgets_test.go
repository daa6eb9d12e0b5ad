package agent_test

import (
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// drawWishes draws what the repository asks for at first, besides the size of the cluster: in some
// lives the address of a control plane is the endpoint, and in some there is a pod whose disruption
// budget never yields.
func (l *life) drawWishes() {
	l.wishes = newWishes(l.size)
	if l.wishes.vip && l.rnd.IntN(3) == 0 {
		l.wishes.vip = false
	}
	if l.rnd.IntN(3) == 0 {
		l.wishes.budget = tightest
		l.setDrain()
		l.undo = append(l.undo, l.letPodsLeave)
	}
	l.plan("a VIP: %v; pods leave within %v, and are deleted then: %v; a disruption budget: %s", l.wishes.vip, l.wishes.drain.within, l.wishes.drain.deletes, l.wishes.budget)
	l.Push(l.wishes.files(l.size), "as it begins")
}

// setDrain has another time for pods to leave, and other things become of them then.
func (l *life) setDrain() {
	l.wishes.drain = drain{time.Duration(1+l.rnd.IntN(3)) * time.Minute, l.rnd.IntN(2) == 0}
}

// letPodsLeave has the pod be evicted or deleted in the end whose budget never yields, and reports
// that it has.
func (l *life) letPodsLeave() bool {
	switch {
	case l.wishes.budget != tightest || l.wishes.drain.deletes:
		return true
	case l.rnd.IntN(2) == 0:
		l.wishes.drain.deletes = true
	default:
		l.wishes.budget = roomy
	}
	l.ask("let the pods leave")
	return true
}

// longestDrain is how long a drain takes at most, with the time for what is deleted in the end to
// stop: it ends as it has begun, whatever is pushed.
const longestDrain = 8 * time.Minute

// judgePod: a pod of a node that works is deleted, and not evicted, by a drain that was given the
// time for pods to leave, where an order has it so that may have been in force when that began.
func (g *guard) judgePod(subject string) {
	for _, p := range g.s.Lab.Kube.Objects("", schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "") {
		if _, name, _ := strings.Cut(subject, "/"); p.GetName() == subject || p.GetName() == name {
			node, _, _ := unstructured.NestedString(p.Object, "spec", "nodeName")
			g.judgePodOn(p.GetName(), node)
		}
	}
}

func (g *guard) judgePodOn(pod, node string) {
	_, works := g.machineOf(node)
	g.mu.Lock()
	defer g.mu.Unlock()
	if !works || time.Since(g.touched[node]) < justTouched {
		return
	}
	drained := time.Duration(0)
	if at, marked := g.markedAt[node]; marked {
		drained = time.Since(at) + 2*lookEvery
	}
	for d, at := range g.drains {
		if d.deletes && drained >= d.within && time.Since(at) < longestDrain {
			return
		}
	}
	g.s.Lab.World.Violate("budget", "pod %s of %s is deleted after %v of its drain, and no order has that", pod, node, drained)
}
