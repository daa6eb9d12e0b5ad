package kube

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/talos-agent/talos-agent/internal/lab/kube/containers"
	"github.com/talos-agent/talos-agent/internal/lab/kube/events"
	"github.com/talos-agent/talos-agent/internal/lab/kube/jobs"
	"github.com/talos-agent/talos-agent/internal/lab/kube/rules"
)

// workload is an object that owns pods, at one version.
type workload struct {
	ref
	o    *object
	uid  string
	hash string // of its template
	pods []*pod // its own that are not being deleted, in the order of their names
}

// readWorkload reads an object that owns pods; ok is false if it is deleted or
// being deleted.
func (cl *cluster) readWorkload(res *resource, key string) (w workload, ok bool) {
	o := cl.store.getObject(res, key)
	if o == nil || rules.ValueAt(o.body, "metadata", "deletionTimestamp") != nil {
		delete(cl.rolledOut, ref{res, key})
		delete(cl.refusals, ref{res, key})
		return w, false
	}
	w = workload{ref: ref{res, key}, o: o, uid: rules.TextAt(o.body, "metadata", "uid"), hash: rules.HashTemplate(o.body)}
	for _, p := range byKey(cl.owned[w.uid]) {
		if !p.deleting {
			w.pods = append(w.pods, p)
		}
	}
	return w, true
}

// countPods counts the pods for which keep is true.
func (w workload) countPods(keep func(*pod) bool) int64 {
	var n int64
	for _, p := range w.pods {
		if keep(p) {
			n++
		}
	}
	return n
}

func isReady(p *pod) bool { return p.ready }

// generation is what the workload's status has observed.
func (w workload) generation() int64 { return rules.NumberAt(w.o.body, "metadata", "generation") }

// tendDaemonSet keeps one pod on every node that fits.
func (cl *cluster) tendDaemonSet(key string) {
	w, ok := cl.readWorkload(resDaemonSets, key)
	if !ok {
		return
	}
	if key == objectKey("kube-system", "cilium") && cl.cni == "none" && !cl.reported {
		cl.reported = true
		cl.c.world.Spend("addon", "cilium", 0, "api/"+cl.first)
	}
	body := runtime.DeepCopyJSON(rules.MapAt(w.o.body, "spec", "template", "spec"))
	rules.TolerateAsDaemon(body)
	spec, err := rules.PodSpec(body)
	if err != nil {
		cl.c.world.Log.Warn("lab controller cannot read pod template", "daemonset", key, "err", err)
		return
	}
	byNode, ending := cl.keepDaemons(w, spec)
	var desired, current, ready, updated int64
	for _, name := range slices.Sorted(maps.Keys(cl.nodes)) {
		n, p := cl.nodes[name], byNode[name]
		if p == nil && n.RefusePod(spec, spec.Tolerations, false) != "" {
			continue
		}
		desired++
		if p == nil {
			if !ending[name] {
				cl.makePod(w, "", n.Name, hashOfSet, w.hash)
			}
			continue
		}
		current++
		ready += rules.Count(p.ready)
		updated += rules.Count(p.hash == w.hash)
	}
	status := map[string]any{
		"currentNumberScheduled": current, "desiredNumberScheduled": desired, "numberMisscheduled": int64(0),
		"numberReady": ready, "observedGeneration": w.generation(),
	}
	rules.SetNonZero(status, "numberAvailable", ready)
	rules.SetNonZero(status, "numberUnavailable", desired-ready)
	rules.SetNonZero(status, "updatedNumberScheduled", updated)
	cl.setStatus(w.ref, status)
	cl.recordRollout(w, desired > 0 && ready == desired && updated == desired)
}

// keepDaemons deletes the pods of a DaemonSet that are to be replaced or may not stay.
// It returns the others by their nodes, and the nodes where one has to end first.
func (cl *cluster) keepDaemons(w workload, spec *corev1.PodSpec) (byNode map[string]*pod, ending map[string]bool) {
	byNode, ending = map[string]*pod{}, map[string]bool{}
	if len(cl.owned[w.uid]) > len(w.pods) {
		for _, p := range cl.owned[w.uid] {
			ending[p.target] = ending[p.target] || p.deleting
		}
	}
	room := rules.RoomOfDaemons(w.o.body)
	for _, p := range w.pods {
		room += rules.Count(p.ready)
	}
	for _, p := range w.pods {
		n := cl.nodes[p.target]
		stale := p.hash != w.hash && (!p.ready || room > 0) && rules.TextAt(w.o.body, "spec", "updateStrategy", "type") != "OnDelete"
		if n == nil || stale || byNode[p.target] != nil || n.RefusePod(spec, spec.Tolerations, true) != "" {
			room -= rules.Count(p.ready)
			cl.dropPod(w, p)
			ending[p.target] = true
			continue
		}
		byNode[p.target] = p
	}
	return byNode, ending
}

