package logging

// The keys of attributes. Each is a field of the journal, in upper case, and
// stands in docs/reference/journal.md; no record has another.
const (
	Action     = "action"      // an action: once when it begins, once when it ends
	Addon      = "addon"       // name of an addon
	Applied    = "applied"     // the revision that was applied last
	Cluster    = "cluster"     // name of the cluster that a record concerns
	Condition  = "condition"   // the condition that a cluster is in now
	Console    = "console"     // the last lines of a VM's serial port
	Detail     = "detail"      // what the message is about, in words: see Sentence
	DurationMS = "duration_ms" // how long an action took, in milliseconds
	Err        = "err"         // what failed; ERROR in the journal
	File       = "file"        // a leftover in the cache, or a file of the state directory
	Hint       = "hint"        // what to do about a failure
	Image      = "image"       // name of a Talos image in the cache
	Lines      = "lines"       // how many lines of a file could not be read
	Log        = "log"         // the last lines of a task's log
	Node       = "node"        // name of a node
	Phase      = "phase"       // the phase that a node is in now
	Reason     = "reason"      // the code of why a cluster is in its condition
	Revision   = "revision"    // the revision that a record concerns
	Server     = "server"      // address of the kube-apiserver that is asked
	Stack      = "stack"       // where a panic happened
	State      = "state"       // the state that an addon is in now
	Status     = "status"      // Helm's word for a release that was found half done
	Tags       = "tags"        // tags that Proxmox VE refused
	UPID       = "upid"        // a task of Proxmox VE
	VMID       = "vmid"        // VMID of a node's VM
	Why        = "why"         // why the agent's own records were lost
)
