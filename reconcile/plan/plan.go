package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// Plan is the answer to the difference between what should be and what is.
type Plan struct {
	Revision cluster.Revision
	Actions  []Action        // what may be done now, side by side
	Waiting  []cluster.Wait  // what must happen first, and why
	Blocked  []cluster.Block // what a person must change
	Phases   map[string]cluster.Phase
	// Gone is set on a tear-down when it is proven that nothing of the cluster
	// is left.
	Gone bool
}

// Converged reports whether there is nothing to do, to wait for or to mend.
func (p Plan) Converged() bool {
	return len(p.Actions) == 0 && len(p.Waiting) == 0 && len(p.Blocked) == 0
}

// How long the world may reasonably take; see the table of deadlines in
// docs/explanation/one-pass.md.
const (
	bootWithin   = 5 * time.Minute
	joinWithin   = 20 * time.Minute
	etcdWithin   = 10 * time.Minute
	apiWithin    = 10 * time.Minute
	readyWithin  = 20 * time.Minute
	lockWithin   = 6 * time.Hour // a backup of a large VM takes its time
	taskWithin   = 30 * time.Minute
	seeWithin    = 2 * time.Minute // an answer that is missing for once
	unfinishedAt = 2 << 30         // bytes; the image's own size lies below, every inventory's above
)

// planner carries one Make through its steps.
type planner struct {
	d cluster.Desired
	o cluster.Observed
	p cluster.Policy

	running  map[cluster.ActionID]cluster.Running
	backoffs map[cluster.ActionID]cluster.Backoff
	held     map[cluster.Claim]cluster.ActionID // by whom, under way or planned
	budgets  map[cluster.Role]Budget
	etcd     etcd
	plan     Plan
}

// Make plans. It never fails: what it cannot decide is a Wait or a Block. Under a
// policy that is in doubt the plan has no actions, a tear-down's neither.
func Make(d cluster.Desired, o cluster.Observed, p cluster.Policy) Plan {
	plan := decide(d, o, p)
	if b := inDoubt(d.Spec.Name, p); len(b) > 0 {
		plan.Actions, plan.Blocked = nil, append(b, plan.Blocked...)
	}
	return plan
}

// decide plans under the rules of a policy, be it in doubt or not.
func decide(d cluster.Desired, o cluster.Observed, p cluster.Policy) Plan {
	m := newPlanner(d, o, p)
	if o.Facts.Destroying() {
		m.tearDown()
		return m.plan
	}
	if o.Facts.Suspended() {
		return m.plan
	}
	if refusals := m.refusals(); len(refusals) > 0 {
		m.plan.Blocked = refusals
		return m.plan
	}
	m.image()
	for _, n := range d.Spec.Nodes {
		m.node(n)
	}
	m.bootstrap()
	m.addons()
	m.strays()
	m.retries()
	return m.plan
}

// newPlanner takes in what is under way, and what follows from what is seen before
// any node is planned: phases, budgets and the state of etcd.
func newPlanner(d cluster.Desired, o cluster.Observed, p cluster.Policy) *planner {
	m := &planner{d: d, o: o, p: p,
		running:  map[cluster.ActionID]cluster.Running{},
		backoffs: map[cluster.ActionID]cluster.Backoff{},
		held:     map[cluster.Claim]cluster.ActionID{},
		plan:     Plan{Revision: d.Revision, Phases: map[string]cluster.Phase{}},
	}
	for _, r := range o.Running {
		m.running[r.ActionID] = r
		m.hold(r.ActionID, r.Claims)
	}
	for _, b := range o.Backoffs {
		m.backoffs[b.ActionID] = b
	}
	for _, n := range d.Spec.Nodes {
		phase := Classify(n, o)
		m.plan.Phases[n.Name] = phase
		if phase == cluster.PhaseCreating && !m.isRunning(cluster.CreateVM, n.Name) {
			// A task that a dead agent began allocates all the same.
			a := CreateVM{Node: n, Host: carrier(n, o.VMs[n.Name])}.Info()
			m.hold(a.ID(), a.Claims)
		}
	}
	m.budgets, m.etcd = budgetsOf(d.Spec, m.plan.Phases), etcdOf(d.Spec, o)
	return m
}

