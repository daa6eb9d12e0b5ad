package proxmox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/hardware"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/pveconf"
)

// row is one line of /cluster/resources: a host, a storage or a guest.
// Statistics in it (status, uptime, sizes) are up to ten seconds old and
// missing altogether for what is younger; pool, lock and tags are read from the
// configuration and fresh.
type row struct {
	Type    pveconf.Scalar `json:"type"` // qemu, lxc, node, storage, ...
	Node    pveconf.Scalar `json:"node"`
	Status  pveconf.Scalar `json:"status"`
	VMID    pveconf.Scalar `json:"vmid"`
	Name    pveconf.Scalar `json:"name"`
	Pool    pveconf.Scalar `json:"pool"`
	Lock    pveconf.Scalar `json:"lock"`
	Tags    pveconf.Scalar `json:"tags"`
	HA      pveconf.Scalar `json:"hastate"`
	Uptime  pveconf.Scalar `json:"uptime"`
	MaxCPU  pveconf.Scalar `json:"maxcpu"`
	MaxMem  pveconf.Scalar `json:"maxmem"`
	MaxDisk pveconf.Scalar `json:"maxdisk"`
	Disk    pveconf.Scalar `json:"disk"`
	Storage pveconf.Scalar `json:"storage"`
	Content pveconf.Scalar `json:"content"`
	Shared  pveconf.Scalar `json:"shared"`

	PluginType pveconf.Scalar `json:"plugintype"`
	Template   pveconf.Scalar `json:"template"`
}

// isGuest reports whether the row is a virtual machine or a container, which
// share their numbers.
func (r row) isGuest() bool { return r.VMID != "" }

// identity is who a VM must be to be ours.
type identity struct {
	vmid int
	pool string // "" : in none
	uuid string
	node string // name of the node, for words
	// pools are where a VM may lie as well that is no node's any more: those of
	// the other nodes.
	pools []string
}

// identityOf is who the VM of a node of a cluster must be.
func (c *Client) identityOf(d cluster.Desired, vmid int, node string) identity {
	id := identity{vmid: vmid, pool: c.pool, node: node, uuid: cluster.NodeUUID(d.Spec.ID, node)}
	if n, ok := d.Spec.Node(node); ok {
		id.pool = c.poolOf(n)
		return id
	}
	for _, n := range d.Spec.Nodes {
		id.pools = append(id.pools, c.poolOf(n))
	}
	return id
}

// poolOf is the pool a node's VM belongs in.
func (c *Client) poolOf(n cluster.Node) string {
	if n.Pool != "" {
		return n.Pool
	}
	return c.pool
}

// proven is a VM of ours as it was a moment ago.
type proven struct {
	host string
	conf pveconf.Options
}

// mark is what its description has of it.
func (p proven) mark() (cluster.Mark, bool) { return cluster.ParseMark(string(p.conf["description"])) }

// locked returns an error when Proxmox VE holds a lock on the VM.
func (p proven) locked() error {
	lock := p.conf["lock"]
	if lock == "" {
		return nil
	}
	return fault.WithHint(fmt.Errorf("%w (%s)", errLocked, lock), "wait until whatever holds the lock has ended: a backup, a snapshot, a migration")
}

// errNotListed: the listing does not have the VM.
var errNotListed = errors.New("the list of Proxmox VE has no such vm")

// notOurs is a VM that is there and is not ours.
type notOurs struct {
	vmid int
	why  string
	// unpooled: it is in no pool, which one of ours is neither while it is made.
	unpooled bool
}

// Error implements error.
func (e *notOurs) Error() string { return fmt.Sprintf("vm %d is not ours: %s", e.vmid, e.why) }

// Unwrap holds what to do about it.
func (e *notOurs) Unwrap() error {
	return &fault.Error{Op: e.Error(), Hint: "nothing was changed; see whose it is before doing anything about it"}
}

// prove reads pool and UUID of a VM again and returns it if it is ours,
// errNotListed if the listing lacks it, *notOurs if it is somebody else's.
func (c *Client) prove(ctx context.Context, id identity) (proven, error) {
	host, err := c.locate(ctx, id)
	if err != nil {
		return proven{}, err
	}
	return c.confirm(ctx, id, host)
}

// locate is the first half of a proof: it returns the host on which there is a
// VM with the number, in the right pool.
func (c *Client) locate(ctx context.Context, id identity) (host string, err error) {
	r, err := c.find(ctx, id.vmid)
	if err != nil {
		return "", err
	}
	if why := wrongPlace(r, id); why != "" {
		return "", &notOurs{vmid: id.vmid, why: why, unpooled: r.Type == "qemu" && r.Pool == ""}
	}
	return string(r.Node), nil
}

