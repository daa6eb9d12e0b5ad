package ha

import (
	"cmp"
	"context"

	"github.com/talos-agent/talos-agent/internal/cluster/availability"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/pveconf"
)

// readMode reads how the manager, which somebody has disarmed, treats VMs; "": it is armed, or has nothing to do. Proxmox VE shows that since
// pve-ha-manager 5.1.3, as the one row of type fencing; older versions cannot be disarmed. While it is on its way to that it takes
// up no request either (Manager.pm, handle_disarm).
func readMode(ctx context.Context, r Requests) (availability.Mode, error) {
	var rows []struct {
		Type  pveconf.Scalar
		State pveconf.Scalar `json:"armed-state"`
		Mode  pveconf.Scalar `json:"resource_mode"`
	}
	if err := r.get(ctx, "/cluster/ha/status/current", nil, &rows); err != nil {
		return "", err
	}
	for _, row := range rows {
		if row.Type == "fencing" && (row.State == "disarming" || row.State == "disarmed") {
			return availability.Mode(cmp.Or(row.Mode, "unknown")), nil
		}
	}
	return "", nil
}
