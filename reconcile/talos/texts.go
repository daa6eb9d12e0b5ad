package talos

import (
	"errors"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// meaning is what an error of a call that changes something means for what
// became of the call.
type meaning int

const (
	// unclear: whether it was carried out has to be looked up. The default.
	unclear   meaning = iota
	invalid           // refused for what is in the request
	never             // refused, and asking again will not help
	early             // refused for now
	clockless         // refused while the machine has not got the time
	already           // it was carried out before
	reread            // it collided with another change: look again
	reboots           // refused because it would take a reboot
)

// reading is one row of the table: an answer of Talos and what it means.
type reading struct {
	method  string // "" : any
	code    codes.Code
	words   string // contained in the message; "" : any
	meaning meaning
	seen    string // where the answer was met
}

// readings is the one place that branches on what Talos answers. The first row
// that fits counts.
var readings = []reading{
	{"Bootstrap", codes.AlreadyExists, "", already, "a second Bootstrap, and one on a joined control plane (1.13.9)"},
	{"Bootstrap", codes.FailedPrecondition, "bootstrap is not available yet", early, "Bootstrap within a second of the first config (1.13.9)"},
	{"Bootstrap", codes.FailedPrecondition, "time is not in sync yet", clockless, "source of 1.13.9: after 5 s without time sync"},
	{"Bootstrap", codes.FailedPrecondition, "bootstrap can only be performed on a control plane node", never, "source of 1.12"},
	{"Bootstrap", codes.FailedPrecondition, "", early, "any other: the machine says that it cannot yet"},
	{"Bootstrap", codes.Unknown, "etcd data directory is not empty", reread, "source of 1.13.9: the inner check, when two collide"},
	{"Bootstrap", codes.InvalidArgument, "", invalid, "source of 1.14: no etcd in the config"},
	{"ApplyConfiguration", codes.InvalidArgument, "this config change can't be applied in immediate mode", reboots, "mode NO_REBOOT with another machine.token (1.13.9)"},
	{"ApplyConfiguration", codes.InvalidArgument, "", invalid, "configs that do not parse or validate (1.13.9)"},
	{"ApplyConfiguration", codes.Unknown, "failed to parse config:", invalid, "source of the maintenance service of 1.12"},
	{"ApplyConfiguration", codes.FailedPrecondition, "", reread, "source of 1.13.9: another apply is in progress, or done and the machine reboots"},
	{"EtcdForfeitLeadership", codes.Unknown, "bad leader transferee", early, "seen on 1.13.9: another member was a learner"},
	{"Reboot", codes.FailedPrecondition, "method is not supported", never, "seen on 1.13.9: a machine in container mode"},
	{"", codes.Unimplemented, "", never, "Bootstrap of a worker (1.13.9); modes the maintenance service of 1.12 does not know (source)"},
	{"", codes.PermissionDenied, "", never, "calls in maintenance mode, and by readers (1.13.9)"},
	{"", codes.Unauthenticated, "", never, "another service than Talos on the port (1.13.9)"},
	{"", codes.ResourceExhausted, "", never, "gRPC itself: a message above the receiver's limit"},
}

// findReading finds the row that fits an error.
func findReading(method string, err error) reading {
	for _, r := range readings {
		if (r.method == "" || r.method == method) && r.code == status.Code(err) && strings.Contains(status.Convert(err).Message(), r.words) {
			return r
		}
	}
	return reading{}
}

var errWorker = errors.New("it is a worker, and only a control plane can found etcd")
