package cluster

import "time"

// Condition is the one-word state of a cluster, in the words of Flux and
// kstatus.
type Condition string

// The conditions. Unknown means that the agent cannot see.
const (
	Ready       Condition = "Ready"
	Reconciling Condition = "Reconciling"
	Stalled     Condition = "Stalled"
	Suspended   Condition = "Suspended"
	Unknown     Condition = "Unknown"
)

// Status is what the agent reports about one cluster: the same value for the
// daemon, the socket and the CLI. It carries no secrets.
type Status struct {
	Cluster   string    `json:"cluster"`
	Condition Condition `json:"condition"`
	// Reason is why the condition is what it is: that of the first block or wait
	// that decides it. Subject and About of that are Concerns.
	Reason   Reason    `json:"reason"`
	Concerns string    `json:"concerns,omitempty"`
	About    string    `json:"about,omitempty"`
	Message  string    `json:"message"`
	Hint     string    `json:"hint,omitempty"`
	Since    time.Time `json:"since"` // since when the condition holds
	// Revision is the newest one seen, Applied the one the world is being made
	// to match. They differ while a newer one is refused.
	Revision Revision `json:"revision"`
	Applied  Revision `json:"applied"`
	Subject  string   `json:"subject,omitempty"` // first line of the newest commit's message
	// Fetched is when the repository was last asked and answered: what was
	// pushed before is known.
	Fetched   time.Time `json:"fetched,omitzero"`
	Suspended bool      `json:"suspended"`
	// Destroying: it is being destroyed, and that has not ended yet.
	Destroying bool `json:"destroying,omitempty"`

	Nodes    []NodeStatus    `json:"nodes"`
	Addons   []AddonStatus   `json:"addons"`
	Running  []RunningStatus `json:"running"`
	Waiting  []WaitStatus    `json:"waiting"`
	Blocked  []Block         `json:"blocked"`
	Problems Problems        `json:"problems"` // of the inventory, warnings too, and where the world differs from it
	Passes   []PassStatus    `json:"passes"`   // newest first
	// Snapshots are those of etcd; nil where this host takes none.
	Snapshots *SnapshotStatus `json:"snapshots,omitempty"`
	// Upgrade is how far the cluster has come to the versions that its inventory asks for; nil when it has them.
	Upgrade  *UpgradeStatus `json:"upgrade,omitempty"`
	NextPass time.Time      `json:"nextPass"`
}

// UpgradeStatus is how far a cluster has come on its way to the versions that its inventory asks for.
type UpgradeStatus struct {
	Hops     []string `json:"hops"`     // what is left of it, in order: the first is made now
	Upgraded int      `json:"upgraded"` // how many nodes have what the first leads to
	Nodes    int      `json:"nodes"`
	Back     bool     `json:"back,omitempty"` // the first is a version of before, which is asked for again
	Held     string   `json:"held,omitempty"` // why it is not made: which switch
	// NoWay is why there is no way to the versions that are asked for; then there are no hops.
	NoWay string `json:"noWay,omitempty"`
	// Progress is, of a hop of Kubernetes, how many nodes run it of each component, and of Talos those in their turn that run it, for people.
	Progress string `json:"progress,omitempty"`
	// StuckSince is since when it stands at this commit because the cluster is Stalled; zero while any of it runs or begins, or it is held.
	StuckSince time.Time `json:"stuckSince,omitzero"`
	// Order is what an administrator lets it do besides.
	Order UpgradeOrder `json:"order,omitzero"`
}

// SnapshotStatus is what a status has of snapshots of etcd.
type SnapshotStatus struct {
	// Verified is when the newest one was taken that this process has read to its end, Newest
	// when the newest one was that is not known to be damaged. Without one they are not there;
	// Verified neither while the newest are read, after a start.
	Verified time.Time `json:"verified,omitzero"`
	Newest   time.Time `json:"newest,omitzero"`
	Due      time.Time `json:"due,omitzero"` // when the next scheduled one is
	Kept     int       `json:"kept"`
	Damaged  int       `json:"damaged,omitempty"` // of these, as far as is known
	Bytes    int64     `json:"bytes"`             // of the newest one
	// Requested: somebody has asked for one, and it is not taken yet.
	Requested bool `json:"requested,omitempty"`
	// Error is why the last attempt to take one has failed, or why they cannot be seen.
	Error string `json:"error,omitempty"`
}

// Cause identifies why the condition is what it is.
func (s Status) Cause() Key { return Key{s.Concerns, s.Reason, s.About} }

