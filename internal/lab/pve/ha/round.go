package ha

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Every is how far apart the rounds of the manager are.
const Every = 10 * time.Second

// Machines are the VMs of the cluster. What is done to them are tasks of root's, which it waits for.
type Machines interface {
	Look(vmid int) (exists, runs bool)
	Start(vmid int) error
	// Stop has a guest switch itself off, and switches it off hard after a time, or at once.
	Stop(vmid int, after time.Duration) error
}

// BeginRounds reports whether there is something to do for rounds that are not done yet. Whoever it answers so does them.
func (m *Manager) BeginRounds() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.running || len(m.resources)+len(m.queued) == 0 {
		return false
	}
	m.running = true
	return true
}

// DoRounds does the rounds of the manager until there is nothing left to do for them, or the context ends. In each, first what acts on
// the VMs of a host does what the services' states of the round before are: so one that was just set to be ignored is started once
// more where it is off. Then the states follow what is asked for.
func (m *Manager) DoRounds(ctx context.Context, every time.Duration, on Machines) {
	var workers sync.WaitGroup
	defer workers.Wait()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, sid := range m.list() {
			m.act(sid, on, &workers)
		}
		if !m.follow() {
			return
		}
	}
}

// list lists the services that the rounds are about.
func (m *Manager) list() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for sid := range m.services {
		if !slices.Contains(m.fixed, sid) {
			out = append(out, sid)
		}
	}
	slices.Sort(out)
	return out
}

// act has a VM become what the state of its service is, unless it is still at that.
func (m *Manager) act(sid string, on Machines, workers *sync.WaitGroup) {
	_, name := splitSID(sid)
	vmid, err := strconv.Atoi(name)
	if err != nil {
		return
	}
	exists, runs := on.Look(vmid)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.busy[sid] || !exists || m.disarmed != nil {
		return
	}
	var do func() error
	switch state := m.services[sid]; {
	case state == "started" && !runs:
		do = func() error { return on.Start(vmid) }
	case (state == "request_stop" || state == "stopped") && runs:
		after, given := m.timeouts[sid]
		if !given {
			after = time.Minute
		}
		do = func() error { return on.Stop(vmid, after) }
	default:
		m.note(sid, nil)
		return
	}
	if m.busy == nil {
		m.busy = map[string]bool{}
	}
	m.busy[sid] = true
	state := m.services[sid]
	workers.Go(func() {
		err := do()
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.busy, sid)
		if m.services[sid] == state {
			m.note(sid, err)
		}
	})
}

// note takes note of what came of an act. m.mu is held.
func (m *Manager) note(sid string, err error) {
	if m.results == nil {
		m.results = map[string]error{}
	}
	m.results[sid] = err
}

// follow has the states of the services follow what is asked for, and reports whether there is anything left to follow.
func (m *Manager) follow() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.knows = true
	before := m.disarmed != nil // in which rounds nothing is added and nothing removed
	if !before {
		m.addServices()
	}
	m.takeQueued()
	switch {
	case m.disarmed != nil:
		m.followDisarmed(before)
	case !before: // else what acts on the VMs is to know first that it is armed
		m.advanceAll()
	}
	m.running = len(m.resources)+len(m.busy) > 0 || m.disarmed != nil && !m.disarmed.complete
	return m.running
}

// addServices has services of what is asked for, and none of what is not any more. m.mu is held.
func (m *Manager) addServices() {
	for sid, r := range m.resources {
		if _, known := m.services[sid]; !known && !r.ignored() {
			m.enter(sid, map[bool]string{true: "started", false: "request_stop"}[r.started()])
		}
	}
	for sid := range m.services {
		if r := m.resources[sid]; !slices.Contains(m.fixed, sid) && (r == nil || r.ignored()) {
			m.enter(sid, "")
			delete(m.commands, sid)
			delete(m.timeouts, sid)
			delete(m.failed, sid)
		}
	}
}

// advanceAll has the states of all services follow. m.mu is held.
func (m *Manager) advanceAll() {
	for sid := range m.services {
		if r := m.resources[sid]; r != nil && !slices.Contains(m.fixed, sid) {
			m.advance(sid, r)
		}
	}
}

// advance has the state of a service follow. m.mu is held.
func (m *Manager) advance(sid string, r *resource) {
	err, acted := m.results[sid]
	delete(m.results, sid)
	switch m.services[sid] {
	case "started":
		m.advanceStarted(sid, r, err, acted)
	case "freeze":
		m.enter(sid, map[bool]string{true: "started", false: "request_stop"}[r.started()])
	case "request_stop":
		switch {
		case acted && err != nil:
			m.enter(sid, "error")
		case acted:
			m.enter(sid, "stopped")
		}
	case "stopped":
		delete(m.timeouts, sid)
		delete(m.commands, sid)
		if r.started() {
			m.enter(sid, "started")
		}
	case "error":
		if r.options["state"] == "disabled" {
			delete(m.failed, sid)
			m.enter(sid, "stopped")
		}
	}
}

// advanceStarted has the state of a service follow that is started. One that cannot be is given up after as many further tries as it
// has: there is no other host for it, for the lab moves none. m.mu is held.
func (m *Manager) advanceStarted(sid string, r *resource, err error, acted bool) {
	if timeout, asked := m.commands[sid]; asked && r.started() {
		if m.timeouts == nil {
			m.timeouts = map[string]time.Duration{}
		}
		delete(m.commands, sid)
		m.timeouts[sid], r.options["state"] = timeout, "stopped"
	}
	if !r.started() {
		m.enter(sid, "request_stop")
		return
	}
	if m.failed == nil {
		m.failed = map[string]int{}
	}
	switch {
	case acted && err == nil:
		delete(m.failed, sid)
	case acted:
		m.failed[sid]++
	}
	tries := 1
	if n, err := strconv.Atoi(r.options["max_restart"]); err == nil {
		tries = n
	}
	if m.failed[sid] > tries {
		m.enter(sid, "error")
	}
}
