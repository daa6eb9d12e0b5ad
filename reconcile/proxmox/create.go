package proxmox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/internal/pattern"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/hardware"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/pveconf"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/turns"
)

// conflicts is how often a change that somebody else's change crossed, or whose
// answer got lost, is looked at and done again before it is given up for this
// time.
const conflicts = 4

// Create makes the VM of a node up to the point where it can be started for the
// first time: configured, its system disk imported from the image and grown to
// its size, tagged. A VM that is there already, half made, is finished; a
// creation that still runs is waited for. It takes a VMID only if Proxmox VE
// calls it free at the same time.
//
// Only so many creations at once copy onto one storage, lest the disks of all that
// runs there wait; one with data disks is alone, because Proxmox VE may write them in full
// with the storage's lock, for which others wait ten seconds. The turn ends when the disks
// are there; progress shows it.
func (c *Client) Create(ctx context.Context, d cluster.Desired, n cluster.Node, host string, image cluster.Image, progress func(cluster.Progress)) error {
	if err := c.create(ctx, d, n, host, image, defaultProgress(progress)); err != nil {
		return fmt.Errorf("create vm %d (%s): %w", n.VMID, n.Name, err)
	}
	return nil
}

func (c *Client) create(ctx context.Context, d cluster.Desired, n cluster.Node, host string, image cluster.Image, progress func(cluster.Progress)) error {
	wanted, err := hardware.CreateParams(d, n, c.poolOf(n), image)
	if err != nil {
		return err
	}
	id := c.identityOf(d, n.VMID, n.Name)
	var tags hardware.Checks
	tagList := tags.Tags(n.VMTags())
	if tags.Is("host", host, hardware.HostPattern); tags.Err() != nil {
		return tags.Err()
	}
	done, err := c.takeStorages(ctx, host, n, image.ISO, progress)
	if err != nil {
		return err
	}
	defer c.forget(n.VMID)
	c.forget(n.VMID)
	p, err := c.make(ctx, id, host, wanted, progress)
	done()
	if err != nil {
		return nameLeftOver(err, host, n)
	}
	allocated := func(p cluster.Progress) {
		p.Allocated = true
		progress(p)
	}
	allocated(cluster.Progress{})
	if p, err = c.tag(ctx, id, p, tagList); err != nil {
		return err
	}
	return c.grow(ctx, id, p, cluster.SystemDiskSerial, n.DiskBytes, allocated)
}

// leftOverVolume matches what a storage reports of a volume that is there already:
// a logical volume, a file or a dataset, by its own name.
var leftOverVolume = pattern.New(`\b(vm-([0-9]+)-(cloudinit|disk-[0-9]+)(?:\.(?:raw|qcow2))?)\b.*already exists`)

// nameLeftOver explains a creation that failed because a volume with the VM's
// number is there already. As its VMID was free, it is of an earlier VM that was
// removed and left it.
func nameLeftOver(err error, host string, n cluster.Node) error {
	var failed *TaskError
	if !errors.As(err, &failed) {
		return err
	}
	m := leftOverVolume.FindStringSubmatch(failed.Exit)
	if m == nil || m[2] != strconv.Itoa(n.VMID) {
		return err
	}
	store, name := n.Datastore, m[1]
	if m[3] == "cloudinit" {
		store = n.CloudInitDatastore
	}
	if strings.Contains(name, ".") { // a file lies in a directory of the VM's
		name = m[2] + "/" + name
	}
	volume := store + ":" + name
	return fault.WithHint(fmt.Errorf("volume %s is left over from an earlier vm %d, or from an attempt to make it: %w", volume, n.VMID, err),
		fmt.Sprintf("as root on %s, when nobody needs it: `pvesm free %s`; `pvesm list %s --vmid %d` shows what else is left", host, volume, store, n.VMID))
}

// takeStorages waits for the turn of a node on every storage its disks are
// allocated on: alone where a disk is made that is empty.
func (c *Client) takeStorages(ctx context.Context, host string, n cluster.Node, empty bool, progress func(cluster.Progress)) (done func(), err error) {
	stores := []string{n.Datastore, n.CloudInitDatastore}
	for _, dk := range n.Disks {
		stores = append(stores, dk.Datastore)
	}
	places := c.copies
	if len(n.Disks) > 0 || empty {
		places = turns.Alone
	}
	slices.Sort(stores) // in one order, lest two wait for each other
	var taken []func()
	done = func() {
		for _, give := range taken {
			give()
		}
	}
	for _, s := range slices.Compact(stores) {
		what := "storage " + host + "/" + s
		give, err := c.turns.Take(ctx, what, fmt.Sprintf("the creation of vm %d (%s)", n.VMID, n.Name), places, func(holder string) { progress(cluster.Progress{Waits: waitsFor(what, holder)}) })
		if err != nil {
			done()
			return nil, err
		}
		taken = append(taken, give)
	}
	return done, nil
}

// waitsFor is what an action waits for that has no turn yet, in words.
func waitsFor(what, holder string) string {
	return fmt.Sprintf("waits for its turn on %s, which %s holds", what, cmp.Or(holder, "another"))
}

