package pve

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/lab/pve/options"
	"github.com/talos-agent/talos-agent/internal/lab/pve/schema"
)

// notConfig are the parameters of a creation that are not options of the VM.
var notConfig = setOf("vmid", "node", "pool", "start", "archive", "force", "storage", "unique", "bwlimit", "live-restore",
	"import-working-storage", "ha-managed", "digest", "delete", "revert", "skiplock", "background_delay")

// configOf returns the options of the VM among a request's parameters.
func configOf(c *call) map[string]string {
	out := map[string]string{}
	for k, v := range c.in {
		if text, ok := v.(string); ok && !notConfig[k] {
			out[k] = text
		}
	}
	return out
}

// createVM answers POST /nodes/{node}/qemu: what can be decided at once is,
// the rest is a task.
func createVM(c *call) (any, error) {
	s, id := c.s, c.vmid()
	values := configOf(c)
	s.mu.Lock()
	err := s.mayCreate(c, id, values)
	if err == nil && s.vms[id] != nil {
		err = perlError("unable to create VM %d - VM %[1]d already exists on node '%s'", id, s.vms[id].host.name)
	}
	if err != nil {
		s.mu.Unlock()
		return nil, err
	}
	v := &vm{id: id, host: c.node, maker: c.who.id, conf: newConfig(map[string]string{"lock": "create"})}
	s.vms[id] = v
	s.mu.Unlock()
	s.world.Report(strconv.Itoa(id), "%s creates vm %d (%s)", c.who.id, id, values["name"])

	pool, start := c.str("pool"), c.flag("start")
	return s.forkTask(c.who, c.node, "qmcreate", strconv.Itoa(id), c.fault, func(t *task) error {
		err := s.buildVM(t, c.who, v, values, pool)
		switch {
		case errors.Is(err, errKilled):
			return err
		case err != nil:
			s.discardUnfinished(t, v)
			return fmt.Errorf("unable to create VM %d - %w", id, err)
		}
		if start {
			s.logLine(t, "Execute autostart")
			if _, err := s.forkStart(c.who, v, c.fault); err != nil {
				return err
			}
		}
		return nil
	})
}

// mayCreate checks the privileges a creation needs beyond what the description
// of the method defines. s.mu is held.
func (s *Server) mayCreate(c *call, id int, values map[string]string) error {
	pool, path := c.str("pool"), fmt.Sprintf("/vms/%d", id)
	if pool != "" && s.pools[pool] == nil {
		return noSuchPool(pool)
	}
	if s.needPrivileges(c.who, path, "VM.Allocate") != nil && (pool == "" || s.needPrivileges(c.who, "/pool/"+pool, "VM.Allocate") != nil) {
		return denyAccess("")
	}
	if c.flag("start") {
		if err := s.needVM(c.who, id, pool, "VM.PowerMgmt"); err != nil {
			return err
		}
	}
	if err := s.mayUseDrives(c, values); err != nil {
		return err
	}
	if err := s.mayConfigure(c, id, pool, sortedKeys(values)); err != nil {
		return err
	}
	return s.mayBridge(c, values)
}

// needVM asks for a privilege on a VM, which may come from the pool it is
// about to join. s.mu is held.
func (s *Server) needVM(who identity, id int, pool string, privileges ...string) error {
	if pool != "" && s.needPrivileges(who, "/pool/"+pool, privileges...) == nil {
		return nil
	}
	return s.needPrivileges(who, fmt.Sprintf("/vms/%d", id), privileges...)
}

