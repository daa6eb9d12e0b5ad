package cluster

import (
	"reflect"
	"slices"
	"strings"
	"time"
)

// Facts are the few things the agent must remember, because the world does not
// show them. Everything else is read from the world. They are the contents of
// the journal.
type Facts struct {
	// Lost: there was no journal, or it could not be read, and it was not seen
	// yet that nothing of the cluster exists. Bootstrap fails closed until that
	// or etcd is seen.
	Lost bool `json:"lost,omitempty"`
	// Intents are what was decided and must outlive a crash: at most one of a
	// kind.
	Intents []Intent `json:"intents,omitempty"`
	// Applied is the last revision the agent planned with; a head that does not
	// descend from it is not applied until an administrator accepts it.
	Applied     Revision            `json:"applied,omitempty"`
	Fingerprint string              `json:"fingerprint,omitempty"` // of the secrets bundle, once one was sent to a node
	Images      map[string]ImagePin `json:"images,omitempty"`
	Charts      map[string]string   `json:"charts,omitempty"` // Chart.Ref -> digest pinned at first use
	// Settled are, by node, what the inventory had of it when it was seen to have just that,
	// as drift.Settle writes it, with a digest for each field: what differs since is a change
	// of the inventory where that has another value, and else one that somebody made behind
	// its back. Agents up to version 8 of the journal wrote one digest of all of it.
	Settled map[string]string `json:"settled,omitempty"`
	// Installed are the addons whose release was seen to be deployed, as namespace/name, sorted:
	// a release that is not there any more was uninstalled by somebody.
	Installed []string `json:"installed,omitempty"`
	// Replaced are, by node, the tokens of `replace` that its machines were seen to have been
	// made for, the last one last: each is for one new machine. One that has another token
	// afterwards was restored from a backup, or its description was edited.
	Replaced map[string][]string `json:"replaced,omitempty"`
	// Cards are, by node, the MAC and the address that its VM was seen to have as the
	// inventory had them. That of a node that has left is kept while etcd may have a member of
	// its name: that member was ours.
	Cards map[string]string `json:"cards,omitempty"`
	// Drifts are what was seen to be not what it should be, since when, and who made it so
	// where that is known, of a cluster that was Ready once.
	Drifts []DriftRecord `json:"drifts,omitempty"`
	// Looked is until when every change of its VMs was seen, and is in Drifts if it is there
	// still. It is written when the agent ends, and taken out when the next one has looked at
	// all VMs; zero: it is not known, as after a crash.
	Looked time.Time `json:"looked,omitzero"`
	// Guarded are the nodes that the inventory had protected or locked when it had them
	// last, by name, sorted.
	Guarded []string `json:"guarded,omitempty"`
	// Restarts are, by node, what it was taken down for last: once for each change.
	Restarts map[string]Restart `json:"restarts,omitempty"`
	// Installs are, by node, the last Talos that was installed on its machine and is not seen to run.
	Installs map[string]Install `json:"installs,omitempty"`
	// Earlier are, by node, the version of Talos that its machine ran before the one that it runs, and which the
	// other slot of its disk has: no API of Talos shows that. It is taken out when another one is to be installed there.
	Earlier map[string]string `json:"earlier,omitempty"`
	// Moved are, by name, the workers whose VM was given another network within the last minute, and when:
	// it is written before that.
	Moved map[string]time.Time `json:"moved,omitempty"`
	// Forgotten are the nodes whose machines do not come back, by an administrator's
	// command, until their VMs are deleted; at most one for each node.
	Forgotten []Forgotten `json:"forgotten,omitempty"`
}

// WasInstalled reports whether the release of an addon was there.
func (f Facts) WasInstalled(a Addon) bool {
	return slices.Contains(f.Installed, ReleaseName{Namespace: a.Namespace, Name: a.Name}.String())
}

// WasReplaced reports whether a node has had a machine for a token of `replace`.
func (f Facts) WasReplaced(node, token string) bool { return slices.Contains(f.Replaced[node], token) }

// LastToken is the token that the machine of a node was made for, "" while that is not
// known or it was for none.
func (f Facts) LastToken(node string) string {
	if tokens := f.Replaced[node]; len(tokens) > 0 {
		return tokens[len(tokens)-1]
	}
	return ""
}

// Forgotten is a node whose machine does not come back.
type Forgotten struct {
	Node string    `json:"node"`
	At   time.Time `json:"at,omitzero"`
	// Unfenced: it was shown that its VM cannot be deleted yet, and confirmed that its
	// machine is off all the same. Without that nothing is removed before the VM is.
	Unfenced bool `json:"unfenced,omitempty"`
	// Left: its member may have left etcd. It is written before that is asked for.
	Left bool `json:"left,omitempty"`
}

// Forget adds a node, or puts it in the place of what is known of it. The list that f had
// before is not written to.
func (f *Facts) Forget(n Forgotten) {
	f.DropForgotten(n.Node)
	f.Forgotten = append(f.Forgotten, n)
}

// DropForgotten takes a node out of Forgotten. The list that f had before is not written to.
func (f *Facts) DropForgotten(node string) {
	f.Forgotten = slices.DeleteFunc(slices.Clone(f.Forgotten), func(n Forgotten) bool { return n.Node == node })
}

