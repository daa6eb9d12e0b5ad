package pve

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/lab/pve/options"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// Snapshots, from the source of Proxmox VE 9 (PVE/AbstractConfig.pm and
// PVE/QemuConfig.pm): steps, locks and texts.

// findSnapshot returns a snapshot of a VM. s.mu is held.
func (v *vm) findSnapshot(name string) (*snapshot, error) {
	if snap := v.conf.snapshots[name]; snap != nil {
		return snap, nil
	}
	return nil, perlError("snapshot '%s' does not exist", name)
}

// canSnapshot reports whether the storage of each disk can make snapshots: thin
// volumes and qcow2 files can, raw files cannot. s.mu is held.
func (v *vm) canSnapshot() bool {
	for _, k := range options.DriveKeys(v.conf.base) {
		d := options.ParseDrive(v.conf.base[k])
		if d.IsCDROM() {
			continue
		}
		if st, vol := v.host.volume(d["file"]); vol != nil && st.kind != "lvmthin" && vol.format != "qcow2" {
			return false
		}
	}
	return true
}

// listSnapshots answers GET snapshot: in no order, and the VM itself last.
func (c *call) listSnapshots() (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	v, err := c.s.vmAt(c.node, c.vmid())
	if err != nil {
		return nil, err
	}
	out := []row{}
	for name, snap := range v.conf.snapshots {
		r := row{"name": name, "description": snap.options["description"], "snaptime": renderValue("snaptime", snap.options["snaptime"]), "vmstate": 0}
		for _, k := range []string{"parent", "snapstate"} {
			if text := snap.options[k]; text != "" {
				r[k] = text
			}
		}
		out = append(out, r)
	}
	current := row{"name": "current", "description": "You are here!", "digest": v.conf.digest(), "running": encodeBit(v.running)}
	if parent := v.conf.base["parent"]; parent != "" {
		current["parent"] = parent
	}
	return append(out, current), nil
}

// listSnapshotCalls answers GET of one snapshot, whether there is one or not.
func (c *call) listSnapshotCalls() (any, error) {
	return []row{{"cmd": "rollback"}, {"cmd": "config"}}, nil
}

func (c *call) readSnapshot() (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	v, err := c.s.vmAt(c.node, c.vmid())
	if err != nil {
		return nil, err
	}
	snap, err := v.findSnapshot(c.str("snapname"))
	if err != nil {
		return nil, err
	}
	out := renderOptions(snap.options, "")
	delete(out, "digest")
	return out, nil
}

// describeSnapshot answers PUT config of a snapshot: its description.
func (c *call) describeSnapshot() (any, error) {
	s := c.s
	lock, err := s.acquireLock(s.ctx, c.vmid(), nil)
	if err != nil {
		return nil, err
	}
	defer func() { <-lock }()
	s.mu.Lock()
	defer s.mu.Unlock()
	v, err := s.vmAt(c.node, c.vmid())
	if err == nil {
		err = v.checkLock()
	}
	if err != nil {
		return nil, err
	}
	snap, err := v.findSnapshot(c.str("snapname"))
	if err == nil && c.has("description") {
		snap.options["description"] = c.str("description")
	}
	return nil, err
}

// takeSnapshot answers POST snapshot. The memory of a VM that runs is not saved by
// the lab's QEMU, which answers as one that cannot.
func (c *call) takeSnapshot() (any, error) {
	s, name := c.s, c.str("snapname")
	if name == "current" || strings.EqualFold(name, "pending") {
		return nil, perlError("unable to use snapshot name '%s' (reserved name)", strings.ToLower(name))
	}
	s.mu.Lock()
	_, err := s.vmAt(c.node, c.vmid())
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return s.forkTask(c.who, c.node, "qmsnapshot", strconv.Itoa(c.vmid()), c.fault, func(t *task) error {
		var disks []*volume
		if err := c.changeLocked(t, func(v *vm) error {
			switch {
			case v.isTemplate():
				return perlError("you can't take a snapshot if it's a template")
			case v.checkLock() != nil:
				return v.checkLock()
			case v.conf.snapshots[name] != nil:
				return perlError("snapshot name '%s' already used", name)
			case !v.canSnapshot():
				return perlError("snapshot feature is not available")
			case c.flag("vmstate") && v.running:
				return perlError("VM %d qmp command 'savevm-start' failed - The command savevm-start has not been found", v.id)
			}
			disks = v.beginSnapshot(t, name, c.str("description"))
			return nil
		}); err != nil {
			return err
		}
		if _, err := s.passTime(t, s.world.Latency.Resize); err != nil {
			return c.abandonSnapshot(t, name, err)
		}
		contents := map[*volume]any{}
		for _, vol := range disks {
			contents[vol] = s.copyContents(vol.disk)
		}
		return c.changeLocked(t, func(v *vm) error {
			snap, err := v.findSnapshot(name)
			if err != nil {
				return err
			}
			for _, vol := range disks {
				st := v.host.storageOf(vol)
				snap.disks[st.volid(vol)] = kept{vol.bytes, vol.disk.Image, contents[vol]}
				if st.kind == "lvmthin" {
					t.log = append(t.log, fmt.Sprintf("  Logical volume \"snap_%s_%s\" created.", vol.name, name))
				}
			}
			delete(snap.options, "snapstate")
			delete(v.conf.base, "lock")
			v.conf.base["parent"] = name
			return nil
		})
	})
}

