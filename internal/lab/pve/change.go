package pve

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/lab/pve/options"
	"github.com/talos-agent/talos-agent/internal/lab/pve/schema"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// change is what a config request asks for.
type change struct {
	set    map[string]string
	remove []string
	revert []string
	force  bool
	digest string
	skip   bool // the configuration lock; root only
}

// changeOf reads a config request, and refuses what contradicts itself.
func changeOf(c *call) (change, error) {
	ch := change{
		set: configOf(c), remove: schema.SplitList(c.str("delete")), revert: schema.SplitList(c.str("revert")),
		force: c.flag("force"), digest: c.str("digest"), skip: c.flag("skiplock"),
	}
	if c.has("skiplock") && !c.who.isRoot() {
		return ch, invalidParam("skiplock", "Only root may use this option.")
	}
	if len(ch.set)+len(ch.remove)+len(ch.revert) == 0 {
		return ch, perlError("no options specified")
	}
	for _, k := range ch.remove {
		if _, both := ch.set[k]; both {
			return ch, invalidParam("delete", "you can't use '-%s' and -delete %[1]s' at the same time", k)
		}
		if c.s.schema["PUT /nodes/{node}/qemu/{vmid}/config"].FindProperty(k) == nil || notConfig[k] {
			return ch, invalidParam("delete", "unknown option '%s'", k)
		}
	}
	if script := ch.set["hookscript"]; script != "" {
		c.s.mu.Lock()
		_, v := c.node.volume(script)
		c.s.mu.Unlock()
		if v == nil {
			return ch, invalidParam("hookscript", "script '%s' does not exist\n", script)
		}
	}
	return ch, nil
}

// mayChange checks the privileges a config request needs. s.mu is held.
func (s *Server) mayChange(c *call, ch change) error {
	if err := s.mayUseDrives(c, ch.set); err != nil {
		return err
	}
	keys := append(sortedKeys(ch.set), ch.remove...)
	if err := s.mayConfigure(c, c.vmid(), "", append(keys, ch.revert...)); err != nil {
		return err
	}
	if err := s.mayTouchDevices(c, c.vmid(), keys); err != nil {
		return err
	}
	return s.mayBridge(c, ch.set)
}

// putConfig changes a VM before it answers.
func putConfig(c *call) (any, error) {
	ch, err := c.s.acceptChange(c)
	if err != nil {
		return nil, err
	}
	return nil, c.s.changeNow(c, nil, ch)
}

// postConfig changes a VM in a task, once the change was found acceptable.
func postConfig(c *call) (any, error) {
	s := c.s
	ch, err := s.acceptChange(c)
	if err != nil {
		return nil, err
	}
	if err := s.mayStart(c.node, c.vmid(), ch); err != nil {
		return nil, err
	}
	options := ""
	for _, k := range sortedKeys(ch.set) {
		options += " -" + k + " " + ch.set[k]
	}
	if len(ch.remove) > 0 {
		options += " -delete " + strings.Join(ch.remove, ",")
	}
	return s.forkTask(c.who, c.node, "qmconfig", strconv.Itoa(c.vmid()), c.fault, func(t *task) error {
		s.logLine(t, "update VM %d:%s", c.vmid(), options)
		if _, err := s.passTime(t, 0); err != nil {
			return err
		}
		return s.changeNow(c, t, ch)
	})
}

func (s *Server) acceptChange(c *call) (change, error) {
	ch, err := changeOf(c)
	if err != nil {
		return ch, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return ch, s.mayChange(c, ch)
}

// mayStart checks what a change holds against the configuration as it stands.
func (s *Server) mayStart(h *host, id int, ch change) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, err := s.vmAt(h, id)
	if err != nil {
		return err
	}
	if err := checkDigest(v.conf, ch.digest); err != nil {
		return err
	}
	if !ch.skip {
		return v.checkLock()
	}
	return nil
}

