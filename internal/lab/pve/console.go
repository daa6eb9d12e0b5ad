package pve

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"github.com/talos-agent/talos-agent/internal/lab/pve/options"
	"github.com/talos-agent/talos-agent/internal/lab/pve/roles"
	"github.com/talos-agent/talos-agent/internal/lab/world"
	"github.com/talos-agent/talos-agent/internal/pattern"
)

// The methods of this file are what a person with root's password does at the
// console, outside the API and its privileges: they set a scene, and they get
// in the agent's way.

// Foreign describes a VM that somebody else made.
type Foreign struct {
	Host    string            // "" means the first
	Pool    string            // "" means none
	Config  map[string]string // options in Proxmox VE's spelling
	Running bool
}

// CreateForeign makes a VM as another person would, on whatever VMID it is.
func (s *Server) CreateForeign(vmid int, f Foreign) error {
	h := s.hosts[0]
	if f.Host != "" {
		h = s.host(f.Host)
	}
	if h == nil {
		return fmt.Errorf("create vm %d: no host %q", vmid, f.Host)
	}
	values := map[string]string{}
	maps.Copy(values, f.Config)
	for k, v := range map[string]string{"boot": options.DefaultBoot(values), "smbios1": "uuid=" + newUUID(), "vmgenid": newUUID()} {
		values[k] = cmp.Or(values[k], v)
	}
	s.mu.Lock()
	if s.vms[vmid] != nil {
		s.mu.Unlock()
		return fmt.Errorf("create vm %d: it exists", vmid)
	}
	v := &vm{id: vmid, host: h, maker: rootUser, conf: newConfig(values)}
	s.vms[vmid] = v
	if f.Pool != "" {
		s.makePool(f.Pool)
		s.joinPool(vmid, f.Pool)
	}
	s.mu.Unlock()
	s.world.Report(strconv.Itoa(vmid), "somebody creates vm %d (%s)", vmid, values["name"])
	if !f.Running {
		return nil
	}
	return s.Start(vmid)
}

// makePool makes a pool if there is none of that name. s.mu is held.
func (s *Server) makePool(name string) {
	if s.pools[name] == nil {
		s.pools[name] = &pool{}
	}
}

// editVM changes a VM's configuration file.
func (s *Server) editVM(vmid int, what string, do func(*vm)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.vms[vmid]
	if v == nil {
		return fmt.Errorf("%s vm %d: there is none", what, vmid)
	}
	do(v)
	return nil
}

// Edit sets an option in a VM's configuration file, in Proxmox VE's spelling;
// "" removes it. Nothing is checked, as with a text editor.
func (s *Server) Edit(vmid int, key, value string) error {
	s.world.Report(strconv.Itoa(vmid), "somebody sets %s of vm %d to %q", key, vmid, value)
	return s.editVM(vmid, "edit", func(v *vm) {
		if value == "" {
			delete(v.conf.base, key)
			return
		}
		v.conf.base[key] = value
	})
}

// Lock sets a VM's configuration lock: backup, snapshot, migrate, ...
func (s *Server) Lock(vmid int, lock string) error { return s.Edit(vmid, "lock", lock) }

// Unlock is qm unlock.
func (s *Server) Unlock(vmid int) error { return s.Edit(vmid, "lock", "") }

// Migrate is qm migrate --online --with-local-disks: a VM is on another host from
// now on, its volumes on that host's storages of the same names, and runs on.
func (s *Server) Migrate(vmid int, to string) error {
	target := s.host(to)
	if target == nil {
		return fmt.Errorf("migrate vm %d: there is no host %s", vmid, to)
	}
	s.world.Report(strconv.Itoa(vmid), "somebody migrates vm %d to %s", vmid, to)
	return s.editVM(vmid, "migrate", func(v *vm) {
		for _, st := range v.host.storages {
			there := target.storage(st.name)
			for name, vol := range st.volumes {
				if vol.vmid == vmid && there != nil && there != st {
					delete(st.volumes, name)
					there.volumes[name] = vol
				}
			}
		}
		v.host = target
	})
}

// HoldFile keeps a VM's lock file, as a command at the console does while it
// runs, until release is called. It waits until it gets it.
func (s *Server) HoldFile(ctx context.Context, vmid int) (release func(), err error) {
	lock, err := s.acquireLock(ctx, vmid, nil)
	if err != nil {
		return nil, err
	}
	return func() { <-lock }, nil
}

