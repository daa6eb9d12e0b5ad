package pve

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/lab/pve/options"
	"github.com/talos-agent/talos-agent/internal/lab/pve/schema"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// Moving a VM to another host, and a disk to another storage, from the source of
// Proxmox VE 9 (PVE/API2/Qemu.pm and PVE/QemuMigrate.pm): checks and texts.

// migrateVM answers POST migrate.
func (c *call) migrateVM() (any, error) {
	s := c.s
	target := s.host(c.str("target"))
	switch {
	case c.str("target") == c.node.name:
		return nil, invalidParam("target", "target is local node.")
	case target == nil:
		return nil, perlError("no such cluster node '%s'", c.str("target"))
	}
	for _, k := range []string{"force", "migration_type", "migration_network"} {
		if c.has(k) && !c.who.isRoot() {
			return nil, invalidParam(k, "Only root may use this option.")
		}
	}
	s.mu.Lock()
	v, err := s.vmAt(c.node, c.vmid())
	if err == nil {
		err = c.mayMigrate(v, target)
	}
	managed := ""
	if err == nil && s.currentRow(v)["ha"].(row)["managed"] == 1 {
		managed = sidOf(v.id)
	}
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	kind := "qmigrate"
	if managed != "" {
		kind = "hamigrate"
	}
	return s.forkTask(c.who, c.node, kind, strconv.Itoa(c.vmid()), c.fault, func(t *task) error {
		if managed != "" {
			s.logLine(t, "Requesting HA migration for VM %d to node %s", c.vmid(), target.name)
			s.SetService(managed, "migrate")
			defer s.SetService(managed, "")
		}
		return c.carryOver(t, target)
	})
}

// mayMigrate refuses at once what a migration trips over. s.mu is held.
func (c *call) mayMigrate(v *vm, target *host) error {
	switch {
	case v.checkLock() != nil:
		return v.checkLock()
	case v.running && !c.flag("online"):
		return perlError("can't migrate running VM without --online")
	}
	for _, k := range options.DriveKeys(v.conf.base) {
		name, _, ok := strings.Cut(options.ParseDrive(v.conf.base[k])["file"], ":")
		to := c.mapStorage(name)
		if !ok {
			continue
		}
		if to != name {
			if err := c.s.needPrivileges(c.who, "/storage/"+to, "Datastore.AllocateSpace"); err != nil {
				return err
			}
		}
		if target.storage(to) == nil {
			return perlError("storage '%s' is not available on node '%s'", to, target.name)
		}
	}
	return nil
}

// mapStorage is the storage of the target that takes what lies on one of here: of
// the same name, unless the request maps it ("a:b") or all ("b").
func (c *call) mapStorage(name string) string {
	to := name
	for _, pair := range schema.SplitList(c.str("targetstorage")) {
		from, mapped, ok := strings.Cut(pair, ":")
		switch {
		case ok && from == name:
			return mapped
		case !ok && from != "1":
			to = from
		}
	}
	return to
}

