package pve

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/talos-agent/talos-agent/internal/lab/pve/accesslog"
	"github.com/talos-agent/talos-agent/internal/lab/pve/copying"
	"github.com/talos-agent/talos-agent/internal/lab/pve/ha"
	"github.com/talos-agent/talos-agent/internal/lab/pve/history"
	"github.com/talos-agent/talos-agent/internal/lab/pve/schema"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// Config sizes a simulated Proxmox VE. Only World is required.
type Config struct {
	World *world.World
	// Addr is the host:port the API listens on; "" means 127.0.0.1:8006.
	Addr string
	// Hosts are the machines of the cluster; none means one, pve1, with the
	// storages and bridges of Host's zero value. The API answers for all of
	// them at Addr, as any member of a Proxmox VE cluster does: the one whose
	// name is the request's host, else the first.
	Hosts []Host
	// Flavour is the version that is simulated: "9.2" (the default) or "8.4".
	Flavour string
	// Guests simulates the operating systems; nil means machines that run and
	// react to nothing. It may also implement GuestAgent.
	Guests world.Guests
	// Agent is the agent's token, "" means talos-agent@pve!pve1. The deeds of
	// every token of its user are held against the rules: it must not touch what
	// it did not make, nor make anything twice.
	Agent string
}

// Host is one Proxmox VE machine. Zero fields take the defaults named.
type Host struct {
	Name        string    // pve1
	Cores       int       // 16
	MemoryBytes int64     // 64 GiB
	Storages    []Storage // local (a directory for images to import) and local-lvm (thin volumes for disks)
	Bridges     []string  // vmbr0, vmbr1
	// Portless bridges have no network card: VLAN tags do not work on them, and
	// a VM that has one does not start.
	Portless  bool
	MTU       int            // of its bridges; 0: 1500
	AccessLog *accesslog.Log // of its pveproxy; nil: none. Whoever made it closes it
}

// Storage is a storage of one host.
type Storage struct {
	Name       string
	Type       string   // dir (the default) or lvmthin
	Content    []string // images, rootdir, import, iso, vztmpl, snippets, backup
	TotalBytes int64    // 1 TiB
	UsedBytes  int64    // by others
	Path       string   // of a directory; /var/lib/vz for local, /var/lib/<name> else
	// Shared storages of one name are one storage on all hosts.
	Shared bool
}

// GuestAgent is what Guests may implement to answer for the QEMU guest agent
// inside a guest. The command is spelt as in the API's path,
// "network-get-interfaces". It returns false when no agent answers.
type GuestAgent interface {
	GuestAgent(vmid int, command string) (result any, ok bool)
}

// statisticsEvery is how often pvestatd refreshes what /cluster/resources shows.
const statisticsEvery = 10 * time.Second

// Server is a running simulated Proxmox VE.
type Server struct {
	ha.Manager

	world   *world.World
	guests  world.Guests
	flavour flavour
	schema  map[string]*schema.Method
	routes  []route
	agent   string
	url     string
	log     *slog.Logger
	cert    atomic.Pointer[tls.Certificate]
	ahead   atomic.Int64 // of its clock, in nanoseconds

	noQuorum atomic.Bool // see LoseQuorum

	http   *http.Server
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup // everything that runs

	// mu guards everything below. It is never held while time passes or while
	// Guests is called.
	mu        sync.Mutex
	closed    bool
	hosts     []*host
	vms       map[int]*vm
	pools     map[string]*pool
	users     map[string]*user
	roles     map[string]*role
	acls      []acl
	granted   map[string]rights // what privileges found, until something changes
	member    map[int]string    // VMID -> pool
	tickets   map[string]ticket
	tasks     []*task // oldest first
	byUPID    map[string]*task
	flocks    map[int]copying.Lock
	nextPID   int
	boot      time.Time
	uploads   map[string]int // destination -> uploads of the agent in flight
	backups   []BackupJob
	mappings  mappings
	called    string                // another version than the flavour's
	terminals map[int]*terminal     // by port
	readers   map[int]*terminal     // VMID -> who reads its serial port
	reads     map[readKey]time.Time // when an agent last saw that it may act on a VMID
}

// host is one member of the cluster.
type host struct {
	name        string
	id          int
	cores       int
	memory      int64
	bridges     []string
	portless    bool
	mtu         int
	accessLog   *accesslog.Log
	changed     map[string]Bridge // bridges that are not as they were
	storages    []*storage
	fingerprint string
	pressure    history.Pressure
}

// New starts a simulated Proxmox VE. Close it when done; the world's Close
// does not do it.
func New(c Config) (*Server, error) {
	if c.World == nil {
		return nil, errors.New("config: World is missing")
	}
	f, err := flavourOf(c.Flavour)
	if err != nil {
		return nil, fmt.Errorf("config: Flavour: %w", err)
	}
	methods, err := schema.Load(f.name)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	ctx, cancel := context.WithCancel(c.World.Context())
	s := &Server{
		world: c.World, guests: c.Guests, flavour: f, schema: methods, routes: splitRoutes(methods),
		agent: cmp.Or(c.Agent, defaultAgent), log: c.World.Log,
		ctx: ctx, cancel: cancel,
		vms: map[int]*vm{}, pools: map[string]*pool{}, member: map[int]string{}, byUPID: map[string]*task{}, users: map[string]*user{}, roles: f.builtinRoles(),
		tickets: map[string]ticket{}, flocks: map[int]copying.Lock{}, uploads: map[string]int{},
		reads: map[readKey]time.Time{}, terminals: map[int]*terminal{}, readers: map[int]*terminal{},
		nextPID: 1000, boot: now.Add(-time.Hour),
	}
	if s.guests == nil {
		s.guests = inert{}
	}
	s.users[rootUser] = &user{id: rootUser, enabled: true, tokens: map[string]*token{}}
	if err := s.addHosts(c.Hosts); err != nil {
		cancel()
		return nil, err
	}
	if err := s.listenAPI(cmp.Or(c.Addr, "127.0.0.1:8006")); err != nil {
		cancel()
		return nil, err
	}
	s.work.Go(s.gatherStatistics)
	return s, nil
}

