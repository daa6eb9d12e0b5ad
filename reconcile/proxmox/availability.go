package proxmox

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/availability"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/ha"
)

// haRequests are the requests about Proxmox VE's HA manager. That is the whole cluster's: both what it holds and each change
// take a privilege on /.
func (c *Client) haRequests() ha.Requests {
	return ha.Requests{
		Forbidden: errForbidden, User: c.token.User(), Token: string(c.token), Read: c.getQuery,
		Write: func(ctx context.Context, method, path string, in map[string]string) error {
			ask := map[string]func(context.Context, string, params, any) error{http.MethodPost: c.post, http.MethodPut: c.put, http.MethodDelete: c.delete}
			return ask[method](ctx, path, in, nil)
		},
	}
}

// availability is what the HA manager holds, where anything of the cluster is its, or is to be. It is looked at after VMs and hosts.
func (l *look) availability(o *cluster.Observed) cluster.Seen[availability.Manager] {
	version, managed := "", l.d.Spec.Availability
	for _, vm := range o.VMs {
		managed = managed || vm.Owner == cluster.Ours && (vm.Managed || vm.HA != "")
	}
	managed = managed || slices.ContainsFunc(o.Orphans.Value, func(vm cluster.VM) bool { return vm.Managed || vm.HA != "" })
	if !managed {
		return cluster.Seen[availability.Manager]{}
	}
	for _, h := range o.Hosts {
		version = h.PVE // one answers for all
	}
	m, err := ha.Look(l.ctx, l.c.haRequests(), l.d.Spec, version)
	if err != nil {
		return cluster.Unseen[availability.Manager](formatReason(err))
	}
	// What is remembered of a VM may be from before it was disarmed, or armed, which no list shows.
	isManaged := func(vm cluster.VM) bool { return vm.Owner == cluster.Ours && m.Manages(vm.VMID) }
	for name, vm := range o.VMs {
		vm.Managed = isManaged(vm)
		o.VMs[name] = vm
	}
	for i, vm := range o.Orphans.Value {
		o.Orphans.Value[i].Managed = isManaged(vm)
	}
	return cluster.Saw(m)
}

// SetAvailability has Proxmox VE's HA manager keep a VM of ours started, ignore it, or have no resource of it. When it returns
// without an error the manager has released one that it is to ignore, or has no resource of: until its next round it would
// start one again that is off. A resource that somebody else has made is left as it is.
func (c *Client) SetAvailability(ctx context.Context, d cluster.Desired, vm cluster.VM, want availability.State, progress func(cluster.Progress)) error {
	defer c.forget(vm.VMID)
	c.forget(vm.VMID)
	if err := c.setAvailability(ctx, d, vm, want, defaultProgress(progress)); err != nil {
		return fmt.Errorf("set HA of vm %d (%s): %w", vm.VMID, vm.Node, err)
	}
	return nil
}

func (c *Client) setAvailability(ctx context.Context, d cluster.Desired, vm cluster.VM, want availability.State, progress func(cluster.Progress)) error {
	if _, err := c.prove(ctx, c.identityOf(d, vm.VMID, vm.Node)); err != nil {
		return err
	}
	err := ha.Set(ctx, c.haRequests(), d.Spec, vm.VMID, vm.Node, want)
	switch {
	case errors.Is(err, errGivenUp):
		return ha.HintGivenUp(err, vm.VMID)
	case err != nil || want == availability.Started:
		return err
	}
	return ha.AwaitRelease(ctx, c.haRequests(), vm.VMID, showWait(progress))
}

// SetApart has Proxmox VE's HA manager keep VMs of a cluster on hosts of their own, by the one rule that there is for its
// control planes; fewer than two VMs need none. A rule of that name that somebody else has made is left as it is.
func (c *Client) SetApart(ctx context.Context, d cluster.Desired, vmids []int, progress func(cluster.Progress)) error {
	if err := ha.SetApart(ctx, c.haRequests(), d.Spec, vmids, showWait(defaultProgress(progress))); err != nil {
		return fmt.Errorf("keep control planes of cluster %s apart: %w", d.Spec.Name, err)
	}
	return nil
}

// showWait shows what an action waits for in its progress.
func showWait(progress func(cluster.Progress)) func(string) {
	return func(waits string) { progress(cluster.Progress{Waits: waits}) }
}
