package cluster

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"
)

// Phase is where a node stands. It is derived from what was observed, never
// stored.
type Phase string

// The phases of a node, in the order a new node walks through them.
const (
	PhaseUnknown     Phase = "Unknown"     // the agent cannot see
	PhaseAbsent      Phase = "Absent"      // no VM yet
	PhaseForeign     Phase = "Foreign"     // its VMID carries somebody else's VM, or an unexpected machine answers at its address
	PhaseLocked      Phase = "Locked"      // Proxmox VE holds a lock on the VM (backup, migration, ...)
	PhasePaused      Phase = "Paused"      // its VM is paused, by a person or by a full storage
	PhaseCreating    Phase = "Creating"    // its VM is being made
	PhaseStopped     Phase = "Stopped"     // its VM is there and off
	PhaseBooting     Phase = "Booting"     // its VM runs, Talos does not answer yet
	PhaseMaintenance Phase = "Maintenance" // Talos waits for its first machine config
	PhaseJoining     Phase = "Joining"     // configured, not yet a Ready node
	PhaseReady       Phase = "Ready"
	PhaseLeaving     Phase = "Leaving" // its deletion has begun
	PhaseUnreachable Phase = "Unreachable"
)

// Step is one action in print: what the socket, the CLI, the log and the
// commit status carry.
type Step struct {
	Action      ActionKind `json:"action"`  // "create vm"
	Subject     string     `json:"subject"` // node, addon, image or cluster
	Text        string     `json:"text"`    // the whole sentence
	Destructive bool       `json:"destructive,omitempty"`
	Reboots     bool       `json:"reboots,omitempty"`
	MayReboot   bool       `json:"mayReboot,omitempty"` // that is asked later
	// Change is what the step changes, in a fixed form; an approval is for it.
	Change string `json:"change,omitempty"`
	// Round is the round of the forecast the step belongs to, from 1; steps of
	// one round may run side by side.
	Round int `json:"round,omitempty"`
}

// Key identifies a Wait or a Block: what it concerns and why. Clocks,
// notifications and the history go by it, and never by a message.
type Key struct {
	Subject string
	Reason  Reason
	About   string
}

// Wait is something that must happen before the next action on a subject, and
// that the agent does not do itself.
type Wait struct {
	Subject string `json:"subject"`
	Reason  Reason `json:"reason"`
	// About distinguishes what a subject may wait for several times for the same
	// reason: a storage, an action.
	About string `json:"about,omitempty"`
	// Message states what is waited for and, after a colon, how it stands: "becomes
	// ready: 2 of 3 pods ready".
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"` // what to look at when it takes too long
	// Drift is what is not as the inventory has it, and is corrected after the wait.
	Drift []FieldDifference `json:"drift,omitempty"`
	// Within is how long the wait may reasonably take; 0: for ever. A wait that
	// outlives it makes the cluster Stalled.
	Within time.Duration `json:"-"`
	// Began is when it began, where the world shows that: an agent that comes later
	// counts from the same moment. Zero: when it was first seen.
	Began time.Time `json:"-"`
}

// Equal reports whether two waits are the same in all that they have.
func (w Wait) Equal(v Wait) bool { return w.Key() == v.Key() && reflect.DeepEqual(w, v) }

// Key identifies the wait: while its message changes, it is the same one.
func (w Wait) Key() Key { return Key{w.Subject, w.Reason, w.About} }

// Block is something the agent will not do until a person changes something.
type Block struct {
	Subject string `json:"subject"`
	Reason  Reason `json:"reason"`
	// About distinguishes what a subject may be blocked by several times for the
	// same reason: a field, a rule of the policy.
	About   string `json:"about,omitempty"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
	// Drift is what is not as the inventory has it and is left so.
	Drift []FieldDifference `json:"drift,omitempty"`
	// Since is since when it was blocked in every pass of this agent; zero in a plan.
	Since time.Time `json:"since,omitzero"`
}

// Equal reports whether two blocks are the same in all that they have.
func (b Block) Equal(c Block) bool { return reflect.DeepEqual(b, c) }

// Key identifies the block.
func (b Block) Key() Key { return Key{b.Subject, b.Reason, b.About} }

// Forecast is everything that is going to happen, as far as it can be known:
// the planner run forward over the expected effects of its own actions.
type Forecast struct {
	Cluster  string   `json:"cluster"`
	Revision Revision `json:"revision"`
	Steps    []Step   `json:"steps"`
	Waiting  []Wait   `json:"waiting,omitempty"`
	Blocked  []Block  `json:"blocked,omitempty"`
	Problems Problems `json:"problems,omitempty"`
	// Hops are the way of an upgrade, in order. The steps are those of the first; of the others it is not known yet what they take.
	Hops []Hop `json:"hops,omitempty"`
	// Notes are what the steps mean, where that is not in them: of a machine that is taken
	// for lost.
	Notes []string `json:"notes,omitempty"`
	// Unfenced: what a machine that is taken for lost has left in etcd and Kubernetes is
	// removed before its VM, which cannot be seen. Whoever confirms that is sure that the
	// machine is off.
	Unfenced bool `json:"unfenced,omitempty"`
	// Digest identifies exactly these steps; an approval names it.
	Digest string `json:"digest"`
	// VMs are, of a destruction, and where nodes are removed, the VMs that may be deleted,
	// by VMID: a confirmation or an approval is for them.
	VMs []int `json:"vms,omitempty"`
	// Unapproved means that a part of the steps waits until an administrator has approved
	// them by their digest.
	Unapproved bool `json:"unapproved,omitempty"`
	// Changes are the steps that an approval is for, in a fixed form.
	Changes []string `json:"-"`
}

// MarshalJSON writes no steps as an empty list, never as null: programs walk it.
func (f Forecast) MarshalJSON() ([]byte, error) {
	type plain Forecast
	if f.Steps == nil {
		f.Steps = []Step{}
	}
	return json.Marshal(plain(f))
}

// Approvable is the form in which an approval keeps a step that changes what is there, "" for
// one that needs none of its own: those that lead to it, and what follows.
func (s Step) Approvable() string {
	switch s.Action {
	case InstallAddon: // tried again, it begins from another state of the release
		s.Change, _, _ = strings.Cut(s.Change, " from=")
	case LabelNode, LabelNamespace: // what differs of it may have become less
		s.Change = ""
	case ChangeVM, ChangeConfig, DrainNode, ShutDownVM, RebootNode, InstallTalos, UpgradeTalos, RollBackTalos, UninstallAddon, RemoveMember, DeleteVM, SyncManifests:
	default:
		return ""
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s %s", s.Action, s.Subject, s.Change))
}

// Destructive reports whether any step destroys something.
func (f Forecast) Destructive() bool {
	for _, s := range f.Steps {
		if s.Destructive {
			return true
		}
	}
	return false
}
