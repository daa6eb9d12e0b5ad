package cluster

import "time"

// Event is one record of the agent's log, kept for people: what the journal has
// of Info and above, in the same words. It carries no secrets.
type Event struct {
	// Seq grows from event to event and leaves numbers out. Whoever follows
	// asks for what came after the last one it has.
	Seq     uint64    `json:"seq"`
	At      time.Time `json:"at"`
	Level   string    `json:"level"` // info, warning, error
	Message string    `json:"message"`
	Cluster string    `json:"cluster,omitempty"`
	Node    string    `json:"node,omitempty"`
	Error   string    `json:"error,omitempty"`
	Hint    string    `json:"hint,omitempty"`
	// Fields are the journal's other fields, by their names there.
	Fields map[string]string `json:"fields,omitempty"`
}

// EventQuery picks events. Empty fields pick all.
type EventQuery struct {
	Cluster string
	Node    string
	After   uint64    // a Seq
	Since   time.Time // not before
	// Last is how many at most, the newest; 0: all that are kept.
	Last int
}

// Picks reports whether an event is one of those asked for, whatever Last is.
// The daemon's own events are part of every cluster's story.
func (q EventQuery) Picks(e Event) bool {
	return e.Seq > q.After && !e.At.Before(q.Since) &&
		(q.Cluster == "" || e.Cluster == "" || e.Cluster == q.Cluster) &&
		(q.Node == "" || e.Node == q.Node)
}

// The results of a run that no condition has a word for.
const (
	// Superseded is a run that a newer revision or an admin command ended.
	Superseded Condition = "Superseded"
	// Interrupted is a run that the end of the agent interrupted.
	Interrupted Condition = "Interrupted"
)

// Run is one stretch of work on a cluster: from the first change until it is Ready,
// Stalled or Suspended again. Runs are shown to people and never read back by the
// loop.
type Run struct {
	Number   int       `json:"number"` // from 1, per cluster
	Cluster  string    `json:"cluster"`
	Revision Revision  `json:"revision"`
	Subject  string    `json:"subject,omitempty"` // of the commit
	Cause    string    `json:"cause"`
	Began    time.Time `json:"began"`
	Ended    time.Time `json:"ended,omitzero"` // zero: it goes on
	// Result is the condition it ended in, Superseded or Interrupted; "" while
	// it goes on.
	Result  Condition `json:"result,omitempty"`
	Message string    `json:"message,omitempty"` // why it ended so, or where it stands
	Hint    string    `json:"hint,omitempty"`

	// Plan is the forecast when it began, Actions what was done, and Waits what it
	// waited for longest, the longest first. Long lists are cut; More counts what
	// was.
	Plan        []Step     `json:"plan"`
	PlanMore    int        `json:"planMore,omitempty"`
	Actions     []Outcome  `json:"actions"`
	ActionsMore int        `json:"actionsMore,omitempty"`
	Waits       []LongWait `json:"waits"`
}

// LongWait is a wait that has ended, or goes on, and how long it took so far.
type LongWait struct {
	Subject    string `json:"subject"`
	Reason     Reason `json:"reason"`
	About      string `json:"about,omitempty"`
	Message    string `json:"message"`
	DurationMS int64  `json:"durationMs"`
}