// IntentKind is what an Intent is about.
type IntentKind string

// The kinds of intent.
const (
	// IntendBootstrap is written before the one call that founds etcd.
	IntendBootstrap IntentKind = "Bootstrap"
	// IntendSuspend is an administrator's command to change nothing.
	IntendSuspend IntentKind = "Suspend"
	// IntendDestroy is an administrator's command to destroy the cluster.
	IntendDestroy IntentKind = "Destroy"
	// IntendConfig is what the machine configs of the cluster's nodes are made from.
	// It is written before the first one is sent, and again when the nodes were seen
	// to have another.
	IntendConfig IntentKind = "Config"
	// IntendCanary is which node was the first to get its machine config while it ran,
	// of a change of several.
	IntendCanary IntentKind = "Canary"
	// IntendApproved is an administrator's approval of a plan that waits for one.
	IntendApproved IntentKind = "Approved"
	// IntendUpgrade is an administrator's command about the upgrade of one revision.
	IntendUpgrade IntentKind = "Upgrade"
	// IntendRollback is an administrator's command that the machine of a node boots the Talos that it ran before.
	IntendRollback IntentKind = "Rollback"
	// SeenContent is at which revision the files of the cluster (Target: Snapshot.Content) became what they are.
	SeenContent IntentKind = "Content"
	// IntendWatch is which control plane was given a machine config while it ran, or another
	// network, last. It is written before that, and counts for a minute.
	IntendWatch IntentKind = "Watch"
	// SeenReady is written when the cluster was Ready for the first time. What is
	// waited for only until then, others may have replaced since.
	SeenReady IntentKind = "Ready"
)

// Restart is one time that the agent took a node down to change it.
type Restart struct {
	Target   string    `json:"target"`   // what was to change, as on its Node object
	Boot     string    `json:"boot"`     // id of the boot that it ended
	Revision Revision  `json:"revision"` // with which the files in force became what they are
	At       time.Time `json:"at,omitzero"`
	// Returned: the machine was seen in another boot since.
	Returned bool `json:"returned,omitempty"`
	// Reset is the one reset of its VM because the machine did not come back; zero: there was none.
	Reset Reset `json:"reset,omitzero"`
}

// Reset is one reset of a VM. It is written before that is asked for, so that there is no second one.
type Reset struct {
	At       time.Time `json:"at"`
	Revision Revision  `json:"revision"` // as of the Restart: each one may have its own
}

// Intent is one decision that the world cannot show.
type Intent struct {
	Kind IntentKind `json:"kind"`
	At   time.Time  `json:"at,omitzero"`
	// Node and UUID are, of IntendBootstrap, the node that was chosen to found
	// the cluster. They are empty where the cluster was seen to be founded
	// already.
	Node string `json:"node,omitempty"`
	UUID string `json:"uuid,omitempty"`
	// Done: what was intended was seen to have happened; etcd was seen running.
	Done bool `json:"done,omitempty"`
	// Versions and Revision are, of IntendConfig, what the configs are for and the
	// revision they are of. Versions is, of IntendRollback, what the machine goes back to. Revision is, of IntendApproved, whose changes are approved: what was
	// shown, or one that came since and asks for the same. Of IntendUpgrade and IntendRollback, as of a Restart.
	Versions Versions `json:"versions,omitzero"`
	// Previous are, of IntendConfig, the Versions before, of each kind the last that was another: an upgrade
	// leads back to them. Asked are the newest that the inventory has asked for since all nodes ran what it asks for.
	Previous Versions `json:"previous,omitzero"`
	Asked    Versions `json:"asked,omitzero"`
	Revision Revision `json:"revision,omitempty"`
	// Target is, of IntendCanary, the digest of all configs that the inventory had; Node
	// is who was first. Of IntendApproved it is the digest of the forecast that was shown. Of IntendRollback
	// it is the id of the boot that ends with it, and Done is that the machine was asked.
	Target string `json:"target,omitempty"`
	// Despite are, of IntendDestroy, the VMs that are deleted although they are
	// protected in Proxmox VE.
	Despite []int `json:"despite,omitempty"`
	// VMs are, of IntendDestroy, the VMs that were shown when it was confirmed, by
	// VMID: no others are deleted. Older agents wrote none. Of IntendApproved, the VMs of
	// the nodes that may be removed, and of those whose removal has begun.
	VMs []int `json:"vms,omitempty"`
	// Changes are, of IntendApproved, the steps that were shown. Older agents wrote none:
	// then whatever the revision changes is approved.
	Changes []string `json:"changes,omitempty"`
	// Left is, of IntendSuspend, what a destruction that has ended did not delete,
	// and why.
	Left []Block `json:"left,omitempty"`
	// Order is what was commanded, of IntendUpgrade.
	Order UpgradeOrder `json:"order,omitzero"`
	// By is the user who has commanded it, of IntendRollback, as the command names that.
	By string `json:"by,omitempty"`
}