// carryOver is the task of a migration: the local disks are copied, then the VM is
// one of the other host. A VM that runs goes on running.
func (c *call) carryOver(t *task, target *host) error {
	s, began := c.s, time.Now()
	release, err := s.lockFile(t, c.vmid())
	if err != nil {
		return err
	}
	defer release()
	s.mu.Lock()
	v, err := s.vmAt(c.node, c.vmid())
	if err == nil {
		err = c.mayMigrate(v, target)
	}
	if err != nil {
		s.mu.Unlock()
		return err
	}
	t.log = append(t.log, fmt.Sprintf("starting migration of VM %d to node '%s' (%s)", v.id, target.name, target.address()))
	v.conf.base["lock"] = "migrate"
	local, err := c.scanLocal(t, v)
	s.mu.Unlock()
	if err == nil {
		err = c.copyLocal(t, v, target, local)
	}
	if t.wasKilled() {
		return err // the lock stays
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(v.conf.base, "lock")
	if err != nil {
		t.log = append(t.log, "aborting phase 1 - cleanup resources", fmt.Sprintf("ERROR: migration aborted (duration %s): %s", clockText(s.hostTime(time.Since(began))), err))
		return perlError("migration aborted")
	}
	for _, volid := range local {
		c.moveVolume(t, v, volid, target)
	}
	v.host = target
	t.log = append(t.log, fmt.Sprintf("migration finished successfully (duration %s)", clockText(s.hostTime(time.Since(began)))))
	return nil
}

func clockText(d time.Duration) string {
	return fmt.Sprintf("%02d:%02d:%02d", int(d.Hours()), int(d.Minutes())%60, int(d.Seconds())%60)
}

// scanLocal finds the volumes that lie on storages of this host alone, and refuses
// what cannot be copied. s.mu is held.
func (c *call) scanLocal(t *task, v *vm) (local []string, err error) {
	refuse := func(volid, why string) {
		t.log = append(t.log, fmt.Sprintf("can't migrate local disk '%s': %s", volid, why))
		err = perlError("can't migrate VM - check log")
	}
	for _, k := range sortedKeys(v.conf.base) {
		if !options.IsDrive(k) && !options.IsUnused(k) {
			continue
		}
		d := options.ParseDrive(v.conf.base[k])
		st, vol := v.host.volume(d["file"])
		switch {
		case d["file"] == "cdrom":
			t.log = append(t.log, "can't migrate local cdrom drive")
			err = perlError("can't migrate VM - check log")
		case vol == nil || st.shared:
		case d.IsCDROM() && !d.IsCloudInit():
			refuse(d["file"], "local cdrom image")
		case v.running && !c.flag("with-local-disks") && !options.IsUnused(k) && !d.IsCloudInit():
			refuse(d["file"], "can't live migrate attached local disks without with-local-disks option")
		case v.running && len(v.conf.snapshots) > 0:
			refuse(d["file"], "online storage migration not possible if non-replicated snapshot exists")
		case vol.parent != "":
			refuse(d["file"], fmt.Sprintf("can't migrate '%s' as it's a clone of '%s'", d["file"], vol.parent))
		default:
			kind := "attached"
			if options.IsUnused(k) {
				kind = "unused"
			}
			if d.IsCloudInit() {
				t.log = append(t.log, fmt.Sprintf("found generated disk '%s' (in current VM config)", d["file"]))
			} else {
				t.log = append(t.log, fmt.Sprintf("found local disk '%s' (%s)", d["file"], kind))
			}
			local = append(local, d["file"])
		}
	}
	for _, name := range sortedKeys(v.conf.snapshots) {
		for _, volid := range sortedKeys(v.conf.snapshots[name].disks) {
			if st, vol := v.host.volume(volid); vol != nil && !st.shared && !slices.Contains(local, volid) {
				t.log = append(t.log, fmt.Sprintf("found local disk '%s' (referenced by snapshot(s))", volid))
				local = append(local, volid)
			}
		}
	}
	return local, err
}

// copyLocal spends the time of the copies onto the target's storages.
func (c *call) copyLocal(t *task, v *vm, target *host, local []string) error {
	if len(local) > 0 {
		c.s.logLine(t, "copying local disk images")
	}
	if _, err := c.s.passTime(t, c.s.world.Latency.Stop); err != nil {
		return err
	}
	for _, volid := range local {
		name, _, _ := strings.Cut(volid, ":")
		name = c.mapStorage(name)
		if strings.Contains(volid, "cloudinit") {
			continue // it is small
		}
		if err := c.s.copyOnto(t, target.storage(name), v.id, c.s.world.Latency.Import); err != nil {
			return perlError("storage migration for '%s' to storage '%s' failed - %s", volid, name, err)
		}
	}
	return nil
}

// moveVolume makes a volume one of the target's storage of the same name, with
// another name where its own is taken. s.mu is held.
func (c *call) moveVolume(t *task, v *vm, volid string, target *host) {
	st, vol := v.host.volume(volid)
	to := target.storage(c.mapStorage(st.name))
	if to.kind != st.kind { // it is spelt otherwise there
		delete(st.volumes, vol.name)
		vol.name, vol.format = to.diskName(v.id, "vm", "raw"), "raw"
	}
	delete(st.volumes, vol.name)
	if to.volumes[vol.name] != nil {
		vol.name = to.diskName(v.id, "vm", vol.format)
	}
	to.volumes[vol.name] = vol
	moved := to.volid(vol)
	if vol.disk != nil {
		vol.disk.Volid = moved
	}
	v.renameVolume(volid, moved)
	t.log = append(t.log, fmt.Sprintf("volume '%s' is '%s' on the target", volid, moved))
}

// renameVolume has the configuration and its snapshots name a volume otherwise.
func (v *vm) renameVolume(volid, moved string) {
	sections := []map[string]string{v.conf.base, v.conf.pending}
	for _, snap := range v.conf.snapshots {
		sections = append(sections, snap.options)
		if k, ok := snap.disks[volid]; ok {
			delete(snap.disks, volid)
			snap.disks[moved] = k
		}
	}
	for _, section := range sections {
		for k, text := range section {
			if d := options.ParseDrive(text); (options.IsDrive(k) || options.IsUnused(k)) && d["file"] == volid {
				d["file"] = moved
				section[k] = d.String()
			}
		}
	}
}

// moveDisk answers POST move_disk to another storage. Disks are not handed to
// another VM here: no storage of the lab renames volumes.
func (c *call) moveDisk() (any, error) {
	s, key, storage := c.s, c.str("disk"), c.str("storage")
	s.mu.Lock()
	err := c.mayMove(key, storage)
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return s.forkTask(c.who, c.node, "qmmove", strconv.Itoa(c.vmid()), c.fault, func(t *task) error {
		release, err := s.lockFile(t, c.vmid())
		if err != nil {
			return err
		}
		defer release()
		s.mu.Lock()
		if err := c.mayMove(key, storage); err != nil {
			s.mu.Unlock()
			return err
		}
		v := s.vms[c.vmid()]
		d, to := options.ParseDrive(v.conf.base[key]), c.node.storage(storage)
		old := d["file"]
		from, vol := c.node.volume(old)
		format := vol.format
		if c.has("format") {
			format = c.str("format")
		}
		stem := "vm"
		if v.isTemplate() {
			stem = "base"
		}
		made := s.allocateDisk(to, to.diskName(v.id, stem, format), format, v.id, vol.bytes)
		t.log = append(t.log, fmt.Sprintf("copying volume '%s' from current storage '%s' to target storage '%s'", old, from.name, storage))
		if v.isSnapshotted(old) {
			t.log = append(t.log, "moving disk with snapshots, snapshots will not be moved!")
			t.warnings++
		}
		s.mu.Unlock()
		s.logFormatting(t, to, made)
		err = s.copyOnto(t, to, v.id, s.world.Latency.Import)
		contents := s.copyContents(vol.disk)
		s.mu.Lock()
		defer s.mu.Unlock()
		if err != nil {
			delete(to.volumes, made.name)
			return perlError("storage migration failed: %s", err)
		}
		// The guest goes on with the disk it has: only where that lies is another.
		made.disk, made.file = vol.disk, vol.file
		made.disk.Volid = to.volid(made)
		d["file"] = to.volid(made)
		delete(d, "format")
		v.conf.base[key] = d.String()
		if c.flag("delete") {
			t.log = append(t.log, fmt.Sprintf("removing source volume '%s' after successful copy", old))
			c.node.freeVolume(old)
			return nil
		}
		vol.disk = &world.Disk{Volid: old, Bytes: vol.bytes, Image: vol.disk.Image, Contents: contents}
		v.keepUnused(old)
		t.log = append(t.log, fmt.Sprintf("adding source volume '%s' as unused disk to config", old))
		return nil
	})
}

// isSnapshotted reports whether a snapshot needs a volume. s.mu is held.
func (v *vm) isSnapshotted(volid string) bool {
	for _, snap := range v.conf.snapshots {
		if _, ok := snap.disks[volid]; ok {
			return true
		}
	}
	return false
}

// mayMove refuses at once a move that cannot be. s.mu is held.
func (c *call) mayMove(key, storage string) error {
	s := c.s
	switch {
	case c.has("target-vmid") && storage != "":
		const both = "either set 'storage' or 'target-vmid', but not both"
		return refuseParams(map[string]string{"storage": both, "target-vmid": both})
	case !c.has("target-vmid") && storage == "":
		return perlError("Provide either a 'storage' to move the disk to a different storage or 'target-vmid' and 'target-disk' to move the disk to another VM")
	case c.has("target-vmid"):
		if err := s.needPrivileges(c.who, "/vms/"+c.str("target-vmid"), "VM.Config.Disk"); err != nil {
			return err
		}
		return perlError("Storage does not support moving of this disk to another VM")
	}
	if err := s.needPrivileges(c.who, "/storage/"+storage, "Datastore.AllocateSpace"); err != nil {
		return err
	}
	v, err := s.vmAt(c.node, c.vmid())
	if err != nil {
		return err
	}
	if err := v.checkLock(); err != nil {
		return err
	}
	if err := checkDigest(v.conf, c.str("digest")); err != nil {
		return err
	}
	d := options.ParseDrive(v.conf.base[key])
	from, vol := c.node.volume(d["file"])
	to := c.node.storage(storage)
	switch {
	case v.conf.base[key] == "":
		return perlError("disk '%s' does not exist", key)
	case d.IsCDROM():
		return perlError("you can't move a cdrom")
	case vol == nil:
		return perlError("disk '%s' has no associated volume", key)
	case from.name == storage && (!c.has("format") || c.str("format") == vol.format):
		return perlError("you can't move to the same storage with same format")
	case to == nil:
		return perlError("storage '%s' does not exist", storage)
	case !to.acceptsContent("images"):
		return invalidParam("storage", "storage '%s' does not support vm images", storage)
	case v.isSnapshotted(d["file"]) && c.flag("delete"):
		return perlError("you can't move a disk with snapshots and delete the source")
	}
	return nil
}
