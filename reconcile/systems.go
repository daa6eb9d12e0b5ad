package reconcile

import (
	"context"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/availability"
	"github.com/talos-agent/talos-agent/reconcile/snapshot/retention"
)

// What the loop asks of the systems around it.

// Fetched is what a Source found: a snapshot, or the problems that keep it from
// being one.
type Fetched struct {
	Snapshot cluster.Snapshot
	// Revision is the head, also when its inventory is invalid.
	Revision cluster.Revision
	Subject  string // of the head's commit, for people
	Problems cluster.Problems
	// Removed: the repository can be read, and the cluster is not in it.
	Removed bool
	// At is when the source looked for the head: whatever was pushed before is in
	// it. What has the same time was found by the same look.
	At time.Time
}

// Source is where a cluster's inventory comes from.
type Source interface {
	// Fetch returns what the source found when it looked last, and waits, not for
	// long, only if it never did; it is called by every pass. An error means that the source could
	// not be asked; an inventory that is there and invalid comes back as Problems.
	Fetch(ctx context.Context) (Fetched, error)
	// Descends reports whether head contains ancestor in its history. An
	// ancestor that the source does not have is not contained.
	Descends(ctx context.Context, head, ancestor cluster.Revision) (bool, error)
	// At returns what the source has at a revision that was the head once. An error
	// means that it does not have it any more, or cannot be asked.
	At(ctx context.Context, revision cluster.Revision) (Fetched, error)
	// Recall returns the cluster at a revision that was applied before, from what is
	// kept of the repository on this host: nobody is asked. Removed is about the newest
	// revision there. An error means that it is not there.
	Recall(ctx context.Context, revision cluster.Revision) (Fetched, error)
}

// Renderer turns a snapshot into what should be: image name, machine configs,
// credentials. It asks nobody: a schematic whose id is not known yet leaves
// Desired.Schematic empty.
type Renderer interface {
	Desired(snap cluster.Snapshot, facts cluster.Facts, now time.Time) (cluster.Desired, cluster.Problems)
}

// Observer looks at one part of the world and fills in that part of o. What it
// cannot see stays unknown, with the reason; it never fails. Observers run
// side by side and write to different parts.
type Observer interface {
	Observe(ctx context.Context, d cluster.Desired, o *cluster.Observed)
}

// Forgetter is an observer that remembers between passes what it saw, to ask
// less.
type Forgetter interface {
	// Forget has everything about a cluster asked for again in the next pass.
	Forget(clusterID string)
}

// Retrier is an observer that remembers what a system did not take, so that it is not
// given that again.
type Retrier interface {
	// Retry has it tried once more.
	Retry()
}

// Progress takes word of how far an action has come.
type Progress func(cluster.Progress)

// Images brings the Talos image to the host.
type Images interface {
	// Register asks the factory for the id of a schematic. Renderer knows it
	// from then on.
	Register(ctx context.Context, s cluster.Schematic) error
	// CheckInstallers looks whether installer images are there, and Installers is what is known of those that
	// were looked for, by reference.
	CheckInstallers(ctx context.Context, d cluster.Desired, images []string) error
	Installers() map[string]cluster.InstallerSeen
	// Cached reports whether the verified image of d lies in the host's cache.
	Cached(d cluster.Desired, facts cluster.Facts) cluster.Seen[bool]
	// Download fetches and verifies the image of d into the host's cache.
	Download(ctx context.Context, d cluster.Desired, p Progress) (cluster.ImagePin, error)
	// Upload puts the cached image into a storage.
	Upload(ctx context.Context, host, datastore string, img cluster.Image, p Progress) error
}

