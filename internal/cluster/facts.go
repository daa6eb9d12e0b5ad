package cluster

import (
	"slices"
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
)

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
}

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

// BootstrapSent reports whether etcd was, or may have been, founded.
func (f Facts) BootstrapSent() bool { return f.intends(IntendBootstrap) }

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
