package cluster

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster/availability"
)

// Seen is one part of the observed world. The zero value is unknown: it was not
// looked at, or looking failed. Unknown is never read as absent.
type Seen[T any] struct {
	Known bool
	Why   string // why it is not known
	Value T
}

// Saw wraps what was seen.
func Saw[T any](v T) Seen[T] { return Seen[T]{Known: true, Value: v} }

// Unseen is an unknown with its reason.
func Unseen[T any](why string) Seen[T] { return Seen[T]{Why: why} }

// Observed is what is, as far as it was seen in one pass.
type Observed struct {
	Now   time.Time
	Facts Facts

	Hosts map[string]Host // by name, for every host the inventory names
	VMs   map[string]VM   // by node name, for every node of the inventory
	// Orphans are VMs that carry our mark for this cluster and prove ours, but
	// are not in the inventory.
	Orphans  Seen[[]VM]
	Machines map[string]Machine // by node name
	Members  Seen[[]Member]     // of etcd
	// MembersAgree states whether every member of etcd names the same members. It
	// is unknown until all of them were asked.
	MembersAgree Seen[bool]
	// MembersAsked are the nodes whose members were asked, answered, and name the same
	// members; none where they do not.
	MembersAsked []string
	// Etcd is what one of its members answers of etcd besides.
	Etcd Seen[Etcd]
	// LostSince is since when members of etcd, by id, were seen to have no machine, in
	// every look. One that was seen so for the first time has the time of this look.
	LostSince map[uint64]time.Time
	// Learners are the members of etcd, by id, that were seen to be learners in every look.
	Learners map[uint64]Learner
	// EvictedSince is since when control planes, by name, were seen to run an etcd that is no member
	// any longer, in every look of this agent.
	EvictedSince map[string]time.Time
	// DeadSince is since when nodes, by name, were seen to be dead while all else worked,
	// in every look of this agent.
	DeadSince map[string]time.Time
	// DriftNotes are what was noted of what is not what it should be, in every look that could
	// see it, those of agents before this one too. What was seen so for the first time has
	// the time of this look, or an earlier one that the world shows.
	DriftNotes map[DriftKey]DriftNote
	// APIs is for each control plane whether its own kube-apiserver answers ready.
	APIs map[string]Seen[bool]
	// VIP is what answers at the address that the control planes share; unknown
	// where there is none, and until a kube-apiserver is ready on its own.
	VIP   Seen[VirtualIP]
	Nodes Seen[map[string]KubeNode]
	// SystemPods are the pods of kube-system, by name.
	SystemPods Seen[map[string]SystemPod]
	// Deprecated are the deprecated APIs of Kubernetes that clients have requested since the
	// kube-apiservers started, looked for only where a node runs another version than it is to have.
	Deprecated Seen[[]DeprecatedAPI]
	// ReleaseAPIs are those of the releases of Helm, whoever made them, looked for where Deprecated is.
	ReleaseAPIs Seen[[]ReleaseAPI]
	// Gates has which conditions of the inventory hold, by name. They are looked at while an upgrade could go on;
	// one that is missing was not.
	Gates map[string]Seen[bool]
	// Jobs are those of gates that were looked for, and all of the agent's. It is unknown without a reason where none was looked for.
	Jobs Seen[map[ObjectName]Job]
	// Manifests are what Talos deploys once, and where that differs from what its control planes render
	// now. It is unknown without a reason while a node is on its way, when that is not looked at.
	Manifests Seen[Manifests]
	Releases  Seen[map[string]Release] // by addon name; missing: not installed
	// Left are the releases that we made and no addon of the inventory has; there
	// may be more while Releases is unknown.
	Left []LeftRelease
	// Namespaces are those of addons, by name, with the labels and annotations that we
	// set and nobody changed since; missing: there is no such namespace. It is unknown
	// while Releases is.
	Namespaces map[string]NamespaceMeta

	// Availability is what Proxmox VE's HA manager holds. It is unknown without a reason where nothing of the cluster is its.
	Availability Seen[availability.Manager]

	// Snapshots are those of etcd, on this host.
	Snapshots EtcdSnapshots

	// Installers are the installer images that were looked for, by reference. The time of one that
	// was not is missing with it.
	Installers  map[string]InstallerSeen
	ImageCached Seen[bool]               // the verified image lies in the host's cache
	Charts      map[string]Seen[Fetched] // by addon name
	Factory     Seen[bool]               // the image factory returned the schematic's id

	// Running are the actions of ours that are still under way.
	Running []Running
	// Backoffs are the actions that failed lately and are not tried again yet.
	Backoffs []Backoff
	// Usual is how long an action of a kind took at most, of those that are
	// remembered and were done; a kind of which there is none is missing.
	Usual map[ActionKind]time.Duration
}

