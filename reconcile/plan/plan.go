package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/action"
	"github.com/talos-agent/talos-agent/reconcile/bounds"
	"github.com/talos-agent/talos-agent/reconcile/budget"
	"github.com/talos-agent/talos-agent/reconcile/capacity"
	"github.com/talos-agent/talos-agent/reconcile/drift"
	"github.com/talos-agent/talos-agent/reconcile/leftover"
	"github.com/talos-agent/talos-agent/reconcile/lost"
	"github.com/talos-agent/talos-agent/reconcile/placement"
	"github.com/talos-agent/talos-agent/reconcile/quorum"
	"github.com/talos-agent/talos-agent/reconcile/readiness"
	"github.com/talos-agent/talos-agent/reconcile/upgrade"
)

// Plan is the answer to the difference between what should be and what is.
type Plan struct {
	Revision cluster.Revision
	Actions  []action.Action // what may be done now, side by side
	Waiting  []cluster.Wait  // what must happen first, and why
	Blocked  []cluster.Block // what a person must change
	Phases   map[string]cluster.Phase
	// Destroyed is set when the cluster is to be destroyed and it is verified that
	// nothing of it is left.
	Destroyed bool
	// Left is set when the cluster is to be destroyed, and all that is left of it is
	// what a person has to decide on.
	Left []cluster.Block
}

// Converged reports whether there is nothing to do, to wait for or to fix.
func (p Plan) Converged() bool {
	return len(p.Actions) == 0 && len(p.Waiting) == 0 && len(p.Blocked) == 0
}

// How long the world may reasonably take; see the table of deadlines in
// docs/explanation/one-pass.md.
const (
	joinWithin     = 20 * time.Minute
	etcdWithin     = 10 * time.Minute
	apiWithin      = 10 * time.Minute
	readyWithin    = 20 * time.Minute
	pressureWithin = 10 * time.Minute // a kubelet reports pressure for 5 minutes after its end
	lockWithin     = 6 * time.Hour    // a backup of a large VM takes its time
	taskWithin     = 30 * time.Minute
	refusedWithin  = 2 * time.Minute // a new label has its effect when the pods are tried again
	seeWithin      = 2 * time.Minute // an answer that is missing for once
	silentWithin   = 2 * time.Minute // Kubernetes calls a node Ready for 50 s after its end
)

// planner carries one Make through its steps.
type planner struct {
	d cluster.Desired
	o cluster.Observed
	p cluster.Policy

	running    map[cluster.ActionID]cluster.Running
	backoffs   map[cluster.ActionID]cluster.Backoff
	dead       string                               // the node that gets a new machine because it is dead
	held       map[cluster.Claim][]cluster.ActionID // what is claimed, by whom, under way or planned
	alone      map[cluster.Claim]bool               // and whether for itself
	overdue    map[cluster.ActionID]bool            // what takes longer than it should
	budgets    map[cluster.Role]budget.Budget
	fewer      string // the rule of the host by which fewer workers may be unavailable than the cluster asks for
	etcd       quorum.Etcd
	turns      map[string][]drift.Drift   // turnOf by node, once it was asked for
	wants      map[string]string          // wantOf by node, the same
	planned    map[cluster.ActionID]bool  // what is in the plan
	lacks      map[string][]cluster.Block // by node without a VM: what there is too little of for it
	short      map[string][]string        // by node: the fields of its VM that there is no room for
	target     string                     // identifies the configs of all nodes, once it was asked for
	rotated    []string                   // the nodes whose machines have another authority
	reassigned []string                   // the nodes whose machines have another role
	ledger     *capacity.Ledger           // of the memory of hosts and the room on storages
	tooLarge   bool                       // nothing of the cluster is there, and not all of it would fit
	removed    []cluster.Node             // leftover.RemovedNodes
	crowded    []cluster.Block            // why no VM may be made before those that are removed are deleted
	supply     upgrade.Supply             // of the hops to come
	befores    []cluster.Wait             // nodesBefore, once it was asked for
	waits      map[cluster.Key][]int      // where in the plan those are that are waited for
	nodes      map[string]int             // where in the inventory those are, by name
	failed     *string                    // failedTurn, once it was asked for
	plan       Plan
}

// Make plans. It never fails: what it cannot decide is a Wait or a Block. Under a
// policy that is not known the plan has no actions, and destroys nothing either.
func Make(d cluster.Desired, o cluster.Observed, p cluster.Policy) Plan {
	plan := decide(d, o, p)
	if b := bounds.BlockUnknown(d.Spec.Name, p); len(b) > 0 {
		plan.Actions, plan.Blocked = nil, append(b, plan.Blocked...)
	}
	return plan
}

