package pve

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/lab/pve/options"
	"github.com/talos-agent/talos-agent/internal/lab/pve/schema"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// powerTask answers the power calls, which are tasks all.
func powerTask(kind string, do func(*Server, *task, *call) error) func(*call) (any, error) {
	return func(c *call) (any, error) {
		if c.has("skiplock") && !c.who.isRoot() {
			return nil, invalidParam("skiplock", "Only root may use this option.")
		}
		if managed, request := c.requestOf(kind); request != nil {
			return c.s.forkTask(c.who, c.node, managed, strconv.Itoa(c.vmid()), c.fault, request)
		}
		return c.s.forkTask(c.who, c.node, kind, strconv.Itoa(c.vmid()), c.fault, func(t *task) error { return do(c.s, t, c) })
	}
}

// lockWhile has a task hold the VM's lock file while it is at work.
func lockWhile(do func(*Server, *task, *call) error) func(*Server, *task, *call) error {
	return func(s *Server, t *task, c *call) error {
		release, err := s.lockFile(t, c.vmid())
		if err != nil {
			return err
		}
		defer release()
		return do(s, t, c)
	}
}

// runningFirst refuses before any task what only a VM that runs can do.
func runningFirst(do func(*call) (any, error)) func(*call) (any, error) {
	return unless(do, func(c *call, v *vm) error {
		if v.running {
			return nil
		}
		return perlError("VM %d not running", v.id)
	})
}

// unlessPaused refuses to shut a VM down that is paused: nothing in it would hear it. With
// forceStop it is switched off in the end, as any that does not hear.
func unlessPaused(do func(*call) (any, error)) func(*call) (any, error) {
	return unless(do, func(c *call, v *vm) error {
		if !v.paused || v.ioError || c.flag("forceStop") {
			return nil
		}
		return perlError("VM is paused - cannot shutdown")
	})
}

// unless asks a VM before any task.
func unless(do func(*call) (any, error), forbids func(*call, *vm) error) func(*call) (any, error) {
	return func(c *call) (any, error) {
		c.s.mu.Lock()
		v, err := c.s.vmAt(c.node, c.vmid())
		if err == nil {
			err = forbids(c, v)
		}
		c.s.mu.Unlock()
		if err != nil {
			return nil, err
		}
		return do(c)
	}
}

func runStart(s *Server, t *task, c *call) error { return s.startVM(t, c.node, c.vmid(), c.fault) }

// forkStart starts a VM in a task of its own, as Proxmox VE does after a
// creation or a reboot. fault is one of the call that brought it about.
func (s *Server) forkStart(who identity, v *vm, fault world.Fault) (string, error) {
	return s.forkTask(who, v.host, "qmstart", strconv.Itoa(v.id), world.Fault{}, func(t *task) error {
		return s.startVM(t, v.host, v.id, fault)
	})
}

// startVM is the task of a start.
func (s *Server) startVM(t *task, h *host, id int, fault world.Fault) error {
	release, err := s.lockFile(t, id)
	if err != nil {
		return err
	}
	defer release()
	if err := s.mayRun(t, h, id); err != nil {
		return err
	}
	n := strconv.Itoa(id)
	if err := s.spendTime(t, "start", n, s.world.Latency.Start, "create/"+n, "resize/"+n, "stop/"+n); err != nil {
		return err
	}
	s.mu.Lock()
	v, err := s.vmAt(h, id)
	if err != nil {
		s.mu.Unlock()
		return err
	}
	s.nextPID += 27
	v.applyPending()
	v.running, v.paused, v.ioError, v.pid, v.since, v.stopped = true, false, false, s.nextPID, time.Now(), make(chan struct{})
	g := s.describeGuest(v)
	v.dead = fault.Kind == world.NeverUp
	g.Dead = v.dead
	s.mu.Unlock()
	s.world.Report(n, "vm %d (%s) runs", id, g.Name)
	s.guests.PowerOn(g)
	return nil
}

