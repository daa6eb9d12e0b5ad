// Package action has the typed actions that a plan consists of, and what everybody but
// the one who carries them out needs to know of them.
package action

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/drift"
	"github.com/talos-agent/talos-agent/reconcile/snapshot/retention"
)

// Action is one typed action. Every action is idempotent: carried out twice, or
// after being interrupted anywhere, it leads to the same world.
type Action interface {
	Info() Info
}

// Info is what everybody but the one who carries it out needs to know of an
// action.
type Info struct {
	Kind    cluster.ActionKind
	Subject string // whom it concerns: a node, an addon, an image
	Node    string // the node it concerns, "" when it concerns none
	VMID    int    // the VM it concerns, 0 when it concerns none
	Addon   string // the addon it concerns, "" when it concerns none
	Member  uint64 // the id of the member of etcd that it removes, 0 when it removes none
	// Claims are what it needs for itself while it is under way.
	Claims []cluster.Claim
	// Disrupts means that a node which works does not while the action is under
	// way, so that the budget of its role and etcd have to allow it.
	Disrupts bool
	// Reboots means that its machine goes down.
	Reboots bool
	// MayReboot means that it may be found to take that, and then is another action.
	MayReboot bool
	// Destructive means that something is lost that cannot be made again.
	Destructive bool
	// Change is what the action changes, in a fixed form: "cores=4 memory=8192". An
	// approval is for exactly that; what the revision says anyhow is no part of it.
	Change string
	// Meanwhile is the digest of a machine config that its node runs for a while on the way to that
	// of the inventory, "" when there is none.
	Meanwhile string
	// Fields are what of its node it changes, in the names of drifts; none where it is about
	// the machine as a whole.
	Fields []string
	// Text is the whole sentence for people.
	Text string
}

// ID identifies the action.
func (i Info) ID() cluster.ActionID { return cluster.ActionID{Kind: i.Kind, Subject: i.Subject} }

// String returns the sentence.
func (i Info) String() string { return i.Text }

// Step prints an action for the socket, the CLI and the log.
func (i Info) Step() cluster.Step {
	return cluster.Step{Action: i.Kind, Subject: i.Subject, Text: i.Text, Destructive: i.Destructive, Reboots: i.Reboots, MayReboot: i.MayReboot, Change: i.Change}
}

// WatchedFor is how long the first node with a new machine config is watched before others get the same: a
// kubelet or a static pod that does not start is seen after 48 s at most (Talos 1.13.9: a
// node looks Ready for so long after its kubelet was stopped).
const WatchedFor = time.Minute