// EtcdSnapshots is what this host keeps of the etcd of a cluster. The zero value is a host
// that takes no snapshots.
type EtcdSnapshots struct {
	Enabled bool // the host takes them
	// Verified is when the newest one was taken that this process has read to its end, the
	// zero time when there is none. It is unknown while where they are kept cannot be read, and
	// without a reason while the newest are read, which a process does when it starts.
	Verified Seen[time.Time]
	// Newest is when the newest one was taken that is not known to be damaged, whether it was read
	// or not; the zero time when there is none.
	Newest time.Time
	Due    time.Time // when the next scheduled one is
	// Requested: somebody has asked for one since the last of those was taken.
	Requested bool
	Kept      int   // how many there are
	Damaged   int   // of these, as far as is known
	Bytes     int64 // of the newest one
}

// IsOurs reports whether the release of an addon is there, and for this cluster to keep as
// the inventory has it: one that is bootstrap-only belongs to others once it is deployed.
func (o Observed) IsOurs(a Addon) bool {
	rel, there := o.Releases.Value[a.Name]
	return o.Releases.Known && there && rel.Namespace == a.Namespace && rel.Digest != "" && (a.Ownership == Managed || rel.Status != "deployed")
}

// Request is a request to the API of Proxmox VE that changed a VM, as the access log of a
// host has it.
type Request struct {
	Method string    // PUT, POST or DELETE
	Call   string    // what of the VM: config, resize, status/stop; "": the VM itself
	At     time.Time // when it was answered, in whole seconds
	User   string    // user@realm, or user@realm!token
	Ours   bool      // sent with the agent's own token
}

// Presence is whether a VM exists. The zero value is unknown.
type Presence int

// A VM is absent only when a complete listing does not have it and Proxmox VE
// calls its VMID free.
const (
	PresenceUnknown Presence = iota
	Absent
	Present
)

// Power is the power state of a VM. The zero value is unknown.
type Power int

// The power states.
const (
	PowerUnknown Power = iota
	Stopped
	PowerRunning
	Paused
)

// Owned is whose a VM is. The zero value is unknown.
type Owned int

// A VM is ours when its VMID is the one the inventory gives, it lies in our
// pool and carries the SMBIOS UUID we derived; foreign when it provably does
// not.
const (
	OwnerUnknown Owned = iota
	Ours
	Foreign
)

// VM is the guest that carries a node, as Proxmox VE shows it.
type VM struct {
	VMID     int
	Node     string // name of the inventory's node it belongs to
	Presence Presence
	Owner    Owned
	Why      string // why presence or owner is unknown, or what makes it foreign
	Name     string
	Host     string
	Power    Power
	Halted   string // of one that is paused: why, where it was not by a person: "io-error", ...
	Uptime   time.Duration
	Lock     string // backup, create, ...; "" : none
	HA       string // state that Proxmox VE's HA manager has for it: started, migrate, ...; "" : none
	Deleting bool   // its mark records that a deletion has begun
	Replace  string // token of the inventory that it was made for, as its mark has it
	// Disproven: its UUID was read and is another's, and its mark is not of this
	// cluster. What is Foreign without that may be the node's own VM all the same.
	Disproven bool
	// Moved: it has the UUID of the node, and lies in Pool instead of the node's own.
	// That makes it Foreign all the same.
	Moved     bool
	Pool      string // of Moved, "" : none
	Protected bool   // Proxmox VE's own protection flag, which the agent never sets
	Managed   bool   // by Proxmox VE's HA manager
	// Others are the volumes that would be deleted with it and are not known to be ours.
	Others   Drives
	Tags     []string
	Task     *Task          // running on it now; the look at a console is none
	Hardware Seen[Hardware] // unknown until its config was read; with the changes that wait for its next start
	// Active is what a VM runs with while changes wait for its next start; nil: what
	// Hardware has.
	Active *Hardware
	// ChangedBy are the tasks that may have changed it since ChangedAfter, newest first, the agent's own included; none: there
	// are none, or they cannot be seen. A change of the config by itself is no task.
	ChangedBy []Task
	// ChangedWith are the requests that may have changed it since then, newest first, those that began a task and the agent's own
	// included; none: there are none, or they cannot be seen. What passes no API, as `qm set` does not, is no request.
	ChangedWith []Request
	// ChangedAfter is when it was last seen as it was before its last change; of one that this process has looked at for the
	// first time, when an earlier one saw it last. Zero: no change was seen.
	ChangedAfter time.Time
	// Untaggable: Proxmox VE refuses to let the agent tag it.
	Untaggable bool
	// Seedless: it has no cloud-init drive, from which its machine takes its address before it has
	// a config.
	Seedless bool
	// Unmarked: the first line of its description is not the mark that the agent
	// made it with.
	Unmarked bool
	// ConfigAge is how long ago Hardware was read; a quiet world is audited in
	// turns.
	ConfigAge time.Duration
}

