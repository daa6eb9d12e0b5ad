package action

import (
	"fmt"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/availability"
)

// SetAvailability asks Proxmox VE's HA manager to have the VM of a node running, to ignore it, or to
// know nothing of it. VM is the one, where it is not that of the inventory.
type SetAvailability struct {
	Node  cluster.Node
	VM    cluster.VM
	State availability.State
	Why   string // "" : the inventory has it so
}

// SetApart has the HA manager keep VMs on hosts of their own; with none the rule that does is deleted.
type SetApart struct {
	Cluster string
	VMs     []int
}

// Info implements Action.
func (a SetAvailability) Info() Info {
	text := fmt.Sprintf("have Proxmox VE's HA manager keep vm %d (%s) running", a.VM.VMID, a.Node.Name)
	switch a.State {
	case availability.Ignored:
		text = fmt.Sprintf("have Proxmox VE's HA manager ignore vm %d (%s)", a.VM.VMID, a.Node.Name)
	case availability.Removed:
		text = fmt.Sprintf("take vm %d (%s) out of Proxmox VE's HA", a.VM.VMID, a.Node.Name)
	}
	if a.Why != "" {
		text += ", " + a.Why
	}
	// It has no Node: the switches are about what a node is, which this leaves as it is.
	return Info{Kind: cluster.SetAvailability, Subject: a.Node.Name, VMID: a.VM.VMID, Claims: []cluster.Claim{cluster.ClaimNode(a.Node.Name)}, Change: "state=" + string(a.State), Text: text}
}

// Info implements Action.
func (a SetApart) Info() Info {
	text := "delete the rule by which Proxmox VE's HA manager keeps control planes of " + a.Cluster + " apart"
	if len(a.VMs) > 0 {
		text = fmt.Sprintf("have Proxmox VE's HA manager keep the control planes of %s on hosts of their own: vm %s", a.Cluster, strings.Trim(strings.ReplaceAll(fmt.Sprint(a.VMs), " ", ", "), "[]"))
	}
	return Info{Kind: cluster.SetApart, Subject: a.Cluster, Change: fmt.Sprint(a.VMs), Text: text}
}