// Start is qm start. It returns when the VM runs.
func (s *Server) Start(vmid int) error {
	return s.atConsole(vmid, "qmstart", func(t *task, v *vm) error { return s.startVM(t, v.host, v.id, world.Fault{}) })
}

// Suspend is qm suspend: its CPUs halt.
func (s *Server) Suspend(vmid int) error {
	return s.atConsole(vmid, "qmpause", func(t *task, v *vm) error { return s.setPaused(t, v.host, vmid, true) })
}

// Pause halts the CPUs of a VM for an I/O error, as when its storage is full, or ends that.
// There is no task.
func (s *Server) Pause(vmid int, paused bool) error {
	s.mu.Lock()
	v := s.vms[vmid]
	if v == nil || !v.running {
		s.mu.Unlock()
		return fmt.Errorf("VM %d does not run", vmid)
	}
	v.paused, v.ioError = paused, paused
	s.mu.Unlock()
	if p, ok := s.guests.(world.Pauser); ok {
		p.Pause(vmid, paused)
	}
	return nil
}

// Stop is qm stop. It returns when the VM is off.
func (s *Server) Stop(vmid int) error {
	return s.atConsole(vmid, "qmstop", func(_ *task, v *vm) error {
		s.haltVM(v, true)
		return nil
	})
}

// Remove stops a VM and destroys it with its disks, protected or not: with those
// that its config names. One that is locked by its creation names none.
func (s *Server) Remove(vmid int) error { return s.remove(vmid, false) }

// RemoveAll is Remove with every volume that has the VM's number.
func (s *Server) RemoveAll(vmid int) error { return s.remove(vmid, true) }

func (s *Server) remove(vmid int, unreferenced bool) error {
	return s.atConsole(vmid, "qmdestroy", func(_ *task, v *vm) error {
		s.haltVM(v, true)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.eraseVM(v, unreferenced)
		return nil
	})
}

// atConsole runs a command of root's as a task and waits for it.
func (s *Server) atConsole(vmid int, kind string, do func(*task, *vm) error) error {
	s.mu.Lock()
	v := s.vms[vmid]
	s.mu.Unlock()
	if v == nil {
		return fmt.Errorf("%s vm %d: there is none", kind, vmid)
	}
	s.world.Report(strconv.Itoa(vmid), "somebody runs %s %d at the console", kind, vmid)
	name, err := s.forkTask(identity{id: rootUser, user: rootUser}, v.host, kind, strconv.Itoa(vmid), world.Fault{}, func(t *task) error { return do(t, v) })
	if err != nil {
		return err
	}
	return s.WaitTask(s.ctx, name)
}

// WaitTask waits until a task has ended and returns its error, if any.
func (s *Server) WaitTask(ctx context.Context, upid string) error {
	t := s.taskNamed(upid)
	if t == nil {
		return fmt.Errorf("wait for task %s: there is none", upid)
	}
	select {
	case <-t.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.exit != "OK" && !strings.HasPrefix(t.exit, "WARNINGS") {
		return fmt.Errorf("task %s: %s", upid, t.exit)
	}
	return nil
}

func (s *Server) taskNamed(upid string) *task {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byUPID[upid]
}

// KillTask is kill -9 of a worker: it leaves behind whatever it was at,
// configuration lock and half a disk included.
func (s *Server) KillTask(upid string) error {
	t := s.taskNamed(upid)
	if t == nil {
		return fmt.Errorf("kill task %s: there is none", upid)
	}
	t.stop(errKilled)
	<-t.done
	return nil
}

// AddFile puts a file onto a storage of a host as scp would, "import/x.qcow2".
// bytes is its size as a guest sees it; image is what it holds, if anything.
func (s *Server) AddFile(host, storageName, name string, bytes int64, image world.Image) error {
	h := s.host(host)
	if h == nil || h.storage(storageName) == nil {
		return fmt.Errorf("add %s: no storage %q on host %q", name, storageName, host)
	}
	st := h.storage(storageName)
	s.keepFile(st, name, received{bytes: bytes})
	s.mu.Lock()
	defer s.mu.Unlock()
	v := st.volumes[name]
	v.image = image
	if m := diskName.FindStringSubmatch(name); m != nil {
		// Proxmox VE knows whose disk it is by its name alone.
		v.content = "images"
		v.vmid, _ = strconv.Atoi(m[1]) // digits
	}
	return nil
}

var diskName = pattern.New(`^(?:\d+/)?(?:vm|base)-(\d{1,9})-`)

// SetPassword gives a user a password, which root needs for what no token may
// do. The user is made if there is none.
func (s *Server) SetPassword(userid, password string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.userNamed(userid).password = password
}

// userNamed returns a user, making it when it is new. s.mu is held.
func (s *Server) userNamed(id string) *user {
	if s.users[id] == nil {
		s.users[id] = &user{id: id, enabled: true, tokens: map[string]*token{}}
	}
	return s.users[id]
}

// Token makes an API token and its user, or a new secret for it, and returns
// what goes behind "Authorization: PVEAPIToken=": USER@REALM!NAME=SECRET.
func (s *Server) Token(userid, name string, privsep bool) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := &token{secret: newUUID(), privsep: privsep}
	s.userNamed(userid).tokens[name] = t
	s.granted = nil
	return userid + "!" + name + "=" + t.secret
}

