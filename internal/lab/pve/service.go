package pve

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/talos-agent/talos-agent/internal/lab/pve/ha"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// sidOf is the name of a VM to the manager of high availability.
func sidOf(vmid int) string { return fmt.Sprintf("vm:%d", vmid) }

// askHA answers with the manager of high availability, whose rounds begin with its first resource.
func askHA(do func(*ha.Manager, ha.Call) (any, error)) func(*call) (any, error) {
	return func(c *call) (any, error) {
		s := c.s
		in := ha.Call{In: c.in, Nine: s.flavour.nine, Exists: func(vmid int) bool { exists, _ := (machines{s}).Look(vmid); return exists }}
		for _, h := range s.hosts {
			in.Hosts = append(in.Hosts, h.name)
		}
		data, err := do(&s.Manager, in)
		if wrong := (ha.WrongParams)(nil); errors.As(err, &wrong) {
			return nil, refuseParams(wrong)
		}
		if s.BeginRounds() && s.beginWork() {
			go func() {
				defer s.work.Done()
				s.DoRounds(s.ctx, s.world.Scale(ha.Every), machines{s})
			}()
		}
		return data, err
	}
}

// machines are the VMs of a cluster to the manager of high availability, which runs as root.
type machines struct{ s *Server }

// Look implements ha.Machines.
func (m machines) Look(vmid int) (exists, runs bool) {
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	v := m.s.vms[vmid]
	return v != nil, v != nil && v.running
}

// Start implements ha.Machines.
func (m machines) Start(vmid int) error {
	return m.run(vmid, "qmstart", func(t *task, c *call) error { return runStart(m.s, t, c) })
}

// Stop implements ha.Machines.
func (m machines) Stop(vmid int, after time.Duration) error {
	if after <= 0 {
		return m.run(vmid, "qmstop", func(t *task, c *call) error { return runStop(m.s, t, c) })
	}
	return m.run(vmid, "qmshutdown", func(t *task, c *call) error {
		c.in["timeout"], c.in["forceStop"] = strconv.Itoa(int(after/time.Second)), "1"
		return lockWhile(runShutdown)(m.s, t, c)
	})
}

// run runs a task of root's about a VM where that is, and waits for it.
func (m machines) run(vmid int, kind string, do func(*task, *call) error) error {
	s := m.s
	s.mu.Lock()
	v := s.vms[vmid]
	if v == nil {
		s.mu.Unlock()
		return fmt.Errorf("there is no vm %d", vmid)
	}
	c := &call{s: s, who: identity{id: rootUser, user: rootUser}, node: v.host, in: map[string]any{"vmid": strconv.Itoa(vmid)}}
	s.mu.Unlock()
	name, err := s.forkTask(c.who, c.node, kind, strconv.Itoa(vmid), world.Fault{}, func(t *task) error { return do(t, c) })
	if err != nil {
		return err
	}
	return s.WaitTask(s.ctx, name)
}

// requestOf returns what a power call comes to for a VM that is managed: the manager is asked for it, in a task that ends before it is
// done. It returns none for a VM that is not.
// Source: qemu-server, PVE/API2/Qemu.pm, vm_start, vm_stop and vm_shutdown.
func (c *call) requestOf(kind string) (managed string, request func(*task) error) {
	s, sid := c.s, sidOf(c.vmid())
	if _, is := s.ServiceState(sid); !is {
		return "", nil
	}
	after := map[string]int{"qmshutdown": c.num("timeout", 60)}
	switch kind {
	case "qmstart":
		return "hastart", func(t *task) error {
			s.logLine(t, "Requesting HA start for VM %d", c.vmid())
			if err := s.RequestStart(sid); err != nil {
				s.logLine(t, "%s", err)
				return perlError("command 'ha-manager set %s --state started' failed: exit code 255", sid)
			}
			return nil
		}
	case "qmstop", "qmshutdown":
		return "hastop", func(t *task) error {
			s.logLine(t, "Requesting HA stop for VM %d", c.vmid())
			s.RequestStop(sid, time.Duration(after[kind])*time.Second)
			return nil
		}
	}
	return "", nil
}

// purgeService takes a VM that goes from what the manager of high availability is asked for.
func (s *Server) purgeService(t *task, vmid int) {
	if !s.IsConfigured(sidOf(vmid)) {
		return
	}
	s.Forget(sidOf(vmid))
	s.logLine(t, "NOTE: removed VM %d from HA resource configuration.", vmid)
}