// The actions.
type (
	// RegisterSchematic asks the image factory for the id of what the images
	// must hold.
	RegisterSchematic struct {
		Cluster   string
		Schematic cluster.Schematic
	}

	// DownloadImage fetches the Talos image into the host's cache and verifies
	// it.
	DownloadImage struct{ Image cluster.Image }

	// UploadImage puts the cached image into a storage.
	UploadImage struct {
		Image     cluster.Image
		Host      string
		Datastore string
	}

	// CreateVM makes a node's VM up to the point where it can be started:
	// configured, its disk imported and grown, its mark complete. Finish says
	// that the VM is there already and its creation was interrupted.
	CreateVM struct {
		Node   cluster.Node
		Host   string // that it is made on
		Image  cluster.Image
		Finish bool
		Kept   Kept
		// Changed is who deleted the one before.
		Changed drift.Changed
	}

	// StartVM switches a node's VM on.
	StartVM struct {
		Node    cluster.Node
		Changed drift.Changed // who stopped it
	}

	// ResumeVM lets a node's VM go on that somebody paused.
	ResumeVM struct {
		Node    cluster.Node
		Changed drift.Changed // who paused it
	}

	// ResetVM resets the VM of a node whose machine does not come back from the reboot that its upgrade
	// took, as its reset button would: once.
	ResetVM struct {
		Node cluster.Node
		Boot string // id of the boot that the reboot has ended
	}

	// ApplyConfig gives a machine in maintenance mode its first config.
	ApplyConfig struct {
		Node   cluster.Node
		Config cluster.Config
		Kept   Kept
	}

	// Bootstrap founds the cluster's etcd on one control plane, once.
	Bootstrap struct{ Node cluster.Node }

	// FetchChart brings an addon's chart into the host's cache.
	FetchChart struct{ Addon cluster.Addon }

	// InstallAddon installs an addon's release, upgrades it to what the
	// inventory says, or recovers one that was left half done.
	InstallAddon struct {
		Addon  cluster.Addon
		Digest string // of chart and values
		Status string // of the release before, "" when there is none
		// Drift is what the release before was not made of as the inventory has it.
		Drift []cluster.FieldDifference
		// PutBack is what of the release's objects it puts back, "" when it is for
		// another reason.
		PutBack string
	}

	// MarkAddon notes in an addon's release whether the agent manages it: one that it
	// does not stays when its addon is removed from the inventory. Good: this revision
	// was ready, too, so that a later one can be rolled back to it.
	MarkAddon struct {
		Addon cluster.Addon
		Good  bool
	}

	// RollBackAddon brings a release back to a revision of ours that was ready.
	RollBackAddon struct {
		Addon  cluster.Addon
		To     int    // the revision
		Digest string // of what did not become ready
	}

	// UninstallAddon uninstalls a release of ours that no addon of the inventory has.
	UninstallAddon struct {
		Release cluster.ReleaseName
		Status  string
	}

	// LabelNamespace gives a namespace the labels and annotations that its addons ask
	// for, and takes back those that they do not ask for any more.
	LabelNamespace struct {
		Namespace string
		Meta      cluster.NamespaceMeta
	}

	// DeleteVM stops a VM of ours and deletes it with its disks. Node is who leaves with it, none
	// where the whole cluster is destroyed. Votes: it may be a control plane's, whose member of
	// etcd must have left. Drained: its node was, and is to be so still.
	DeleteVM struct {
		VM             cluster.VM
		Node           cluster.Node
		Votes, Drained bool
	}

	// ChangeVM corrects what of a node's VM can be corrected as it is, running or
	// stopped.
	ChangeVM struct {
		Node    cluster.Node
		Host    string
		Drifts  []drift.Drift
		Changed drift.Changed // who changed it last
		// Moves: its machine may run, and is on another network afterwards. Voteless: it is seen
		// not to work, so that etcd need not be asked for it once more.
		Moves, Voteless bool
	}

	// PullImages has a machine pull what its next config names, before that.
	PullImages struct {
		Node   cluster.Node
		Images string // for people
		// Ahead: those of its config at the end of a hop of Kubernetes, of which no step is made yet.
		Ahead bool
	}

	// ChangeConfig gives a machine that runs another config, which takes no reboot.
	// First: no other node had its own of these configs before.
	ChangeConfig struct {
		Node   cluster.Node
		Config cluster.Config
		First  bool
		// Network is the digest of what it runs when it is given only what of the config is about the
		// network, on trial, because the rest takes a reboot; "": it is given the whole.
		Network string
		Asks    bool   // what it takes is not known yet
		Target  string // digest of the configs of all nodes
		// Edited: the inventory has what it had, and the machine does not. Since is since when
		// it runs another, zero where that is not known.
		Edited bool
		Since  time.Time
		// Pulls: the machine has the images of the config before it is given that.
		Pulls bool
		// Voteless: there is no quorum that etcd could lose with it. OfPair: etcd has two members,
		// of which it can spare none, and there is no better time.
		Voteless, OfPair bool
		// Idle: what the machine runs stays as it is, because the configs differ in how Talos is installed.
		// Proven: they differ in images with which another control plane is Ready.
		Idle, Proven bool
		// Components get another version with it, as far as the configs show it. Only: they differ in nothing else.
		Components []drift.Component
		Only       bool
	}

	// DropConfig has a machine that runs what it should keep that, and drop another config,
	// which waits for its next boot since then.
	DropConfig struct {
		Node   cluster.Node
		Config cluster.Config
		Since  time.Time
	}

	// DrainNode takes a node out of service: nothing new is placed on it, and what can
	// run elsewhere is evicted.
	DrainNode struct {
		Node   cluster.Node
		Target string // digest of what it is for
		For    string // the same in words
		How    cluster.Drain
		Fields []string // of the node that are to change, none where it leaves
	}

	// ShutDownVM has the machine of a drained node switch itself off, to be started
	// again with other hardware, and with another config if there is one.
	ShutDownVM struct {
		Node    cluster.Node
		Restart cluster.Restart
		Config  cluster.Config
		Pulls   bool     // the images of the config, before
		Fields  []string // of the node that are to change
		// Undrained: it does not work, and cannot be drained, or has nothing to drain.
		Undrained bool
		Into      string // version of Talos that was installed, and runs then; "" : none was
	}

	// RebootNode has the machine of a drained node boot again, with another config or without a
	// change: its etcd has left the others, and starts with the machine only.
	RebootNode struct {
		Node    cluster.Node
		Restart cluster.Restart
		Config  cluster.Config
		Pulls   bool     // the images of the config, before
		Fields  []string // of the node that are to change
		// Undrained: it does not work, and cannot be drained, or has nothing to drain.
		Undrained bool
		Into      string // version of Talos that was installed, and runs then; "" : none was
	}

	// UncordonNode puts a node back into service. Adopted: it stays cordoned, as somebody
	// had it before.
	UncordonNode struct {
		Node    cluster.Node
		Adopted bool
	}

	// RemoveMember removes a member from etcd, for ever. Answers: its machine does, and
	// gives up leadership first.
	RemoveMember struct {
		Node    cluster.Node // whose member it is
		Member  cluster.Member
		Answers bool
	}

	// DeleteNode deletes the Node object of a node whose VM is deleted.
	DeleteNode struct{ Node cluster.Node }

	// TakeSnapshot stores a verified snapshot of the cluster's etcd on this host.
	TakeSnapshot struct {
		Cluster string
		For     retention.Kind
	}

	// SyncManifests applies bootstrap manifests of Talos to the objects that they differ from.
	SyncManifests struct {
		Cluster   string
		Manifests cluster.Manifests
	}

	// StartJob starts the Job of a gate.
	StartJob struct {
		Gate     cluster.Gate
		Name     cluster.ObjectName
		Revision cluster.Revision
	}

	// DeleteJob deletes a Job that the agent has started for a gate, with its pods.
	DeleteJob struct {
		Job cluster.Job
		Why string
	}

	// LabelNode gives a Node object the labels, taints and annotations that the inventory
	// has, and takes back those that it has no more.
	LabelNode struct {
		Node  cluster.Node // as the repository has it
		Edits []cluster.MetaEdit
		Left  []string // what of the inventory's is left as somebody has set it, as "label zone"
	}
)