// recordRollout records the span of a workload when it becomes complete.
func (cl *cluster) recordRollout(w workload, complete bool) {
	if complete == cl.rolledOut[w.ref] {
		return
	}
	cl.rolledOut[w.ref] = complete
	if !complete {
		return
	}
	took := cl.c.world.Latency.Pods
	after := []string{"api/" + cl.first}
	for _, p := range w.pods {
		switch {
		case cl.isNetwork(p):
			took = 0
			after = append(after, "cni/"+p.node)
		case p.hostNetwork:
			after = append(after, "kubelet/"+p.node)
		default:
			after = append(after, "ready/"+p.node)
		}
	}
	cl.c.world.Spend("pods", w.key, took, after...)
}

// tendDeployment keeps one ReplicaSet per template it ever had, and pods in
// the newest only: old ones go at once, they are not rolled.
func (cl *cluster) tendDeployment(key string) {
	w, ok := cl.readWorkload(resDeployments, key)
	if !ok {
		return
	}
	ns, name := splitKey(key)
	want := rules.NumberAt(w.o.body, "spec", "replicas")
	newest := objectKey(ns, name+"-"+w.hash)
	var replicas, ready, updated, revision int64
	for r := range cl.dependents[w.uid] {
		rs := cl.store.getObject(resReplicaSets, r.key)
		if r.res != resReplicaSets || rs == nil {
			continue
		}
		if n, err := strconv.ParseInt(rules.TextAt(rs.body, "metadata", "annotations", revisionAnnotation), 10, 64); err == nil {
			revision = max(revision, n)
		}
		scale := int64(0)
		if r.key == newest {
			scale = want
			updated = rules.NumberAt(rs.body, "status", "replicas")
			ready = rules.NumberAt(rs.body, "status", "readyReplicas")
		}
		replicas += rules.NumberAt(rs.body, "status", "replicas")
		if rules.NumberAt(rs.body, "spec", "replicas") != scale && !rules.BoolAt(w.o.body, "spec", "paused") {
			cl.store.updateObject(resReplicaSets, r.key, func(o map[string]any) bool {
				rules.EnsureMap(o, "spec")["replicas"] = scale
				meta := rules.MapAt(o, "metadata")
				meta["generation"] = rules.NumberAt(meta, "generation") + 1
				return true
			})
			_, set := splitKey(r.key)
			cl.record(events.Scale(w.o.body, set, rules.NumberAt(rs.body, "spec", "replicas"), scale))
		}
	}
	if cl.store.getObject(resReplicaSets, newest) == nil && !rules.BoolAt(w.o.body, "spec", "paused") {
		cl.makeReplicaSet(w, newest, want, revision+1)
	}
	status := map[string]any{"observedGeneration": w.generation()}
	for k, n := range map[string]int64{
		"replicas": replicas, "updatedReplicas": updated, "readyReplicas": ready, "availableReplicas": ready, "unavailableReplicas": max(0, want-ready),
	} {
		rules.SetNonZero(status, k, n)
	}
	complete := ready >= want && updated == want && replicas == updated
	// One in four may be missing, as the default strategy allows.
	conditions := rules.DeploymentConditions(w.o.body, name+"-"+w.hash, ready >= want-want/4, complete)
	rs := cl.store.getObject(resReplicaSets, newest)
	if rs != nil {
		conditions = append(conditions, rules.ListAt(rs.body, "status", "conditions")...)
		w.pods = byKey(cl.owned[rules.TextAt(rs.body, "metadata", "uid")])
	}
	status["conditions"] = conditions
	cl.setStatus(w.ref, status)
	cl.recordRollout(w, complete && want > 0)
}

const revisionAnnotation = "deployment.kubernetes.io/revision"