// mayConfigure checks the privilege each option needs, and refuses what only
// root may set: no token is root. s.mu is held.
func (s *Server) mayConfigure(c *call, id int, pool string, keys []string) error {
	if c.who.isRoot() {
		return nil
	}
	for _, k := range keys {
		if err := s.maySet(c, id, pool, k); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) maySet(c *call, id int, pool, key string) error {
	need := func(privilege string) error { return s.needVM(c.who, id, pool, privilege) }
	drive := options.ParseDrive(c.str(key))
	switch {
	case options.IsOfCloudInit(key):
		if need("VM.Config.Cloudinit") == nil {
			return nil
		}
		return need("VM.Config.Network")
	case key == "startup":
		if err := need("VM.Config.Options"); err != nil {
			return err
		}
		return s.needPrivileges(c.who, "/", "Sys.Modify")
	case options.IsDevice(key) && c.str(key) != "":
		return s.mayPass(c, id, pool, key, c.str(key))
	case key == "tags" && pool != "" && s.flavour.nine:
		return nil // see mayTag
	case options.IsDrive(key) && (drive.IsCloudInit() || cloudInitDisk.MatchString(drive["file"])):
		if err := need("VM.Config.Cloudinit"); err != nil {
			return err
		}
		return need("VM.Config.CDROM")
	case options.IsDrive(key) && drive.IsCDROM():
		return need("VM.Config.CDROM")
	case options.IsDrive(key):
		return need("VM.Config.Disk")
	}
	privilege := options.PrivilegeOf(key)
	if privilege == "" {
		return perlError("only root can set '%s' config", key)
	}
	return need(privilege)
}

// mayBridge checks that the network cards' bridges may be used. s.mu is held.
func (s *Server) mayBridge(c *call, values map[string]string) error {
	for _, k := range sortedKeys(values) {
		if bridge := options.ParseNet(values[k])["bridge"]; options.IsNet(k) && bridge != "" {
			if err := s.needPrivileges(c.who, "/sdn/zones/localnetwork/"+bridge, "SDN.Use"); err != nil {
				return err
			}
		}
	}
	return nil
}

// buildVM is the task of a creation.
func (s *Server) buildVM(t *task, who identity, v *vm, values map[string]string, pool string) error {
	id := strconv.Itoa(v.id)
	release, err := s.lockFile(t, v.id)
	if err != nil {
		return err
	}
	defer release()
	if err := s.mayTag(who, v.id, values["tags"]); err != nil {
		return err
	}
	after := []string{"delete/" + id}
	for _, k := range options.DriveKeys(values) {
		if strings.Contains(values[k], "import-from=") {
			after = append(after, "import/"+id)
		}
	}
	final := map[string]string{}
	for k, text := range values {
		final[k] = spellOption(k, text, s.flavour)
	}
	for _, k := range options.DriveKeys(values) {
		p, err := s.placeDrive(t, v.host, v.id, k, values[k])
		if p.volid != "" {
			s.noteVolume(v, p.volid)
		}
		if err != nil {
			return err
		}
		final[k] = p.text
	}
	if err := s.spendTime(t, "create", id, s.world.Latency.Create, after...); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := checkBoot(final); err != nil {
		return err
	}
	if final["boot"] == "" {
		final["boot"] = options.DefaultBoot(final)
	}
	if final["smbios1"] == "" {
		final["smbios1"] = "uuid=" + newUUID()
	}
	if final["vmgenid"] == "" {
		final["vmgenid"] = newUUID()
	}
	final["meta"] = fmt.Sprintf("creation-qemu=%s,ctime=%d", s.flavour.qemu, time.Now().Unix())
	v.conf = newConfig(final)
	v.begun = nil
	if s.pools[pool] != nil {
		s.joinPool(v.id, pool)
	}
	return nil
}

// mayTag is 9.2's check of a new VM's tags. It runs inside the task, before
// the VM joins its pool, so that privileges on the pool do not count yet.
func (s *Server) mayTag(who identity, id int, tags string) error {
	if tags == "" || !s.flavour.nine {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.needPrivileges(who, fmt.Sprintf("/vms/%d", id), "VM.Config.Options"); err != nil {
		return fmt.Errorf("403 %w", err)
	}
	return nil
}

// noteVolume remembers a volume that was made for a VM whose configuration does not
// name it yet. s.mu is not held.
func (s *Server) noteVolume(v *vm, volid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v.begun = append(v.begun, volid)
}

// discardUnfinished removes a VM that could not be made, and what of its volumes a lock lets it.
func (s *Server) discardUnfinished(t *task, v *vm) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, volid := range v.begun {
		st, _ := v.host.volume(volid)
		if st == nil {
			continue
		}
		s.mu.Unlock()
		if err := s.allocate(&task{ctx: s.ctx}, st, 0, func() error { v.host.freeVolume(volid); return nil }); err != nil {
			s.logLine(t, "%s", err)
		}
		s.mu.Lock()
	}
	if s.vms[v.id] == v {
		delete(s.vms, v.id)
	}
}

// spellOption spells an option the way Proxmox VE keeps it.
func spellOption(key, text string, f flavour) string {
	switch {
	case key == "tags" && f.nine:
		return canonicalTags(text)
	case key == "description":
		return strings.TrimSuffix(text, "\n")
	case options.IsNet(key):
		return options.RenderNet(options.ParseNet(text))
	}
	return text
}

// checkBoot refuses a boot order with a device that is not there.
func checkBoot(values map[string]string) error {
	order, _ := options.BootOrder(values["boot"])
	for _, k := range order {
		if values[k] == "" {
			return perlError("invalid bootorder: device '%s' does not exist'", k)
		}
	}
	return nil
}

// resizeDisk answers PUT resize, which since 8.0 is a task.
func resizeDisk(c *call) (any, error) {
	s, id := c.s, c.vmid()
	disk, size, digest, host, fault := c.str("disk"), c.str("size"), c.str("digest"), c.node, c.fault
	if c.has("skiplock") && !c.who.isRoot() {
		return nil, invalidParam("skiplock", "Only root may use this option.")
	}
	return s.forkTask(c.who, host, "resize", strconv.Itoa(id), fault, func(t *task) error {
		release, err := s.lockFile(t, id)
		if err != nil {
			return err
		}
		defer release()
		return s.resizeDisk(t, host, id, disk, size, digest)
	})
}

func (s *Server) resizeDisk(t *task, h *host, id int, disk, size, digest string) error {
	vol, want, err := s.planResize(h, id, disk, size, digest)
	if err != nil || vol == nil {
		return err
	}
	if err := s.spendTime(t, "resize", strconv.Itoa(id), s.world.Latency.Resize, "create/"+strconv.Itoa(id)); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	v, err := s.vmAt(h, id)
	if err != nil {
		return err
	}
	vol.bytes = want
	if vol.disk != nil {
		vol.disk.Bytes = want
	}
	d := options.ParseDrive(v.conf.base[disk])
	d["size"] = options.FormatSize(want)
	v.conf.base[disk] = d.String()
	if !v.running {
		t.log = append(t.log, "Image resized.")
	}
	return nil
}

// planResize finds the volume and the size it shall have; no volume when it
// has it already.
func (s *Server) planResize(h *host, id int, disk, size, digest string) (*volume, int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, err := s.vmAt(h, id)
	if err != nil {
		return nil, 0, err
	}
	if err := checkDigest(v.conf, digest); err != nil {
		return nil, 0, err
	}
	if err := v.checkLock(); err != nil {
		return nil, 0, err
	}
	d := options.ParseDrive(v.conf.base[disk])
	if d["file"] == "" {
		return nil, 0, perlError("disk '%s' does not exist", disk)
	}
	if !schema.VolumePattern.MatchString(d["file"]) {
		return nil, 0, perlError("unable to parse volume ID '%s'", d["file"])
	}
	_, vol := h.volume(d["file"])
	if vol == nil {
		return nil, 0, perlError("volume '%s' does not exist", d["file"])
	}
	relative := strings.HasPrefix(size, "+")
	want, err := options.ParseSize(strings.TrimPrefix(size, "+"))
	if err != nil {
		return nil, 0, err
	}
	if relative {
		want += vol.bytes
	}
	switch want = roundUp(want, 1024); {
	case want < vol.bytes:
		return nil, 0, perlError("shrinking disks is not supported")
	case want == vol.bytes:
		return nil, 0, nil
	}
	return vol, want, nil
}

// nextID answers GET /cluster/nextid, which looks at every VM whatever the
// caller may see, and reserves nothing.
func nextID(c *call) (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if c.has("vmid") {
		if c.s.vms[c.vmid()] != nil {
			return nil, invalidParam("vmid", "VM %d already exists", c.vmid())
		}
		return c.str("vmid"), nil
	}
	for id := 100; ; id++ {
		if c.s.vms[id] == nil {
			return strconv.Itoa(id), nil
		}
	}
}
