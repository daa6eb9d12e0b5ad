package pve

import (
	"maps"
	"time"

	"github.com/talos-agent/talos-agent/internal/lab/pve/options"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// Power is what a VM does.
type Power string

// The powers of a VM.
const (
	Stopped Power = "stopped"
	Running Power = "running"
	Paused  Power = "paused"
)

// VMView is a VM as it is, whoever may see it. It is a copy.
type VMView struct {
	VMID    int
	Host    string
	Name    string
	Pool    string
	UUID    string // SMBIOS, lower case
	Maker   string // who created it: a user, or a token such as talos-agent@pve!pve1
	Power   Power
	Dead    bool // the lab keeps the guest from coming up until it is started again
	Lock    string
	Config  map[string]string // as GET config shows it, with what waits for the next stop
	Pending map[string]string // what waits
	Digest  string
	Disks   map[string]*world.Disk // by drive; shared with the guest, not copied
}

// VMs returns every VM, by VMID.
func (s *Server) VMs() []VMView {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []VMView{}
	for _, id := range sortedKeys(s.vms) {
		out = append(out, s.viewVM(s.vms[id]))
	}
	return out
}

// VM returns one VM; false when there is none.
func (s *Server) VM(vmid int) (VMView, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v := s.vms[vmid]; v != nil {
		return s.viewVM(v), true
	}
	return VMView{}, false
}

func (s *Server) viewVM(v *vm) VMView {
	out := VMView{
		VMID: v.id, Host: v.host.name, Name: v.name(), Pool: s.member[v.id], UUID: options.UUIDOf(v.conf.base), Maker: v.maker, Power: Stopped,
		Lock: v.conf.base["lock"], Config: v.conf.merged(), Pending: maps.Clone(v.conf.pending), Digest: v.conf.digest(), Disks: map[string]*world.Disk{},
	}
	switch {
	case v.paused:
		out.Power = Paused
	case v.running:
		out.Power, out.Dead = Running, v.dead
	}
	for _, k := range options.DriveKeys(v.conf.base) {
		if _, vol := v.host.volume(options.ParseDrive(v.conf.base[k])["file"]); vol != nil && vol.disk != nil {
			out.Disks[k] = vol.disk
		}
	}
	return out
}

// VolumeView is a file or a disk on a storage. It is a copy.
type VolumeView struct {
	Volid   string // local:import/x.qcow2
	Content string // import, iso, images, ...
	Bytes   int64  // as a guest sees it
	VMID    int    // of images; else 0
	SHA256  string // of an uploaded file
	Image   world.Image
}

// Volumes returns what lies on a storage of a host, by name; nothing when there
// is no such storage.
func (s *Server) Volumes(host, storageName string) []VolumeView {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []VolumeView{}
	h := s.host(host)
	if h == nil || h.storage(storageName) == nil {
		return out
	}
	st := h.storage(storageName)
	for _, name := range sortedKeys(st.volumes) {
		v := st.volumes[name]
		out = append(out, VolumeView{Volid: st.volid(v), Content: v.content, Bytes: v.bytes, VMID: v.vmid, SHA256: v.sha256, Image: v.heldImage()})
	}
	return out
}

// TaskView is a task. It is a copy.
type TaskView struct {
	UPID, Type, ID, User string
	Started, Ended       time.Time // Ended is zero while it runs
	Exit                 string    // OK, WARNINGS: n, or the error; "" while it runs
	Log                  []string
}

// Tasks returns every task so far, oldest first.
func (s *Server) Tasks() []TaskView {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []TaskView{}
	for _, t := range s.tasks {
		out = append(out, TaskView{
			UPID: t.name, Type: t.kind, ID: t.id, User: t.user, Started: time.Unix(t.start, 0), Ended: t.end, Exit: t.exit, Log: append([]string(nil), t.log...),
		})
	}
	return out
}