// Waits reports whether a status is about waiting and nothing else: nothing is
// under way, and its last pass began nothing.
func (s Status) Waits() bool {
	return s.Condition == Reconciling && !s.Suspended && len(s.Running) == 0 && (len(s.Passes) == 0 || len(s.Passes[0].Started) == 0)
}

// NodeStatus is one node of a Status.
type NodeStatus struct {
	Name       string `json:"name"`
	Role       Role   `json:"role"`
	VMID       int    `json:"vmid"`
	Host       string `json:"host"` // that carries its VM, or will
	Address    string `json:"address"`
	Phase      Phase  `json:"phase"`
	Talos      string `json:"talos,omitempty"`
	Kubernetes string `json:"kubernetes,omitempty"`
	Cordoned   bool   `json:"cordoned,omitempty"` // no new pods are placed on it
	InTurn     bool   `json:"inTurn,omitempty"`   // the agent has taken it out of service, and has not put it back yet
	// WaitsFor is the first of the lists below in words, for tables; with none of
	// them, what else there is to know of its VM.
	WaitsFor string    `json:"waitsFor,omitempty"`
	Since    time.Time `json:"since"` // since when it is in this phase
	// Running, Waiting and Blocked are everything that concerns the node.
	Running []RunningStatus `json:"running"`
	Waiting []WaitStatus    `json:"waiting"`
	Blocked []Block         `json:"blocked"`
	// Console is what its VM printed last, of a machine that should answer and
	// does not, or that does not run the Talos that it was rebooted into; nil of all others.
	Console *ConsoleTail `json:"console,omitempty"`
}

// AddonStatus is one addon of a Status.
type AddonStatus struct {
	Name      string    `json:"name"`
	Namespace string    `json:"namespace"`
	Version   string    `json:"version,omitempty"`
	State     string    `json:"state"` // absent, installing, deployed, ready, failed
	Message   string    `json:"message,omitempty"`
	Since     time.Time `json:"since"`
}

// RunningStatus is an action under way.
type RunningStatus struct {
	Action  ActionKind `json:"action"`
	Subject string     `json:"subject"`
	Since   time.Time  `json:"since"`
	Done    int64      `json:"done,omitempty"`
	Total   int64      `json:"total,omitempty"`
	Unit    string     `json:"unit,omitempty"`
	UPID    string     `json:"upid,omitempty"`
	// ExpectedMS is how long an action of its kind may take; Overdue: it takes
	// longer.
	ExpectedMS int64 `json:"expectedMs"`
	Overdue    bool  `json:"overdue,omitempty"`
	// Waits is what it waits for, Log the end of its task's log when it takes long.
	Waits string   `json:"waits,omitempty"`
	Log   []string `json:"log,omitempty"`
}

// WaitStatus is a Wait and since when it lasts.
type WaitStatus struct {
	Wait
	Since   time.Time `json:"since"`
	Overdue bool      `json:"overdue,omitempty"`
}

// PassStatus is one pass that did or found something.
type PassStatus struct {
	At         time.Time `json:"at"`
	DurationMS int64     `json:"durationMs"`
	Revision   Revision  `json:"revision"`
	Started    []string  `json:"started,omitempty"` // actions begun in it
	Failed     []string  `json:"failed,omitempty"`  // actions that ended with an error since the pass before
	Waiting    int       `json:"waiting"`
	Blocked    int       `json:"blocked"`
	Error      string    `json:"error,omitempty"`
}

// Result is how an action ended, in one word.
type Result string

// The results. ResultInterrupted is an action that was given up because the agent
// stops: the next agent finds what it left.
const (
	Done              Result = "done"
	Failed            Result = "failed"
	ResultInterrupted Result = "interrupted"
)

// UnmarshalText reads a result; older histories have "cut off" for interrupted.
func (r *Result) UnmarshalText(text []byte) error {
	*r = Result(text)
	if *r == "cut off" {
		*r = ResultInterrupted
	}
	return nil
}

// Outcome is an action that ended.
type Outcome struct {
	Action     ActionKind `json:"action"`
	Subject    string     `json:"subject"`
	Text       string     `json:"text"` // the whole sentence
	Began      time.Time  `json:"began"`
	DurationMS int64      `json:"durationMs"`
	Result     Result     `json:"result"`
	Error      string     `json:"error,omitempty"`
	Hint       string     `json:"hint,omitempty"`
}

// Certificate is how long a certificate is good for, and nothing else of it.
type Certificate struct {
	Name                string // "talos ca"
	NotBefore, NotAfter time.Time
}
