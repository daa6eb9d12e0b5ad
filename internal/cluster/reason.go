package cluster

import "errors"

// Reason is the code of why something waits, is blocked, or is refused over the
// API. It is what programs, clocks, notifications and metrics go by; sentences
// are for people and may be reworded at any time.
type Reason string

// The reasons of a cluster's condition.
const (
	Converged             Reason = "Converged"
	Progressing           Reason = "Progressing"
	SuspendedByAdmin      Reason = "SuspendedByAdmin"
	Destroying            Reason = "Destroying"
	Starting              Reason = "Starting"
	StandingBy            Reason = "StandingBy"
	RepositoryUnavailable Reason = "RepositoryUnavailable"
	InternalError         Reason = "InternalError"
)

// The reasons that concern a cluster as a whole.
const (
	ClusterUnmanaged   Reason = "ClusterUnmanaged"
	InventoryInvalid   Reason = "InventoryInvalid"
	ClusterRemoved     Reason = "ClusterRemoved"
	HistoryRewritten   Reason = "HistoryRewritten"
	HistoryUnknown     Reason = "HistoryUnknown"
	JournalUnwritable  Reason = "JournalUnwritable"
	JournalLost        Reason = "JournalLost"
	PolicyUnknown      Reason = "PolicyUnknown"
	PolicyViolation    Reason = "PolicyViolation"
	SecretsMissing     Reason = "SecretsMissing"
	SecretsChanged     Reason = "SecretsChanged"
	ContractChanged    Reason = "ContractChanged"
	VMsUnknown         Reason = "VMsUnknown"
	WaitingForTurn     Reason = "WaitingForTurn"
	NodeDead           Reason = "NodeDead"
	WaitingForWindow   Reason = "WaitingForWindow"
	WaitingForBudget   Reason = "WaitingForBudget"
	WaitingForQuorum   Reason = "WaitingForQuorum"
	WaitingForEndpoint Reason = "WaitingForEndpoint"
	ActionFailed       Reason = "ActionFailed"
	ActionOverdue      Reason = "ActionOverdue"
	TaskOverdue        Reason = "TaskOverdue"
	WaitingForImage    Reason = "WaitingForImage"
	WaitingForCapacity Reason = "WaitingForCapacity"
	WaitingForFactory  Reason = "WaitingForFactory"
	ImageCacheUnknown  Reason = "ImageCacheUnknown"
	ImageMismatch      Reason = "ImageMismatch"
	WaitingForAPI      Reason = "WaitingForAPI"
	VIPNotServed       Reason = "VIPNotServed"
	NodesUnknown       Reason = "NodesUnknown"
	SystemPodsUnknown  Reason = "SystemPodsUnknown"
	PodsUnschedulable  Reason = "PodsUnschedulable"
	ClusterDNSNotReady Reason = "ClusterDNSNotReady"
	EtcdUnreachable    Reason = "EtcdUnreachable"
	EtcdLost           Reason = "EtcdLost"
	BootstrapUncertain Reason = "BootstrapUncertain"
	WaitingForSnapshot Reason = "WaitingForSnapshot"
	SnapshotsUnknown   Reason = "SnapshotsUnknown"
	ManifestsUnknown   Reason = "ManifestsUnknown"
	ManifestsOutdated  Reason = "ManifestsOutdated"
	ManifestsRolling   Reason = "ManifestsRolling"
)

// The reasons that concern a host or a storage.
const (
	HostUnknown     Reason = "HostUnknown"
	HostNoQuorum    Reason = "HostNoQuorum"
	HostMaintained  Reason = "HostMaintained"
	HostTooSmall    Reason = "HostTooSmall"
	HostMemoryShort Reason = "HostMemoryShort"
	HostUnsuitable  Reason = "HostUnsuitable"
	StorageShort    Reason = "StorageShort"
	StorageUnknown  Reason = "StorageUnknown"
	StorageMissing  Reason = "StorageMissing"
	StorageInactive Reason = "StorageInactive"
	StorageContent  Reason = "StorageContent"
)

