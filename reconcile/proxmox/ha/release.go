package ha

import (
	"context"
	"fmt"
	"time"

	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/retry"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/pveconf"
)

const (
	// releaseWithin is how long the manager may hold a state of a VM that it is to ignore: its rounds are 10 s apart (PVE 9.2
	// pve-ha-manager), and one may take longer.
	releaseWithin = time.Minute
	lookAgain     = 2 * time.Second
)

// AwaitRelease waits until the HA manager has forgotten a VM that it is to ignore, or has no resource of. What is asked of the manager does
// not show that: its one half acts on the states that its other half has written in the last round, and would start the VM again
// as soon as that is off. waits is called with what is waited for.
func AwaitRelease(ctx context.Context, r Requests, vmid int, waits func(string)) error {
	for began := time.Now(); ; {
		state, managed, err := readState(ctx, r, vmid)
		switch {
		case err != nil:
			return err
		case !managed && (state == "" || state == "ignored"): // PVE 9.2 pve-manager: what is asked for, where the manager has no state
			return nil
		case time.Since(began) > releaseWithin:
			return fault.Errorf("`ha-manager status` shows whether the manager does its rounds, or is disarmed", "Proxmox VE's HA manager does not release vm %d within %v: it has it as %q (managed: %v)", vmid, releaseWithin, state, managed)
		}
		waits("waits until Proxmox VE's HA manager has released it")
		if err := retry.Sleep(ctx, lookAgain); err != nil {
			return err
		}
	}
}

// readState reads the state that the manager holds of a VM, and whether it manages it.
func readState(ctx context.Context, r Requests, vmid int) (state string, managed bool, err error) {
	var rows []struct {
		Type, VMID, Node pveconf.Scalar
		HA               pveconf.Scalar `json:"hastate"`
	}
	if err := r.get(ctx, "/cluster/resources", map[string]string{"type": "vm"}, &rows); err != nil {
		return "", false, err
	}
	for _, row := range rows {
		if row.Type != "qemu" || int(row.VMID.Number()) != vmid {
			continue
		}
		var now pveconf.Current
		err := r.get(ctx, fmt.Sprintf("/nodes/%s/qemu/%d/status/current", row.Node, vmid), nil, &now)
		return string(row.HA), now.HA.Managed.On(), err
	}
	return "", false, fmt.Errorf("the list of Proxmox VE has no vm %d", vmid)
}

// HintGivenUp adds what to do about a VM that the manager has given up: it takes no request for it until that is settled.
func HintGivenUp(err error, vmid int) error {
	return fault.WithHint(err, fmt.Sprintf("`ha-manager status` and the log of pve-ha-lrm show what has failed; then `ha-manager set %s --state disabled`, and `--state started` when that is settled", sidOf(vmid)))
}
