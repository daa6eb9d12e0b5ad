package cluster

import "time"

// Gate is what must hold before each node is upgraded: a condition of the inventory, in CEL, or a Job that succeeds.
type Gate struct {
	Name      string
	Condition string
	// Objects are the Kubernetes objects that it is about; the zero value: none.
	Objects ObjectSelector
	Job     GateJob
}

// GateJob is what the Jobs of a gate are made of; the zero value: it has none.
type GateJob struct {
	Namespace, Prefix string // of their names
	Manifest          string // in JSON
	Within            time.Duration
}

// Job is a Job of Kubernetes that is, or may be, of a gate.
type Job struct {
	ObjectName
	UID, Gate string
	Revision  Revision // that it was made for
	// Ours: it has the marks of one that the agent has made.
	Ours, Deleting bool
	// Complete and Failed are when it has come to its end, and the zero time else.
	Began, Complete, Failed time.Time
	Why                     string // it failed, or its pods do not start, for people
}

// ObjectName names an object of Kubernetes in a namespace.
type ObjectName struct{ Namespace, Name string }

// String implements fmt.Stringer.
func (n ObjectName) String() string { return n.Namespace + "/" + n.Name }

// ObjectSelector selects Kubernetes objects of one kind.
type ObjectSelector struct {
	APIVersion string // "v1", "apps/v1"
	Kind       string
	Namespace  string // "": all
	Name       string // "": all
	Labels     string // a label selector as kubectl takes it; "": all
}
