package cluster

import (
	"strings"
	"time"
)

// ActionKind is what an action does, in the words that people read: "create vm".
type ActionKind string

// The kinds of action. An action of the planner has exactly one of them.
const (
	RegisterSchematic ActionKind = "register schematic"
	DownloadImage     ActionKind = "download image"
	UploadImage       ActionKind = "upload image"
	CreateVM          ActionKind = "create vm"
	StartVM           ActionKind = "start vm"
	ResumeVM          ActionKind = "resume vm"
	ResetVM           ActionKind = "reset vm"
	ApplyConfig       ActionKind = "apply config"
	Bootstrap         ActionKind = "bootstrap etcd"
	FetchChart        ActionKind = "fetch chart"
	InstallAddon      ActionKind = "install addon"
	LabelNamespace    ActionKind = "label namespace"
	MarkAddon         ActionKind = "mark addon"
	UninstallAddon    ActionKind = "uninstall addon"
	RollBackAddon     ActionKind = "roll back addon"
	DeleteVM          ActionKind = "delete vm"
	ChangeVM          ActionKind = "change vm"
	ShutDownVM        ActionKind = "shut down vm"
	PullImages        ActionKind = "pull images"
	ChangeConfig      ActionKind = "change config"
	DropConfig        ActionKind = "drop config"
	DrainNode         ActionKind = "drain node"
	RebootNode        ActionKind = "reboot node"
	CheckInstallers   ActionKind = "check installers"
	PullInstaller     ActionKind = "pull installer"
	InstallTalos      ActionKind = "install talos"
	UpgradeTalos      ActionKind = "upgrade talos"
	RollBackTalos     ActionKind = "roll back talos"
	SetAvailability   ActionKind = "set availability"
	SetApart          ActionKind = "keep vms apart"
	UncordonNode      ActionKind = "uncordon node"
	RemoveMember      ActionKind = "remove etcd member"
	DeleteNode        ActionKind = "delete node"
	LabelNode         ActionKind = "label node"
	TakeSnapshot      ActionKind = "take etcd snapshot"
	SyncManifests     ActionKind = "sync manifests"
	StartJob          ActionKind = "start job"
	DeleteJob         ActionKind = "delete job"
)

// ActionID identifies an action: there is never more than one of a kind for a subject, be it planned, under way or backing off.
type ActionID struct {
	Kind    ActionKind
	Subject string // a node, an addon, an image, a cluster
}

// Claim is something that an action needs for itself while it is under way. No two actions that claim
// the same run together, but for copies onto a storage: of these as many as the host's policy has.
type Claim string

// ClaimStorage claims a storage: who allocates or frees there keeps its lock, for which others wait ten seconds.
func ClaimStorage(host, storage string) Claim { return Claim("storage " + host + "/" + storage) }

// ClaimCopy claims a place among those that copy onto a storage: each allocates in a moment.
func ClaimCopy(host, storage string) Claim { return aCopy + ClaimStorage(host, storage) }

const aCopy = "a place on "

// Resource is what is claimed, alone or beside others, of which IsCopy is one.
func (c Claim) Resource() Claim { return Claim(strings.TrimPrefix(string(c), aCopy)) }

// IsCopy reports whether the claim is one that a copy has.
func (c Claim) IsCopy() bool { return c != c.Resource() }

// OfStorage reports whether the claim is one on a storage.
func (c Claim) OfStorage() bool { return strings.HasPrefix(string(c.Resource()), "storage ") }

// ClaimNode claims a node: its VM and its machine.
func ClaimNode(name string) Claim { return Claim("node " + name) }

// ClaimAddon claims an addon's release.
func ClaimAddon(name string) Claim { return Claim("addon " + name) }

// ClaimEtcd claims the membership of the cluster's etcd: who founds it, joins it or leaves it.
const ClaimEtcd Claim = "etcd"

// Running is an action of ours that is under way.
type Running struct {
	ActionID
	Node  string // that it concerns, "" when it concerns none
	Since time.Time
	Progress
	Claims []Claim // that it holds
	// Disrupts means that its node does not work while it is under way.
	Disrupts bool
}

// Progress is how far an action has come.
type Progress struct {
	Done, Total int64  // in Unit; Total 0: unknown
	Unit        string // "bytes", ...
	UPID        string // the Proxmox VE task it waits for, "" before and without one
	Waits       string // what it waits for before it can begin: another cluster's action
	Allocated   bool   // it has all the disks it needs: the claim on its storage is released
}

// Backoff is an action that failed, or was undone by somebody else again and again, and is
// given time before its next attempt.
type Backoff struct {
	ActionID
	Until  time.Time
	Failed int    // attempts that failed in a row, or backoffs in a row where it is undone
	Undone bool   // they did not fail
	Error  string // of the last one
	Hint   string
}
