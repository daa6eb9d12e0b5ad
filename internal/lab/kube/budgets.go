package kube

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/talos-agent/talos-agent/internal/lab/kube/drain"
	"github.com/talos-agent/talos-agent/internal/lab/kube/rules"
)

// budgetRecheck is when the controller looks again at a budget of which an eviction
// was taken off, should the pod still be there.
const budgetRecheck = 2 * time.Minute

// touchBudgets has the budgets of a namespace looked at again.
func (cl *cluster) touchBudgets(namespace string) {
	for key := range cl.budgets[namespace] {
		cl.dirty[ref{resBudgets, key}] = true
	}
}

// tendBudget keeps the status of a disruption budget.
func (cl *cluster) tendBudget(key string) {
	o := cl.store.getObject(resBudgets, key)
	if o == nil || rules.ValueAt(o.body, "metadata", "deletionTimestamp") != nil {
		return
	}
	b, sel, err := rules.ReadBudget(o.body)
	if err != nil {
		cl.c.world.Log.Warn("lab controller cannot read disruption budget", "budget", key, "err", err)
		return
	}
	ns, _ := splitKey(key)
	var pods []rules.GuardedPod
	var guarded []*pod
	for _, p := range cl.pods {
		if in, name := splitKey(p.key); in == ns && sel.Matches(labels.Set(p.labels)) {
			guarded = append(guarded, p)
			pods = append(pods, rules.GuardedPod{Name: name, Ready: p.ready, Deleting: p.deleting})
		}
	}
	var scale int32
	if rules.NeedsScale(&b.Spec) {
		scale, err = cl.sumScales(guarded)
	}
	if err == nil {
		err = rules.CountBudget(b, pods, scale, time.Now())
	}
	if err != nil {
		rules.FailBudget(b, err, time.Now())
	}
	next, err := rules.WriteBudget(o.copyBody(), b)
	if err != nil {
		cl.c.world.Log.Warn("lab controller cannot write disruption budget", "budget", key, "err", err)
		return
	}
	if !reflect.DeepEqual(o.body["status"], next["status"]) {
		// An eviction that was granted meanwhile must not be forgotten.
		if _, err := cl.store.commitObject(resBudgets, key, o, next); err != nil {
			cl.dirty[ref{resBudgets, key}] = true
			return
		}
	}
	if len(b.Status.DisruptedPods) > 0 {
		cl.scheduleAfter(budgetRecheck, func() { cl.dirty[ref{resBudgets, key}] = true })
	}
}

// sumScales is how many pods the controllers of some pods ask for together. Pods
// without a controller do not count; a controller without a scale is an error.
func (cl *cluster) sumScales(pods []*pod) (int32, error) {
	scales := map[string]int64{}
	slices.SortFunc(pods, func(a, b *pod) int { return compareRefs(ref{resPods, a.key}, ref{resPods, b.key}) })
	for _, p := range pods {
		o := cl.store.getObject(resPods, p.key)
		if o == nil || p.owner == "" {
			continue
		}
		ns, name := splitKey(p.key)
		owner, kind := cl.findController(ns, o)
		if owner != nil && kind == resReplicaSets {
			if d, of := cl.findController(ns, owner); d != nil && of == resDeployments {
				owner, kind = d, of
			}
		}
		switch {
		case owner == nil:
			return 0, fmt.Errorf("found no controllers for pod %q", name)
		case !kind.scales():
			return 0, fmt.Errorf("%s does not implement the scale subresource", kind.gr())
		}
		scales[rules.TextAt(owner.body, "metadata", "uid")] = rules.NumberAt(owner.body, "spec", "replicas")
	}
	var sum int64
	for _, n := range scales {
		sum += n
	}
	return int32(sum), nil
}

// findController returns the controller of an object, nil if there is none.
func (cl *cluster) findController(ns string, o *object) (*object, *resource) {
	for _, r := range rules.MapsAt(o.body, "metadata", "ownerReferences") {
		if !rules.BoolAt(r, "controller") {
			continue
		}
		for _, res := range []*resource{resReplicaSets, resDeployments, resStatefulSets, resDaemonSets, resJobs, resNodes} {
			if res.kind != rules.TextAt(r, "kind") || res.apiVersion() != rules.TextAt(r, "apiVersion") {
				continue
			}
			if !res.namespaced {
				ns = ""
			}
			owner := cl.store.getObject(res, objectKey(ns, rules.TextAt(r, "name")))
			if owner != nil && rules.TextAt(owner.body, "metadata", "uid") == rules.TextAt(r, "uid") {
				return owner, res
			}
		}
	}
	return nil, nil
}