// make sees to it that the VM is there and ours. It asks for it at most once:
// after a lost answer the world shows what came of it.
func (c *Client) make(ctx context.Context, id identity, host string, wanted params, progress func(cluster.Progress)) (proven, error) {
	var asked bool
	var lost error
	for range conflicts {
		p, err := c.prove(ctx, id)
		var other *notOurs
		if !errors.Is(err, errNotListed) && !(errors.As(err, &other) && other.unpooled) {
			return p, err
		}
		h, err := c.behind(ctx, id, host)
		if err != nil {
			return p, err
		}
		switch h.is {
		case beingMade:
			if err := c.wait(ctx, h.task.text, progress); err != nil {
				return p, err
			}
			continue
		case justMade:
			continue
		case leftLocked:
			return p, errors.New(h.why)
		case takenByOther, movedOut:
			if other != nil {
				return p, other
			}
			return p, &notOurs{vmid: id.vmid, why: h.why}
		}
		switch {
		case lost != nil:
			return p, fmt.Errorf("nothing came of it: %w", lost)
		case asked:
			return p, errors.New("its task succeeded, and the vm is not there")
		}
		asked = true
		var name pveconf.Scalar
		if err := c.post(ctx, hostPath(host, "qemu"), wanted, &name); err != nil {
			if isAnswered(err) || ctx.Err() != nil {
				return p, err
			}
			lost = err
			continue
		}
		if err := c.wait(ctx, string(name), progress); err != nil {
			return p, err
		}
	}
	return proven{}, fmt.Errorf("vm %d keeps changing while it is made", id.vmid)
}

// tag puts the tags on, which Proxmox VE 9 refuses in the creation itself: it
// asks for the privilege before the VM is in its pool. What else is tagged
// stays. Where the datacenter's options do not let us use our tags the VM goes
// without them: pool and UUID make it ours, tags are for people.
func (c *Client) tag(ctx context.Context, id identity, p proven, wanted string) (proven, error) {
	return c.change(ctx, id, p, func(p proven) (params, error) {
		have := pveconf.SplitTags(string(p.conf["tags"]))
		all := slices.Concat(have, pveconf.SplitTags(wanted))
		slices.Sort(all)
		all = slices.Compact(all)
		if len(all) == len(slices.Compact(slices.Sorted(slices.Values(have)))) {
			c.setUntagged(id.vmid, false)
			return nil, nil
		}
		var check hardware.Checks
		return params{"tags": check.Tags(all)}, check.Err()
	}, func(err error) bool {
		var e *Error
		refused := errors.As(err, &e) && (errors.Is(err, errForbidden) || e.Params["tags"] != "")
		if refused && c.setUntagged(id.vmid, true) {
			c.log.Warn("a VM stays without tags", logging.Detail, fmt.Sprintf("Proxmox VE does not let the agent tag vm %d (%s)", id.vmid, id.node),
				logging.VMID, id.vmid, logging.Node, id.node, logging.Tags, wanted, logging.Err, err,
				logging.Hint, "allow them: `user-tag-access` in Datacenter > Options; and then `talos-agent reconcile`")
		}
		return refused
	})
}

// change writes options of a VM of ours until there is nothing to write. plan
// returns what to set in what was just proven, whose digest guards the write;
// forgive reports which refusals are as good as done. It returns the VM as it
// is then.
func (c *Client) change(ctx context.Context, id identity, p proven, plan func(proven) (params, error), forgive func(error) bool) (proven, error) {
	var last error
	for range conflicts {
		set, err := plan(p)
		if err != nil || set == nil {
			return p, err
		}
		if err := p.locked(); err != nil {
			return p, err
		}
		set["digest"] = p.conf.Digest()
		last = c.put(ctx, vmPath(p.host, id.vmid, "config"), set, nil)
		switch {
		case last == nil, errors.Is(last, errDigest), !isAnswered(last) && ctx.Err() == nil:
		case forgive != nil && forgive(last):
			return p, nil
		default:
			return p, last
		}
		if p, err = c.prove(ctx, id); err != nil {
			return p, err
		}
	}
	if last == nil {
		last = errors.New("what is written does not stay")
	}
	return p, fmt.Errorf("change the config of vm %d: %w", id.vmid, last)
}

// grow grows the disk with a serial to its size; a system disk that was imported has the
// size of its image.
func (c *Client) grow(ctx context.Context, id identity, p proven, serial string, size int64, progress func(cluster.Progress)) error {
	var last error
	for range conflicts {
		disk := hardware.DriveOf(p.conf, serial)
		if disk == "" {
			return fmt.Errorf("vm %d has no disk with the serial %s", id.vmid, serial)
		}
		if pveconf.ParseSize(pveconf.ParseProperties(string(p.conf[disk]))["size"]) >= size {
			return nil
		}
		last = c.start(ctx, progress, func(name *pveconf.Scalar) error {
			return c.put(ctx, vmPath(p.host, id.vmid, "resize"), params{"disk": disk, "size": pveconf.FormatSize(size), "digest": p.conf.Digest()}, name)
		})
		if last != nil && !errors.Is(last, errDigest) {
			if isDecided(ctx, last) {
				return last
			}
			if err := c.settle(ctx, p.host, id.vmid, progress); err != nil {
				return err
			}
		}
		var err error
		if p, err = c.prove(ctx, id); err != nil {
			return err
		}
	}
	if last == nil {
		last = errors.New("its size stays what it was")
	}
	return fmt.Errorf("grow disk %s of vm %d: %w", serial, id.vmid, last)
}

// isDecided reports whether an error settles what came of a request that starts
// a task: it was refused, the task failed, or its caller waits no longer.
// Otherwise an answer was lost, and only looking shows it.
func isDecided(ctx context.Context, err error) bool {
	var failed *TaskError
	return ctx.Err() != nil || isAnswered(err) || errors.As(err, &failed)
}