// The reasons that concern a node.
const (
	NodeUnknown          Reason = "NodeUnknown"
	NodeLocked           Reason = "NodeLocked"
	NodeProtected        Reason = "NodeProtected"
	VMProtected          Reason = "VMProtected"
	VMNotShown           Reason = "VMNotShown"
	ControlPlaneUnproven Reason = "ControlPlaneUnproven"
	VMManaged            Reason = "VMManaged"
	HAUnknown            Reason = "HAUnknown"
	HANotHeld            Reason = "HANotHeld"
	HADisarmed           Reason = "HADisarmed"
	ForeignVolumes       Reason = "ForeignVolumes"
	NodeUnreachable      Reason = "NodeUnreachable"
	NodeIdentityChanged  Reason = "NodeIdentityChanged"
	AddressInUse         Reason = "AddressInUse"
	ForeignVM            Reason = "ForeignVM"
	UnexpectedMachine    Reason = "UnexpectedMachine"
	OrphanEtcdMember     Reason = "OrphanEtcdMember"
	RemovalUnapproved    Reason = "RemovalUnapproved"
	EvenControlPlanes    Reason = "EvenControlPlanes"
	OnlyControlPlane     Reason = "OnlyControlPlane"
	EndpointIsNode       Reason = "EndpointIsNode"
	OrphanNodeObject     Reason = "OrphanNodeObject"
	DuplicateVM          Reason = "DuplicateVM"
	VMConfigUnknown      Reason = "VMConfigUnknown"
	VMCreating           Reason = "VMCreating"
	VMLocked             Reason = "VMLocked"
	VMLockOrphaned       Reason = "VMLockOrphaned"
	VMPaused             Reason = "VMPaused"
	SystemDiskMissing    Reason = "SystemDiskMissing"
	DeletionUnfinished   Reason = "DeletionUnfinished"
	DestroyExpired       Reason = "DestroyExpired"
	WaitingForBoot       Reason = "WaitingForBoot"
	WaitingForAddress    Reason = "WaitingForAddress"
	WaitingForTalos      Reason = "WaitingForTalos"
	TalosNotReady        Reason = "TalosNotReady"
	WaitingForEtcd       Reason = "WaitingForEtcd"
	WaitingForMembership Reason = "WaitingForMembership"
	EtcdMembersUnknown   Reason = "EtcdMembersUnknown"
	EtcdMemberLost       Reason = "EtcdMemberLost"
	EtcdMemberStuck      Reason = "EtcdMemberStuck"
	EtcdUnhealthy        Reason = "EtcdUnhealthy"
	EtcdAlarm            Reason = "EtcdAlarm"
	EtcdTooOld           Reason = "EtcdTooOld"
	APIServerNotReady    Reason = "APIServerNotReady"
	StaticPodOutdated    Reason = "StaticPodOutdated"
	StaticPodNotReady    Reason = "StaticPodNotReady"
	WaitingToRegister    Reason = "WaitingToRegister"
	NodeNotReady         Reason = "NodeNotReady"
	NodePressure         Reason = "NodePressure"
	HardwareDrift        Reason = "HardwareDrift"
	HealingOff           Reason = "HealingOff"
	ApplyingOff          Reason = "ApplyingOff"
	ChangeUnapproved     Reason = "ChangeUnapproved"
	FixedConfigChanged   Reason = "FixedConfigChanged"
	ConfigRefused        Reason = "ConfigRefused"
	WaitingForCanary     Reason = "WaitingForCanary"
	WaitingForReady      Reason = "WaitingForReady"
	NodeCordoned         Reason = "NodeCordoned"
	ChangeNotTaken       Reason = "ChangeNotTaken"
	UpgradeFailed        Reason = "UpgradeFailed"
	UpgradeFellBack      Reason = "UpgradeFellBack"
	RolledBack           Reason = "RolledBack"
	RollbackNotTaken     Reason = "RollbackNotTaken"
	UpgradeStuck         Reason = "UpgradeStuck"
	WaitingForInstaller  Reason = "WaitingForInstaller"
	WaitingForPull       Reason = "WaitingForPull"
	InstallerMissing     Reason = "InstallerMissing"
	WaitingForHop        Reason = "WaitingForHop"
	WaitingForSoak       Reason = "WaitingForSoak"
	WaitingForGate       Reason = "WaitingForGate"
	PoolDrift            Reason = "PoolDrift"
	TalosVersionDrift    Reason = "TalosVersionDrift"
	SchematicDrift       Reason = "SchematicDrift"
	SecureBootDrift      Reason = "SecureBootDrift"
	KubernetesDrift      Reason = "KubernetesVersionDrift"
	ConfigDrift          Reason = "ConfigDrift"
	RunningConfigUnknown Reason = "RunningConfigUnknown"
)

// The reasons that concern an addon.
const (
	ReleasesUnknown     Reason = "ReleasesUnknown"
	ReleaseForeign      Reason = "ReleaseForeign"
	ReleaseUninstalling Reason = "ReleaseUninstalling"
	ReleaseRolledBack   Reason = "ReleaseRolledBack"
	WaitingForAddon     Reason = "WaitingForAddon"
	WaitingForChart     Reason = "WaitingForChart"
	AddonNotReady       Reason = "AddonNotReady"
	AddonPodsRefused    Reason = "AddonPodsRefused"
)

// The reasons with which the API refuses.
const (
	AccessDenied    Reason = "AccessDenied"
	RequestInvalid  Reason = "RequestInvalid"
	RouteUnknown    Reason = "RouteUnknown"
	ClusterUnknown  Reason = "ClusterUnknown"
	RunUnknown      Reason = "RunUnknown"
	NotConfirmed    Reason = "NotConfirmed"
	NothingToAccept Reason = "NothingToAccept"
	NothingToDo     Reason = "NothingToDo"
	NoSnapshots     Reason = "NoSnapshots"
	InventoryUnread Reason = "InventoryUnread"
	CommandFailed   Reason = "CommandFailed"
	TooManyStreams  Reason = "TooManyStreams"
)

// Audience is who may see a reason with its message.
type Audience string

// The audiences, from the widest.
const (
	// Everyone who reads the commit statuses or the notifications of the
	// cluster, and the metrics.
	Everyone Audience = "everyone"
	// Callers of the one route that answered with it.
	Callers Audience = "callers"
)

// Hold is whether an upgrade does not go on for a reason.
type Hold int

// What a reason holds. HoldsOrder is also what holds one whatever is ordered of it, until somebody does something or a time has come.
const (
	HoldsNothing Hold = iota
	HoldsUpgrade
	HoldsOrder
)

// ReasonInfo is one row of the table of reasons.
type ReasonInfo struct {
	Reason   Reason
	Audience Audience
	Holds    Hold
	Meaning  string
	Do       string // what to do about it
}

// Holds is what a reason holds of an upgrade.
func (r Reason) Holds() Hold {
	info, _ := r.Find()
	return info.Holds
}

// WithReason returns err with a reason, under the same text.
func WithReason(reason Reason, err error) error { return &reasoned{reason, err} }

// ReasonOf returns the outermost reason in the chain of err, or "".
func ReasonOf(err error) Reason {
	var r *reasoned
	if errors.As(err, &r) {
		return r.reason
	}
	return ""
}

type reasoned struct {
	reason Reason
	err    error
}

// Error implements error.
func (r *reasoned) Error() string { return r.err.Error() }

// Unwrap returns the error itself.
func (r *reasoned) Unwrap() error { return r.err }
