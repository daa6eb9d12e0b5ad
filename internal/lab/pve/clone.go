package pve

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"strconv"
	"strings"

	"github.com/talos-agent/talos-agent/internal/lab/pve/options"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// makeTemplate answers POST template: the disks become bases that linked
// clones build upon.
func makeTemplate(c *call) (any, error) {
	s, id := c.s, c.vmid()
	s.mu.Lock()
	v, err := s.vmAt(c.node, id)
	switch {
	case err != nil:
	case v.isTemplate():
		err = perlError("you can't convert a template to a template")
	case v.running:
		err = perlError("you can't convert a VM to template if VM is running")
	case len(v.conf.snapshots) > 0:
		err = perlError("unable to create template, because VM contains snapshots")
	default:
		err = v.checkLock()
	}
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return s.forkTask(c.who, c.node, "qmtemplate", strconv.Itoa(id), c.fault, func(t *task) error {
		release, err := s.lockFile(t, id)
		if err != nil {
			return err
		}
		defer release()
		if _, err := s.passTime(t, 0); err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		v, err := s.vmAt(c.node, id)
		if err != nil {
			return err
		}
		s.becomeTemplate(v)
		return nil
	})
}

// becomeTemplate renames the disks. s.mu is held.
func (s *Server) becomeTemplate(v *vm) {
	for _, k := range options.DriveKeys(v.conf.base) {
		d := options.ParseDrive(v.conf.base[k])
		st, vol := v.host.volume(d["file"])
		if vol == nil || vol.vmid != v.id || d.IsCDROM() {
			continue
		}
		delete(st.volumes, vol.name)
		dir, file := path.Split(vol.name)
		vol.name = dir + "base-" + strings.TrimPrefix(file, "vm-")
		st.volumes[vol.name] = vol
		d["file"] = st.volid(vol)
		v.conf.base[k] = d.String()
	}
	v.conf.base["template"] = "1"
}

// cloneVM answers POST clone.
func cloneVM(c *call) (any, error) {
	s, newID := c.s, c.num("newid", 0)
	pool, full := c.str("pool"), c.flag("full")
	s.mu.Lock()
	src, err := s.mayClone(c, newID, pool)
	if err != nil {
		s.mu.Unlock()
		return nil, err
	}
	if !c.has("full") && !src.isTemplate() {
		full = true
	}
	v := &vm{id: newID, host: c.node, maker: c.who.id, conf: newConfig(map[string]string{"lock": "clone", "description": " qmclone temporary file"})}
	s.vms[newID] = v
	values := maps.Clone(src.conf.base)
	s.mu.Unlock()

	return s.forkTask(c.who, c.node, "qmclone", strconv.Itoa(src.id), c.fault, func(t *task) error {
		release, err := s.lockFile(t, newID)
		if err == nil {
			defer release()
			err = s.copyVM(t, src, v, values, c, full)
		}
		switch {
		case err == nil:
		case errors.Is(err, errKilled):
			return err
		default:
			s.discardUnfinished(t, v)
			return fmt.Errorf("clone failed: %w", err)
		}
		return nil
	})
}

// mayClone refuses at once what a clone trips over. s.mu is held.
func (s *Server) mayClone(c *call, newID int, pool string) (*vm, error) {
	if pool != "" && s.pools[pool] == nil {
		return nil, noSuchPool(pool)
	}
	if target := c.str("target"); target != "" && s.host(target) == nil {
		return nil, perlError("no such cluster node '%s'", target)
	}
	src, err := s.vmAt(c.node, c.vmid())
	if err != nil {
		return nil, notFound(c.node, c.vmid())
	}
	linked := src.isTemplate() && !c.flag("full")
	switch {
	case c.has("storage") && linked:
		return nil, perlError("parameter 'storage' not allowed for linked clones")
	case c.has("format") && linked:
		return nil, perlError("parameter 'format' not allowed for linked clones")
	case src.checkLock() != nil:
		return nil, src.checkLock()
	case s.vms[newID] != nil:
		return nil, perlError("unable to create VM %d: config file already exists", newID)
	}
	for _, k := range options.DriveKeys(src.conf.base) {
		d := options.ParseDrive(src.conf.base[k])
		st, vol := c.node.volume(d["file"])
		if vol == nil || d.IsCDROM() {
			continue
		}
		if err := s.needPrivileges(c.who, "/storage/"+cmp.Or(c.str("storage"), st.name), "Datastore.AllocateSpace"); err != nil {
			return nil, err
		}
	}
	return src, nil
}