// confirm is the second half of a proof, right before a change: it reads the
// configuration, whose digest guards what is written next, and checks the UUID
// in it.
func (c *Client) confirm(ctx context.Context, id identity, host string) (proven, error) {
	p := proven{host: host}
	if err := c.get(ctx, vmPath(host, id.vmid, "config"), nil, &p.conf); err != nil {
		return proven{}, err
	}
	if why := wrongUUID(hardware.UUIDOf(p.conf), id); why != "" {
		if err := p.locked(); err != nil {
			return proven{}, err
		}
		return proven{}, &notOurs{vmid: id.vmid, why: why}
	}
	return p, nil
}

// find returns the row of a VMID, or errNotListed.
func (c *Client) find(ctx context.Context, vmid int) (row, error) {
	var rows []row
	if err := c.get(ctx, "/cluster/resources", params{"type": "vm"}, &rows); err != nil {
		return row{}, err
	}
	for _, r := range rows {
		if r.VMID == pveconf.Scalar(strconv.Itoa(vmid)) {
			return r, nil
		}
	}
	return row{}, errNotListed
}

// wrongPlace explains why a listed guest cannot be the one, "" when it may be.
func wrongPlace(r row, id identity) string {
	switch {
	case r.Type != "qemu":
		return "it is a container"
	case r.Pool == pveconf.Scalar(id.pool), slices.Contains(id.pools, string(r.Pool)):
		return ""
	case r.Pool == "":
		return fmt.Sprintf("it is not in pool %s", id.pool)
	case id.pool == "":
		return fmt.Sprintf("it is in pool %s, and ours are in none", r.Pool)
	}
	return fmt.Sprintf("it is in pool %s, not in %s", r.Pool, id.pool)
}

// wrongUUID explains why a VM with an SMBIOS UUID cannot be the one, "" when it
// is.
func wrongUUID(have string, id identity) string {
	switch have {
	case id.uuid:
		return ""
	case "":
		return "it has no SMBIOS UUID"
	default:
		return fmt.Sprintf("its SMBIOS UUID is %s, and node %s has %s", have, id.node, id.uuid)
	}
}

// free asks whether a VMID is unused, whatever the token may see.
func (c *Client) free(ctx context.Context, vmid int) (bool, error) {
	var id pveconf.Scalar
	err := c.get(ctx, "/cluster/nextid", params{"vmid": strconv.Itoa(vmid)}, &id)
	var e *Error
	switch {
	case err == nil && id == pveconf.Scalar(strconv.Itoa(vmid)):
		return true, nil
	case err == nil:
		return false, fmt.Errorf("asked whether vmid %d is free, Proxmox VE answered %q", vmid, sanitize(string(id)))
	case errors.As(err, &e) && e.Status == http.StatusBadRequest && errors.Is(err, errExists):
		return false, nil
	}
	return false, err
}

// hidden is what is behind a VMID that the listing does not show.
type hidden struct {
	is   hiddenKind
	host string          // of what a task of ours has made
	task task            // of beingMade
	row  row             // of justMade
	why  string          // in words, of leftLocked, takenByOther and movedOut
	conf pveconf.Options // of takenByOther, where it could be read
}

type hiddenKind int

const (
	nothing      hiddenKind = iota // the VMID is free
	beingMade                      // by a task of ours that runs; the VM joins its pool at its end
	justMade                       // by a task of ours that ended between the listing and now
	leftLocked                     // by a task of ours that was killed; only root can unlock it
	takenByOther                   // by a guest outside our pool
	movedOut                       // by the node's own VM, outside our pool
)

// behind finds what is behind a VMID that a listing does not show although it
// was complete. Until a creation ends the VM is in no pool, so that a token
// with privileges on the pool does not see it. It may be on any of the hosts.
func (c *Client) behind(ctx context.Context, id identity, hosts ...string) (hidden, error) {
	for _, host := range hosts {
		if !hardware.HostPattern.MatchString(host) {
			return hidden{}, fmt.Errorf("%q is no name of a host", host)
		}
	}
	free, err := c.free(ctx, id.vmid)
	if err != nil || free {
		return hidden{}, err
	}
	for _, host := range hosts {
		if h, err := c.behindTasks(ctx, id, host); err != nil || h.is != nothing {
			return h, err
		}
	}
	var unread error
	for _, host := range hosts {
		h, err := c.foreign(ctx, id, host)
		if err == nil {
			return h, nil
		}
		unread = cmp.Or(unread, err)
	}
	return hidden{}, unread
}

