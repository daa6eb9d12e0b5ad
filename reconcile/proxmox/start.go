package proxmox

import (
	"context"
	"errors"
	"fmt"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// Start switches the VM of a node on. One that runs is success.
func (c *Client) Start(ctx context.Context, d cluster.Desired, n cluster.Node, progress func(cluster.Progress)) error {
	if err := c.switchOn(ctx, c.identityOf(d, n.VMID, n.Name), heard(progress)); err != nil {
		return fmt.Errorf("start vm %d (%s): %w", n.VMID, n.Name, err)
	}
	return nil
}

func (c *Client) switchOn(ctx context.Context, id identity, progress func(cluster.Progress)) error {
	defer c.forget(id.vmid)
	c.forget(id.vmid)
	var last error
	for range conflicts {
		host, err := c.locate(ctx, id)
		if err != nil {
			return err
		}
		now, err := c.current(ctx, host, id.vmid)
		if err != nil {
			return err
		}
		p, err := c.confirm(ctx, id, host)
		switch {
		case err != nil:
			return err
		case now.power() == cluster.PowerRunning:
			return nil
		case now.HA.Managed.on():
			return managed(id.vmid)
		}
		last = c.start(ctx, progress, func(name *text) error {
			return c.post(ctx, vmPath(p.host, id.vmid, "status", "start"), nil, name)
		})
		switch {
		case last == nil, errors.Is(last, errRunning):
			return nil
		case decided(ctx, last):
			return last
		}
		if err := c.settle(ctx, p.host, id.vmid, progress); err != nil {
			return err
		}
	}
	return last
}

// managed is the refusal to act on a VM that the HA manager looks after: the
// two would fight over it.
func managed(vmid int) error {
	return hinted(fmt.Sprintf("take it out of HA: `ha-manager remove vm:%d`", vmid), "vm %d is managed by Proxmox VE's HA, which talos-agent does not work with yet", vmid)
}
