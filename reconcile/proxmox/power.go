package proxmox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/retry"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/pace"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/pveconf"
)

// Start switches the VM of a node on. One that runs is success.
func (c *Client) Start(ctx context.Context, d cluster.Desired, n cluster.Node, progress func(cluster.Progress)) error {
	return c.switchVM(ctx, d, n, toStart, nil, progress)
}

// Resume lets the VM of a node go on that somebody paused. One that runs is success; one
// that is off is not switched on.
func (c *Client) Resume(ctx context.Context, d cluster.Desired, n cluster.Node, progress func(cluster.Progress)) error {
	return c.switchVM(ctx, d, n, toResume, nil, progress)
}

// shutDownTimeout is how long a guest gets to switch itself off.
const shutDownTimeout = "300" // s

// ShutDown asks the guest of a node's VM to switch itself off, and waits until it has.
// It is never switched off hard: a machine that does not stop may still write.
func (c *Client) ShutDown(ctx context.Context, d cluster.Desired, n cluster.Node, progress func(cluster.Progress)) error {
	return c.switchVM(ctx, d, n, toShutDown, params{"timeout": shutDownTimeout}, progress)
}

func (c *Client) switchVM(ctx context.Context, d cluster.Desired, n cluster.Node, how switching, in params, progress func(cluster.Progress)) error {
	defer c.forget(n.VMID)
	c.forget(n.VMID)
	if err := c.power(ctx, c.identityOf(d, n.VMID, n.Name), how, c.confirm, in, defaultProgress(progress)); err != nil {
		return fmt.Errorf("%s vm %d (%s): %w", how, n.VMID, n.Name, err)
	}
	return nil
}

