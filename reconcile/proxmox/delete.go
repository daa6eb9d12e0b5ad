package proxmox

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/hardware"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/pveconf"
)

// Delete stops a VM of ours hard and deletes it with its own disks. One that is
// deleted already is success.
//
// It goes in two phases. First the mark in the description records that the
// deletion has begun, in one write that fails if anybody wrote since the VM was
// read. It lifts Proxmox VE's protection only where vm has it: whoever decided
// that it goes knew of it. Then the VM is stopped, proven
// once more and deleted. Before every step it is read again and must still be
// the one: VMID, pool and UUID. An interrupted deletion goes on where it was.
//
// It refuses a VM to which volumes are attached that would be deleted with it
// and are not ours, one that a lock holds, one that was protected meanwhile, and
// one under HA.
func (c *Client) Delete(ctx context.Context, d cluster.Desired, vm cluster.VM, progress func(cluster.Progress)) error {
	if err := c.remove(ctx, d, vm, defaultProgress(progress)); err != nil {
		return fmt.Errorf("delete vm %d (%s): %w", vm.VMID, vm.Node, err)
	}
	return nil
}

func (c *Client) remove(ctx context.Context, d cluster.Desired, vm cluster.VM, progress func(cluster.Progress)) error {
	if n, ok := d.Spec.Node(vm.Node); ok && (n.Protect || n.Locked) {
		return fmt.Errorf("node %s is protected or locked in the inventory", n.Name)
	}
	var check hardware.Checks
	check.VMID(vm.VMID)
	check.Is("node name", vm.Node, hardware.NamePattern)
	check.Is("cluster id", d.Spec.ID, hardware.UUIDPattern)
	check.Is("host", vm.Host, hardware.HostPattern)
	if err := check.Err(); err != nil {
		return err
	}
	id := c.identityOf(d, vm.VMID, vm.Node)
	defer c.forget(vm.VMID)
	c.forget(vm.VMID)
	err := c.twoPhase(ctx, id, vm, cluster.Mark{Version: 1, Cluster: d.Spec.ID, Node: vm.Node, Replace: vm.Replace, Deleting: true}, progress)
	if err != nil && !errors.Is(err, errNotListed) {
		return err
	}
	if err != nil {
		// It may be going by a task of an agent that died meanwhile.
		if err := c.settle(ctx, vm.Host, vm.VMID, progress); err != nil {
			return err
		}
	}
	return c.confirmDeleted(ctx, id)
}

// twoPhase marks, stops and deletes. It returns errNotListed when the VM is
// missing before it was deleted here.
func (c *Client) twoPhase(ctx context.Context, id identity, vm cluster.VM, mark cluster.Mark, progress func(cluster.Progress)) error {
	if err := c.condemn(ctx, id, vm.Protected, mark); err != nil {
		return err
	}
	// A shutdown that is under way would hold the lock until it is over.
	in := params{"timeout": "20", "overrule-shutdown": "1"}
	if err := c.power(ctx, id, toStop, c.condemned, in, progress); err != nil {
		return err
	}
	return c.destroy(ctx, id, progress)
}

// condemn writes into the description that the deletion has begun, and lifts a
// protection that was known.
func (c *Client) condemn(ctx context.Context, id identity, known bool, mark cluster.Mark) error {
	p, err := c.prove(ctx, id)
	if err != nil {
		return err
	}
	_, err = c.change(ctx, id, p, func(p proven) (params, error) {
		if err := checkDeletable(p, id.vmid); err != nil {
			return nil, err
		}
		if p.conf["protection"].On() && !known {
			return nil, refuseProtected(id.vmid)
		}
		if have, ok := p.mark(); ok && have == mark && !p.conf["protection"].On() {
			return nil, nil
		}
		return params{"description": putMark(string(p.conf["description"]), mark), "protection": "0"}, nil
	}, nil)
	return err
}

// refuseProtected returns the refusal to delete a VM that a person protected.
func refuseProtected(vmid int) error {
	return fault.Errorf(fmt.Sprintf("take it off, if the vm may go: `qm set %d --protection 0`", vmid), "somebody has set Proxmox VE's Protection on vm %d", vmid)
}

// putMark puts a mark into a description in the place of the one it has. What
// people wrote stays.
func putMark(description string, m cluster.Mark) string {
	rest := description
	if _, ok := cluster.ParseMark(description); ok {
		_, rest, _ = strings.Cut(description, "\n")
	}
	return strings.TrimSuffix(m.String()+"\n"+rest, "\n")
}

// checkDeletable refuses a VM that is not to be deleted although it is ours.
func checkDeletable(p proven, vmid int) error {
	if err := p.locked(); err != nil {
		return err
	}
	if others := hardware.ListOthersVolumes(p.conf, strconv.Itoa(vmid)); len(others) > 0 {
		return fault.Errorf("detach them and move them to another vm, or remove them, if they are not needed", "volumes that are not known to be ours would be deleted with it: %s", others)
	}
	return nil
}

// condemned is the second half of a proof for the steps of the second phase:
// the VM is ours, is being deleted, and may go.
func (c *Client) condemned(ctx context.Context, id identity, host string) (proven, error) {
	p, err := c.confirm(ctx, id, host)
	if err != nil {
		return p, err
	}
	if m, ok := p.mark(); !ok || !m.Deleting {
		return p, errors.New("the mark that it is being deleted was removed meanwhile")
	}
	if p.conf["protection"].On() { // since the first phase
		return p, refuseProtected(id.vmid)
	}
	return p, checkDeletable(p, id.vmid)
}

// destroy deletes the stopped VM with the disks its configuration names, and
// no others: purge takes it out of backup and replication jobs.
func (c *Client) destroy(ctx context.Context, id identity, progress func(cluster.Progress)) error {
	host, err := c.locate(ctx, id)
	if err != nil {
		return err
	}
	p, err := c.condemned(ctx, id, host)
	if err != nil {
		return err
	}
	err = c.start(ctx, progress, func(name *pveconf.Scalar) error {
		return c.delete(ctx, vmPath(p.host, id.vmid), params{"purge": "1", "destroy-unreferenced-disks": "0"}, name)
	})
	if err != nil && !isDecided(ctx, err) {
		return c.settle(ctx, p.host, id.vmid, progress)
	}
	return err
}

// confirmDeleted verifies that the VM is not there any more: a list without it proves
// nothing.
func (c *Client) confirmDeleted(ctx context.Context, id identity) error {
	free, err := c.free(ctx, id.vmid)
	if err != nil || free {
		return err
	}
	_, err = c.prove(ctx, id)
	switch {
	case err == nil:
		return errors.New("it is still there")
	case errors.Is(err, errNotListed):
		return &notOurs{vmid: id.vmid, why: "a guest that the agent's token does not see has its number"}
	}
	return err
}
