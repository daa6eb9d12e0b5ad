package proxmox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/hardware"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/pveconf"
)

// Change corrects fields of the VM of a node on a host: what it has in other fields
// stays. A VM that runs has the change at once where Proxmox VE can, else from its next
// start on.
func (c *Client) Change(ctx context.Context, d cluster.Desired, n cluster.Node, host string, fields []cluster.VMField, progress func(cluster.Progress)) error {
	if err := c.changeFields(ctx, d, n, host, fields, defaultProgress(progress)); err != nil {
		return fmt.Errorf("change vm %d (%s): %w", n.VMID, n.Name, err)
	}
	return nil
}

func (c *Client) changeFields(ctx context.Context, d cluster.Desired, n cluster.Node, host string, fields []cluster.VMField, progress func(cluster.Progress)) error {
	// The image is not part of a change; what is checked is all of a new VM.
	wanted, err := hardware.CreateParams(d, n, c.poolOf(n), cluster.Image{Name: "unused.qcow2"})
	if err != nil {
		return err
	}
	id := c.identityOf(d, n.VMID, n.Name)
	defer c.forget(n.VMID)
	c.forget(n.VMID)
	p, err := c.prove(ctx, id)
	if err != nil {
		return err
	}
	if p, err = c.change(ctx, id, p, func(p proven) (params, error) { return hardware.ChangeParams(p.conf, wanted, fields), nil }, nil); err != nil {
		return err
	}
	if slices.Contains(fields, cluster.FieldTags) {
		var tags hardware.Checks
		tagList := tags.Tags(n.VMTags())
		if tags.Err() != nil {
			return tags.Err()
		}
		if p, err = c.tag(ctx, id, p, tagList); err != nil {
			return err
		}
	}
	if p, err = c.plug(ctx, id, p, host, n, fields, wanted, progress); err != nil {
		return err
	}
	return c.growAll(ctx, id, p, n, fields, progress)
}

// plug makes the data disks of a node that its VM does not have, and attaches them.
// Several nodes do so on one storage in turns, as they do when they are created.
func (c *Client) plug(ctx context.Context, id identity, p proven, host string, n cluster.Node, fields []cluster.VMField, wanted params, progress func(cluster.Progress)) (proven, error) {
	missing := func(p proven) params {
		out := params{}
		taken := map[string]bool{}
		for i, dk := range n.Disks {
			if !slices.Contains(fields, cluster.FieldDisk(dk.Serial)) || hardware.DriveOf(p.conf, dk.Serial) != "" {
				continue
			}
			key := freeDrive(p.conf, taken)
			taken[key] = true
			out[key] = wanted[fmt.Sprintf("scsi%d", i+1)]
		}
		return out
	}
	if len(missing(p)) == 0 {
		return p, nil
	}
	done, err := c.takeStorages(ctx, host, n, false, progress)
	if err != nil {
		return p, err
	}
	defer done()
	var last error
	for range conflicts {
		set := missing(p)
		if len(set) == 0 {
			return p, nil
		}
		if err := p.locked(); err != nil {
			return p, err
		}
		set["digest"] = p.conf.Digest()
		// In a task: to allocate a volume may take longer than a request lasts.
		last = c.start(ctx, progress, func(name *pveconf.Scalar) error { return c.post(ctx, vmPath(p.host, id.vmid, "config"), set, name) })
		if last != nil && !errors.Is(last, errDigest) {
			if isDecided(ctx, last) {
				return p, last
			}
			if err := c.settle(ctx, p.host, id.vmid, progress); err != nil {
				return p, err
			}
		}
		if p, err = c.prove(ctx, id); err != nil {
			return p, err
		}
	}
	if last == nil {
		last = errors.New("a disk that was attached is not there")
	}
	return p, last
}

// freeDrive is the first drive behind the SCSI controller that is not used.
func freeDrive(o pveconf.Options, taken map[string]bool) string {
	for i := 1; ; i++ {
		key := "scsi" + strconv.Itoa(i)
		if _, used := o[key]; !used && !taken[key] {
			return key
		}
	}
}

// growAll grows the disks among some fields to the sizes of the inventory.
func (c *Client) growAll(ctx context.Context, id identity, p proven, n cluster.Node, fields []cluster.VMField, progress func(cluster.Progress)) error {
	if slices.Contains(fields, cluster.FieldSystemSize) {
		if err := c.grow(ctx, id, p, cluster.SystemDiskSerial, n.DiskBytes, progress); err != nil {
			return err
		}
	}
	for _, dk := range n.Disks {
		if !slices.Contains(fields, cluster.FieldDiskSize(dk.Serial)) {
			continue
		}
		p, err := c.prove(ctx, id)
		if err != nil {
			return err
		}
		if err := c.grow(ctx, id, p, dk.Serial, dk.Bytes, progress); err != nil {
			return err
		}
	}
	return nil
}