func (s *Server) addHosts(hosts []Host) error {
	if len(hosts) == 0 {
		hosts = []Host{{}}
	}
	shared := map[string]*storage{}
	for i, h := range hosts {
		h = h.withDefaults(i)
		if slices.ContainsFunc(s.hosts, func(o *host) bool { return o.name == h.Name }) {
			return fmt.Errorf("config: Hosts: %q is there twice", h.Name)
		}
		m := &host{name: h.Name, id: i + 1, cores: h.Cores, memory: h.MemoryBytes, bridges: h.Bridges, portless: h.Portless, mtu: h.MTU, accessLog: h.AccessLog, pressure: history.Usual}
		for _, st := range h.Storages {
			if st.Name == "" || st.Type != "" && st.Type != "dir" && st.Type != "lvmthin" {
				return fmt.Errorf("config: Hosts: %s: storage %q has type %q: it needs a name, and the lab knows dir and lvmthin", h.Name, st.Name, st.Type)
			}
			one := shared[st.Name]
			if one == nil {
				one = newStorage(h.Name, st)
				if st.Shared {
					shared[st.Name] = one
				}
			}
			m.storages = append(m.storages, one)
		}
		s.hosts = append(s.hosts, m)
	}
	return nil
}

func (h Host) withDefaults(i int) Host {
	h.Name = cmp.Or(h.Name, fmt.Sprintf("pve%d", i+1))
	h.Cores = cmp.Or(h.Cores, 16)
	h.MemoryBytes = cmp.Or(h.MemoryBytes, 64<<30)
	if h.Bridges == nil {
		h.Bridges = []string{"vmbr0", "vmbr1"}
	}
	if h.Storages == nil {
		h.Storages = InstalledStorages()
		h.Storages[0].Content = []string{"import", "iso", "vztmpl", "snippets", "backup"}
	}
	return h
}

// InstalledStorages are the storages as the installer of Proxmox VE makes them:
// none of them takes images to import.
func InstalledStorages() []Storage {
	return []Storage{
		{Name: "local", Content: []string{"iso", "vztmpl", "backup"}},
		{Name: "local-lvm", Type: "lvmthin", Content: []string{"rootdir", "images"}},
	}
}

// listenAPI opens the API. Proxmox VE speaks HTTP/1.1 only.
func (s *Server) listenAPI(addr string) error {
	hostname, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("config: Addr: %w", err)
	}
	names := []string{hostname, "127.0.0.1", "localhost"}
	for _, h := range s.hosts {
		names = append(names, h.name)
	}
	cert, err := s.world.PKI.Server(names...)
	if err != nil {
		return fmt.Errorf("make certificate for %s: %w", addr, err)
	}
	for _, h := range s.hosts {
		h.fingerprint = hashCertificate(cert.Certificate[0])
	}
	s.cert.Store(&cert)
	l, err := s.world.Net.Listen(addr)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", addr, err)
	}
	s.url = "https://" + l.Addr().String()
	s.http = &http.Server{
		Handler:      http.HandlerFunc(s.takeRequest),
		TLSConfig:    &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.cert.Load(), nil }, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}},
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){},
		BaseContext:  func(net.Listener) context.Context { return s.ctx },
		ErrorLog:     log.New(debugWriter{s.log}, "", 0),
	}
	s.work.Go(func() {
		if err := s.http.ServeTLS(l, "", ""); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("the simulated Proxmox VE failed", "err", err)
		}
	})
	return nil
}

// debugWriter sends what net/http complains about (clients that vanish, which
// the lab brings about on purpose) to the debug log.
type debugWriter struct{ log *slog.Logger }

func (d debugWriter) Write(p []byte) (int, error) {
	d.log.Debug("http server", "text", string(p))
	return len(p), nil
}

// URL is where the API answers, without the path /api2/json.
func (s *Server) URL() string { return s.url }

// Close stops answering, breaks off every task and waits until all is quiet.
// The guests are not notified: whoever simulates them is closed by its owner.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	if err := s.http.Close(); err != nil {
		s.log.Debug("close the simulated Proxmox VE", "err", err)
	}
	s.work.Wait()
}

// beginWork counts something that Close must wait for. It returns false when the
// server is already closing; otherwise the caller calls s.work.Done.
func (s *Server) beginWork() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.work.Add(1)
	return true
}

// host returns the member of that name; nil when there is none.
func (s *Server) host(name string) *host {
	for _, h := range s.hosts {
		if h.name == name || name == "localhost" {
			return h
		}
	}
	return nil
}

// askedHost is the member that answers a request.
func (s *Server) askedHost(r *http.Request) *host {
	name, _, _ := strings.Cut(r.Host, ":")
	if i := slices.IndexFunc(s.hosts, func(h *host) bool { return h.name == name }); i >= 0 {
		return s.hosts[i]
	}
	return s.hosts[0]
}

// inert are guests that run and react to nothing.
type inert struct{}

func (inert) PowerOn(world.Guest)       {}
func (inert) PowerOff(int)              {}
func (inert) Shutdown(int, func()) bool { return false }