// AdminToken makes a token of root's with all privileges, root@pam!admin.
func (s *Server) AdminToken() string { return s.Token(rootUser, "admin", false) }

// Grant gives a user, or a token when the name has a "!", a role at a path,
// with everything below it.
func (s *Server) Grant(ugid, roleName, path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kind := "user"
	if strings.Contains(ugid, "!") {
		kind = "token"
	}
	s.setACL(acl{path: path, ugid: ugid, kind: kind, role: roleName, propagate: true}, false)
}

// Role makes a role, or gives it other privileges.
func (s *Server) Role(name string, privileges ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.roles[name] = &role{privileges: setOf(privileges...)}
	s.granted = nil
}

// AgentScope is what the agent's token is let at.
type AgentScope struct {
	Pool     string   // its VMs; made if there is none
	Storages []string // disks, and images to upload
	Bridges  []string
	Mappings []string // of devices: pci/gpu
	// DeleteImages also lets it remove images from the storages.
	DeleteImages bool
	// SeeQuorum also lets it read /cluster/status.
	SeeQuorum bool
	// HA also lets it read and change what the manager of high availability is asked for.
	HA bool
}

// AgentToken sets up pool, roles, user, token and access control the way the
// documentation asks of an administrator: a token with separated privileges,
// each given to the token and to its user, that can touch the VMs of one pool
// only. It returns what goes behind "Authorization: PVEAPIToken=".
func (s *Server) AgentToken(scope AgentScope) string {
	userid, name, _ := strings.Cut(s.agent, "!")
	store := []string{"Datastore.AllocateSpace", "Datastore.AllocateTemplate", "Datastore.Audit"}
	if scope.DeleteImages {
		store = append(store, "Datastore.Allocate")
	}
	vmRole := append(strings.Split(roles.VMConfigPrivileges, ","), "VM.Allocate", "VM.Audit", "VM.PowerMgmt", "VM.Console", "Pool.Audit", s.flavour.agentPrivilege())
	s.Role("TalosAgentVM", vmRole...)
	s.Role("TalosAgentStore", store...)
	s.Role("TalosAgentNet", "SDN.Use")
	s.Role("TalosAgentHost", "Sys.Audit")
	if scope.HA {
		s.Role("TalosAgentHA", "Sys.Audit", "Sys.Console")
	}
	secret := s.Token(userid, name, true)
	s.mu.Lock()
	s.makePool(scope.Pool)
	s.mu.Unlock()
	for _, who := range []string{userid, s.agent} {
		s.Grant(who, "TalosAgentVM", "/pool/"+scope.Pool)
		for _, st := range scope.Storages {
			s.Grant(who, "TalosAgentStore", "/storage/"+st)
		}
		for _, b := range scope.Bridges {
			s.Grant(who, "TalosAgentNet", "/sdn/zones/localnetwork/"+b)
		}
		for _, m := range scope.Mappings {
			s.Grant(who, "PVEMappingUser", "/mapping/"+m)
		}
		for _, h := range s.hosts {
			s.Grant(who, "TalosAgentHost", "/nodes/"+h.name)
		}
		for role, given := range map[string]bool{"TalosAgentHost": scope.SeeQuorum, "TalosAgentHA": scope.HA} {
			if given {
				s.mu.Lock()
				kind := map[bool]string{true: "token", false: "user"}[who == s.agent]
				s.setACL(acl{path: "/", ugid: who, kind: kind, role: role}, false)
				s.mu.Unlock()
			}
		}
	}
	return secret
}
