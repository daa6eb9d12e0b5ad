// Package ha is what Proxmox VE's manager of high availability holds of the VMs of a cluster: which are its own, and how far it is
// with each. It moves none of them.
package ha

import (
	"slices"
	"strings"
	"sync"
)

// Manager is that of one cluster. The zero value manages nothing.
type Manager struct {
	mu      sync.Mutex
	managed []string          // ids, "vm:411"
	states  map[string]string // of those that have not just started
}

// Manage has the manager manage some VMs and no other, all of which have started.
func (m *Manager) Manage(sids ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.managed, m.states = sids, map[string]string{}
}

// SetService has the manager hold a state of a VM, as "migrate", be that its own still or not: one that was taken out is forgotten a
// round of the manager later only (PVE 9.2 pve-ha-manager: stale services are removed by the next round). Without a state it has that
// forgotten, or started where the VM is its own.
func (m *Manager) SetService(sid, state string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.states == nil {
		m.states = map[string]string{}
	}
	m.states[sid] = state
}

// ServiceState returns the state that the manager holds of a VM, "" where it holds none, and whether the VM is its own.
func (m *Manager) ServiceState(sid string) (state string, managed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	state, managed = m.states[sid], slices.Contains(m.managed, sid)
	if managed && state == "" {
		state = "started"
	}
	return state, managed
}

// ListServices lists what the manager manages, as GET /cluster/ha/resources does, with the digest of that.
func (m *Manager) ListServices(digest string) []map[string]any {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := []map[string]any{}
	for _, sid := range m.managed {
		kind, _, _ := strings.Cut(sid, ":")
		out = append(out, map[string]any{"sid": sid, "type": kind, "state": "started", "digest": digest})
	}
	return out
}
