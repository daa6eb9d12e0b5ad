// Package ha is Proxmox VE's manager of high availability: what it is asked for of the VMs of a cluster, how far it is with each, and
// the rounds in which it starts and stops them. It moves none of them.
//
// Source: pve-ha-manager, PVE/API2/HA, PVE/HA/Config.pm, Manager.pm and LRM.pm.
package ha

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Manager is that of one cluster. The zero value manages nothing.
type Manager struct {
	mu        sync.Mutex
	fixed     []string // ids of Manage
	groups    []string
	resources map[string]*resource // what it is asked for, by id: "vm:411"
	rules     map[string]*rule
	ordinal   int      // of the rule that was made last
	queued    []string // requests to disarm and arm it, by mode; "": to arm it
	disarmed  *disarm  // nil: it is armed

	services map[string]string // the states that its rounds have come to, by id
	// What its rounds take along.
	running  bool // the rounds go on
	knows    bool // the hosts: since its first round
	commands map[string]time.Duration
	timeouts map[string]time.Duration
	busy     map[string]bool
	results  map[string]error // of what was done last in the state that a service is in; none is there before it was
	failed   map[string]int   // starts in a row
}

// Manage has the manager manage some VMs and no other, all of which have started. Its rounds leave these as they are: a test decides
// what becomes of them.
func (m *Manager) Manage(sids ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fixed, m.services = sids, map[string]string{}
}

// KeepGroups has the manager have groups of hosts. One of Proxmox VE 9 that has any takes no rules.
func (m *Manager) KeepGroups(names ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.groups = names
}

// SetService has the manager hold a state of a VM, as "migrate", be that its own still or not: one that was taken out is forgotten a
// round of the manager later only (PVE 9.2 pve-ha-manager: stale services are removed by the next round). Without a state it has that
// forgotten, or where it is asked to have the VM.
func (m *Manager) SetService(sid, state string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.resources[sid]; state == "" && r != nil && !r.ignored() {
		state = map[bool]string{true: "started", false: "request_stop"}[r.started()]
	}
	m.enter(sid, state)
}

// enter has a service be in a state, "" : in none. m.mu is held.
func (m *Manager) enter(sid, state string) {
	if m.services == nil {
		m.services = map[string]string{}
	}
	m.services[sid] = state
	delete(m.results, sid)
	if state == "" {
		delete(m.services, sid)
	}
}

// ServiceState returns the state that the manager holds of a VM, "" where it holds none, and whether the VM is its own: one that it is
// to ignore is not.
func (m *Manager) ServiceState(sid string) (state string, managed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if slices.Contains(m.fixed, sid) {
		if state = m.services[sid]; state == "" {
			state = "started"
		}
		return state, true
	}
	r := m.resources[sid]
	return m.services[sid], r != nil && !r.ignored() && (m.disarmed == nil || m.disarmed.mode != "ignore")
}

// ShownState is the state of a VM in the list of everything: the manager's, and where it holds none what is asked for of the resource, be
// that to ignore it.
func (m *Manager) ShownState(sid string) string {
	state, _ := m.ServiceState(sid)
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.resources[sid]; state == "" && r != nil {
		state = r.options["state"]
	}
	return state
}

// IsConfigured reports whether there is a resource, be it ignored or not.
func (m *Manager) IsConfigured(sid string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.resources[sid] != nil || slices.Contains(m.fixed, sid)
}

// Forget removes the resource of a VM that was removed.
func (m *Manager) Forget(sid string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fixed = slices.DeleteFunc(slices.Clone(m.fixed), func(s string) bool { return s == sid })
	m.remove(sid, true)
}

// RequestStart is `ha-manager set --state started`, by which a VM that is managed is started.
func (m *Manager) RequestStart(sid string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.resources[sid]
	if r == nil {
		return nil
	}
	if err := m.refuseFailed(sid, r, "started"); err != nil {
		return err
	}
	r.options["state"] = "started"
	return nil
}

// RequestStop is `ha-manager crm-command stop`, by which a VM that is managed is stopped: the next round of the manager takes the command
// up, and has it that the VM is to stay off. The guest has that long to switch itself off.
func (m *Manager) RequestStop(sid string, timeout time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.resources[sid] == nil {
		return
	}
	if m.commands == nil {
		m.commands = map[string]time.Duration{}
	}
	m.commands[sid] = timeout
}

// VMIDOf is the number of the guest of a resource, 0 where it has none.
func VMIDOf(sid string) int {
	_, name := splitSID(sid)
	n, err := strconv.Atoi(name)
	if err != nil {
		return 0
	}
	return n
}

// splitSID takes an id apart.
func splitSID(sid string) (kind, name string) {
	kind, name, _ = strings.Cut(sid, ":")
	return kind, name
}