// changeNow changes a VM, holding its lock file. t is nil for a synchronous
// request.
func (s *Server) changeNow(c *call, t *task, ch change) error {
	id := c.vmid()
	// What was accepted is carried out though its caller may have hung up.
	ctx := s.ctx
	if t != nil {
		ctx = t.ctx
	}
	// 9.2 looks at the configuration before it queues for the lock file; 8.4
	// queues first.
	if s.flavour.nine {
		if err := s.mayStart(c.node, id, ch); err != nil {
			return err
		}
	}
	lock, err := s.acquireLock(ctx, id, nil)
	if err != nil {
		return err
	}
	defer func() { <-lock }()
	if err := s.mayStart(c.node, id, ch); err != nil {
		return err
	}
	if err := s.mayHold(c.node, id, ch); err != nil {
		return err
	}
	placedDrives, err := s.placeChanged(c.node, id, t, ch)
	if err != nil {
		return err
	}
	problems, err := s.commitChange(c.node, id, ch, placedDrives)
	if err != nil {
		return err
	}
	s.reportMedium(c.node, id)
	if len(problems) > 0 {
		if err := s.world.Sleep(ctx, unplugWait); err != nil {
			return err
		}
		return refuseParams(problems)
	}
	return nil
}

// mayHold refuses values that contradict the configuration, and drives that
// must not go.
func (s *Server) mayHold(h *host, id int, ch change) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, err := s.vmAt(h, id)
	if err != nil {
		return err
	}
	after := v.conf.merged()
	for _, k := range ch.remove {
		if options.IsDrive(k) && v.conf.base["protection"] == "1" && after[k] != "" {
			return perlError("can't remove drive '%s' - protection mode enabled", k)
		}
		delete(after, k)
	}
	for k, text := range ch.set {
		after[k] = text
	}
	if balloon, err := strconv.ParseInt(after["balloon"], 10, 64); err == nil && balloon > options.MemoryMiB(after) {
		return perlError("balloon value too large (must be smaller than assigned memory)")
	}
	if _, asked := ch.set["boot"]; asked {
		return checkBoot(after)
	}
	return nil
}

// placeChanged makes the volumes a change asks for.
func (s *Server) placeChanged(h *host, id int, t *task, ch change) (map[string]string, error) {
	out := map[string]string{}
	for _, k := range options.DriveKeys(ch.set) {
		worker := t
		if worker == nil {
			// A synchronous request has no log to write to.
			worker = &task{ctx: s.ctx}
		}
		p, err := s.placeDrive(worker, h, id, k, ch.set[k])
		if err != nil {
			return nil, err
		}
		out[k] = p.text
	}
	return out, nil
}

// unplugWait is how long Proxmox VE waits for a running guest to release a
// device.
const unplugWait = 6 * time.Second

// commitChange writes a change down. Options that a running VM cannot take wait for
// its next stop. It returns what a running guest refused to release.
func (s *Server) commitChange(h *host, id int, ch change, drives map[string]string) (map[string]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, err := s.vmAt(h, id)
	if err != nil {
		return nil, err
	}
	for _, k := range ch.revert {
		delete(v.conf.pending, k)
		delete(v.conf.dropped, k)
	}
	problems := map[string]string{}
	for _, k := range ch.remove {
		if v.isBootedFrom(k) || v.running && options.IsNet(k) && v.conf.base[k] != "" { // Talos does not release it
			problems[k] = s.unplugText(k)
		}
		s.removeOption(v, k, ch.force)
	}
	for _, k := range sortedKeys(ch.set) {
		text := spellOption(k, ch.set[k], flavour{nine: true}) // a change is normalised by 8.4 too
		if options.IsDrive(k) {
			if v.running && options.WaitsForStop(v.conf.base[k], drives[k]) {
				v.conf.pending[k] = drives[k]
				continue
			}
			delete(v.conf.pending, k)
			s.replaceDrive(v, k, drives[k])
			continue
		}
		if k == "description" && text == "" {
			delete(v.conf.base, k)
			continue
		}
		if text == v.conf.base[k] {
			delete(v.conf.pending, k)
			delete(v.conf.dropped, k)
			continue
		}
		if v.running && !options.TakesLive(k, v.conf.base[k], text) {
			v.conf.pending[k] = text
			delete(v.conf.dropped, k)
			if options.IsNet(k) {
				problems[k] = s.unplugText(k)
			}
			continue
		}
		v.conf.base[k] = text
	}
	return problems, nil
}

// reportMedium has the guest of a VM that runs notice what is in its drives now: that takes effect at once.
func (s *Server) reportMedium(h *host, id int) {
	guests, ok := s.guests.(world.MediumChanger)
	s.mu.Lock()
	v, err := s.vmAt(h, id)
	if !ok || err != nil || !v.running {
		s.mu.Unlock()
		return
	}
	medium, first := v.findMedium()
	s.mu.Unlock()
	guests.ChangeMedium(id, medium, first)
}