// beginSnapshot writes the section of a snapshot, and returns the disks it is to
// keep. s.mu is held.
func (v *vm) beginSnapshot(t *task, name, description string) (disks []*volume) {
	values := maps.Clone(v.conf.base)
	values["snaptime"], values["snapstate"] = strconv.FormatInt(time.Now().Unix(), 10), "prepare"
	delete(values, "description")
	for k := range values {
		if options.IsUnused(k) {
			delete(values, k)
		}
	}
	if description != "" {
		values["description"] = description
	}
	if v.conf.snapshots == nil {
		v.conf.snapshots = map[string]*snapshot{}
	}
	v.conf.snapshots[name] = &snapshot{options: values, disks: map[string]kept{}}
	v.conf.base["lock"] = "snapshot"
	for _, k := range options.DriveKeys(v.conf.base) {
		d := options.ParseDrive(v.conf.base[k])
		if _, vol := v.host.volume(d["file"]); vol != nil && vol.disk != nil && !d.IsCDROM() {
			t.log = append(t.log, fmt.Sprintf("snapshotting 'drive-%s' (%s)", k, d["file"]))
			disks = append(disks, vol)
		}
	}
	return disks
}

// abandonSnapshot removes what an interrupted snapshot has begun; a worker that
// was killed leaves it, with its lock.
func (c *call) abandonSnapshot(t *task, name string, err error) error {
	if t.wasKilled() {
		return err
	}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if v := c.s.vms[c.vmid()]; v != nil {
		delete(v.conf.snapshots, name)
		delete(v.conf.base, "lock")
	}
	return err
}

// changeLocked changes the path's VM, holding its lock file for that moment.
func (c *call) changeLocked(t *task, change func(*vm) error) error {
	release, err := c.s.lockFile(t, c.vmid())
	if err != nil {
		return err
	}
	defer release()
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	v, err := c.s.vmAt(c.node, c.vmid())
	if err != nil {
		return err
	}
	return change(v)
}

// copyContents returns a copy of what a guest keeps on a disk, where the guests'
// service makes copies. s.mu is not held.
func (s *Server) copyContents(d *world.Disk) any {
	if f, ok := d.Contents.(*world.Firmware); ok {
		kept := *f
		return &kept
	}
	if k, ok := s.guests.(world.DiskCopier); ok {
		return k.CopyContents(d)
	}
	return d.Contents
}

// storageOf finds the storage a volume lies on. s.mu is held.
func (h *host) storageOf(vol *volume) *storage {
	for _, st := range h.storages {
		if st.volumes[vol.name] == vol {
			return st
		}
	}
	return nil
}

// deleteSnapshot answers DELETE of a snapshot.
func (c *call) deleteSnapshot() (any, error) {
	s, name := c.s, c.str("snapname")
	return s.forkTask(c.who, c.node, "qmdelsnapshot", strconv.Itoa(c.vmid()), c.fault, func(t *task) error {
		if err := c.changeLocked(t, func(v *vm) error {
			snap, err := v.findSnapshot(name)
			switch {
			case err != nil:
				return err
			case v.checkLock() != nil:
				return v.checkLock()
			}
			v.conf.base["lock"], snap.options["snapstate"] = "snapshot-delete", "delete"
			return nil
		}); err != nil {
			return err
		}
		if _, err := s.passTime(t, s.world.Latency.Resize); err != nil {
			return err // the lock stays, as after any interrupted deletion
		}
		return c.changeLocked(t, func(v *vm) error {
			snap, err := v.findSnapshot(name)
			if err != nil {
				return err
			}
			for volid := range snap.disks {
				if st, vol := v.host.volume(volid); vol != nil && st.kind == "lvmthin" {
					t.log = append(t.log, fmt.Sprintf("  Logical volume \"snap_%s_%s\" successfully removed.", vol.name, name))
				}
			}
			relinkParent(v.conf.base, name, snap.options["parent"])
			for _, other := range v.conf.snapshots {
				relinkParent(other.options, name, snap.options["parent"])
			}
			delete(v.conf.snapshots, name)
			delete(v.conf.base, "lock")
			return nil
		})
	})
}

