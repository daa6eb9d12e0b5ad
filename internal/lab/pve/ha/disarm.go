package ha

import "fmt"

// disarm is that the manager is disarmed, or on the way to that: it fences no host, and neither it nor what acts on the VMs of a host does
// anything about services. With freeze their VMs stay the manager's, so that requests for them are noted and not carried out;
// with ignore everybody switches them on and off as if they were none.
//
// Source: pve-ha-manager 5.1.3, Manager.pm (update_crm_commands, handle_disarm), LRM.pm and Config.pm (service_is_ha_managed).
type disarm struct {
	mode     string // freeze or ignore
	complete bool
}

func (d disarm) state() string {
	return map[bool]string{false: "disarming", true: "disarmed"}[d.complete]
}

// Disarm answers POST disarm-ha, which the next round of the manager takes up.
func (m *Manager) Disarm(c Call) (any, error) { return m.queue(c.text("resource-mode")) }

// Arm answers POST arm-ha.
func (m *Manager) Arm(Call) (any, error) { return m.queue("") }

// queue queues that the manager is disarmed in a mode, or is armed.
func (m *Manager) queue(mode string) (any, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.queued = append(m.queued, mode)
	return nil, nil
}

// takeQueued does what is queued: one that is disarmed in one mode is not in another before it was armed. m.mu is held.
func (m *Manager) takeQueued() {
	for _, mode := range m.queued {
		switch {
		case mode == "":
			m.disarmed = nil
		case m.disarmed == nil:
			m.disarmed = &disarm{mode: mode}
		}
	}
	m.queued = nil
}

// followDisarmed has the states of services follow that the manager is disarmed, which is complete when nothing is done to a VM any more and
// what acts on the VMs of each host knows it, a round later. m.mu is held.
func (m *Manager) followDisarmed(knows bool) {
	for sid, state := range m.services {
		switch state {
		case "started", "stopped", "request_stop":
			if m.disarmed.mode == "freeze" {
				m.enter(sid, "freeze")
			}
		}
	}
	m.disarmed.complete = m.disarmed.complete || knows && len(m.busy) == 0
}

// ReadStatus answers GET status/current: what is about the manager itself, and nothing of the services and of what acts on them.
func (m *Manager) ReadStatus(c Call) (any, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := []map[string]any{{"id": "quorum", "type": "quorum", "node": c.Hosts[0], "quorate": 1, "status": "OK"}}
	if !c.Nine {
		return out, nil
	}
	fencing := map[string]any{"id": "fencing", "type": "fencing", "node": c.Hosts[0], "armed-state": "standby", "status": "standby (CRM watchdog standby)"}
	switch d := m.disarmed; {
	case d != nil:
		watchdog := map[bool]string{false: "active", true: "released"}[d.complete]
		fencing["armed-state"], fencing["resource_mode"], fencing["status"] = d.state(), d.mode, fmt.Sprintf("%s, resource mode: %s (CRM watchdog %s)", d.state(), d.mode, watchdog)
	case m.running:
		fencing["armed-state"], fencing["status"] = "armed", "armed (CRM watchdog active)"
	}
	return append(out, fencing), nil
}