// UpgradeOrder is what an administrator lets an upgrade do, until it has ended or another commit comes.
type UpgradeOrder struct {
	// Now: outside of its window, and without a soak.
	Now bool `json:"now,omitempty"`
	// Despite are nodes for which it does not wait while they are not Ready, by name, sorted.
	Despite []string `json:"despite,omitempty"`
	// By is the user who has asked for it, as the command names that.
	By string `json:"by,omitempty"`
}

// IsZero reports whether it lets an upgrade do nothing that it would not do by itself.
func (o UpgradeOrder) IsZero() bool { return !o.Now && len(o.Despite) == 0 }

// And is an order with what another one adds, which was given later.
func (o UpgradeOrder) And(later UpgradeOrder) UpgradeOrder {
	despite := slices.Sorted(slices.Values(slices.Concat(o.Despite, later.Despite)))
	return UpgradeOrder{Now: o.Now || later.Now, Despite: slices.Compact(despite), By: later.By}
}

func (o UpgradeOrder) String() string {
	var words []string
	if o.Now {
		words = append(words, "outside of its window and without a soak")
	}
	if len(o.Despite) > 0 {
		words = append(words, "although "+strings.Join(o.Despite, ", ")+" may not be Ready")
	}
	if o.By != "" {
		words = append(words, "by order of "+o.By)
	}
	return strings.Join(words, ", ")
}

// UpgradeOrder is what an administrator lets the upgrade of a revision do.
func (f Facts) UpgradeOrder(revision Revision) UpgradeOrder {
	if in, ok := f.Intent(IntendUpgrade); ok && in.Revision == revision {
		return in.Order
	}
	return UpgradeOrder{}
}

// Equal reports whether two intents are the same.
func (in Intent) Equal(other Intent) bool { return reflect.DeepEqual(in, other) }

// Intent returns the intent of a kind.
func (f Facts) Intent(kind IntentKind) (Intent, bool) {
	i := slices.IndexFunc(f.Intents, func(in Intent) bool { return in.Kind == kind })
	if i < 0 {
		return Intent{}, false
	}
	return f.Intents[i], true
}

// Suspended reports whether nothing may be changed until an administrator
// resumes the cluster.
func (f Facts) Suspended() bool { return f.intends(IntendSuspend) }

// Destroying reports whether an administrator asked for the cluster to be
// destroyed.
func (f Facts) Destroying() bool { return f.intends(IntendDestroy) }

// Approved reports whether an administrator has approved a step of a revision.
func (f Facts) Approved(revision Revision, step Step) bool {
	in, ok := f.Intent(IntendApproved)
	form := step.Approvable()
	return ok && in.Revision == revision && (len(in.Changes) == 0 || form == "" || slices.Contains(in.Changes, form))
}

// ApprovedHops reports whether an administrator has approved a way to other versions at a revision, or one of
// which it is the rest.
func (f Facts) ApprovedHops(revision Revision, hops []Hop) bool {
	in, ok := f.Intent(IntendApproved)
	return ok && in.Revision == revision && (len(in.Changes) == 0 || slices.ContainsFunc(in.Changes, func(c string) bool {
		return strings.HasPrefix(c, hopsForm) && strings.HasSuffix(c, DescribeHops(hops))
	}))
}

// LeftOver is what a destruction that has ended did not delete, and why.
func (f Facts) LeftOver() []Block {
	in, _ := f.Intent(IntendSuspend)
	return in.Left
}

// BootstrapSent reports whether etcd was, or may have been, founded.
func (f Facts) BootstrapSent() bool { return f.intends(IntendBootstrap) }

// WasReady reports whether the cluster was Ready once.
func (f Facts) WasReady() bool { return f.intends(SeenReady) }

func (f Facts) intends(kind IntentKind) bool {
	_, ok := f.Intent(kind)
	return ok
}

// Intend adds an intent, in the place of one of its kind. The list that f had
// before is not written to.
func (f *Facts) Intend(in Intent) {
	f.Drop(in.Kind)
	f.Intents = append(f.Intents, in)
}

// BeginRemoval notes that the removal of the node with a VM has begun, so that it is ended whatever
// is pushed meanwhile, and however many others are to be removed then.
func (f *Facts) BeginRemoval(vmid int, at time.Time) {
	in, ok := f.Intent(IntendApproved)
	if !ok {
		in = Intent{Kind: IntendApproved, At: at.UTC()} // of no revision: it approves no change
	}
	if !slices.Contains(in.VMs, vmid) {
		in.VMs = append(slices.Clone(in.VMs), vmid)
		f.Intend(in)
	}
}

// Drop removes the intents of some kinds. The list that f had before is not
// written to.
func (f *Facts) Drop(kinds ...IntentKind) {
	f.Intents = slices.DeleteFunc(slices.Clone(f.Intents), func(in Intent) bool { return slices.Contains(kinds, in.Kind) })
}

// ImagePin is what an image was when it was first verified.
type ImagePin struct {
	Schematic string `json:"schematic"`
	// For is the digest of what the schematic asks for, so that its id is known
	// while the factory is not.
	For    string `json:"for,omitempty"`
	SHA256 string `json:"sha256"`
	Bytes  int64  `json:"bytes"`
}