// Carrier is the host that carries a node's VM; while that is not seen, the one that
// should.
func (vm VM) Carrier(n Node) string { return cmp.Or(vm.Host, n.Placement.Pin) }

// RemoveLocked is how a person removes a VM that a task left locked while it was made.
// Its config names none of its volumes, which a plain destroy would leave.
func RemoveLocked(vmid int, host string) string {
	return fmt.Sprintf("as root on %s: `qm unlock %d && qm destroy %d --destroy-unreferenced-disks 1`", host, vmid, vmid)
}

// Drive is a volume in the config of a VM.
type Drive struct {
	Key    string // scsi0, unused0, ...
	Volume string // "local-lvm:vm-410-disk-1"
	Own    bool   // the volume is named for the VM's number
}

// Detached reports whether the volume is only kept, and the guest does not have it.
func (d Drive) Detached() bool { return strings.HasPrefix(d.Key, "unused") }

func (d Drive) String() string { return d.Key + " (" + d.Volume + ")" }

// Drives are some of the volumes of a VM.
type Drives []Drive

func (ds Drives) String() string {
	var words []string
	for _, d := range ds {
		words = append(words, d.String())
	}
	return strings.Join(words, ", ")
}

// Reach is how far a machine's Talos API lets us. The zero value is unknown.
type Reach int

// The reaches of a machine.
const (
	ReachUnknown Reach = iota
	// Silent: nothing answers at the address.
	Silent
	// Maintenance: Talos waits for its first config.
	Maintenance
	// Configured: Talos answers with the cluster's own certificates.
	Configured
	// Unexpected: somebody answers who is not the machine we made: another
	// cluster's certificates, another UUID, another MAC.
	Unexpected
)

// Member is one etcd member.
type Member struct {
	ID      uint64
	Name    string
	Address string // of its peer URL
	Learner bool
}

// Etcd is what is the same of all its members, and their version.
type Etcd struct {
	Server string   // the oldest version that a member runs: 3.6.12; "" : it is not known of all
	Leader uint64   // id of the member that leads; 0: none
	Alarms []string // NOSPACE: writes are refused; CORRUPT: a member has other data than the others
}

// Learner is what was seen of a member of etcd since it is a learner.
type Learner struct {
	Since time.Time // since when its machine's etcd was seen to run
	Boot  string    // boot id of its machine when it was seen first, "" when that was not known
}

// Describe names the member: one has no name before it runs for the first time.
func (m Member) Describe() string {
	if m.Name != "" {
		return m.Name
	}
	return fmt.Sprintf("the member without a name at %s, id %s,", cmp.Or(m.Address, "no address"), m.HexID())
}

// IsOf reports whether the member is a node's.
func (m Member) IsOf(n Node) bool { return m.Name == n.Name || m.Address == n.IP.String() }

// HexID is the id in the notation of talosctl.
func (m Member) HexID() string { return fmt.Sprintf("%016x", m.ID) }

// VirtualIP is what answers at the address that the control planes share.
type VirtualIP struct {
	Served bool   // a kube-apiserver of the cluster answers there
	Why    string // why none does
	MAC    string // of the machine that has the address then, upper case; "" : not known
}

