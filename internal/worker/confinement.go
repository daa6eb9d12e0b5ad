package worker

import (
	"context"
	"encoding/json"
	"strings"
	"time"
)

// Confinement is what the kernel, and the unit of the daemon, let a worker confine itself with
// beside its limits.
type Confinement struct {
	Landlock int  // the version of its interface, 0: there is none
	Seccomp  bool // system calls that it does not need are refused to it
}

// String implements fmt.Stringer.
func (c Confinement) String() string {
	return "Landlock: " + yesNo(c.Landlock > 0) + ", seccomp: " + yesNo(c.Seccomp)
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// Missing names what there is not, "" if there is all.
func (c Confinement) Missing() string {
	var out []string
	if c.Landlock == 0 {
		out = append(out, "Landlock")
	}
	if !c.Seccomp {
		out = append(out, "seccomp")
	}
	return strings.Join(out, " and ")
}

// had is the confinement of this process, if it is a worker.
var had Confinement

var confinement = Register("confinement", func([]byte, Ask) ([]byte, error) { return json.Marshal(had) })

// FindConfinement begins a worker that reports how it is confined.
func FindConfinement(ctx context.Context, on Runner) (Confinement, error) {
	var c Confinement
	b, err := on(ctx, confinement, Limits{CPU: 5 * time.Second, Wall: time.Minute, Memory: 64 << 20, Output: 1 << 10, First: true}, nil, nil)
	if err != nil {
		return c, err
	}
	return c, json.Unmarshal(b, &c)
}