// mayRun checks what a start trips over.
func (s *Server) mayRun(t *task, h *host, id int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, err := s.vmAt(h, id)
	if err != nil {
		return err
	}
	switch {
	case v.isTemplate():
		return perlError("you can't start a vm if it's a template")
	case v.checkLock() != nil:
		return v.checkLock()
	case v.running:
		return perlError("VM %d already running", id)
	}
	values := v.conf.merged()
	snippets := options.ParseDrive(values["cicustom"])
	for _, k := range []string{"network", "user", "meta", "vendor"} {
		if _, vol := h.volume(snippets[k]); vol == nil && snippets[k] != "" {
			return perlError("volume '%s' does not exist", snippets[k])
		}
	}
	for _, k := range options.DriveKeys(values) {
		d := options.ParseDrive(values[k])
		if _, vol := h.volume(d["file"]); vol == nil && schema.VolumePattern.MatchString(d["file"]) {
			return perlError("volume '%s' does not exist", d["file"])
		}
		if _, vol := h.volume(d["file"]); k == "tpmstate0" && vol != nil {
			if vol.file > vol.bytes/2 {
				t.log = append(t.log, "swtpm_setup: Not overwriting existing state file.")
			}
			vol.file = vol.bytes // the first start writes it
		}
		if d["iothread"] == "1" && strings.HasPrefix(k, "scsi") && values["scsihw"] != "virtio-scsi-single" {
			t.log = append(t.log, "WARN: iothread is only valid with virtio disk or virtio-scsi-single controller, ignoring")
			t.warnings++
		}
	}
	if err := s.mayPassThrough(h, id, values); err != nil {
		return err
	}
	if err := s.mayEmulate(t, h, values); err != nil {
		return err
	}
	if err := s.mayBridgeUp(t, h, id, values); err != nil {
		return err
	}
	return fitsMTU(h, values)
}

// mayBridgeUp checks that the bridges of a VM exist. 8.4 finds out from QEMU.
// s.mu is held.
func (s *Server) mayBridgeUp(t *task, h *host, id int, values map[string]string) error {
	for _, k := range sortedKeys(values) {
		card := options.ParseNet(values[k])
		bridge := card["bridge"]
		if !options.IsNet(k) || bridge == "" {
			continue
		}
		exists, trouble, is := slices.Contains(h.bridges, bridge), "", h.bridge(bridge)
		switch {
		case !exists && s.flavour.nine:
			return perlError("bridge '%s' does not exist", bridge)
		case !exists:
			trouble = fmt.Sprintf("bridge '%s' does not exist", bridge)
		case card["tag"] != "" && is.Ports == "" && !is.VLANAware:
			trouble = fmt.Sprintf("no physical interface on bridge '%s'", bridge)
		default:
			continue
		}
		t.log = append(t.log, trouble,
			fmt.Sprintf("kvm: -netdev type=tap,id=%s,ifname=tap%di%s,script=/usr/libexec/qemu-server/pve-bridge,downscript=/usr/libexec/qemu-server/pve-bridgedown: "+
				"network script /usr/libexec/qemu-server/pve-bridge failed with status 512", k, id, k[3:]))
		return perlError("start failed: QEMU exited with code 1")
	}
	return nil
}

// fitsMTU refuses a network card with a greater MTU than its bridge. A Linux bridge without one of its own has the least of its ports.
func fitsMTU(h *host, values map[string]string) error {
	for _, k := range sortedKeys(values) {
		b := h.bridge(options.ParseNet(values[k])["bridge"])
		if refused := options.JudgeMTU(k, values[k], cmp.Or(b.MTU, b.PortsMTU, 1500)); refused != "" {
			return perlError("%s", refused)
		}
	}
	return nil
}

// haltVM makes a running VM a stopped one, applies what waited for that, and
// reports whether anything changed. off: the guest is notified.
func (s *Server) haltVM(v *vm, off bool) bool {
	s.mu.Lock()
	if !v.running {
		s.mu.Unlock()
		return false
	}
	v.running, v.paused, v.ioError = false, false, false
	v.applyPending()
	close(v.stopped)
	again, name := v.rebooting, v.name()
	v.rebooting = false
	s.mu.Unlock()
	s.world.Report(strconv.Itoa(v.id), "vm %d (%s) is off", v.id, name)
	if off {
		s.guests.PowerOff(v.id)
	}
	if again {
		// qmeventd, which runs as root, starts a VM that was asked to reboot.
		if _, err := s.forkStart(identity{id: rootUser, user: rootUser}, v, world.Fault{}); err != nil {
			s.log.Debug("start after reboot", "err", err)
		}
	}
	return true
}

