// Package answers has what the errors mean with which Talos answers calls that change something.
package answers

import (
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Meaning is what an error of a call that changes something means for what
// became of the call.
type Meaning int

const (
	// Unclear: whether it was carried out has to be looked up. The default.
	Unclear   Meaning = iota
	Invalid           // refused for what is in the request
	Never             // refused, and asking again will not help
	Early             // refused for now
	Clockless         // refused while the machine has not got the time
	Already           // it was carried out before
	Reread            // it collided with another change: look again
	Reboots           // refused because it would take a reboot
)

// Reading is one row of the table: an answer of Talos and what it means.
type Reading struct {
	Method  string // "" : any
	Code    codes.Code
	Words   string // contained in the message; "" : any
	Meaning Meaning
	Seen    string // where the answer was met
}

// All is the one place that branches on what Talos answers. The first row
// that fits counts.
var All = []Reading{
	{"Bootstrap", codes.AlreadyExists, "", Already, "a second Bootstrap, and one on a joined control plane (1.13.9)"},
	{"Bootstrap", codes.FailedPrecondition, "bootstrap is not available yet", Early, "Bootstrap within a second of the first config (1.13.9)"},
	{"Bootstrap", codes.FailedPrecondition, "time is not in sync yet", Clockless, "source of 1.13.9: after 5 s without time sync"},
	{"Bootstrap", codes.FailedPrecondition, "bootstrap can only be performed on a control plane node", Never, "source of 1.12"},
	{"Bootstrap", codes.FailedPrecondition, "", Early, "any other: the machine says that it cannot yet"},
	{"Bootstrap", codes.Unknown, "etcd data directory is not empty", Reread, "source of 1.13.9: the inner check, when two collide"},
	{"Bootstrap", codes.InvalidArgument, "", Invalid, "source of 1.14: no etcd in the config"},
	{"ApplyConfiguration", codes.InvalidArgument, "this config change can't be applied in immediate mode", Reboots, "mode NO_REBOOT with another machine.token (1.13.9)"},
	{"ApplyConfiguration", codes.InvalidArgument, "", Invalid, "configs that do not parse or validate (1.13.9)"},
	{"ApplyConfiguration", codes.Unknown, "failed to parse config:", Invalid, "source of the maintenance service of 1.12"},
	{"ApplyConfiguration", codes.FailedPrecondition, "", Reread, "source of 1.13.9: another apply is in progress, or done and the machine reboots"},
	{"EtcdForfeitLeadership", codes.Unknown, "bad leader transferee", Early, "seen on 1.13.9: another member was a learner"},
	{"Reboot", codes.FailedPrecondition, "method is not supported", Never, "seen on 1.13.9: a machine in container mode"},
	{"", codes.Unimplemented, "", Never, "Bootstrap of a worker (1.13.9); modes the maintenance service of 1.12 does not know (source)"},
	{"", codes.PermissionDenied, "", Never, "calls in maintenance mode, and by readers (1.13.9)"},
	{"", codes.Unauthenticated, "", Never, "another service than Talos on the port (1.13.9)"},
	{"", codes.ResourceExhausted, "", Never, "gRPC itself: a message above the receiver's limit"},
}

// Find finds the row that fits an error of a call.
func Find(method string, err error) Reading {
	for _, r := range All {
		if (r.Method == "" || r.Method == method) && r.Code == status.Code(err) && strings.Contains(status.Convert(err).Message(), r.Words) {
			return r
		}
	}
	return Reading{}
}
