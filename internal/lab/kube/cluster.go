package kube

import (
	"cmp"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/talos-agent/talos-agent/internal/lab/kube/containers"
	"github.com/talos-agent/talos-agent/internal/lab/kube/events"
	"github.com/talos-agent/talos-agent/internal/lab/kube/rules"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// cluster is one etcd and everything that lives on it. Its fields are guarded
// by Clusters.mu.
type cluster struct {
	c        *Clusters
	ca, etcd string
	store    *store

	apis   []*apiserver // started and not stopped
	up     []*apiserver // of them those that answer, in the order they came up
	vips   map[netip.Addr]*apiserver
	first  string // the node whose API was up first
	filled bool   // the store has what a new cluster has
	// The static pods of control planes as their kubelets have them, and how often each got others.
	static    map[string][]world.StaticPod
	manifests map[string]int
	cni       string
	caPEM     string
	podCIDRs  string
	ranges    int             // of the pod network given out
	restored  map[string]bool // those that its nodes have from a snapshot
	held      []func()        // what waits for an API

	reported bool // the addon that is the network is there
	lost     bool // another etcd was made of a snapshot in its place

	kubelets map[string]*kubelet // that registered last, by node

	// What the controllers know of the store.
	nodes      map[string]*node
	pods       map[string]*pod
	owned      map[string]map[string]*pod            // pods by the uid of their controller
	dependents map[string]map[ref]bool               // objects by the uids of their owners
	daemonSets map[string]bool                       // keys
	budgets    map[string]map[string]bool            // keys of disruption budgets by namespace
	services   map[string]map[string]labels.Selector // what services select, by namespace and key
	ending     map[string]bool                       // namespaces that are being deleted
	detaching  map[string]time.Duration              // volume attachments that will be removed, after how long
	orphaned   map[string]bool                       // nodes without an object, whose pods will be removed
	dirty      map[ref]bool                          // to be looked at
	unplaced   bool                                  // pods may wait for a node
	unused     bool                                  // volumes may be attached that no pod uses
	rolledOut  map[ref]bool                          // workloads that were complete last time
	planned    map[ref]bool                          // definitions that will be served soon
	refusals   rules.Refusals[ref]                   // workloads whose pods are refused
	recorder   *events.Recorder
	expiring   time.Time // when the next events may be removed
	retrying   bool      // pods without a node will be looked at again
}

// ref names a stored object.
type ref struct {
	res *resource
	key string
}

func compareRefs(a, b ref) int {
	return cmp.Or(cmp.Compare(a.res.name, b.res.name), cmp.Compare(a.key, b.key))
}

// node is what controllers know of a Node.
type node struct {
	rules.Node
	executes  bool      // its taints evict pods
	nextLook  time.Time // when the next pod has to go; zero: none
	ready     bool
	lost      bool // its kubelet is silent
	podCIDR   string
	addresses int // pod addresses given out
	pods      map[string]*pod
}

// pod is what controllers know of a Pod.
type pod struct {
	key, uid    string
	owner       string // uid of its controller
	node        string
	target      string // the node that it is on, or was made for
	hash        string // of the template it was made from
	labels      map[string]string
	hostNetwork bool
	mirror      bool // of a static pod
	daemon      bool // of a DaemonSet
	running     bool // its containers do
	ready       bool
	finished    bool
	failed      time.Time // of one that finished badly: when
	deleting    bool
	ending      *ending
	needs       rules.Amounts
	claims      []string            // keys of its volume claims
	since       uint64              // version it was made at
	tolerations []corev1.Toleration // once they were asked for
	unwelcome   time.Time           // since when it does not tolerate its node's taints for ever
	admitted    bool                // by the kubelet of its node
	starting    bool                // it will be ready soon
	refused     time.Time           // when the scheduler last reported that it found no node
	pulling     bool                // its image will be asked for again
	contended   bool                // another node has its volume, which was reported
}

func newCluster(c *Clusters, ca, etcd string) *cluster {
	return &cluster{
		c: c, ca: ca, etcd: etcd, store: newStore(ca+"/"+etcd, c.wakeLoop),
		vips: map[netip.Addr]*apiserver{}, kubelets: map[string]*kubelet{}, static: map[string][]world.StaticPod{}, manifests: map[string]int{},
		nodes: map[string]*node{}, pods: map[string]*pod{}, owned: map[string]map[string]*pod{},
		dependents: map[string]map[ref]bool{}, daemonSets: map[string]bool{}, budgets: map[string]map[string]bool{}, services: map[string]map[string]labels.Selector{}, ending: map[string]bool{}, orphaned: map[string]bool{}, detaching: map[string]time.Duration{},
		dirty: map[ref]bool{}, rolledOut: map[ref]bool{}, planned: map[ref]bool{}, refusals: rules.Refusals[ref]{}, recorder: events.NewRecorder(),
	}
}

// scheduleAfter plans f for when d has passed, or later if no API is up then:
// without one nobody can write.
func (cl *cluster) scheduleAfter(d time.Duration, f func()) {
	cl.c.scheduleAfter(d, func() {
		if len(cl.up) == 0 {
			cl.held = append(cl.held, f)
			return
		}
		f()
	})
}

// controllers look at an object again after it, or something it depends on,
// changed. They bring the store one step nearer to what the object asks for.
var controllers = map[*resource]func(*cluster, string){
	resNamespaces:   (*cluster).tendNamespace,
	resNodes:        (*cluster).tendNode,
	resCRDs:         (*cluster).tendDefinition,
	resClaims:       (*cluster).tendClaim,
	resPods:         (*cluster).tendPod,
	resDaemonSets:   (*cluster).tendDaemonSet,
	resDeployments:  (*cluster).tendDeployment,
	resReplicaSets:  (*cluster).tendReplicaSet,
	resStatefulSets: (*cluster).tendStatefulSet,
	resJobs:         (*cluster).tendJob,
	resBudgets:      (*cluster).tendBudget,
	resServices:     (*cluster).tendService,
}

// runControllers lets the controllers look at what changed. It returns false when
// there is nothing left to do, or nobody to do it: controllers need an API.
func (cl *cluster) runControllers() bool {
	if len(cl.up) == 0 {
		return false
	}
	changes := cl.store.takeChanges()
	for _, ch := range changes {
		cl.observeChange(ch)
	}
	if len(cl.dirty) == 0 && !cl.unplaced && !cl.unused {
		return len(changes) > 0
	}
	dirty := slices.SortedFunc(maps.Keys(cl.dirty), compareRefs)
	clear(cl.dirty)
	for _, r := range dirty {
		controllers[r.res](cl, r.key)
	}
	if cl.unplaced {
		cl.unplaced = false
		cl.placePods()
	}
	if cl.unused {
		cl.unused = false
		cl.detachUnused()
	}
	return true
}

// observeChange takes a change of the store in.
func (cl *cluster) observeChange(ch change) {
	cl.collectGarbage(ch)
	if controllers[ch.res] != nil {
		cl.dirty[ref{ch.res, ch.key}] = true
	}
	ns, _ := splitKey(ch.key)
	switch ch.res {
	case resNodes:
		cl.observeNode(ch)
	case resPods:
		if p := cl.pods[ch.key]; p != nil && len(p.claims) > 0 {
			cl.unused = true
		}
		cl.observePod(ch)
		cl.touchBudgets(ns)
		cl.touchServices(ch, ns)
	case resClaims, resAttachments:
		cl.touchClaimants()
	case resServices:
		cl.observeService(ch, ns)
	case resDaemonSets:
		delete(cl.daemonSets, ch.key)
		if ch.new != nil {
			cl.daemonSets[ch.key] = true
		}
	case resReplicaSets:
		// Their Deployments count them.
		for _, o := range [2]*object{ch.old, ch.new} {
			cl.touchOwners(o, resDeployments)
		}
		cl.touchBudgets(ns)
	case resDeployments, resStatefulSets:
		cl.touchBudgets(ns)
	case resBudgets:
		if cl.budgets[ns] == nil {
			cl.budgets[ns] = map[string]bool{}
		}
		if cl.budgets[ns][ch.key] = true; ch.new == nil {
			delete(cl.budgets[ns], ch.key)
		}
	case resNamespaces:
		delete(cl.ending, ch.key)
		if ch.new != nil && rules.TextAt(ch.new.body, "status", "phase") == "Terminating" {
			cl.ending[ch.key] = true
		}
	}
	if ch.new == nil {
		// Somebody may wait for its end.
		if key := objectKey("", ns); cl.ending[key] {
			cl.dirty[ref{resNamespaces, key}] = true
		}
		if ch.res.typ == nil {
			cl.dirty[ref{resCRDs, objectKey("", ch.res.name+"."+ch.res.group)}] = true
		}
	}
}

// collectGarbage deletes what an object owned when it goes, or sets it free.
func (cl *cluster) collectGarbage(ch change) {
	self := ref{ch.res, ch.key}
	if ch.old != nil {
		for _, uid := range rules.ListOwners(ch.old.body) {
			delete(cl.dependents[uid], self)
		}
	}
	if ch.new != nil {
		for _, uid := range rules.ListOwners(ch.new.body) {
			if cl.dependents[uid] == nil {
				cl.dependents[uid] = map[ref]bool{}
			}
			cl.dependents[uid][self] = true
		}
		return
	}
	uid := rules.TextAt(ch.old.body, "metadata", "uid")
	for _, r := range slices.SortedFunc(maps.Keys(cl.dependents[uid]), compareRefs) {
		if ch.orphan {
			cl.store.updateObject(r.res, r.key, func(o map[string]any) bool {
				meta := rules.MapAt(o, "metadata")
				meta["ownerReferences"] = slices.DeleteFunc(rules.ListAt(meta, "ownerReferences"), func(e any) bool {
					m, _ := e.(map[string]any)
					return rules.TextAt(m, "uid") == uid
				})
				return true
			})
			continue
		}
		cl.dropObject(r.res, r.key)
	}
	delete(cl.dependents, uid)
}

// touchOwners has the owners of an object looked at again, if they are of a
// resource.
func (cl *cluster) touchOwners(o *object, res *resource) {
	if o == nil {
		return
	}
	for _, e := range rules.ListAt(o.body, "metadata", "ownerReferences") {
		r, _ := e.(map[string]any)
		if rules.TextAt(r, "kind") == res.kind {
			cl.dirty[ref{res, objectKey(rules.TextAt(o.body, "metadata", "namespace"), rules.TextAt(r, "name"))}] = true
		}
	}
}

func (cl *cluster) observeNode(ch change) {
	_, name := splitKey(ch.key)
	n := cl.nodes[name]
	if n == nil {
		n = &node{Node: rules.Node{Name: name}, pods: map[string]*pod{}}
		for _, p := range cl.pods {
			if p.node == name {
				n.pods[p.key] = p
			}
		}
	}
	if ch.old == nil {
		cl.record(events.Register(ch.new.body))
	}
	if ch.new == nil {
		cl.record(events.Remove(ch.old.body))
	}
	was := *n
	delete(cl.nodes, name)
	if ch.new != nil {
		cl.nodes[name] = n
		n.readNode(ch.new.body)
		if ch.old != nil && reflect.DeepEqual(was, *n) {
			return // nothing that matters to pods
		}
	}
	cl.unplaced, cl.unused = true, true
	for key := range cl.daemonSets {
		cl.dirty[ref{resDaemonSets, key}] = true
	}
	for key := range n.pods {
		cl.dirty[ref{resPods, key}] = true
	}
}

// readNode takes in a Node object.
func (n *node) readNode(body map[string]any) {
	n.Labels = rules.StringsAt(body, "metadata", "labels")
	n.Unschedulable = rules.BoolAt(body, "spec", "unschedulable")
	n.podCIDR = rules.TextAt(body, "spec", "podCIDR")
	n.Taints = nil
	for _, t := range rules.MapsAt(body, "spec", "taints") {
		n.Taints = append(n.Taints, corev1.Taint{Key: rules.TextAt(t, "key"), Value: rules.TextAt(t, "value"), Effect: corev1.TaintEffect(rules.TextAt(t, "effect"))})
	}
	n.executes = n.Executes()
	n.Allocatable = rules.AmountsOf(rules.MapAt(body, "status", "allocatable"))
	n.ready, n.lost = false, false
	for _, c := range rules.MapsAt(body, "status", "conditions") {
		if rules.TextAt(c, "type") == "Ready" {
			n.ready = rules.TextAt(c, "status") == "True"
			n.lost = rules.TextAt(c, "status") == "Unknown"
		}
	}
}

func (cl *cluster) observePod(ch change) {
	p, before := cl.pods[ch.key], ""
	if p != nil {
		before = p.node
		delete(cl.owned[p.owner], p.key)
		if n := cl.nodes[p.node]; n != nil {
			delete(n.pods, p.key)
		}
	}
	for _, o := range [2]*object{ch.old, ch.new} {
		for _, res := range []*resource{resDaemonSets, resReplicaSets, resStatefulSets, resJobs} {
			cl.touchOwners(o, res)
		}
	}
	if ch.new == nil {
		delete(cl.pods, ch.key)
		cl.unplaced = true // it may have stood in another's way
		return
	}
	if uid := rules.TextAt(ch.new.body, "metadata", "uid"); p == nil || p.uid != uid {
		p = &pod{key: ch.key, uid: uid, since: ch.rv, needs: rules.RequestsOf(ch.new.body), claims: claimsOf(ch.new.body)}
		cl.pods[ch.key] = p
	}
	p.readPod(ch.new.body)
	cl.unplaced = cl.unplaced || p.finished // it no longer needs its place
	if cl.owned[p.owner] == nil {
		cl.owned[p.owner] = map[string]*pod{}
	}
	cl.owned[p.owner][p.key] = p
	if n := cl.nodes[p.node]; n != nil {
		n.pods[p.key] = p
		if n.executes && p.node != before {
			cl.dirty[ref{resNodes, objectKey("", n.Name)}] = true
		}
	}
	cl.unplaced = cl.unplaced || p.node == ""
}

// readPod takes in a Pod object.
func (p *pod) readPod(body map[string]any) {
	meta := rules.MapAt(body, "metadata")
	p.labels = rules.StringsAt(meta, "labels")
	p.hash = cmp.Or(p.labels[hashOfSet], p.labels[hashOfTemplate])
	p.owner = ""
	for _, e := range rules.ListAt(meta, "ownerReferences") {
		r, _ := e.(map[string]any)
		if rules.BoolAt(r, "controller") {
			p.owner, p.daemon = rules.TextAt(r, "uid"), rules.TextAt(r, "kind") == resDaemonSets.kind
		}
	}
	p.deleting = meta["deletionTimestamp"] != nil
	p.mirror = rules.TextAt(meta, "annotations", corev1.MirrorPodAnnotationKey) != ""
	p.node = rules.TextAt(body, "spec", "nodeName")
	p.target = cmp.Or(p.node, rules.PinnedTo(rules.MapAt(body, "spec")))
	p.hostNetwork = rules.BoolAt(body, "spec", "hostNetwork")
	phase := rules.TextAt(body, "status", "phase")
	p.finished = phase == "Succeeded" || phase == "Failed"
	if p.failed = (time.Time{}); phase == "Failed" {
		p.failed = containers.EndOf(body)
	}
	p.ready, p.running = rules.IsReady(body), p.mirror && phase == "Running"
	for _, e := range rules.ListAt(body, "status", "containerStatuses") {
		c, _ := e.(map[string]any)
		p.running = p.running || rules.MapAt(c, "state", "running") != nil
	}
}

// setStatus stores an object's status if it differs.
func (cl *cluster) setStatus(r ref, status map[string]any) {
	o := cl.store.getObject(r.res, r.key)
	if o == nil || reflect.DeepEqual(o.body["status"], status) {
		return
	}
	cl.store.updateStatus(r.res, r.key, func(obj map[string]any) bool {
		obj["status"] = runtime.DeepCopyJSONValue(status)
		return true
	})
}