// KubeNode is one Kubernetes Node object.
type KubeNode struct {
	Name    string
	Ready   bool
	Why     string // message of the Ready condition when it is not true
	Kubelet string // v1.36.1
	OS      string // as its kubelet reports it, "Talos (v1.13.9)"
	// NotReadySince is when its Ready condition became another than true; zero while it
	// is, or that is not known.
	NotReadySince time.Time
	ReadySince    time.Time // the same for true
	Created       time.Time // when the object was made
	// Cordoned: no new pods are placed on it.
	Cordoned bool
	// Turn is what the agent took it out of service for, as it noted on the node; "" :
	// it did not.
	Turn string
	// Drained is the boot id of the machine at the time the agent had drained it; "" :
	// it has not.
	Drained string
	// Adopted: somebody had cordoned it before the agent took it out of service, and it
	// stays so.
	Adopted bool
	// BootID identifies the boot of the machine that its kubelet reports from.
	BootID string
	// UUID is the SMBIOS UUID of the machine that its kubelet reports from, in lower
	// case; "" : it has not reported.
	UUID string
	// Address is its internal address, "" when it has none.
	Address string
	// ControlPlane: it has the label of a control plane.
	ControlPlane bool
	// Meta are its labels, taints and annotations, as far as the inventory names their
	// keys or the agent answers for them; Owned are those that it answers for, as it noted.
	Meta, Owned NodeMeta
	// SetBy is who has set what of Meta differs from the inventory, by the names of the
	// fields ("label zone"): taints are one list, and have who has set that last.
	SetBy map[string]Setter
	// Pressure is what its kubelet reports although it is Ready, "DiskPressure:
	// kubelet has disk pressure"; "" : nothing.
	Pressure string
}

// SystemPod is one pod of kube-system.
type SystemPod struct {
	Name     string
	Node     string // "" : none yet
	Workload string // what it belongs to: coredns, kube-flannel
	DNS      bool   // it serves the cluster's DNS
	Ready    bool
	// Failing is why a container of it cannot run, Unschedulable why no node takes
	// it; "" when nothing is known to be wrong.
	Failing, Unschedulable string
	// Static is what the static pod is made of that it stands for; zero: it is none.
	Static StaticPod
	// Proxy is the image of it where it is one of kube-proxy; "" : it is not.
	Proxy string
}

// Release is one Helm release.
type Release struct {
	Namespace string
	Status    string // deployed, failed, pending-install, ...
	Revision  int
	// Digest is the digest of chart and values we installed it with; "" when
	// somebody else did.
	Digest string
	Ready  bool
	Why    string // what it waits for when it is not ready
	// Refused means that it waits for pods that the Pod Security of its namespace
	// does not allow.
	Refused bool
	// Managed means that it carries the mark of an addon that this cluster manages.
	Managed bool
	// Kept is why it is not uninstalled without its addon; "": it may be.
	Kept string
	// Missing names objects of it that somebody has deleted, "" when there are none.
	Missing string
	// Altered is what somebody has changed of its objects, with who and when; AlteredAgain
	// what was put back already and changed again, so that it is left.
	Altered, AlteredAgain string
	Changed               time.Time // when its record was written last
	// Edited means that somebody else upgraded or rolled back a release of ours.
	Edited bool
	// EditedBy is who that was, as far as its record and the API note it, for people.
	EditedBy string
	// Version is that of the chart which it was made of, and OtherValues the paths of its
	// values that are not the inventory's, with commas between, where it was made of
	// something else than the inventory has; "": it was not, or that is not known. No value is
	// in them.
	Version, OtherValues string
	// Good means that this revision is marked as one that was ready.
	Good bool
	// Tried is when the first of the newest revisions with its digest was made.
	Tried time.Time
	// Back is the newest good revision with another digest, 0 when there is none.
	Back int
	// RolledBack is the digest that was rolled back with this revision, "" when it is
	// no rollback of ours.
	RolledBack string
}

// ToPutBack is what of its objects is put back by the same upgrade again, "" when nothing.
func (r Release) ToPutBack() string {
	switch {
	case r.Missing == "":
		return r.Altered
	case r.Altered == "":
		return r.Missing + " is missing"
	}
	return r.Missing + " is missing; " + r.Altered
}

// Installed is what a release was made of, read when somebody wants to know.
type Installed struct {
	Chart, Version string
	Values         Secret // as JSON
	Missing        []string
	Altered        []string // what somebody has changed of its objects
}

type ReleaseName = ObjectName // of a Helm release

// LeftRelease is a release that we made and no addon of the inventory has.
type LeftRelease struct {
	ReleaseName
	Status string
	Kept   string // why it is not uninstalled; "": it may be
}

// Fetched is a chart that lies ready in the host's cache.
type Fetched struct {
	Digest string // of the chart, in the notation of Chart.Digest
	// Release is the digest of chart and values together: what a release that
	// needs nothing done carries.
	Release string
}