// evictPod deletes a pod unless its disruption budget forbids that.
func (a *apiserver) evictPod(w http.ResponseWriter, req *request) error {
	opts, err := rules.ReadEviction(req.name, req.body, req.dryRun())
	if err != nil {
		return err
	}
	if err := a.cl.store.evictPod(req.namespace, req.name, opts); err != nil {
		return err
	}
	writeStatus(w, metav1.Status{Status: metav1.StatusSuccess, Code: http.StatusCreated})
	return nil
}

func (s *store) evictPod(ns, name string, opts metav1.DeleteOptions) error {
	key := objectKey(ns, name)
	o := s.getObject(resPods, key)
	if o == nil {
		return apierrors.NewNotFound(resPods.gr(), name)
	}
	dry := len(opts.DryRun) > 0
	if rules.NeedsBudget(o.body) {
		if err := s.askBudget(ns, name, o, dry); err != nil {
			return err
		}
	}
	s.updateStatus(resPods, key, func(o map[string]any) bool {
		status := rules.EnsureMap(o, "status")
		status["conditions"] = rules.SetCondition(rules.ListAt(status, "conditions"), "DisruptionTarget", "True", "EvictionByEvictionAPI", "Eviction API: evicting")
		return !dry && rules.ValueAt(o, "metadata", "deletionTimestamp") == nil
	})
	_, _, err := s.dropObject(resPods, key, opts)
	return err
}

// DrainNode implements world.Drainer. What no controller would replace stays, as the pods of
// DaemonSets and static pods do, and so does what a budget keeps for too long (recorded).
func (c *Clusters) DrainNode(ca, node string, done func()) (stop func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	over, d := false, drain.New(c.world.Now())
	var try func()
	try = func() {
		if over {
			return
		}
		wait := c.drainOnce(ca, node, d)
		if wait == 0 {
			over = true
			c.queueCallback(done)
			return
		}
		c.scheduleAfter(wait, try)
	}
	try()
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		over = true
	}
}

// drainOnce cordons a node, asks to evict the pods it had then and returns how long to wait for
// what is left of them.
func (c *Clusters) drainOnce(ca, node string, d *drain.Drain) (wait time.Duration) {
	cl, pods := c.clusterUp(ca), map[string]*pod{}
	if cl != nil {
		for _, p := range cl.boundTo(node) {
			if p.owner != "" && !p.daemon && !p.mirror {
				pods[p.uid] = p
			}
		}
		if !d.HasPods() {
			cl.store.updateObject(resNodes, objectKey("", node), func(o map[string]any) (cordoned bool) {
				rules.WriteAs(rules.Talos, o, func() { cordoned = rules.Cordon(o) })
				return cordoned
			})
			d.ListPods(c.world.Now(), slices.Collect(maps.Keys(pods)))
		}
	}
	evict, wait := d.Look(c.world.Now(), cl != nil, func(uid string) bool { return pods[uid] != nil })
	grace := int64(drain.Grace)
	for _, uid := range evict {
		ns, name := splitKey(pods[uid].key)
		err := cl.store.evictPod(ns, name, metav1.DeleteOptions{GracePeriodSeconds: &grace})
		wait = max(wait, d.NoteEviction(c.world.Now(), uid, err))
	}
	return wait
}

// askBudget takes the eviction of a pod off the budget that guards it, if one does.
func (s *store) askBudget(ns, name string, pod *object, dry bool) error {
	for {
		var guard *object
		var budget *policyv1.PodDisruptionBudget
		budgets, _ := s.listObjects(resBudgets, ns)
		for _, o := range budgets {
			b, sel, err := rules.ReadBudget(o.body)
			if err != nil {
				return apierrors.NewInternalError(err)
			}
			if !sel.Matches(labels.Set(rules.StringsAt(pod.body, "metadata", "labels"))) {
				continue
			}
			if guard != nil {
				return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError,
					Message: "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."}}
			}
			guard, budget = o, b
		}
		if guard == nil || !rules.IsReady(pod.body) && rules.SparesUnready(budget) {
			return nil
		}
		if err := rules.GrantEviction(budget, name, time.Now()); err != nil || dry {
			return err
		}
		next, err := rules.WriteBudget(guard.copyBody(), budget)
		if err != nil {
			return apierrors.NewInternalError(err)
		}
		if _, err := s.commitObject(resBudgets, objectKey(ns, budget.Name), guard, next); !errors.Is(err, errRaced) {
			return err
		}
	}
}