// VMs changes virtual machines. Every method proves in the same breath that
// the VM it changes is ours.
type VMs interface {
	// Create makes a node's VM on a host ready to be started, or finishes one
	// whose creation was interrupted.
	Create(ctx context.Context, d cluster.Desired, n cluster.Node, host string, image cluster.Image, p Progress) error
	Start(ctx context.Context, d cluster.Desired, n cluster.Node, p Progress) error
	// Change corrects fields of a node's VM on a host, whether it runs or not.
	Change(ctx context.Context, d cluster.Desired, n cluster.Node, host string, fields []cluster.VMField, p Progress) error
	// Resume lets a node's VM go on that somebody paused.
	Resume(ctx context.Context, d cluster.Desired, n cluster.Node, p Progress) error
	// Reset has the VM of a node boot again, as its reset button would. It fails with
	// cluster.ErrNotBegun where it was not asked for.
	Reset(ctx context.Context, d cluster.Desired, n cluster.Node, p Progress) error
	// ShutDown asks the machine of a node to switch itself off, and waits for it.
	ShutDown(ctx context.Context, d cluster.Desired, n cluster.Node, p Progress) error
	// SetAvailability asks the HA manager to hold a VM in a state, or not at all, and waits until it has done that.
	SetAvailability(ctx context.Context, d cluster.Desired, vm cluster.VM, want availability.State, p Progress) error
	// SetApart has the HA manager keep VMs of the cluster on hosts of their own; fewer than two: none.
	SetApart(ctx context.Context, d cluster.Desired, vmids []int, p Progress) error
	// Delete stops a VM of ours and deletes it with its own disks.
	Delete(ctx context.Context, d cluster.Desired, vm cluster.VM, p Progress) error
}

// Machines changes Talos machines.
type Machines interface {
	Observer // of its members of etcd, too
	Forgetter
	// Apply gives a machine in maintenance mode its first config. It returns
	// only when the machine was seen to have taken it, or with an error.
	Apply(ctx context.Context, d cluster.Desired, n cluster.Node, cfg cluster.Config) error
	// Bootstrap founds etcd on a node. A node that has one already is success.
	Bootstrap(ctx context.Context, d cluster.Desired, n cluster.Node) error
	// Change gives a machine that runs another config: at once, or, staged, from its
	// next boot on. It returns when the machine was seen to have it.
	Change(ctx context.Context, d cluster.Desired, n cluster.Node, cfg cluster.Config, stage bool) error
	// ChangeNetwork gives a machine of another config, at once, what is about the network. It stays
	// only when the machine answers with it.
	ChangeNetwork(ctx context.Context, d cluster.Desired, n cluster.Node, cfg cluster.Config) error
	// DropStaged has a machine that runs a config keep it, and drop another one that waits
	// for its next boot.
	DropStaged(ctx context.Context, d cluster.Desired, n cluster.Node, cfg cluster.Config) error
	// PullImages has a machine pull the images of its next config.
	PullImages(ctx context.Context, d cluster.Desired, n cluster.Node, p Progress) error
	// PullInstaller has a machine pull an installer of Talos, where that which upgrades it finds it.
	PullInstaller(ctx context.Context, d cluster.Desired, n cluster.Node, image string, p Progress) error
	// InstallTalos runs, in a boot, an installer that the machine has pulled, so that its next boot runs another
	// Talos. It fails with a cluster.InstallError where the installer did, with cluster.ErrNotBegun where
	// it was not run, and else it may have been.
	InstallTalos(ctx context.Context, d cluster.Desired, n cluster.Node, image, boot string, p Progress) error
	// UpgradeTalos has a machine run an installer on its way down, and returns when it runs since another
	// boot than the one given. The errors are those of InstallTalos.
	UpgradeTalos(ctx context.Context, d cluster.Desired, n cluster.Node, image, boot string, p Progress) error
	// Reboot has a machine boot again that runs since a boot, and returns when it runs
	// since another one.
	Reboot(ctx context.Context, d cluster.Desired, n cluster.Node, boot string, p Progress) error
	// RollBackTalos has a machine boot the Talos that it ran before, and returns when it runs since another boot. It fails with
	// cluster.ErrNotBegun where Talos refuses, and else it may have been asked, which must not be repeated: a second
	// request may lead to what it runs now.
	RollBackTalos(ctx context.Context, d cluster.Desired, n cluster.Node, boot string, p Progress) error
	// Forfeit has the etcd of a node give up leadership, if it has it.
	Forfeit(ctx context.Context, d cluster.Desired, n cluster.Node) error
	// RemoveMember removes the member of a node from etcd, by asking another control
	// plane. One that is not listed is success.
	RemoveMember(ctx context.Context, d cluster.Desired, n cluster.Node, member cluster.Member) error
}