// guestOff is a guest that switched its own machine off.
func (s *Server) guestOff(v *vm) { s.haltVM(v, false) }

// runStop switches a VM off hard.
func runStop(s *Server, t *task, c *call) error {
	if c.flag("overrule-shutdown") {
		s.abortShutdowns(t, c.vmid())
	}
	return lockWhile(stopNow)(s, t, c)
}

func stopNow(s *Server, t *task, c *call) error {
	v, err := s.findRunning(c.node, c.vmid())
	if err != nil || v == nil {
		return err
	}
	n := strconv.Itoa(v.id)
	if err := s.spendTime(t, "stop", n, s.world.Latency.Stop, "start/"+n); err != nil {
		return err
	}
	s.haltVM(v, true)
	return nil
}

// findRunning returns a VM that is to be stopped or reset; none when it is stopped already, which
// is fine whatever lock it has.
func (s *Server) findRunning(h *host, id int) (*vm, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.vms[id]
	switch {
	case v == nil || v.host != h:
		return nil, notFound(h, id)
	case !v.running:
		return nil, nil
	}
	return v, v.checkLock()
}

// abortShutdowns aborts the shutdowns of a VM that are under way, and waits for
// them to release it.
func (s *Server) abortShutdowns(t *task, id int) {
	s.mu.Lock()
	var aborted []*task
	var names []string
	for _, o := range s.tasks {
		if !o.ended && o.kind == "qmshutdown" && o.id == strconv.Itoa(id) {
			aborted, names = append(aborted, o), append(names, o.name)
		}
	}
	s.mu.Unlock()
	if len(names) > 0 {
		s.logLine(t, "overruled qmshutdown tasks: %s", strings.Join(names, ", "))
	}
	for _, o := range aborted {
		o.stop(errInterrupted)
		<-o.done
	}
}

// The waits of a shutdown.
const (
	agentPing       = 3 * time.Second
	shutdownTimeout = 60 * time.Second
)

// runShutdown asks the guest to switch itself off, and waits.
func runShutdown(s *Server, t *task, c *call) error {
	v, err := s.findRunning(c.node, c.vmid())
	if err != nil || v == nil {
		return err
	}
	return s.shutDown(t, v, c, c.flag("forceStop"))
}

// runReboot is a shutdown after which the host starts the VM again, in another
// task.
func runReboot(s *Server, t *task, c *call) error {
	v, err := s.findRunning(c.node, c.vmid())
	if err != nil {
		return err
	}
	if v == nil {
		return perlError("VM %d not running", c.vmid())
	}
	s.mu.Lock()
	v.rebooting = true
	s.mu.Unlock()
	if err := s.shutDown(t, v, c, false); err != nil {
		s.mu.Lock()
		v.rebooting = false
		s.mu.Unlock()
		return err
	}
	return nil
}

// shutDown presses the power button and waits until the guest is off.
func (s *Server) shutDown(t *task, v *vm, c *call, force bool) error {
	n := strconv.Itoa(v.id)
	if _, err := s.passTime(t, 0); err != nil {
		return err
	}
	began := time.Now()
	if s.agentSilent(v) {
		if err := s.world.Sleep(t.ctx, agentPing); err != nil {
			return context.Cause(t.ctx)
		}
		command := "qmp command"
		if s.flavour.nine {
			command = "qga command"
		}
		s.logLine(t, "QEMU Guest Agent is not running - VM %d %s 'guest-ping' failed - got timeout", v.id, command)
	}
	s.mu.Lock()
	stopped := v.stopped
	s.mu.Unlock()
	s.guests.Shutdown(v.id, func() { s.guestOff(v) })
	wait := shutdownTimeout
	if c.has("timeout") {
		wait = time.Duration(c.num("timeout", 0)) * time.Second
	}
	timeout := time.NewTimer(s.world.Scale(wait))
	defer timeout.Stop()
	select {
	case <-stopped:
		s.world.Spend("stop", n, s.hostTime(time.Since(began)), "start/"+n)
		return nil
	case <-t.ctx.Done():
		return context.Cause(t.ctx)
	case <-timeout.C:
	}
	if !force {
		return perlError("VM quit/powerdown failed - got timeout")
	}
	s.logLine(t, "VM still running - terminating now with SIGTERM")
	s.haltVM(v, true)
	return nil
}