func (s *Server) unplugText(key string) string {
	text := fmt.Sprintf("hotplug problem - error on hot-unplugging device '%s'", key)
	if s.flavour.nine {
		text += " - still busy in guest?"
	}
	return text + "\n"
}

// isBootedFrom reports whether a running guest uses a drive that it was booted from, so
// that it does not release it.
func (v *vm) isBootedFrom(key string) bool {
	return v.running && options.IsDrive(key) && slices.Contains(options.BootDevices(v.conf.base), key) && !options.ParseDrive(v.conf.base[key]).IsCDROM()
}

// applyPending applies what a running VM could not take.
func (v *vm) applyPending() {
	detached := map[string]string{}
	for key := range v.conf.dropped {
		if options.IsDrive(key) {
			detached[key] = options.ParseDrive(v.conf.base[key])["file"]
		}
	}
	v.conf.applyPending()
	for _, key := range sortedKeys(detached) {
		v.keepUnused(detached[key])
	}
}

// removeOption deletes an option. A disk that is detached stays as an unused one,
// unless it is unused already or the request insists. s.mu is held.
func (s *Server) removeOption(v *vm, key string, force bool) {
	delete(v.conf.pending, key)
	text, there := v.conf.base[key]
	if !there {
		return
	}
	if v.isBootedFrom(key) { // the request fails, and it is detached at the next stop all the same
		v.conf.dropped[key] = true
		v.conf.pending["boot"] = options.BootWithout(cmp.Or(v.conf.pending["boot"], v.conf.base["boot"]), key)
		return
	}
	if v.running && !options.IsHot(key) && !options.IsDrive(key) && !options.IsUnused(key) {
		v.conf.dropped[key] = true
		return
	}
	delete(v.conf.base, key)
	delete(v.conf.dropped, key)
	d := options.ParseDrive(text)
	switch {
	case options.IsUnused(key), options.IsDrive(key) && (force || d.IsCloudInit()):
		s.discardVolume(v, d["file"])
	case options.IsDrive(key) && !d.IsCDROM():
		v.keepUnused(d["file"])
	}
	if options.IsDrive(key) || options.IsNet(key) {
		v.dropFromBoot(key)
	}
}

// discardVolume removes a volume that belongs to the VM. s.mu is held.
func (s *Server) discardVolume(v *vm, volid string) {
	if _, vol := v.host.volume(volid); vol != nil && vol.vmid == v.id {
		v.host.freeVolume(volid)
	}
}

// keepUnused lists a detached volume under the lowest free unusedN.
func (v *vm) keepUnused(volid string) {
	if _, vol := v.host.volume(volid); vol == nil || vol.vmid != v.id {
		return
	}
	for n := 0; ; n++ {
		key := fmt.Sprintf("unused%d", n)
		if v.conf.base[key] == "" {
			v.conf.base[key] = volid
			return
		}
	}
}

// replaceDrive sets a drive; what was there stays as an unused one, and an
// optical drive joins the boot order. s.mu is held.
func (s *Server) replaceDrive(v *vm, key, text string) {
	d, old := options.ParseDrive(text), options.ParseDrive(v.conf.base[key])
	if old["file"] != "" && old["file"] != d["file"] {
		if old.IsCloudInit() {
			s.discardVolume(v, old["file"])
		} else if !old.IsCDROM() {
			v.keepUnused(old["file"])
		}
	}
	v.conf.base[key] = text
	for k, volid := range v.conf.base {
		if options.IsUnused(k) && volid == d["file"] {
			delete(v.conf.base, k)
		}
	}
	if order, listed := options.BootOrder(v.conf.base["boot"]); listed && d.IsCDROM() && !slices.Contains(order, key) {
		v.conf.base["boot"] = "order=" + strings.Join(append(order, key), ";")
	}
}

// dropFromBoot removes a device that was removed from the boot order.
func (v *vm) dropFromBoot(key string) {
	if boot := v.conf.base["boot"]; boot != "" {
		v.conf.base["boot"] = options.BootWithout(boot, key)
	}
}

// unlinkDisks answers PUT unlink: deletion of drives by another name.
func unlinkDisks(c *call) (any, error) {
	return nil, c.s.changeNow(c, nil, change{remove: schema.SplitList(c.str("idlist")), force: c.flag("force")})
}