// copyVM is the task of a clone: the disks are copied or built upon, what must
// be unique is made again.
func (s *Server) copyVM(t *task, src, v *vm, values map[string]string, c *call, full bool) error {
	if s.flavour.nine {
		s.logLine(t, "creating a clone of VM %d with ID %d", src.id, v.id)
	}
	for _, k := range sortedKeys(values) {
		switch {
		case options.IsDrive(k):
			text, err := s.copyDrive(t, v, k, values[k], c, full)
			if err != nil {
				return err
			}
			values[k] = text
		case options.IsNet(k):
			card := options.ParseNet(values[k])
			delete(card, "macaddr")
			values[k] = options.RenderNet(card)
		case options.IsUnused(k), k == "template", k == "lock", k == "parent":
			delete(values, k)
		}
	}
	smbios := options.ParseDrive(values["smbios1"])
	smbios["uuid"] = newUUID()
	values["smbios1"] = strings.TrimPrefix(smbios.String(), ",")
	values["vmgenid"] = newUUID()
	values["name"] = cmp.Or(c.str("name"), fmt.Sprintf("Copy-of-VM-%s", src.name()))
	if c.has("description") {
		values["description"] = spellOption("description", c.str("description"), s.flavour)
	}
	if _, err := s.passTime(t, 0); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	v.conf, v.begun = newConfig(values), nil
	if target := s.host(cmp.Or(c.str("target"), v.host.name)); target != nil {
		v.host = target
	}
	if pool := c.str("pool"); s.pools[pool] != nil {
		s.joinPool(v.id, pool)
	}
	return nil
}

func (s *Server) copyDrive(t *task, v *vm, key, text string, c *call, full bool) (string, error) {
	d := options.ParseDrive(text)
	s.mu.Lock()
	st, vol := v.host.volume(d["file"])
	s.mu.Unlock()
	if vol == nil || d.IsCDROM() && !d.IsCloudInit() {
		return text, nil
	}
	kind := "full"
	if !full {
		kind = "linked"
	}
	s.logLine(t, "create %s clone of drive %s (%s)", kind, key, d["file"])
	s.mu.Lock()
	to, format := st, vol.format
	if name := c.str("storage"); full && name != "" {
		to = v.host.storage(name)
	}
	if to == nil {
		s.mu.Unlock()
		return "", perlError("storage '%s' does not exist", c.str("storage"))
	}
	copied := s.allocateDisk(to, to.diskName(v.id, "vm", cmp.Or(c.str("format"), format)), cmp.Or(c.str("format"), format), v.id, vol.bytes)
	copied.disk.Image = vol.heldImage()
	if vol.disk != nil {
		if f, ok := vol.disk.Contents.(*world.Firmware); ok { // a clone has the keys of its source
			kept := *f
			copied.disk.Contents = &kept
		}
	}
	if !full {
		copied.parent = vol.name
	}
	volid := to.volid(copied)
	v.begun = append(v.begun, volid)
	s.mu.Unlock()
	if !full {
		s.logLinked(t, to, vol, copied)
	} else if err := s.logCopied(t, to, v, copied, key, volid); err != nil {
		return "", err
	}
	d["file"] = volid
	return d.String(), nil
}

func (s *Server) logLinked(t *task, st *storage, base, v *volume) {
	dir, file := path.Split(v.name)
	s.logLine(t, "clone %s: images, %s, %s to %s (base=../%s)", base.name, file, strings.TrimSuffix(dir, "/"), file, base.name)
	layout := "cluster_size=65536 extended_l2=off compression_type=zlib"
	if s.flavour.nine {
		layout = "cluster_size=131072 extended_l2=on preallocation=metadata compression_type=zlib"
	}
	s.logLine(t, "Formatting '%s', fmt=qcow2 %s size=%d backing_file=../%s backing_fmt=%s lazy_refcounts=off refcount_bits=16",
		st.file(v.name), layout, v.bytes, base.name, base.format)
}

func (s *Server) logCopied(t *task, to *storage, v *vm, copied *volume, key, volid string) error {
	s.logFormatting(t, to, copied)
	if s.flavour.nine {
		s.logLine(t, "allocated target volume '%s'", volid)
	}
	if key == "efidisk0" {
		copied.file = copied.bytes
		return nil
	}
	if err := s.copyOnto(t, to, v.id, s.world.Latency.Import); err != nil {
		return err
	}
	s.logTransferred(t, copied.bytes)
	return nil
}