// Info implements Action.
func (a RegisterSchematic) Info() Info {
	return Info{Kind: cluster.RegisterSchematic, Subject: a.Cluster, Change: a.Schematic.Digest(),
		Text: fmt.Sprintf("register the image schematic of %s with the factory", a.Cluster)}
}

// Info implements Action.
func (a DownloadImage) Info() Info {
	return Info{Kind: cluster.DownloadImage, Subject: a.Image.Name, Text: "download image " + a.Image.Name}
}

// Info implements Action.
func (a UploadImage) Info() Info {
	return Info{Kind: cluster.UploadImage, Subject: a.Host + "/" + a.Datastore + ":" + a.Image.Name,
		Text: fmt.Sprintf("upload image %s to %s on %s", a.Image.Name, a.Datastore, a.Host)}
}

// Info implements Action.
func (a CreateVM) Info() Info {
	n := a.Node
	i := Info{Kind: cluster.CreateVM, Subject: n.Name, Node: n.Name, VMID: n.VMID,
		Claims: []cluster.Claim{cluster.ClaimNode(n.Name), claimDisks(a.Host, n, a.Image)},
		Change: fmt.Sprintf("host=%s vmid=%d cores=%d memory=%d disk=%d boot=%s", a.Host, n.VMID, n.Cores, n.MemoryMiB, n.DiskBytes, a.Image.Boot())}
	if a.Finish {
		i.Text = fmt.Sprintf("finish vm %d (%s), whose creation was interrupted", n.VMID, n.Name)
	} else {
		i.Text = fmt.Sprintf("create vm %d (%s) on %s: %d cores, %d MiB, %s", n.VMID, n.Name, a.Host, n.Cores, n.MemoryMiB, text.GiB(n.DiskBytes)) + a.Changed.String()
		if why := n.Placement.Why; why != "" {
			i.Text += "; " + why
		}
	}
	return i.keep(a.Kept)
}

// Info implements Action.
func (a StartVM) Info() Info {
	return infoOfNode(cluster.StartVM, a.Node, fmt.Sprintf("start vm %d (%s)", a.Node.VMID, a.Node.Name)+a.Changed.String())
}

// Info implements Action.
func (a ResumeVM) Info() Info {
	return infoOfNode(cluster.ResumeVM, a.Node, fmt.Sprintf("resume vm %d (%s)", a.Node.VMID, a.Node.Name)+a.Changed.String())
}

// Info implements Action.
func (a ApplyConfig) Info() Info {
	return infoOfNode(cluster.ApplyConfig, a.Node, fmt.Sprintf("apply the first machine config to %s at %s", a.Node.Name, cmp.Or(a.Node.Address(), "the address that it gets"))).keep(a.Kept)
}

// Info implements Action.
func (a Bootstrap) Info() Info {
	i := infoOfNode(cluster.Bootstrap, a.Node, "bootstrap etcd on "+a.Node.Name)
	i.Claims = append(i.Claims, cluster.ClaimEtcd)
	return i
}

// infoOfNode is of an action on one node's VM or machine, and on nothing else.
func infoOfNode(kind cluster.ActionKind, n cluster.Node, text string) Info {
	return Info{Kind: kind, Subject: n.Name, Node: n.Name, VMID: n.VMID, Claims: []cluster.Claim{cluster.ClaimNode(n.Name)}, Text: text}
}

