package pve

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/lab/pve/options"
	"github.com/talos-agent/talos-agent/internal/lab/pve/schema"
)

// backUp answers POST vzdump: the backup of VMs of a host in one task, from the
// source of Proxmox VE 9 (PVE/API2/VZDump.pm, PVE/VZDump.pm).
func (c *call) backUp() (any, error) {
	s, storage := c.s, c.str("storage")
	if storage == "" {
		storage = "local"
	}
	ids, err := c.pickGuests()
	if err != nil {
		return nil, err
	}
	if c.flag("stop") {
		if err := c.stopBackups(); err != nil {
			return nil, err
		}
	}
	if len(ids) == 0 && !c.flag("all") {
		return "OK", nil // they are on other hosts: a silent end
	}
	s.mu.Lock()
	err = s.needPrivileges(c.who, "/storage/"+storage, "Datastore.AllocateSpace")
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	subject := ""
	if len(ids) == 1 {
		subject = strconv.Itoa(ids[0])
	}
	return s.forkTask(c.who, c.node, "vzdump", subject, c.fault, func(t *task) error { return c.backUpAll(t, ids, storage) })
}

// pickGuests reads which VMs of the host are to be backed up: those that are named
// wherever there is none of that number, or all.
func (c *call) pickGuests() (ids []int, err error) {
	for _, k := range []string{"tmpdir", "dumpdir", "script", "job-id"} {
		if c.has(k) && !c.who.isRoot() {
			return nil, invalidParam(k, "Only root may set this option.")
		}
	}
	named := schema.SplitList(c.str("vmid"))
	for _, k := range []string{"all", "exclude", "pool"} {
		if len(named) > 0 && c.has(k) && c.str(k) != "0" {
			return nil, invalidParam(k, "option conflicts with option 'vmid'")
		}
	}
	if len(named) == 0 && !c.flag("all") && !c.has("pool") && !c.flag("stop") {
		return nil, invalidParam("vmid", "property is missing")
	}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	for _, text := range named {
		id, err := strconv.Atoi(text)
		if err != nil {
			return nil, err
		}
		if v := c.s.vms[id]; v == nil || v.host == c.node {
			ids = append(ids, id)
		}
	}
	for _, id := range sortedKeys(c.s.vms) {
		excluded := slices.Contains(schema.SplitList(c.str("exclude")), strconv.Itoa(id)) || c.has("pool") && c.s.member[id] != c.str("pool")
		if len(named) == 0 && (c.flag("all") || c.has("pool")) && c.s.vms[id].host == c.node && !excluded {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids, nil
}

// stopBackups interrupts the backups of the host.
func (c *call) stopBackups() error {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if err := c.s.needPrivileges(c.who, "/nodes/"+c.node.name, "Sys.Modify"); err != nil {
		return err
	}
	for _, t := range c.s.tasks {
		if !t.ended && t.kind == "vzdump" && t.node == c.node.name {
			t.stop(errInterrupted)
		}
	}
	return nil
}

// backUpAll is the task of a backup: what fails of one VM does not keep the others
// from theirs.
func (c *call) backUpAll(t *task, ids []int, storage string) error {
	s := c.s
	s.mu.Lock()
	st := c.node.storage(storage)
	s.mu.Unlock()
	switch {
	case st == nil:
		return perlError("could not get storage information for '%s': storage '%s' does not exist", storage, storage)
	case !st.acceptsContent("backup"):
		return perlError("could not get storage information for '%s': can't use storage '%[1]s' for backups - wrong content type", storage)
	}
	s.logLine(t, "INFO: starting new backup job: vzdump %s --storage %s --node %s", strings.Join(schema.SplitList(c.str("vmid")), " "), storage, c.node.name)
	for _, id := range ids {
		s.mu.Lock()
		err := s.needPrivileges(c.who, fmt.Sprintf("/vms/%d", id), "VM.Backup")
		there := s.vms[id] != nil
		s.mu.Unlock()
		if err != nil && there && !c.flag("all") {
			return err
		}
	}
	failed := false
	for _, id := range ids {
		s.mu.Lock()
		skip := c.flag("all") && s.needPrivileges(c.who, fmt.Sprintf("/vms/%d", id), "VM.Backup") != nil
		s.mu.Unlock()
		if skip {
			continue
		}
		err := c.backUpOne(t, id, st)
		switch {
		case t.ctx.Err() != nil:
			return err
		case err != nil:
			s.logLine(t, "ERROR: Backup of VM %d failed - %s", id, err)
			failed = true
		}
	}
	if failed {
		s.logLine(t, "INFO: Backup job finished with errors")
		return perlError("job errors")
	}
	s.logLine(t, "INFO: Backup job finished successfully")
	return nil
}

// backUpOne writes the archive of one VM, which has the lock backup meanwhile.
func (c *call) backUpOne(t *task, id int, st *storage) error {
	s, began := c.s, time.Now()
	s.mu.Lock()
	v := s.vms[id]
	var err error
	switch {
	case v == nil || v.host != c.node:
		err = perlError("unable to find VM '%d'", id)
	case v.checkLock() != nil:
		err = v.checkLock()
	case v.running && c.str("mode") == "stop":
		// The lab does not stop a guest for its backup.
		err = perlError("command 'qm shutdown %d --skiplock --keepActive --timeout 600' failed: exit code 255", id)
	default:
		t.log = append(t.log, fmt.Sprintf("INFO: Starting Backup of VM %d (qemu)", id), "INFO: VM Name: "+v.name())
		v.conf.base["lock"] = "backup"
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	if err = s.copyOnto(t, st, id, s.world.Latency.Import); t.wasKilled() {
		return err // the lock stays
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(v.conf.base, "lock")
	if err != nil {
		return err
	}
	extension := map[string]string{"zstd": ".zst", "gzip": ".gz", "1": ".lzo", "lzo": ".lzo"}[c.str("compress")]
	archive := &volume{name: fmt.Sprintf("backup/vzdump-qemu-%d-%s.vma%s", id, began.Format("2006_01_02-15_04_05"), extension), content: "backup", format: "vma" + extension, vmid: id, created: began}
	for _, k := range options.DriveKeys(v.conf.base) {
		d := options.ParseDrive(v.conf.base[k])
		if _, vol := v.host.volume(d["file"]); vol != nil && !d.IsCDROM() && d["backup"] != "0" {
			t.log = append(t.log, fmt.Sprintf("INFO: include disk '%s' '%s' %s", k, d["file"], strings.TrimSuffix(options.FormatSize(vol.bytes), "B")))
			archive.file += max(vol.file, 1<<20)
		}
	}
	archive.bytes = archive.file
	st.volumes[archive.name] = archive
	t.log = append(t.log, fmt.Sprintf("INFO: creating vzdump archive '%s'", st.file(archive.name)), fmt.Sprintf("INFO: archive file size: %dMB", archive.file>>20),
		fmt.Sprintf("INFO: Finished Backup of VM %d (%s)", id, clockText(s.hostTime(time.Since(began)))))
	return nil
}