// makeReplicaSet makes the ReplicaSet of a Deployment's present template.
func (cl *cluster) makeReplicaSet(w workload, key string, replicas, revision int64) {
	ns, name := splitKey(key)
	spec := runtime.DeepCopyJSON(rules.MapAt(w.o.body, "spec"))
	template := rules.EnsureMap(spec, "template")
	rules.EnsureMap(template, "metadata", "labels")[hashOfTemplate] = w.hash
	selector := rules.EnsureMap(spec, "selector")
	rules.EnsureMap(selector, "matchLabels")[hashOfTemplate] = w.hash
	cl.store.createObject(resReplicaSets, map[string]any{
		"metadata": map[string]any{
			"name": name, "namespace": ns, "labels": runtime.DeepCopyJSON(rules.EnsureMap(template, "metadata", "labels")),
			"annotations":     map[string]any{revisionAnnotation: strconv.FormatInt(revision, 10)},
			"ownerReferences": []any{ownedBy(resDeployments, w.o)},
		},
		"spec":   map[string]any{"replicas": replicas, "selector": selector, "template": template},
		"status": map[string]any{"replicas": int64(0)},
	})
	if replicas > 0 {
		cl.record(events.Scale(w.o.body, name, 0, replicas))
	}
	cl.store.updateObject(resDeployments, w.key, func(o map[string]any) bool {
		rules.EnsureMap(o, "metadata", "annotations")[revisionAnnotation] = strconv.FormatInt(revision, 10)
		return true
	})
}

// tendReplicaSet keeps as many pods as asked for.
func (cl *cluster) tendReplicaSet(key string) {
	w, ok := cl.readWorkload(resReplicaSets, key)
	if !ok {
		return
	}
	w.pods = slices.DeleteFunc(w.pods, func(p *pod) bool { return p.finished })
	want, have := rules.NumberAt(w.o.body, "spec", "replicas"), int64(len(w.pods))
	for range want - have {
		if !cl.makePod(w, "", "", "", "") {
			break
		}
	}
	if have > want {
		// Those that are not ready go first, then the youngest.
		going := slices.SortedStableFunc(slices.Values(w.pods), func(a, b *pod) int {
			switch {
			case a.ready == b.ready:
				return cmp.Compare(b.since, a.since)
			case b.ready:
				return -1
			}
			return 1
		})
		for _, p := range going[:have-want] {
			cl.dropPod(w, p)
		}
	}
	ready := w.countPods(isReady)
	status := map[string]any{"replicas": min(have, want), "observedGeneration": w.generation()}
	if why := cl.refusals.Message(w.ref, w.hash); why != "" {
		status["conditions"] = rules.SetCondition(rules.ListAt(w.o.body, "status", "conditions"), "ReplicaFailure", "True", "FailedCreate", why)
	}
	rules.SetNonZero(status, "fullyLabeledReplicas", min(have, want))
	rules.SetNonZero(status, "readyReplicas", min(ready, want))
	rules.SetNonZero(status, "availableReplicas", min(ready, want))
	cl.setStatus(w.ref, status)
}

// tendStatefulSet keeps pods with ordinals, one after the other unless they
// may be managed in parallel.
func (cl *cluster) tendStatefulSet(key string) {
	w, ok := cl.readWorkload(resStatefulSets, key)
	if !ok {
		return
	}
	ns, name := splitKey(key)
	want := rules.NumberAt(w.o.body, "spec", "replicas")
	byName := map[string]*pod{}
	for _, p := range w.pods {
		_, pod := splitKey(p.key)
		byName[pod] = p
	}
	var current, updated, ready int64
	waits := false // for one with a lower ordinal
	for i := range want {
		podName := fmt.Sprintf("%s-%d", name, i)
		p := byName[podName]
		delete(byName, podName)
		switch {
		case p != nil && p.hash != w.hash:
			if !waits {
				cl.dropPod(w, p)
			}
			current++
		case p != nil:
			current++
			updated++
		case !waits && cl.store.getObject(resPods, objectKey(ns, podName)) == nil:
			cl.makeClaims(w, ns, podName)
			cl.makePod(w, podName, "", hashOfSet, w.hash)
		}
		if p != nil && p.ready {
			ready++
		} else if rules.TextAt(w.o.body, "spec", "podManagementPolicy") != "Parallel" {
			waits = true
		}
	}
	for _, p := range byName {
		cl.dropPod(w, p)
	}
	status := map[string]any{
		"replicas": current, "observedGeneration": w.generation(), "availableReplicas": ready,
		"currentRevision": name + "-" + w.hash, "updateRevision": name + "-" + w.hash, "collisionCount": int64(0),
	}
	rules.SetNonZero(status, "readyReplicas", ready)
	rules.SetNonZero(status, "currentReplicas", current)
	rules.SetNonZero(status, "updatedReplicas", updated)
	cl.setStatus(w.ref, status)
	cl.recordRollout(w, want > 0 && ready == want && updated == want)
}