// decide plans under the rules of a policy, be it known or not.
func decide(d cluster.Desired, o cluster.Observed, p cluster.Policy) Plan {
	d = placement.Resolve(d, o, p)
	m := newPlanner(d, o, p)
	if o.Facts.Destroying() {
		m.planOverdue()
		m.planDestroy()
		return m.plan
	}
	if o.Facts.Suspended() {
		m.plan.Blocked, m.plan.Waiting = slices.Clone(o.Facts.LeftOver()), leftover.AwaitResume(d, o)
		return m.plan
	}
	if refusals := m.refusals(); len(refusals) > 0 {
		m.plan.Blocked = refusals
		return m.plan
	}
	m.planOverdue()
	if w := readiness.AwaitVIP(m.d, m.o); w.Reason != "" {
		m.wait(w)
	}
	m.blockAlarms()
	m.blockContract()
	m.judgeMachines()
	m.judgeCapacity()
	m.planImage()
	m.planSupply()
	m.planSnapshot()
	for _, n := range upgrade.Order(d, o) {
		m.planNode(n)
		if ph := m.plan.Phases[n.Name]; ph != cluster.PhaseReady && ph != cluster.PhaseJoining {
			m.planMeta(n) // of those it is planned before their turns
		}
	}
	m.planBootstrap()
	m.planAddons()
	m.planSystemPods()
	m.planTwins()
	m.planRemovals()
	m.planOrphanMembers()
	m.planOrphanNodes()
	m.planHops()
	m.planManifests()
	m.planAvailability()
	for _, job := range upgrade.LeftJobs(d, o) {
		m.do(action.DeleteJob{Job: job, Why: "which is no longer needed"})
	}
	m.keepRetries()
	return m.plan
}

// newPlanner takes in what is under way, and what follows from what is seen before
// any node is planned: phases, budgets and the state of etcd.
func newPlanner(d cluster.Desired, o cluster.Observed, p cluster.Policy) *planner {
	m := &planner{d: d, o: o, p: p,
		running:  map[cluster.ActionID]cluster.Running{},
		backoffs: map[cluster.ActionID]cluster.Backoff{},
		held:     map[cluster.Claim][]cluster.ActionID{},
		alone:    map[cluster.Claim]bool{},
		overdue:  map[cluster.ActionID]bool{},
		dead:     lost.DeadNode(d, o),
		turns:    map[string][]drift.Drift{},
		wants:    map[string]string{},
		planned:  map[cluster.ActionID]bool{},
		waits:    map[cluster.Key][]int{},
		nodes:    map[string]int{},
		plan:     Plan{Revision: d.Revision, Phases: map[string]cluster.Phase{}},
	}
	for _, r := range o.Running {
		m.running[r.ActionID] = r
		m.hold(r.ActionID, r.Claims)
	}
	for _, b := range o.Backoffs {
		m.backoffs[b.ActionID] = b
	}
	for i, n := range d.Spec.Nodes {
		phase := readiness.Classify(n, o)
		m.nodes[n.Name] = i
		m.plan.Phases[n.Name] = phase
		if phase == cluster.PhaseCreating && !m.isRunning(cluster.CreateVM, n.Name) {
			// A task that a dead agent began allocates all the same.
			a := action.CreateVM{Node: n, Host: o.VMs[n.Name].Carrier(n)}.Info()
			m.hold(a.ID(), a.Claims)
		}
	}
	m.removed = leftover.RemovedNodes(d, o)
	narrowed := d.Spec
	narrowed.MaxUnavailable, m.fewer = bounds.MaxUnavailable(d.Spec, p)
	m.budgets, m.etcd = budget.Of(narrowed, m.plan.Phases, o, m.removed), leftover.EtcdOf(d, o)
	m.crowded = bounds.OverLimits(d, p, o.Orphans.Value)
	return m
}

// refusals are the reasons not to act on the cluster at all. Host policy comes
// first: it outranks the repository.
func (m *planner) refusals() []cluster.Block {
	blocks := bounds.Violations(m.d, m.p)
	switch {
	case m.d.Bundle.IsZero() && m.o.Facts.Fingerprint != "": // new ones would be other keys
		blocks = append(blocks, cluster.Block{Subject: m.d.Spec.Name,
			Reason: cluster.SecretsMissing, Message: "the inventory has no secrets.sops.yaml any more, and without the keys that this cluster was built with none of its nodes can be asked",
			Hint: "restore the file from the history of the repository"})
	case m.d.Bundle.IsZero():
		blocks = append(blocks, cluster.Block{Subject: m.d.Spec.Name,
			Reason: cluster.SecretsMissing, Message: "the inventory has no secrets.sops.yaml, so there are no keys to build the cluster with",
			Hint: fmt.Sprintf("run `talos-agent secrets new --cluster %s DIR` in a clone of the repository, commit the file and push", m.d.Spec.Name)})
	}
	if f := m.o.Facts.Fingerprint; f != "" && m.d.Fingerprint != "" && f != m.d.Fingerprint {
		blocks = append(blocks, cluster.Block{Subject: m.d.Spec.Name,
			Reason: cluster.SecretsChanged, Message: "secrets.sops.yaml holds other keys than the ones this cluster was built with; applying them would lock everybody out",
			Hint: "restore the file from the history of the repository; to start over with new keys, destroy the cluster first"})
	}
	return blocks
}

// do puts an action into the plan, unless it is under way, backs off after a
// failure, needs for itself what another one holds, or disrupts more than may be
// disrupted.
func (m *planner) do(a action.Action) { m.doUnless(a, nil) }