// Info implements Action.
func (a DeleteVM) Info() Info {
	return Info{Kind: cluster.DeleteVM, Subject: a.VM.Node, Node: a.VM.Node, VMID: a.VM.VMID, Destructive: true,
		Claims: []cluster.Claim{cluster.ClaimNode(a.VM.Node), cluster.ClaimStorage(a.VM.Host, a.VM.Hardware.Value.System.Datastore)},
		Change: fmt.Sprintf("vmid=%d", a.VM.VMID),
		Text:   fmt.Sprintf("stop and delete vm %d (%s) with its disks", a.VM.VMID, a.VM.Node)}
}

// Info implements Action.
func (a ChangeVM) Info() Info {
	var words, changes []string
	claims := []cluster.Claim{cluster.ClaimNode(a.Node.Name)}
	for _, dr := range a.Drifts {
		words = append(words, dr.Change())
		changes = append(changes, fmt.Sprintf("%s=%s", dr.Field, dr.Want))
		for _, d := range a.Node.Disks {
			if dr.Field == string(cluster.FieldDisk(d.Serial)) {
				claims = append(claims, cluster.ClaimStorage(a.Host, d.Datastore))
			}
		}
	}
	slices.Sort(claims)
	i := infoOfNode(cluster.ChangeVM, a.Node, fmt.Sprintf("change vm %d (%s): %s%s", a.Node.VMID, a.Node.Name, strings.Join(words, ", "), a.Changed))
	i.Claims, i.Change, i.Disrupts = slices.Compact(claims), strings.Join(changes, " "), a.Moves
	i.Fields = drift.Fields(a.Drifts)
	return i
}

// Info implements Action.
func (a PullImages) Info() Info {
	i := infoOfNode(cluster.PullImages, a.Node, fmt.Sprintf("pull the images of the next machine config of %s: %s", a.Node.Name, a.Images))
	if i.Change, i.Fields = "images="+a.Images, []string{drift.FieldConfig}; a.Ahead {
		i.Text = fmt.Sprintf("pull the images of Kubernetes for %s before any node is changed: %s", a.Node.Name, a.Images)
	}
	return i
}

// In returns what is asked of a cluster, with the config of the node whose images it pulls.
func (a PullImages) In(d cluster.Desired) cluster.Desired {
	if a.Ahead {
		c := d.Configs[a.Node.Name]
		c.Summary = c.AtEnd()
		d.Configs = maps.Clone(d.Configs)
		d.Configs[a.Node.Name] = c
	}
	return d
}

// Info implements Action.
func (a ChangeConfig) Info() Info {
	i := infoOfNode(cluster.ChangeConfig, a.Node, fmt.Sprintf("change the machine config of %s", a.Node.Name))
	switch {
	case a.Edited:
		i.Text = fmt.Sprintf("change the machine config of %s back%s", a.Node.Name, drift.DescribeConfigEdit(a.Since))
	case a.Only && a.Network == "":
		i.Text = drift.DescribeSteps(a.Node.Name, a.Components)
	case len(a.Components) > 0 && a.Network == "":
		i.Text += ", and " + drift.DescribeSteps(a.Node.Name, a.Components)
	}
	if a.Asks {
		i.Text += ", or reboot it for that: it is asked then"
		i.MayReboot = true
	}
	if a.Idle {
		i.Text += ", for the next installation of Talos"
	}
	// On a control plane it may restart a static pod.
	i.Disrupts = a.Node.Role == cluster.ControlPlane && !a.Idle
	i.Change, i.Fields = "config="+a.Config.Digest, []string{drift.FieldConfig}
	if a.Network != "" {
		i.Text += ", only what is about its network, before the rest takes a reboot"
		i.Change, i.Meanwhile = "network="+a.Network, a.Network
	}
	return i
}

// Kept is what a new node gets because its cluster runs it, where the repository has
// something else. The zero value is nothing.
type Kept struct {
	Versions cluster.Versions
	Config   cluster.Revision // whose config it is
}

// keep adds to an action what its node gets because the cluster runs it.
func (i Info) keep(k Kept) Info {
	switch {
	case k.Config != "":
		i.Text += fmt.Sprintf("; with the config of %s, which the cluster runs", k.Config.Short())
		i.Change = strings.TrimSpace(i.Change + " config=" + string(k.Config))
	case k != Kept{}:
		i.Text += fmt.Sprintf("; with Talos %s and Kubernetes %s, which the cluster runs", k.Versions.Talos, k.Versions.Kubernetes)
		i.Change = strings.TrimSpace(fmt.Sprintf("%s talos=%s kubernetes=%s", i.Change, k.Versions.Talos, k.Versions.Kubernetes))
	}
	return i
}

// Fields are what of the VM is corrected.
func (a ChangeVM) Fields() []cluster.VMField {
	var out []cluster.VMField
	for _, dr := range a.Drifts {
		out = append(out, cluster.VMField(dr.Field))
	}
	return out
}