// makePod makes a pod from the template of a workload, on a node or ("") wherever
// there is room. It returns false if there is none: the server refuses it, or
// refused the last one lately.
func (cl *cluster) makePod(w workload, name, node, hashLabel, hash string) bool {
	if !cl.refusals.MayTry(w.ref, w.hash) {
		return false
	}
	ns, _ := splitKey(w.key)
	o := w.o
	template := runtime.DeepCopyJSON(rules.MapAt(o.body, "spec", "template"))
	meta := rules.EnsureMap(template, "metadata")
	body := map[string]any{"metadata": meta, "spec": rules.EnsureMap(template, "spec")}
	if w.res == resDaemonSets {
		rules.TolerateAsDaemon(rules.MapAt(body, "spec"))
		rules.PinToNode(rules.MapAt(body, "spec"), node)
		if n := cl.nodes[node]; !n.HasRoom(rules.RequestsOf(body), n.sumNeeds(nil), rules.IsCritical(rules.MapAt(body, "spec"))) {
			node = "" // until the scheduler has room for it there
		}
	}
	meta["namespace"] = ns
	if name != "" {
		meta["name"] = name
	} else {
		meta["generateName"] = rules.TextAt(o.body, "metadata", "name") + "-"
	}
	if hashLabel != "" {
		rules.EnsureMap(meta, "labels")[hashLabel] = hash
	}
	delete(meta, "creationTimestamp")
	meta["ownerReferences"] = []any{ownedBy(w.res, o)}
	status := map[string]any{"phase": "Pending"}
	if node != "" {
		rules.EnsureMap(body, "spec")["nodeName"] = node
		status["conditions"] = rules.SetCondition(nil, "PodScheduled", "True", "", "")
		status["containerStatuses"] = containers.States(body, "containers", false, containers.Waiting())
	}
	body["status"] = status
	return cl.tryPod(w, body)
}

// tryPod stores a pod of a workload. If the server refuses it, it is tried again later.
// Events show either.
func (cl *cluster) tryPod(w workload, body map[string]any) bool {
	meta := rules.MapAt(body, "metadata")
	rules.FillMissing(meta, "name", rules.TextAt(meta, "generateName")+rules.MakeSuffix(cl.store.nextUnique()))
	rules.SetDefaults(resPods.gr(), body)
	err := cl.store.securePod(body)
	if err == nil {
		delete(cl.refusals, w.ref)
		cl.store.createObject(resPods, body)
		cl.record(events.MakePod(w.o.body, rules.TextAt(meta, "name")))
		return true
	}
	wait, again := cl.refusals.Note(w.ref, w.hash, err.Error())
	cl.scheduleAfter(wait, func() {
		again()
		cl.dirty[w.ref] = true
	})
	cl.record(events.FailPod(w.o.body, rules.TextAt(meta, "name"), err))
	return false
}

// dropPod deletes a pod of a workload.
func (cl *cluster) dropPod(w workload, p *pod) {
	_, name := splitKey(p.key)
	cl.dropObject(resPods, p.key)
	cl.record(events.DropPod(w.o.body, name))
}

// makeClaims makes the volume claims of a StatefulSet's pod.
func (cl *cluster) makeClaims(w workload, ns, podName string) {
	for _, t := range rules.MapsAt(w.o.body, "spec", "volumeClaimTemplates") {
		claim := runtime.DeepCopyJSON(t)
		meta := rules.EnsureMap(claim, "metadata")
		meta["name"], meta["namespace"] = rules.TextAt(meta, "name")+"-"+podName, ns
		claim["status"] = map[string]any{"phase": "Pending"}
		cl.store.createObject(resClaims, claim)
	}
}

// tendJob runs pods until as many as asked for have succeeded.
func (cl *cluster) tendJob(key string) {
	w, ok := cl.readWorkload(resJobs, key)
	if !ok || jobs.IsEnded(w.o.body) {
		return // whatever becomes of its pods
	}
	pods := jobs.Pods{Terminating: int64(len(cl.owned[w.uid]) - len(w.pods))}
	for _, p := range w.pods {
		pods.Add(p.ready, p.finished, p.failed)
	}
	step := jobs.Judge(w.o.body, pods, time.Now())
	for i := int64(0); i < step.Make && cl.makePod(w, "", "", "", ""); i++ {
	}
	for _, p := range w.pods {
		if step.Drop && !p.finished {
			cl.dropPod(w, p)
		}
	}
	if step.Again > 0 {
		cl.scheduleAfter(step.Again, func() { cl.dirty[w.ref] = true })
	}
	if step.News {
		cl.record(events.ChangeJob(w.o.body, step.Status))
	}
	cl.setStatus(w.ref, step.Status)
	cl.recordRollout(w, jobs.IsEnded(map[string]any{"status": step.Status}))
}