// doUnless is do for an action that something else may hold, which is asked last: when nothing but that keeps it from the
// plan. It is the only way into the plan.
func (m *planner) doUnless(a action.Action, holds func(action.Info) bool) {
	i := a.Info()
	if m.isRunning(i.Kind, i.Subject) || m.isPlanned(i.Kind, i.Subject) {
		return
	}
	if b := m.backoffs[i.ID()]; m.o.Now.Before(b.Until) {
		w := readiness.AwaitRetry(b)
		w.Drift = m.driftOfAction(i)
		m.wait(w)
		return
	}
	for _, c := range i.Claims {
		if by := m.held[c.Resource()]; len(by) > 0 && (!c.IsCopy() || m.alone[c.Resource()] || len(by) >= m.p.Capacity.Copies()) {
			m.wait(action.AwaitClaim(i, c, by, m.driftOfAction(i)))
			return
		}
	}
	budgets, etcd := m.budgets, m.etcd
	if holds != nil {
		m.budgets = maps.Clone(budgets)
	}
	if m.holdBySwitch(i) || m.holdByMachines(i) || i.Disrupts && (m.holdByWindow(i) || !m.mayDisrupt(i)) {
		return
	}
	if holds != nil && holds(i) { // others may go on meanwhile
		m.budgets, m.etcd = budgets, etcd
		return
	}
	m.hold(i.ID(), i.Claims)
	m.plan.Actions, m.planned[i.ID()] = append(m.plan.Actions, a), true
}

// hold notes the claims of an action.
func (m *planner) hold(id cluster.ActionID, claims []cluster.Claim) {
	for _, c := range claims {
		m.held[c.Resource()] = append(m.held[c.Resource()], id)
		m.alone[c.Resource()] = m.alone[c.Resource()] || !c.IsCopy()
	}
}

// keepRetries keeps reporting what has failed again and again while it is tried
// once more: otherwise every try would look like the end of the stall, and
// would be notified to everybody. What somebody else undoes again and again is reported
// until it has stayed for a whole backoff, for the same reason.
func (m *planner) keepRetries() {
	for _, b := range m.o.Backoffs {
		again := m.isRunning(b.Kind, b.Subject) || m.isPlanned(b.Kind, b.Subject)
		waits := b.Undone && m.o.Now.Before(b.Until)
		if (again || waits) && b.Failed >= readiness.StalledAfter {
			m.wait(readiness.AwaitRetry(b))
		}
	}
}

// wait waits for something once, whatever of what differs has to.
func (m *planner) wait(w cluster.Wait) {
	of := m.waits[w.Key()] // those of another key are not compared: there may be one for each of many nodes
	i := slices.IndexFunc(of, func(i int) bool { v := m.plan.Waiting[i]; v.Drift = w.Drift; return v.Equal(w) })
	if i < 0 {
		m.waits[w.Key()] = append(of, len(m.plan.Waiting))
		m.plan.Waiting = append(m.plan.Waiting, w)
		return
	}
	same := &m.plan.Waiting[of[i]]
	for _, f := range w.Drift {
		if !slices.Contains(same.Drift, f) {
			same.Drift = append(same.Drift, f)
		}
	}
}

func (m *planner) block(b cluster.Block) {
	if !slices.ContainsFunc(m.plan.Blocked, b.Equal) {
		m.plan.Blocked = append(m.plan.Blocked, b)
	}
}

// nodeNamed is Spec.Node, which compares every node with each name that is looked up.
func (m *planner) nodeNamed(name string) (cluster.Node, bool) {
	if i, there := m.nodes[name]; there && i < len(m.d.Spec.Nodes) && m.d.Spec.Nodes[i].Name == name {
		return m.d.Spec.Nodes[i], true
	}
	return m.d.Spec.Node(name)
}

func (m *planner) isRunning(kind cluster.ActionKind, subject string) bool {
	_, ok := m.running[cluster.ActionID{Kind: kind, Subject: subject}]
	return ok
}

func (m *planner) isPlanned(kind cluster.ActionKind, subject string) bool {
	return m.planned[cluster.ActionID{Kind: kind, Subject: subject}]
}

func all[T any](s []T, f func(T) bool) bool {
	return !slices.ContainsFunc(s, func(v T) bool { return !f(v) })
}

// String prints the plan as text, one line each, for tests and the log.
func (p Plan) String() string {
	var b strings.Builder
	for _, a := range p.Actions {
		fmt.Fprintf(&b, "do     %s\n", a.Info().Text)
	}
	for _, w := range p.Waiting {
		fmt.Fprintf(&b, "wait   %s: %s\n", w.Subject, w.Message)
	}
	for _, k := range p.Blocked {
		fmt.Fprintf(&b, "block  %s: %s", k.Subject, k.Message)
		if k.Hint != "" {
			fmt.Fprintf(&b, " [%s]", k.Hint)
		}
		b.WriteString("\n")
	}
	if p.Destroyed {
		b.WriteString("destroyed\n")
	}
	if len(p.Left) > 0 {
		fmt.Fprintf(&b, "ended, %d left\n", len(p.Left))
	}
	return b.String()
}
