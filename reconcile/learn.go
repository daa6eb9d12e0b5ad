package reconcile

import (
	"maps"
	"slices"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/reconcile/drift"
	"github.com/talos-agent/talos-agent/reconcile/leftover"
	"github.com/talos-agent/talos-agent/reconcile/lost"
	"github.com/talos-agent/talos-agent/reconcile/plan"
	"github.com/talos-agent/talos-agent/reconcile/settled"
	"github.com/talos-agent/talos-agent/reconcile/upgrade"
)

// What a pass writes into the journal: what the world showed, and how a destruction
// ended.

// learnFacts writes down what the world showed and must not be forgotten. It runs
// before anything is planned. Of a cluster of which nothing was made that is held in memory
// until the first action begins, so that no VM of ours ever exists without a journal that
// knows the cluster, and a folder that never leads to an action leaves no file.
func (r *Reconciler) learnFacts(d cluster.Desired, o *cluster.Observed) error {
	before := r.c.Journal.Facts()
	after := r.c.Journal.Facts() // a copy of its own
	switch nothing, seen := nothingOfOurs(*o), leftover.SeesAllVMs(*o); {
	case !after.Lost:
	case seen && nothing && (r.c.Journal.Fresh() || !leftover.MayHideEtcd(d, *o)):
		// Nothing was made, or nothing is left: there is nothing to remember.
		after.Lost = false
	case nothing && r.c.Journal.Fresh():
		return nil // it is decided when everything is seen
	case !r.memo.warnedLost:
		r.memo.warnedLost = true
		r.log.Warn("the agent's records of this cluster are lost: pins are taken anew, a suspension is forgotten, and nothing is bootstrapped until etcd is seen", logging.Why, r.c.Journal.Why())
	}
	if in, ok := after.Intent(cluster.IntendBootstrap); o.Members.Known && len(o.Members.Value) > 0 && !in.Done {
		if !ok {
			in = cluster.Intent{Kind: cluster.IntendBootstrap, At: o.Now.UTC()}
			// It was there before these records, and was Ready as far as anybody
			// knows: others may manage what was installed then.
			after.Intend(cluster.Intent{Kind: cluster.SeenReady, At: o.Now.UTC()})
		}
		in.Done = true
		after.Intend(in)
		after.Lost = false
	}
	if last := r.memo.last; last != nil && r.memo.refused == nil && !r.memo.problems.HasErrors() && !r.memo.unproven {
		after.Applied = last.Revision
		if !r.c.Journal.Fresh() || !nothingOfOurs(*o) { // else nothing was tried yet
			drift.NoteContent(&after, d)
		}
	}
	if nothingOfOurs(*o) && leftover.SeesAllVMs(*o) && !after.BootstrapSent() {
		after.Drop(cluster.IntendConfig) // nothing runs
	} else if r.memo.refused == nil {
		learnConfig(d, *o, &after)
	}
	if in, ok := after.Intent(cluster.IntendApproved); ok {
		after.Intend(stillApproved(in, d, *o))
	}
	if refused := r.dropOrders(&after, d, *o); refused.Reason != "" {
		r.log.Warn("a rollback is not carried out", logging.Node, refused.Subject, logging.Reason, string(refused.Reason), logging.Why, refused.Message, logging.Hint, refused.Hint)
	}
	after.Forgotten = lost.StillForgotten(before.Forgotten, d, *o)
	after.Guarded = guardedNodes(before.Guarded, d, *o)
	if r.memo.refused == nil {
		after.Installed = installedAddons(before, d, *o)
	}
	found := map[string]string{}
	if r.memo.refused == nil {
		found = settled.FindNodes(d, *o)
	}
	if after.Settled == nil {
		after.Settled = map[string]string{}
	}
	copySettled := func(f *cluster.Facts) {
		for node, text := range found {
			if f.Settled[node] == o.Facts.Settled[node] { // no action has noted another since
				f.Settled[node] = text
			}
		}
	}
	copySettled(&after)
	isForgotten := func(list []cluster.Forgotten, name string) bool {
		return slices.ContainsFunc(list, func(n cluster.Forgotten) bool { return n.Node == name })
	}
	isRemoved := func(name, _ string) bool {
		_, stays := d.Spec.Node(name)
		remade := isForgotten(before.Forgotten, name) && !isForgotten(after.Forgotten, name) && o.VMs[name].Presence == cluster.Absent
		return !stays || remade // its next machine is a new one, whatever the switches are
	}
	maps.DeleteFunc(after.Settled, isRemoved)
	after.Replaced, after.Cards = replacedNodes(before, d, *o), seenCards(before.Cards, d, *o)
	if after.Drifts = nil; after.WasReady() && !after.Destroying() {
		after.Drifts = drift.RecordNotes(r.memo.drifts)
	}
	ended := plan.EndedTurns(d, *o, r.c.Policy())
	for node := range after.Restarts {
		if _, stays := d.Spec.Node(node); !stays || o.VMs[node].Presence == cluster.Absent { // the next machine is another one
			ended = append(ended, node)
		}
	}
	for _, node := range ended {
		delete(after.Restarts, node)
	}
	clampTimes(&after, o.Now)
	r.learnReturns(before, *o)
	noteReturns(&after, *o)
	installed := upgrade.EndedInstalls(d, *o)
	upgrade.NoteEarlier(&after, d, *o)
	for _, node := range installed {
		delete(after.Installs, node)
	}
	config, runs := after.Intent(cluster.IntendConfig)
	if same, other := drift.CountConfigs(d, *o); d.Revision.Unique() || same > other {
		r.base.keep(d.Snapshot, config)
	}
	looked := seenUntil(d, *o)
	if !looked.IsZero() {
		after.Looked = time.Time{} // who changed what meanwhile was looked for
	}
	if !r.c.Journal.Fresh() && sameFacts(before, after) {
		r.memo.looked = looked
		return nil
	}
	learn := func(f *cluster.Facts) {
		f.Lost, f.Applied, f.Guarded, f.Installed, f.Replaced, f.Cards = after.Lost, after.Applied, after.Guarded, after.Installed, after.Replaced, after.Cards
		f.Drifts, f.Looked = after.Drifts, after.Looked
		for _, kind := range []cluster.IntentKind{cluster.IntendBootstrap, cluster.SeenReady, cluster.SeenContent} {
			if in, ok := after.Intent(kind); ok {
				f.Intend(in)
			}
		}
		if in, ok := f.Intent(cluster.IntendApproved); ok { // another may have come since
			f.Intend(stillApproved(in, d, *o))
		}
		r.dropOrders(f, d, *o)
		for _, was := range before.Forgotten { // another may have come since
			f.DropForgotten(was.Node)
		}
		f.Forgotten = append(f.Forgotten, after.Forgotten...)
		copySettled(f)
		maps.DeleteFunc(f.Settled, isRemoved)
		for _, node := range ended {
			if f.Restarts[node] == before.Restarts[node] { // no action has noted another since
				delete(f.Restarts, node)
			}
		}
		clampTimes(f, o.Now)
		noteReturns(f, *o)
		upgrade.NoteEarlier(f, d, *o)
		for _, node := range installed {
			if f.Installs[node] == before.Installs[node] {
				delete(f.Installs, node)
			}
		}
		if was, _ := before.Intent(cluster.IntendConfig); was.Equal(config) {
			return // an action may have noted its own since
		}
		if f.Drop(cluster.IntendConfig); runs {
			f.Intend(config)
		}
	}
	if r.c.Journal.Fresh() && nothingOfOurs(*o) && !after.Lost && len(after.Intents) == 0 {
		r.c.Journal.Hold(learn) // until the first action, which the pass has it kept for
	} else if err := r.c.Journal.Update(learn); err != nil {
		return err
	}
	o.Facts, r.memo.looked = r.c.Journal.Facts(), looked
	return nil
}