// behindTasks finds what a task of ours on a host makes, or made last, of a VMID that is taken; nothing where
// none does.
func (c *Client) behindTasks(ctx context.Context, id identity, host string) (hidden, error) {
	tasks, err := c.vmTasks(ctx, host, id.vmid)
	if err != nil {
		return hidden{}, err
	}
	i := slices.IndexFunc(tasks, func(t task) bool { return makesOrRemoves(t.kind) })
	if i < 0 || tasks[i].kind != "qmcreate" || !c.ours(tasks[i].upid) {
		return hidden{}, nil
	}
	switch t := tasks[i]; {
	case t.running:
		return hidden{is: beingMade, host: host, task: t}, nil
	case errors.Is(findKind(t.exit), errKilled):
		// Somebody may have removed it since and put another in its place,
		// in tasks that only an auditor of the host sees.
		if err := c.has(ctx, "/nodes/"+host, "Sys.Audit"); err != nil {
			return hidden{}, err
		}
		return hidden{is: leftLocked, host: host, why: fmt.Sprintf("the task that made vm %d was killed and left it locked; %s", id.vmid, cluster.RemoveLocked(id.vmid, host))}, nil
	case isSuccess(t.exit):
		switch r, err := c.find(ctx, id.vmid); {
		case err == nil && wrongPlace(r, id) == "":
			return hidden{is: justMade, host: host, row: r}, nil
		case err != nil && !errors.Is(err, errNotListed):
			return hidden{}, err
		}
	}
	return hidden{}, nil
}

// foreign makes sure that a guest the listing does not show lies outside our
// pool. That the listing lacks it proves nothing; that reading it is forbidden
// does, to a token that may read all there is in the pool.
func (c *Client) foreign(ctx context.Context, id identity, host string) (hidden, error) {
	if err := c.checkVisibility(ctx, id.pool); err != nil {
		return hidden{}, err
	}
	var conf pveconf.Options
	err := c.get(ctx, vmPath(host, id.vmid, "config"), nil, &conf)
	switch {
	case errors.Is(err, errForbidden) && id.pool == "":
		return hidden{is: takenByOther, why: fmt.Sprintf("a guest that the agent's token does not see has vmid %d", id.vmid)}, nil
	case errors.Is(err, errForbidden):
		return hidden{is: takenByOther, why: fmt.Sprintf("a guest outside pool %s has vmid %d", id.pool, id.vmid)}, nil
	case err == nil && hardware.UUIDOf(conf) != "" && hardware.UUIDOf(conf) != id.uuid:
		return hidden{is: takenByOther, why: wrongUUID(hardware.UUIDOf(conf), id), conf: conf}, nil
	case err == nil:
		return hidden{is: movedOut, why: fmt.Sprintf("vmid %d is taken, and the list of guests does not show by whom", id.vmid)}, nil
	}
	return hidden{}, err
}

// makesOrRemoves reports whether a type of task gives a VMID to a guest or
// takes it away.
func makesOrRemoves(kind string) bool {
	switch kind {
	case "qmcreate", "qmclone", "qmrestore", "qmdestroy", "vzcreate", "vzrestore", "vzclone", "vzdestroy":
		return true
	}
	return false
}

// isSuccess reports whether an exit status is a success; Proxmox VE counts
// warnings as one.
func isSuccess(exit string) bool { return exit == "OK" || strings.HasPrefix(exit, "WARNINGS: ") }

// findKind returns the kind of some words, nil when the table does not know
// them.
func findKind(words string) error {
	p, _ := phraseIn(words)
	return p.kind
}

// checkVisibility returns an error unless the token sees the VMs of a pool. A token
// without the privileges gets empty lists, not errors.
func (c *Client) checkVisibility(ctx context.Context, pool string) error {
	if pool == "" {
		return c.has(ctx, "/vms", "VM.Audit")
	}
	return c.has(ctx, "/pool/"+pool, "VM.Audit", "Pool.Audit")
}

// has returns an error unless the token has some privileges on a path.
func (c *Client) has(ctx context.Context, path string, privileges ...string) error {
	var have map[string]map[string]pveconf.Scalar
	if err := c.get(ctx, "/access/permissions", params{"path": path}, &have); err != nil {
		return err
	}
	for _, p := range privileges {
		if _, ok := have[path][p]; !ok {
			return fault.Errorf(fmt.Sprintf("give %s on %s to the user %s and to the token %s", p, path, c.token.User(), c.token),
				"the agent's token has no %s on %s, so that it does not see everything there", p, path)
		}
	}
	return nil
}