// Nodes changes Node objects of Kubernetes, and what runs on them.
type Nodes interface {
	// Drain takes a node out of service, noting what for: it is cordoned, and its pods
	// are evicted as their budgets allow. One that somebody else cordoned is an error,
	// and pods that do not leave in time are one; the node is in service again then.
	Drain(ctx context.Context, d cluster.Desired, n cluster.Node, turn string, how cluster.Drain, p Progress) error
	// ListLostPods names the pods of a node that Drain would delete and that no controller starts
	// again.
	ListLostPods(ctx context.Context, d cluster.Desired, node string) ([]string, error)
	// CheckDrained returns an error unless a node is as Drain left it, right before its
	// machine goes down; stay: with its pods. What voids its drain is noted.
	CheckDrained(ctx context.Context, d cluster.Desired, n cluster.Node, stay bool) error
	// Uncordon puts a node back into service that Drain took out of it, but for a cordon
	// that was there before.
	Uncordon(ctx context.Context, d cluster.Desired, n cluster.Node) error
	// DeleteNode deletes the Node object of a node whose machine is not there any longer.
	DeleteNode(ctx context.Context, d cluster.Desired, n cluster.Node, p Progress) error
	// Label gives the Node object the labels, taints and annotations of n, and takes back those that
	// it was given before and n has no more. What others have set stays, and so does what is left
	// of n, in the names of MetaEdit.Field.
	Label(ctx context.Context, d cluster.Desired, n cluster.Node, left []string) error
}

// Gates looks at what must hold before a node is upgraded, and starts the Jobs that show it.
type Gates interface {
	// CheckGates returns which conditions of the inventory hold, by the names of their gates.
	CheckGates(ctx context.Context, d cluster.Desired, o cluster.Observed) map[string]cluster.Seen[bool]
	// SeeJobs returns the Jobs of those names that there are, and all of the agent's; unknown without a reason: none was looked for.
	SeeJobs(ctx context.Context, d cluster.Desired, wanted []cluster.ObjectName) cluster.Seen[map[cluster.ObjectName]cluster.Job]
	// StartJob makes the Job of a gate, once: one that is there already is success. DeleteJob deletes it, and no other of that name.
	StartJob(ctx context.Context, d cluster.Desired, g cluster.Gate, name cluster.ObjectName, revision cluster.Revision) error
	DeleteJob(ctx context.Context, d cluster.Desired, job cluster.Job) error
}

// Snapshots keeps snapshots of etcd on this host. As an Observer it fills in which there are.
type Snapshots interface {
	Observer
	// Take stores a snapshot that was verified, and removes those that are no longer
	// needed. It returns an error when none was stored.
	Take(ctx context.Context, d cluster.Desired, kind retention.Kind, p Progress) error
	// Request has one asked for until it is taken, and Requested reports whether that is so.
	Request()
	Requested() bool
}

// Manifests changes what Talos deploys once.
type Manifests interface {
	// Sync applies the bootstrap manifests to the objects that they were seen to differ from, and ends with
	// the first error. What somebody else keeps is left.
	Sync(ctx context.Context, d cluster.Desired, m cluster.Manifests) error
}

// Releases changes Helm releases.
type Releases interface {
	// FetchChart brings a chart into the cache, checks it against the pin, if
	// there is one, and returns its digest.
	FetchChart(ctx context.Context, a cluster.Addon, pin string) (digest string, err error)
	// CachedCharts reports which charts of an inventory are in the cache, by addon.
	CachedCharts(d cluster.Desired, facts cluster.Facts) map[string]cluster.Seen[cluster.Fetched]
	// MadeOf reads the version of the chart and the values that the newest revision of an
	// addon's release was made of. No error quotes a value.
	MadeOf(ctx context.Context, d cluster.Desired, a cluster.Addon) (cluster.Installed, error)
	// Install installs, upgrades or recovers a release. It returns when the
	// objects are written; whether they become ready is observed later.
	Install(ctx context.Context, d cluster.Desired, a cluster.Addon, digest string) error
	// Mark notes in the release of an addon whether this cluster manages it, and that
	// its newest revision was ready.
	Mark(ctx context.Context, d cluster.Desired, a cluster.Addon, good bool) error
	// RollBack brings a release back to a revision of ours that was ready, from one
	// with that digest, which did not become so.
	RollBack(ctx context.Context, d cluster.Desired, a cluster.Addon, to int, digest string) error
	// Uninstall removes a release that this cluster manages and no addon of the
	// inventory has; any other is an error. One that is not there is removed.
	Uninstall(ctx context.Context, d cluster.Desired, r cluster.ReleaseName) error
	// LabelNamespace gives a namespace these labels and annotations, and takes back
	// those it gave before. Those of others stay.
	LabelNamespace(ctx context.Context, d cluster.Desired, namespace string, meta cluster.NamespaceMeta) error
}