// refusals are the reasons not to act on the cluster at all. Host policy comes
// first: it outranks the repository.
func (m *planner) refusals() []cluster.Block {
	blocks := violations(m.d, m.p, m.o.Strays.Value)
	if m.d.Bundle.IsZero() {
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
// disrupted. It is the only way into the plan.
func (m *planner) do(a Action) {
	i := a.Info()
	if m.isRunning(i.Kind, i.Subject) || m.isPlanned(i.Kind, i.Subject) {
		return
	}
	if b, ok := m.backoffs[i.ID()]; ok && m.o.Now.Before(b.Until) {
		m.wait(retried(b))
		return
	}
	for _, c := range i.Claims {
		if _, taken := m.held[c]; taken {
			m.wait(cluster.Wait{Subject: i.Subject, Reason: cluster.WaitingForTurn, About: string(c), Message: "waits for its turn on " + string(c)})
			return
		}
	}
	if i.Disrupts && !m.mayDisrupt(i) {
		return
	}
	m.hold(i.ID(), i.Claims)
	m.plan.Actions = append(m.plan.Actions, a)
}

// hold notes the claims of an action.
func (m *planner) hold(id cluster.ActionID, claims []cluster.Claim) {
	for _, c := range claims {
		m.held[c] = id
	}
}

// stalledAfter is how many failures in a row count as a stall; the agent keeps
// trying all the same.
const stalledAfter = 3

// retried is the wait for another try of an action.
func retried(b cluster.Backoff) cluster.Wait {
	w := cluster.Wait{Subject: b.Subject, Reason: cluster.ActionFailed, About: string(b.Kind), Message: string(b.Kind) + " failed and is tried again: " + b.Error, Hint: b.Hint, Within: time.Hour}
	if b.Failed >= stalledAfter {
		w.Within = time.Nanosecond
	}
	return w
}

// retries keeps telling of what has failed again and again while it is tried
// once more: otherwise every try would look like the end of the stall, and
// would be told to everybody.
func (m *planner) retries() {
	for _, b := range m.o.Backoffs {
		again := m.isRunning(b.Kind, b.Subject) || m.isPlanned(b.Kind, b.Subject)
		if again && b.Failed >= stalledAfter {
			m.wait(retried(b))
		}
	}
}

func (m *planner) wait(w cluster.Wait) {
	if !slices.Contains(m.plan.Waiting, w) {
		m.plan.Waiting = append(m.plan.Waiting, w)
	}
}

func (m *planner) block(b cluster.Block) {
	if !slices.Contains(m.plan.Blocked, b) {
		m.plan.Blocked = append(m.plan.Blocked, b)
	}
}

func (m *planner) isRunning(kind cluster.ActionKind, subject string) bool {
	_, ok := m.running[cluster.ActionID{Kind: kind, Subject: subject}]
	return ok
}

func (m *planner) isPlanned(kind cluster.ActionKind, subject string) bool {
	id := cluster.ActionID{Kind: kind, Subject: subject}
	return slices.ContainsFunc(m.plan.Actions, func(a Action) bool { return a.Info().ID() == id })
}

// image plans what brings the Talos image to every host that needs it. It is
// needed only where a VM has to be made; its schematic's id is part of every
// machine config.
func (m *planner) image() {
	if m.d.Schematic == "" {
		m.do(RegisterSchematic{Cluster: m.d.Spec.Name, Schematic: m.d.Spec.Schematic})
	}
	type place struct{ host, datastore string }
	var places []place
	for _, n := range m.d.Spec.Nodes {
		ph := m.plan.Phases[n.Name]
		if ph != cluster.PhaseAbsent || n.Locked {
			continue
		}
		if pl := (place{m.placeNode(n), n.ImageDatastore}); !slices.Contains(places, pl) {
			places = append(places, pl)
		}
	}
	if len(places) == 0 {
		return
	}
	if m.d.Schematic == "" {
		return
	}
	missing := false
	for _, pl := range places {
		h := m.o.Hosts[pl.host]
		if !h.Images.Known {
			continue // the node's own wait says so
		}
		if _, ok := h.Images.Value[m.d.Image.Name]; ok {
			continue
		}
		missing = true
		if m.o.ImageCached.Known && m.o.ImageCached.Value {
			m.do(UploadImage{Image: m.d.Image, Host: pl.host, Datastore: pl.datastore})
		}
	}
	if missing && m.o.ImageCached.Known && !m.o.ImageCached.Value {
		m.do(DownloadImage{Image: m.d.Image})
	}
}

// bootstrap plans the one call that founds etcd.
func (m *planner) bootstrap() {
	cps := m.d.Spec.ControlPlanes()
	if len(cps) == 0 || etcdSeen(m.o) {
		return
	}
	intent, intended := m.o.Facts.Intent(cluster.IntendBootstrap)
	if intent.Done {
		// etcd was there once. When no control plane answers, it is not known
		// to be gone; when all of them say it is, only a restore helps.
		if all(cps, func(n cluster.Node) bool { return neverFounded(m.o, n) }) {
			m.block(cluster.Block{Subject: m.d.Spec.Name,
				Reason: cluster.EtcdLost, Message: "this cluster had an etcd, and no control plane has it any more; a second bootstrap would make an empty cluster in its place",
				Hint: fmt.Sprintf("restore a snapshot, or give the cluster up with `talos-agent destroy %s`", m.d.Spec.Name)})
		} else {
			m.wait(cluster.Wait{Subject: m.d.Spec.Name, Reason: cluster.EtcdUnreachable, Message: "etcd of this cluster does not answer", Within: etcdWithin,
				Hint: "look at the control planes: `talos-agent status` shows what each one does"})
		}
		return
	}
	chosen := cps[0]
	if intended {
		i := slices.IndexFunc(cps, func(n cluster.Node) bool { return n.Name == intent.Node && n.UUID == intent.UUID })
		if i < 0 || m.plan.Phases[intent.Node] == cluster.PhaseAbsent {
			m.block(cluster.Block{Subject: m.d.Spec.Name,
				Reason: cluster.BootstrapUncertain, Message: fmt.Sprintf("bootstrap was sent to %s, which is gone; whether it founded a cluster is not known, and founding a second one could split it", intent.Node),
				Hint: fmt.Sprintf("nothing of value can be lost if the cluster never came up: `talos-agent destroy %s` and start over", m.d.Spec.Name)})
			return
		}
		chosen = cps[i]
	} else if m.o.Facts.Lost && !SeesAllVMs(m.o) {
		m.wait(cluster.Wait{Subject: m.d.Spec.Name, Within: seeWithin, Reason: cluster.VMsUnknown, Message: blindStart})
		return
	} else if m.o.Facts.Lost {
		m.block(cluster.Block{Subject: m.d.Spec.Name,
			Reason: cluster.JournalLost, Message: "the agent's own records are lost, so that it cannot know whether bootstrap was sent before",
			Hint: fmt.Sprintf("if this cluster never came up: `talos-agent accept %s --bootstrap`; otherwise wait until its control planes answer", m.d.Spec.Name)})
		return
	}
	mach := m.o.Machines[chosen.Name]
	if m.plan.Phases[chosen.Name] != cluster.PhaseJoining || chosen.Locked {
		return // the node's own wait or block says what is missing
	}
	if !intended {
		for _, n := range cps {
			if n.Name != chosen.Name && !neverFounded(m.o, n) {
				m.wait(cluster.Wait{Subject: m.d.Spec.Name, Within: joinWithin,
					Reason: cluster.BootstrapUncertain, Message: fmt.Sprintf("waits to hear from %s that it has no etcd, before founding one on %s", n.Name, chosen.Name)})
				return
			}
		}
	}
	etcd, known := mach.Services["etcd"]
	switch {
	case mach.Stage != "booting" && mach.Stage != "running", !known, etcd.State != "Preparing":
		m.wait(cluster.Wait{Subject: chosen.Name, Within: joinWithin,
			Reason: cluster.WaitingForEtcd, Message: fmt.Sprintf("waits until etcd on %s is ready to be bootstrapped", chosen.Name)})
	default:
		m.do(Bootstrap{Node: chosen})
	}
}

// SeesAllVMs reports whether it is known which VMs of the cluster there are, and
// whose they are.
func SeesAllVMs(o cluster.Observed) bool {
	for _, vm := range o.VMs {
		if vm.Presence == cluster.PresenceUnknown || vm.Presence == cluster.Present && vm.Owner == cluster.OwnerUnknown {
			return false
		}
	}
	return o.Strays.Known
}

// etcdSeen reports whether any etcd of this cluster was seen: then bootstrap
// is over for ever.
func etcdSeen(o cluster.Observed) bool {
	if o.Members.Known && len(o.Members.Value) > 0 {
		return true
	}
	for _, m := range o.Machines {
		if s := m.Services["etcd"]; m.Reach == cluster.Configured && s.State == "Running" {
			return true
		}
	}
	return false
}

// neverFounded reports whether a control plane provably has no etcd: it does
// not exist, has no config yet, or says itself that its etcd still waits to be
// bootstrapped or to join. Silence proves nothing.
func neverFounded(o cluster.Observed, n cluster.Node) bool {
	if o.VMs[n.Name].Presence == cluster.Absent {
		return true
	}
	m := o.Machines[n.Name]
	if m.Reach == cluster.Maintenance {
		return true
	}
	if m.Reach != cluster.Configured {
		return false
	}
	etcd, known := m.Services["etcd"]
	return known && etcd.State == "Preparing"
}

// strays are VMs of this cluster that the inventory no longer names.
func (m *planner) strays() {
	if !m.o.Strays.Known {
		return
	}
	for _, vm := range m.o.Strays.Value {
		i := slices.IndexFunc(m.d.Spec.Nodes, func(n cluster.Node) bool { return n.Name == vm.Node })
		switch {
		case i >= 0 && m.plan.Phases[vm.Node] == cluster.PhaseAbsent:
			continue // told at the node
		case i >= 0:
			m.block(cluster.Block{Subject: vm.Node,
				Reason: cluster.DuplicateVM, Message: fmt.Sprintf("vm %d is a second machine for it: the inventory's is vm %d", vm.VMID, m.d.Spec.Nodes[i].VMID),
				Hint: fmt.Sprintf("if vm %d is the right one, write `vmid: %d` at %s in nodes.yaml; else, when nothing on it is needed, take it away by hand: `qm stop %d && qm destroy %d --purge` on %s",
					vm.VMID, vm.VMID, vm.Node, vm.VMID, vm.VMID, vm.Host)})
			continue
		}
		m.block(cluster.Block{Subject: vm.Node,
			Reason: cluster.OrphanVM, Message: fmt.Sprintf("vm %d (%s) belongs to this cluster but is no longer in the inventory; taking nodes away is not built yet", vm.VMID, vm.Node),
			Hint: fmt.Sprintf("put the node back into nodes.yaml; a worker can be taken away by hand: `kubectl drain %s`, `kubectl delete node %s`, and on %s `qm stop %d && qm destroy %d --purge`",
				vm.Node, vm.Node, vm.Host, vm.VMID, vm.VMID)})
	}
}

func all[T any](s []T, f func(T) bool) bool {
	return !slices.ContainsFunc(s, func(v T) bool { return !f(v) })
}

func orElse(s, other string) string {
	if s != "" {
		return s
	}
	return other
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
	if p.Gone {
		b.WriteString("gone\n")
	}
	return b.String()
}
