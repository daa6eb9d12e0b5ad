package proxmox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/retry"
)

// Start switches the VM of a node on. One that runs is success.
func (c *Client) Start(ctx context.Context, d cluster.Desired, n cluster.Node, progress func(cluster.Progress)) error {
	if err := c.switchOn(ctx, c.identityOf(d, n.VMID, n.Name), defaultProgress(progress)); err != nil {
		return fmt.Errorf("start vm %d (%s): %w", n.VMID, n.Name, err)
	}
	return nil
}

func (c *Client) switchOn(ctx context.Context, id identity, progress func(cluster.Progress)) error {
	defer c.forget(id.vmid)
	c.forget(id.vmid)
	return c.power(ctx, id, cluster.PowerRunning, c.confirm, nil, progress)
}

// powerWithin is how long a VM may take to be seen in its new state after the
// task that brings it there has ended.
const powerWithin = 30 * time.Second

// power switches a VM on, or hard off, and waits until it is seen so: the task
// alone does not prove it. prove is the second half of the proof, between the
// look at the state and the request.
func (c *Client) power(ctx context.Context, id identity, want cluster.Power, prove func(context.Context, identity, string) (proven, error),
	in params, progress func(cluster.Progress)) error {
	how := "start"
	if want == cluster.Stopped {
		how = "stop"
	}
	last := fmt.Errorf("vm %d keeps changing while it is to %s", id.vmid, how)
	for range conflicts {
		host, err := c.locate(ctx, id)
		if err != nil {
			return err
		}
		now, err := c.current(ctx, host, id.vmid)
		if err != nil {
			return err
		}
		p, err := prove(ctx, id, host)
		switch {
		case err != nil:
			return err
		case now.HA.Managed.on() && (want == cluster.Stopped || now.power() != want):
			// What is switched off here is going to be deleted.
			return refuseManaged(id.vmid)
		case now.power() == want:
			return nil
		case p.locked() != nil:
			return p.locked()
		case want == cluster.PowerRunning && now.power() == cluster.Paused:
			return fault.Errorf(fmt.Sprintf("`qm resume %d`, after looking why: a full storage pauses VMs too", id.vmid), "vm %d is paused", id.vmid)
		}
		err = c.start(ctx, progress, func(name *scalar) error { return c.post(ctx, vmPath(p.host, id.vmid, "status", how), in, name) })
		switch {
		case err == nil:
			return c.seen(ctx, p.host, id.vmid, want)
		case isDecided(ctx, err) && !errors.Is(err, errRunning):
			return err
		}
		last = err
		if err := c.settle(ctx, p.host, id.vmid, progress); err != nil {
			return err
		}
	}
	return last
}

// seen waits until a VM is in a state.
func (c *Client) seen(ctx context.Context, host string, vmid int, want cluster.Power) error {
	for began := time.Now(); ; {
		now, err := c.current(ctx, host, vmid)
		switch {
		case err != nil:
			return err
		case now.power() == want:
			return nil
		case time.Since(began) > powerWithin:
			return fmt.Errorf("vm %d does not do what its task did: it is %s after %v", vmid, sanitize(string(now.Status)), powerWithin)
		}
		if err := retry.Sleep(ctx, nextPause(began)); err != nil {
			return err
		}
	}
}

// refuseManaged returns the refusal to act on a VM that the HA manager manages:
// the two would fight over it.
func refuseManaged(vmid int) error {
	return fault.Errorf(fmt.Sprintf("take it out of HA: `ha-manager remove vm:%d`", vmid), "vm %d is managed by Proxmox VE's HA, which talos-agent does not work with yet", vmid)
}
