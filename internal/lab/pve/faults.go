package pve

import (
	"crypto/tls"
	"fmt"
	"slices"
	"time"
)

// What an administrator can misconfigure on a host, or have otherwise than the
// agent would like it.

// Bridge is a bridge of a host.
type Bridge struct {
	Down      bool
	Address   string // with its prefix length; "" : none
	Ports     string // "" : none, and VLAN tags do not work unless it is aware
	VLANAware bool
	MTU       int // as it is written; 0: it is not, and the bridge takes that of its ports
	PortsMTU  int // the least one of its ports; 0: 1500
}

// BackupJob is a job of /cluster/backup, by the keys of jobs.cfg.
type BackupJob map[string]any

// bridge is how a bridge is: as it was changed, else as the installer leaves
// it. s.mu is held.
func (h *host) bridge(name string) Bridge {
	if b, ok := h.changed[name]; ok {
		return b
	}
	i := slices.Index(h.bridges, name)
	b := Bridge{Address: fmt.Sprintf("10.%d.0.1/24", 77+i), Ports: fmt.Sprintf("nic%d", i)}
	if i == 0 {
		b.Address = h.address() + "/24"
	}
	b.MTU = h.mtu
	if h.portless {
		b.Ports = ""
	}
	return b
}

// ChangeBridge changes a bridge of a host, or makes one.
func (s *Server) ChangeBridge(hostName, name string, b Bridge) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.host(hostName)
	if h.changed == nil {
		h.changed = map[string]Bridge{}
	}
	h.changed[name] = b
	if !slices.Contains(h.bridges, name) {
		h.bridges = append(h.bridges, name)
	}
}

// ChangeStorage changes what a storage of a host takes, whether it is there, and
// how much of it others use.
func (s *Server) ChangeStorage(hostName, name string, content []string, active bool, usedBytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.host(hostName).storage(name)
	st.content, st.inactive, st.used = content, !active, usedBytes
}

// Backup sets the backup jobs of the cluster.
func (s *Server) Backup(jobs ...BackupJob) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.backups = jobs
}

// Present has the API present another certificate from now on.
func (s *Server) Present(cert tls.Certificate) { s.cert.Store(&cert) }

// SetVersion has the API call itself another version, "7.4-3".
func (s *Server) SetVersion(version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.called = version
}

// SetClock has the host's clock run ahead by d, as far as the API shows it.
func (s *Server) SetClock(d time.Duration) { s.ahead.Store(int64(d)) }

// LoseQuorum has a cluster of several hosts lose its quorum, or get it back: without it
// /etc/pve takes no writes, and guests run on.
func (s *Server) LoseQuorum(lost bool) { s.noQuorum.Store(lost) }

// listBackups answers GET /cluster/backup.
func listBackups(c *call) (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	out := []row{}
	for _, job := range c.s.backups {
		out = append(out, row(job))
	}
	return out, nil
}