// guardedNodes are the nodes that are protected or locked, and those that were when they
// left the inventory, as long as a VM of theirs may be there.
func guardedNodes(before []string, d cluster.Desired, o cluster.Observed) (out []string) {
	for _, n := range d.Spec.Nodes {
		if n.Protect || n.Locked {
			out = append(out, n.Name)
		}
	}
	for _, name := range before {
		_, stays := d.Spec.Node(name)
		if !stays && (!o.Orphans.Known || slices.ContainsFunc(o.Orphans.Value, func(vm cluster.VM) bool { return vm.Node == name })) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// installedAddons are the addons of the inventory whose releases are seen to be deployed, and
// those that were. One that moves to another namespace is another.
func installedAddons(before cluster.Facts, d cluster.Desired, o cluster.Observed) (out []string) {
	for _, a := range d.Repository().Spec.Addons {
		rel, there := o.Releases.Value[a.Name]
		if before.WasInstalled(a) || o.Releases.Known && there && rel.Namespace == a.Namespace && rel.Status == "deployed" {
			out = append(out, cluster.ReleaseName{Namespace: a.Namespace, Name: a.Name}.String())
		}
	}
	slices.Sort(out)
	return out
}

// tokensKept is how many tokens of a node are remembered.
const tokensKept = 20

// replacedNodes are the tokens that the machines of nodes were made for: those that are
// remembered, as long as the inventory has the node or a VM of it may be there, and those that
// are seen. Without records nothing shows whether a VM is from before its replacement: it
// counts as if it were, so that it is kept.
func replacedNodes(before cluster.Facts, d cluster.Desired, o cluster.Observed) map[string][]string {
	out := map[string][]string{}
	for name, tokens := range before.Replaced {
		_, stays := d.Spec.Node(name)
		if stays || !o.Orphans.Known || slices.ContainsFunc(o.Orphans.Value, func(vm cluster.VM) bool { return vm.Node == name }) {
			out[name] = tokens
		}
	}
	for _, n := range d.Spec.Nodes {
		vm := o.VMs[n.Name]
		if vm.Presence != cluster.Present || vm.Owner != cluster.Ours || vm.Unmarked || vm.Deleting || n.Replace == "" || vm.Replace != n.Replace && !before.Lost {
			continue
		}
		if (cluster.Facts{Replaced: out}).LastToken(n.Name) != n.Replace {
			tokens := slices.DeleteFunc(slices.Clone(out[n.Name]), func(t string) bool { return t == n.Replace })
			out[n.Name] = append(tokens[max(0, len(tokens)-tokensKept+1):], n.Replace)
		}
	}
	return out
}

// seenCards are the MAC and the address of nodes whose VMs are seen to have those of the
// inventory, and of those that were; of nodes that have left, while they may have a member of etcd.
func seenCards(before map[string]string, d cluster.Desired, o cluster.Observed) map[string]string {
	out := map[string]string{}
	for name, card := range before {
		if !o.Members.Known || slices.ContainsFunc(o.Members.Value, func(mem cluster.Member) bool { return mem.Name == name }) {
			out[name] = card
		}
	}
	for _, n := range d.Spec.Nodes {
		vm, want := o.VMs[n.Name], drift.CardOf(drift.WantHardware(d.Spec, n))
		if card, ok := before[n.Name]; ok {
			out[n.Name] = card
		}
		if vm.Presence == cluster.Present && vm.Owner == cluster.Ours && vm.Hardware.Known && drift.CardOf(vm.Hardware.Value) == want {
			out[n.Name] = want
		}
	}
	return out
}

// learnWatched takes in which nodes and members of etcd are no longer the inventory's, and
// whose machines do not answer, so that the next pass watches them, too.
func (r *Reconciler) learnWatched(d *cluster.Desired, o *cluster.Observed) {
	before := r.memo.removing
	r.memo.removing = leftover.RemovedNodes(*d, *o)
	if !slices.EqualFunc(before, r.memo.removing, func(a, b cluster.Node) bool { return a.Name == b.Name && a.IP == b.IP && a.Role == b.Role }) {
		r.exec.wakeLoop() // they are not watched yet
	}
	r.memo.silent = nil
	for _, n := range d.Spec.Nodes {
		if o.Machines[n.Name].Reach == cluster.Silent {
			r.memo.silent = append(r.memo.silent, n.Name)
		}
	}
	r.memo.lost = keepSince(r.memo.lost, leftover.LostMembers(*d, *o), o.Now)
	r.memo.evicted = keepSince(r.memo.evicted, leftover.EvictedPlanes(*d, *o, r.memo.evicted), o.Now)
	r.memo.dead = keepSince(r.memo.dead, lost.DeadNodes(*d, *o), o.Now)
	o.DriftNotes = r.memo.drifts
	r.memo.drifts = drift.Notes(*d, *o)
	for key, note := range o.DriftNotes {
		if _, differs := r.memo.drifts[key]; !differs && drift.IsUnseen(*d, *o, key) {
			r.memo.drifts[key] = note
		}
	}
	r.memo.learners = lost.Learners(*d, *o, r.memo.learners)
	o.Learners, o.LostSince, o.DeadSince, o.DriftNotes, o.EvictedSince = r.memo.learners, r.memo.lost, r.memo.dead, r.memo.drifts, r.memo.evicted
}

// seenUntil is until when all changes of the VMs of a cluster were seen; zero while one of them
// cannot be seen.
func seenUntil(d cluster.Desired, o cluster.Observed) time.Time {
	oldest := time.Duration(0)
	for _, n := range d.Spec.Nodes {
		vm := o.VMs[n.Name]
		ours := vm.Presence == cluster.Present && vm.Owner == cluster.Ours
		if vm.Presence == cluster.PresenceUnknown || vm.Presence == cluster.Present && vm.Owner == cluster.OwnerUnknown || ours && !vm.Hardware.Known {
			return time.Time{}
		}
		if ours {
			oldest = max(oldest, vm.ConfigAge)
		}
	}
	return o.Now.Add(-oldest).UTC()
}

// noteLooked writes down until when all changes of VMs were seen, when the agent ends: the next
// one looks for who changed what since. An agent that crashes leaves that unknown, so that
// no name is noted for what was there before.
func (r *Reconciler) noteLooked() {
	if r.c.Journal.Fresh() || !r.c.Journal.Facts().WasReady() || r.memo.looked.IsZero() {
		return
	}
	if err := r.c.Journal.Update(func(f *cluster.Facts) { f.Looked = r.memo.looked }); err != nil {
		r.logUnwritable(err)
	}
}

// keepSince returns since when what is seen now was seen without a break.
func keepSince[K comparable](before map[K]time.Time, seen []K, now time.Time) map[K]time.Time {
	after := map[K]time.Time{}
	for _, k := range seen {
		after[k] = now
		if since, ok := before[k]; ok {
			after[k] = since
		}
	}
	return after
}

// learnReady writes down that the cluster is Ready for the first time. If it cannot,
// the plan has that it is blocked.
func (r *Reconciler) learnReady(o cluster.Observed, p *plan.Plan) error {
	if o.Facts.WasReady() || o.Facts.Suspended() || o.Facts.Destroying() || len(o.Running) > 0 || !p.Converged() {
		return nil
	}
	err := r.c.Journal.Update(func(f *cluster.Facts) { f.Intend(cluster.Intent{Kind: cluster.SeenReady, At: o.Now.UTC()}) })
	switch {
	case err != nil:
		p.Blocked = append(p.Blocked, journalBlock(r.c.Cluster, err))
	case r.c.Snapshots != nil:
		r.Look() // the first snapshot is due
	}
	return err
}

// learnReturns reports how long machines were on their way into another boot that are seen in it only after the action that sent
// them there had given up: it is what later ones are waited for.
func (r *Reconciler) learnReturns(before cluster.Facts, o cluster.Observed) {
	for _, b := range o.Backoffs {
		was, down := before.Restarts[b.Subject]
		isReboot := b.Kind == cluster.RebootNode || b.Kind == cluster.UpgradeTalos || b.Kind == cluster.RollBackTalos
		isSent := func(a cluster.Running) bool { return a.Node == b.Subject }
		if !isReboot || !down || was.Returned || !isReturned(was, o.Machines[b.Subject]) || slices.ContainsFunc(o.Running, isSent) {
			continue
		}
		began := was.At
		if was.Reset.At.After(began) {
			began = was.Reset.At
		}
		r.c.OnAction(cluster.Outcome{Action: b.Kind, Subject: b.Subject, Text: b.Subject + " has come back, later than it was waited for", Began: began.UTC(), DurationMS: o.Now.Sub(began).Milliseconds(), Result: cluster.Done})
	}
}

// isReturned reports whether a machine is seen in another boot than the one that a restart has ended.
func isReturned(r cluster.Restart, mach cluster.Machine) bool {
	return mach.Reach == cluster.Configured && mach.BootID != "" && mach.BootID != r.Boot
}

// noteReturns notes of machines that were taken down that they were seen in another boot since: one that does not answer later
// has another reason for that.
func noteReturns(f *cluster.Facts, o cluster.Observed) {
	for node, r := range f.Restarts {
		if isReturned(r, o.Machines[node]) {
			r.Returned = true
			f.Restarts[node] = r
		}
	}
}

// clampTimes has what was begun have begun by now: a clock that was set back since leaves times to come, which would
// be waited for as long as it was set back.
func clampTimes(f *cluster.Facts, now time.Time) {
	for node, in := range f.Installs {
		if in.At.After(now) {
			in.At = now.UTC()
			f.Installs[node] = in
		}
	}
	for node, at := range f.Moved {
		if at.After(now) {
			f.Moved[node] = now.UTC()
		}
	}
	for node, r := range f.Restarts {
		if r.At.After(now) {
			r.At = now.UTC()
		}
		if r.Reset.At.After(now) {
			r.Reset.At = now.UTC()
		}
		f.Restarts[node] = r
	}
}

func sameFacts(a, b cluster.Facts) bool {
	intent := func(f cluster.Facts, kind cluster.IntentKind) cluster.Intent { in, _ := f.Intent(kind); return in }
	return a.Lost == b.Lost && a.Applied == b.Applied && maps.Equal(a.Restarts, b.Restarts) && maps.Equal(a.Installs, b.Installs) && maps.Equal(a.Settled, b.Settled) && maps.EqualFunc(a.Replaced, b.Replaced, slices.Equal) && maps.Equal(a.Cards, b.Cards) &&
		slices.Equal(a.Guarded, b.Guarded) && slices.EqualFunc(a.Drifts, b.Drifts, cluster.DriftRecord.Equal) && a.Looked.Equal(b.Looked) && slices.Equal(a.Installed, b.Installed) && slices.Equal(intent(a, cluster.IntendApproved).VMs, intent(b, cluster.IntendApproved).VMs) && slices.Equal(a.Forgotten, b.Forgotten) && intent(a, cluster.IntendBootstrap).Done == intent(b, cluster.IntendBootstrap).Done && intent(a, cluster.IntendConfig).Equal(intent(b, cluster.IntendConfig)) &&
		intent(a, cluster.SeenContent).Equal(intent(b, cluster.SeenContent)) && intent(a, cluster.IntendUpgrade).Equal(intent(b, cluster.IntendUpgrade)) && intent(a, cluster.IntendRollback).Equal(intent(b, cluster.IntendRollback)) && maps.Equal(a.Earlier, b.Earlier) && maps.EqualFunc(a.Moved, b.Moved, time.Time.Equal)
}

func nothingOfOurs(o cluster.Observed) bool {
	for _, vm := range o.VMs {
		if vm.Presence == cluster.Present && (vm.Owner == cluster.Ours || vm.Moved) {
			return false
		}
	}
	return len(o.Orphans.Value) == 0
}

// isLeftUnproven reports whether all that may be left of a cluster are VMs that are
// not proven to be its own, and no etcd answers.
func isLeftUnproven(d cluster.Desired, o cluster.Observed) bool {
	return nothingOfOurs(o) && leftover.MayHideEtcd(d, o)
}

// forgetFounding drops what is remembered of a cluster of which nothing is left:
// neither its intents nor the keys' fingerprint mean anything then.
func forgetFounding(f *cluster.Facts) {
	f.Drop(cluster.IntendDestroy, cluster.IntendBootstrap, cluster.IntendConfig, cluster.IntendCanary, cluster.IntendWatch, cluster.IntendRollback, cluster.SeenReady, cluster.SeenContent)
	f.Fingerprint, f.Lost = "", false
	f.Guarded, f.Forgotten, f.Installed = nil, nil, nil
	clear(f.Restarts)
	clear(f.Installs)
	clear(f.Earlier)
	clear(f.Moved)
	clear(f.Settled)
	f.Replaced, f.Cards = nil, nil
	f.Drifts, f.Looked = nil, time.Time{}
}

// finishDestroy ends the destruction of a cluster of which nothing is left. It stays
// suspended, unless the command was withdrawn meanwhile.
func (r *Reconciler) finishDestroy() error {
	suspended := false
	err := r.c.Journal.Update(func(f *cluster.Facts) {
		suspended = f.Destroying()
		forgetFounding(f)
		if suspended && !f.Suspended() {
			f.Intend(cluster.Intent{Kind: cluster.IntendSuspend, At: time.Now().UTC()})
		}
	})
	switch {
	case err != nil:
		return err
	case suspended:
		r.log.Info("the cluster is destroyed; it stays suspended", logging.Detail, "until `talos-agent resume "+r.c.Cluster+"`")
	default:
		r.log.Info("the cluster is destroyed, and was resumed meanwhile")
	}
	return nil
}

// endDestroy ends a destruction that could not delete everything. The cluster stays
// suspended, and its status reports what is left until an administrator decides. A
// command that was given since it was planned is for the next pass.
func (r *Reconciler) endDestroy(planned cluster.Intent, left []cluster.Block) error {
	left = slices.Clone(left)
	for i := range left {
		left[i].Drift = nil // it is looked at again
	}
	ended := false
	err := r.c.Journal.Update(func(f *cluster.Facts) {
		if ended = isIntended(*f, planned); ended {
			f.Drop(planned.Kind)
			f.Intend(cluster.Intent{Kind: cluster.IntendSuspend, At: time.Now().UTC(), Left: left})
		}
	})
	if err != nil || !ended {
		return err
	}
	for _, b := range left {
		r.log.Warn("the destruction has ended and left something", logging.Detail, b.Subject+": "+b.Message, logging.Reason, string(b.Reason), logging.Hint, b.Hint)
	}
	return nil
}

// isIntended reports whether an intent is still the one of its kind.
func isIntended(f cluster.Facts, in cluster.Intent) bool {
	now, ok := f.Intent(in.Kind)
	return ok && now.Equal(in)
}

// stillApproved is what of an approval is left: the VMs that are to be deleted still. One
// that has such a VMID later needs an approval of its own.
func stillApproved(in cluster.Intent, d cluster.Desired, o cluster.Observed) cluster.Intent {
	if leftover.SeesAllVMs(o) {
		pending := plan.Deletions(d, o)
		in.VMs = slices.DeleteFunc(slices.Clone(in.VMs), func(vmid int) bool { return !slices.Contains(pending, vmid) })
	}
	return in
}
