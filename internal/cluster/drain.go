package cluster

import (
	"errors"
	"time"
)

// The annotations of a Node object in which the agent records what it does with the
// node, so that the next agent goes on with it.
const (
	// AnnotationTurn holds what the agent took the node out of service for.
	AnnotationTurn = "talos-agent.dev/turn"
	// AnnotationDrained holds the boot id of the machine that was drained: one that
	// has booted since runs pods again.
	AnnotationDrained = "talos-agent.dev/drained"
	// AnnotationAdopted is on a node that somebody had cordoned before the agent took it
	// out of service: that cordon stays when the agent is done with the node.
	AnnotationAdopted = "talos-agent.dev/adopted"
)

// TurnRemoval is what AnnotationTurn holds of a node that is removed from the cluster.
const TurnRemoval = "removal"

// Drain is how a node is drained. The zero value is the default.
type Drain struct {
	// Timeout is how long the pods of a node may take; 0: 5 minutes.
	Timeout time.Duration
	// Delete deletes the pods that are left then, whatever their disruption budgets
	// allow. Without it the drain fails, and the node returns to service.
	Delete bool
	// Adopt drains a node although somebody else has cordoned it, whose cordon it keeps
	// whatever becomes of the drain.
	Adopt bool
	// Stay: the node is cordoned, and its pods stay, because there is no other node for
	// them.
	Stay bool
}

// Patience is the Timeout, or the default.
func (d Drain) Patience() time.Duration {
	if d.Timeout == 0 {
		return 5 * time.Minute
	}
	return d.Timeout
}

// Why a drain ended, besides what failed.
var (
	// ErrCordonedByOthers: the node is cordoned, and not by the agent. Nothing was changed.
	ErrCordonedByOthers = errors.New("the node is cordoned, and not by the agent")
	// ErrUncordoned: while the agent drained the node, somebody put it back into service.
	ErrUncordoned = errors.New("somebody has uncordoned the node while it was drained")
	// ErrUndrained: pods are left that may not be evicted, or do not end.
	ErrUndrained = errors.New("pods are left on the node")
)
