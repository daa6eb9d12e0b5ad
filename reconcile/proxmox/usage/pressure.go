package usage

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster/usage"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/pveconf"
)

// moment is one point of the history of a host. Pressure is that of Proxmox VE 9, in
// percent: the average over a minute of what the kernel has over ten seconds
// (pve-manager 9: pvestatd, PVE::ProcFSTools::read_pressure).
type moment struct {
	Time   pveconf.Scalar `json:"time"`
	CPU    pveconf.Scalar `json:"pressurecpusome"`
	IO     pveconf.Scalar `json:"pressureiosome"`
	Memory pveconf.Scalar `json:"pressurememorysome"`
}

// oldPressure is how old a point may be that counts as now: the newest ones are often
// without values yet.
const oldPressure = 5 * time.Minute

// askPressure is the newest pressure on a host; nil where there is none. The rest of the
// report does not depend on it.
func askPressure(ctx context.Context, get Get, host string) (*usage.Pressure, error) {
	var points []moment
	if err := get(ctx, fmt.Sprintf("/nodes/%s/rrddata", host), map[string]string{"timeframe": "hour", "cf": "AVERAGE"}, &points); err != nil {
		return nil, err
	}
	var newest *usage.Pressure
	for _, p := range points {
		cpu, io, memory := fraction(p.CPU), fraction(p.IO), fraction(p.Memory)
		at := time.Unix(p.Time.Number(), 0).UTC()
		if cpu == nil || io == nil || memory == nil || newest != nil && at.Before(newest.At) || time.Since(at) > oldPressure {
			continue
		}
		newest = &usage.Pressure{CPU: *cpu, IO: *io, Memory: *memory, At: at}
	}
	return newest, nil
}

// Lately is how much work waits on hosts, as each was asked lately. The zero value is ready; it may be used from many
// goroutines.
type Lately struct {
	mu   sync.Mutex
	held map[string]*answer // by host
}

const (
	// answerFor is for how long an answer holds, or that there was none: the history has a point a minute.
	answerFor = time.Minute
	// answerWithin is how long a host has for it: what waits for the answer does without one.
	answerWithin = 2 * time.Second
)

type answer struct {
	asked    time.Time
	ended    chan struct{}
	pressure *usage.Pressure // once it has ended
}

// Pressure is how much work waits on a host, as of a minute or two ago; nil: it is not known.
func (l *Lately) Pressure(ctx context.Context, get Get, host string) *usage.Pressure {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	a, isNew := l.answerOf(host)
	if isNew {
		defer close(a.ended)
		a.pressure, _ = askPressure(ctx, get, host) // without an answer there is nothing to wait for
		return a.pressure
	}
	select {
	case <-a.ended:
		return a.pressure
	case <-ctx.Done():
		return nil
	}
}

// answerOf is the answer about a host that holds, or a new one, which the caller gets and ends.
func (l *Lately) answerOf(host string) (a *answer, isNew bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.held[host]; a != nil && time.Since(a.asked) < answerFor {
		return a, false
	}
	if l.held == nil {
		l.held = map[string]*answer{}
	}
	a = &answer{asked: time.Now(), ended: make(chan struct{})}
	l.held[host] = a
	return a, true
}