// relinkParent has what came after a removed snapshot come after the one before it.
func relinkParent(options map[string]string, removed, before string) {
	switch {
	case options["parent"] != removed:
	case before == "":
		delete(options, "parent")
	default:
		options["parent"] = before
	}
}

// rollBack answers POST rollback. A VM that runs is switched off hard first.
func (c *call) rollBack() (any, error) {
	s, name := c.s, c.str("snapname")
	if c.flag("start") {
		s.mu.Lock()
		err := s.needPrivileges(c.who, fmt.Sprintf("/vms/%d", c.vmid()), "VM.PowerMgmt")
		s.mu.Unlock()
		if err != nil {
			return nil, err
		}
	}
	return s.forkTask(c.who, c.node, "qmrollback", strconv.Itoa(c.vmid()), c.fault, func(t *task) error {
		var running *vm
		if err := c.changeLocked(t, func(v *vm) error {
			if v.isTemplate() {
				return perlError("you can't rollback if vm is a template")
			}
			snap, err := v.findSnapshot(name)
			switch {
			case err != nil:
				return err
			case snap.options["snapstate"] != "":
				return perlError("unable to rollback to incomplete snapshot (snapstate = %s)", snap.options["snapstate"])
			case v.checkLock() != nil:
				return v.checkLock()
			}
			if v.running {
				running = v
			}
			v.conf.base["lock"] = "rollback"
			return nil
		}); err != nil {
			return err
		}
		if running != nil {
			s.haltVM(running, true)
		}
		if _, err := s.passTime(t, s.world.Latency.Resize); err != nil {
			return err // the lock stays, and the disks are what they are
		}
		contents := c.contentsOf(name)
		if err := c.changeLocked(t, func(v *vm) error { return v.restore(t, name, contents) }); err != nil {
			return err
		}
		if c.flag("start") {
			return s.startVM(t, c.node, c.vmid(), world.Fault{})
		}
		return nil
	})
}

// contentsOf copies what a snapshot keeps of the disks, for guests to write to.
func (c *call) contentsOf(name string) map[string]any {
	c.s.mu.Lock()
	keeps := map[string]kept{}
	if v := c.s.vms[c.vmid()]; v != nil && v.conf.snapshots[name] != nil {
		maps.Copy(keeps, v.conf.snapshots[name].disks)
	}
	c.s.mu.Unlock()
	contents := map[string]any{}
	for volid, k := range keeps {
		contents[volid] = c.s.copyContents(&world.Disk{Contents: k.contents})
	}
	return contents
}

// restore makes the configuration and the disks what they were, but for the
// description. Disks that came later stay as unused ones. s.mu is held.
func (v *vm) restore(t *task, name string, contents map[string]any) error {
	snap, err := v.findSnapshot(name)
	if err != nil {
		return err
	}
	if v.running {
		return perlError("unable to rollback vm %d: vm is running", v.id)
	}
	later := []string{}
	for _, k := range options.DriveKeys(v.conf.base) {
		if d := options.ParseDrive(v.conf.base[k]); !d.IsCDROM() {
			later = append(later, d["file"])
		}
	}
	snapshots, values := v.conf.snapshots, maps.Clone(snap.options)
	delete(values, "snaptime")
	delete(values, "description")
	for k, text := range v.conf.base {
		if options.IsUnused(k) || k == "description" {
			values[k] = text
		}
	}
	values["parent"] = name
	if values["vmgenid"] != "" {
		values["vmgenid"] = newUUID()
	}
	v.conf = newConfig(values)
	v.conf.snapshots = snapshots
	for k, volid := range values {
		if _, back := snap.disks[volid]; back && options.IsUnused(k) {
			delete(v.conf.base, k) // it was detached since, and is a drive again
		}
	}
	for _, volid := range later {
		if _, ours := snap.disks[volid]; !ours {
			v.keepUnused(volid)
		}
	}
	for volid, k := range snap.disks {
		st, vol := v.host.volume(volid)
		if vol == nil {
			return perlError("volume '%s' does not exist", volid)
		}
		vol.bytes, vol.disk.Bytes, vol.disk.Image, vol.disk.Contents = k.bytes, k.bytes, k.image, contents[volid]
		if st.kind == "lvmthin" {
			t.log = append(t.log, fmt.Sprintf("  Logical volume %q successfully removed.", vol.name), fmt.Sprintf("  Logical volume %q created.", vol.name))
		}
	}
	return nil
}
