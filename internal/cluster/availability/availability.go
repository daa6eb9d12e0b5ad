// Package availability has what the HA manager of Proxmox VE is asked for, and what it holds, as values.
//
// It is pure: it must not know who asks, nor how.
package availability

import "fmt"

// State is what is asked of a resource: PVE 8.4 and 9.2 pve-ha-manager has enabled as an older word for started, and
// disabled for one that is stopped and stays where it is.
type State string

// The states that the agent asks for. With Ignored the manager does nothing about a VM, and lets everybody switch it on and
// off as if it were none of its own; its resource and the rules that name it stay. Removed is no resource at all.
const (
	Started State = "started"
	Ignored State = "ignored"
	Removed State = ""
)

// Resource is a VM of which the manager is asked to have it in a state.
type Resource struct {
	State State
	Group string // of hosts, which Proxmox VE 8 has; "" : none
	Own   bool   // the agent has made it, for this cluster
}

// Rule is one of Proxmox VE 9 by which VMs are kept on hosts of their own.
type Rule struct {
	VMs      []int // in order
	Disabled bool  // by somebody
	Together bool  // somebody has made it one that keeps them on one host
	// Broken is why the manager does not follow it, in its own words; "" : it does.
	Broken string
}

// Manager is what the HA manager of a Proxmox VE cluster holds, as far as it is about a cluster of ours.
type Manager struct {
	Resources map[int]Resource // by VMID, of all guests
	// HasRules: it is one of Proxmox VE 9, which has rules in place of groups, and has none of those left.
	HasRules bool
	// Apart is the rule of our name for the control planes of the cluster; nil: there is none.
	Apart *Rule
	// Disarmed is how it treats VMs while somebody has disarmed it, or is about to; "": it is armed.
	Disarmed Mode
}

// Manages reports whether the manager has a VM as its own, by what is asked for it (pve-ha-manager: Config.pm, service_is_ha_managed).
func (m Manager) Manages(vmid int) bool {
	r, there := m.Resources[vmid]
	return there && r.State != Ignored && m.Disarmed != Ignore
}

// Mode is what becomes of VMs while the manager is disarmed: it fences no host, and does nothing about them (PVE 9.2, since
// pve-ha-manager 5.1.3).
type Mode string

// The modes: what is asked of the manager waits until it is armed, or everybody may switch the VMs on and off as if they were none of
// its own.
const (
	Freeze Mode = "freeze"
	Ignore Mode = "ignore"
)

// Role is the role with which a token may see and change what the manager holds. Proxmox VE asks for both rights on /, and has no lesser
// ones (PVE 9.2 pve-ha-manager).
const Role = "TalosAgentHA"

// FormatGrant is how a user and its token get the role, in commands for root of a host.
func FormatGrant(user, token string) string {
	return fmt.Sprintf("`pveum role add %s --privs 'Sys.Audit Sys.Console'`, then `pveum acl modify / --propagate 0 --roles %[1]s --users %s --tokens '%s'`", Role, user, token)
}