// Reset has the VM of a node boot again, as its reset button would: what its guest does not expect. One that does not run, that
// Proxmox VE holds a lock on or runs a task on, or that HA manages is not reset. It is asked for once: while the answer is
// lost it is not known whether it was, and an error with cluster.ErrNotBegun means that it was not.
func (c *Client) Reset(ctx context.Context, d cluster.Desired, n cluster.Node, progress func(cluster.Progress)) error {
	defer c.forget(n.VMID)
	c.forget(n.VMID)
	p, err := c.resettable(ctx, c.identityOf(d, n.VMID, n.Name))
	if err != nil {
		return fmt.Errorf("reset vm %d (%s): %w: %w", n.VMID, n.Name, cluster.ErrNotBegun, err)
	}
	err = c.start(ctx, defaultProgress(progress), func(name *pveconf.Scalar) error {
		err := c.post(ctx, vmPath(p.host, n.VMID, "status", "reset"), nil, name)
		if isAnswered(err) {
			err = fmt.Errorf("%w: %w", cluster.ErrNotBegun, err)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("reset vm %d (%s): %w", n.VMID, n.Name, err)
	}
	return nil
}

// resettable proves that a VM is ours, and returns an error unless it runs and nothing is done to it.
func (c *Client) resettable(ctx context.Context, id identity) (proven, error) {
	host, err := c.locate(ctx, id)
	if err != nil {
		return proven{}, err
	}
	now, err := c.current(ctx, host, id.vmid)
	if err != nil {
		return proven{}, err
	}
	tasks, err := c.activeTasks(ctx, host)
	if err != nil {
		return proven{}, err
	}
	p, err := c.confirm(ctx, id, host)
	switch {
	case err != nil:
		return proven{}, err
	case now.HA.Managed.On():
		return proven{}, refuseManaged(id.vmid)
	case powerOf(now) != cluster.PowerRunning:
		return proven{}, fmt.Errorf("vm %d is off or paused", id.vmid)
	case p.locked() != nil:
		return proven{}, p.locked()
	case slices.ContainsFunc(tasks, func(t task) bool { return t.vmid() == id.vmid && !isConsole(c.describeTask(t)) }):
		return proven{}, fmt.Errorf("a task runs on vm %d", id.vmid)
	}
	return p, nil
}

// powerWithin is how long a VM may take to be seen in its new state after the
// task that brings it there has ended.
const powerWithin = 30 * time.Second

// switching is a request that changes the state of a VM.
type switching string

// The requests: on, on again after a pause, off as a guest does it by itself, and hard off.
const (
	toStart    switching = "start"
	toResume   switching = "resume"
	toShutDown switching = "shutdown"
	toStop     switching = "stop"
)

// leads is the state that a VM is in afterwards.
func (s switching) leads() cluster.Power {
	if s == toStart || s == toResume {
		return cluster.PowerRunning
	}
	return cluster.Stopped
}

// power switches a VM on or off, and waits until it is seen so: the task
// alone does not prove it. prove is the second half of the proof, between the
// look at the state and the request.
func (c *Client) power(ctx context.Context, id identity, how switching, prove func(context.Context, identity, string) (proven, error),
	in params, progress func(cluster.Progress)) error {
	want := how.leads()
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
		case now.HA.Managed.On() && (want == cluster.Stopped || powerOf(now) != want):
			// The HA manager would switch it on again.
			return refuseManaged(id.vmid)
		case powerOf(now) == want:
			return nil
		case p.locked() != nil:
			return p.locked()
		case how == toResume && powerOf(now) == cluster.Stopped:
			return fault.Errorf("nothing: it is started when it is looked at again", "vm %d is stopped by now", id.vmid)
		case want == cluster.PowerRunning && powerOf(now) == cluster.Paused && (how != toResume || now.Halt() != ""):
			return fault.Errorf(fmt.Sprintf("`qm resume %d`, after looking why: a full storage pauses VMs too", id.vmid), "vm %d is paused", id.vmid)
		}
		err = c.start(ctx, progress, func(name *pveconf.Scalar) error {
			return c.post(ctx, vmPath(p.host, id.vmid, "status", string(how)), in, name)
		})
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

// powerOf is the state of a VM in one word.
func powerOf(s pveconf.Current) cluster.Power {
	switch {
	case s.Status == "stopped":
		return cluster.Stopped
	case s.Status != "running":
		return cluster.PowerUnknown
	case s.Pause() != "":
		return cluster.Paused
	}
	return cluster.PowerRunning
}

func (c *Client) current(ctx context.Context, host string, vmid int) (pveconf.Current, error) {
	var s pveconf.Current
	err := c.get(ctx, vmPath(host, vmid, "status", "current"), nil, &s)
	return s, err
}

// seen waits until a VM is in a state.
func (c *Client) seen(ctx context.Context, host string, vmid int, want cluster.Power) error {
	for began := time.Now(); ; {
		now, err := c.current(ctx, host, vmid)
		switch {
		case err != nil:
			return err
		case powerOf(now) == want:
			return nil
		case time.Since(began) > powerWithin:
			return fmt.Errorf("vm %d does not do what its task did: it is %s after %v", vmid, sanitize(string(now.Status)), powerWithin)
		}
		if err := retry.Sleep(ctx, pace.Since(time.Since(began))); err != nil {
			return err
		}
	}
}

// refuseManaged returns the refusal to act on a VM that the HA manager manages: the two would fight over it. It manages none
// that SetAvailability has had it ignore.
func refuseManaged(vmid int) error {
	return fault.Errorf(fmt.Sprintf("take it out of HA: `ha-manager remove vm:%d`", vmid), "vm %d is managed by Proxmox VE's HA, and talos-agent has not had it released: somebody else has made its resource, or changed it", vmid)
}

// isConsole reports whether a task shows the console of a VM, and does nothing to it (PVE 9.2: a web console and
// `qm terminal` through the API are vncproxy, SPICE is spiceproxy).
func isConsole(t cluster.Task) bool { return t.Type == "vncproxy" || t.Type == "spiceproxy" }