// agentSilent reports whether the guest agent is configured and does not answer.
func (s *Server) agentSilent(v *vm) bool {
	s.mu.Lock()
	on := options.HasAgent(v.conf.base)
	s.mu.Unlock()
	if !on {
		return false
	}
	_, ok := s.askAgent(v.id, "ping")
	return !ok
}

// runReset is the reset button: the guest boots again, the machine runs on.
func runReset(s *Server, t *task, c *call) error {
	v, err := s.findRunning(c.node, c.vmid())
	if v == nil || err != nil {
		return err
	}
	s.mu.Lock()
	g := s.describeGuest(v)
	s.mu.Unlock()
	if _, err := s.passTime(t, 0); err != nil {
		return err
	}
	s.guests.PowerOff(g.VMID)
	s.guests.PowerOn(g)
	return nil
}

// runSuspend and resume halt a VM's CPUs: nothing in it answers.
func runSuspend(s *Server, t *task, c *call) error { return s.setPaused(t, c.node, c.vmid(), true) }

func runResume(s *Server, t *task, c *call) error { return s.setPaused(t, c.node, c.vmid(), false) }

func (s *Server) setPaused(t *task, on *host, vmid int, paused bool) error {
	if _, err := s.passTime(t, 0); err != nil {
		return err
	}
	s.mu.Lock()
	v, err := s.vmAt(on, vmid)
	switch {
	case err != nil:
	case v.checkLock() != nil:
		err = v.checkLock()
	case !v.running:
		err = perlError("VM %d not running", v.id)
	default:
		paused = paused || v.ioError // what goes on is halted again while its storage is full
		v.paused = paused
	}
	s.mu.Unlock()
	if p, ok := s.guests.(world.Pauser); ok && err == nil {
		p.Pause(vmid, paused)
	}
	return err
}

// destroyVM answers DELETE of a VM.
func destroyVM(c *call) (any, error) {
	s, id := c.s, c.vmid()
	if c.has("skiplock") && !c.who.isRoot() {
		return nil, invalidParam("skiplock", "Only root may use this option.")
	}
	purge, unreferenced := c.flag("purge"), c.flag("destroy-unreferenced-disks")
	if err := s.mayDestroy(c.node, id, purge); err != nil {
		return nil, err
	}
	destroy := func(s *Server, t *task, c *call) error { return s.destroyVM(t, c.node, id, purge, unreferenced) }
	return s.forkTask(c.who, c.node, "qmdestroy", strconv.Itoa(id), c.fault, func(t *task) error { return lockWhile(destroy)(s, t, c) })
}

// mayDestroy refuses at once to delete what is protected or runs, and what the manager of high availability is asked to have, unless
// that is to be changed as well.
func (s *Server) mayDestroy(h *host, id int, purge bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, err := s.vmAt(h, id)
	switch {
	case err != nil:
		return err
	case v.conf.base["protection"] == "1":
		return perlError("can't remove VM %d - protection mode enabled", id)
	case !purge && s.IsConfigured(sidOf(id)):
		return perlError("unable to remove VM %d - used in HA resources and purge parameter not set.", id)
	case v.running:
		return perlError("VM %d is running - destroy failed", id)
	}
	return nil
}

func (s *Server) destroyVM(t *task, h *host, id int, purge, unreferenced bool) error {
	s.mu.Lock()
	v, err := s.vmAt(h, id)
	if err == nil {
		err = v.checkLock()
	}
	if err == nil {
		err = s.stillUsed(v)
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	if err := s.mayDestroy(h, id, purge); err != nil {
		return err
	}
	n := strconv.Itoa(id)
	if err := s.spendTime(t, "delete", n, s.world.Latency.Delete, "stop/"+n); err != nil {
		return err
	}
	if purge {
		s.logLine(t, "purging VM %d from related configurations..", id)
		s.purgeService(t, id)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.eraseVM(v, unreferenced)
	return nil
}
