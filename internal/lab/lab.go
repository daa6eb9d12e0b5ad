package lab

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/talos-agent/talos-agent/internal/lab/charts"
	"github.com/talos-agent/talos-agent/internal/lab/dhcp"
	"github.com/talos-agent/talos-agent/internal/lab/factory"
	"github.com/talos-agent/talos-agent/internal/lab/forge"
	"github.com/talos-agent/talos-agent/internal/lab/gitserver"
	"github.com/talos-agent/talos-agent/internal/lab/httpservice"
	"github.com/talos-agent/talos-agent/internal/lab/kube"
	"github.com/talos-agent/talos-agent/internal/lab/pve"
	"github.com/talos-agent/talos-agent/internal/lab/talos"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// Config sizes a lab. The zero value is one host with Proxmox VE 9.2 on a
// network in memory, at natural speed.
type Config struct {
	Speed   float64
	Latency world.Latencies
	Log     *slog.Logger
	// Prefix puts the lab on loopback, its services at the first addresses of
	// this /24; zero keeps it in memory.
	Prefix netip.Prefix
	// Flavour is the version of Proxmox VE: "9.2" (default) or "8.4".
	Flavour string
	Hosts   []pve.Host
	// Pool, Storages and Bridges are what the agent's token is let at; empty:
	// pool talos, storages local and local-lvm, bridges vmbr0 and vmbr1.
	Pool     string
	Storages []string
	Bridges  []string
	// Mappings are resource mappings that the agent's token may use, by their path ("pci/gpu"), with a host for each device.
	Mappings map[string][]string
	// HA lets the agent's token at the HA manager.
	HA bool
	// Reservations are the DHCP server's, by lower-case MAC.
	Reservations map[string]netip.Prefix
	// Range is the first address that the DHCP server gives to whom it has no reservation for, with the
	// length of its network; zero: it gives them none.
	Range netip.Prefix
	// MissingExtensions names official extensions that a version of Talos (the key) lacks at the Image Factory.
	MissingExtensions map[string][]string
	// Forge is the kind of forge; empty: GitHub.
	Forge forge.Kind
	// GitDir keeps the repository on disk, so that real git can push to it;
	// empty: in memory.
	GitDir string
	// Kubernetes opens another Kubernetes than the simulated one; Kube is nil
	// then. Whoever made it closes it.
	Kubernetes func(*world.World) world.Kubernetes
	// Bare is a host as the installer of Proxmox VE leaves it: nothing is there
	// for the agent, no pool, role, user or token, and no storage takes images
	// to import. It also opens an ssh server for the repository, which lets in
	// whoever DeployKeys knows.
	Bare       bool
	DeployKeys func(ssh.PublicKey) bool
}

// The one repository of a lab, and the tokens of its services.
const (
	Repository = "org/infra"
	GitToken   = "lab-git-token"
	ForgeToken = "lab-forge-token"
)

// Lab is a running lab. Close it when done.
type Lab struct {
	World    *world.World
	PVE      *pve.Server
	Talos    *talos.Fleet
	DHCP     *dhcp.Server
	Kube     *kube.Clusters // nil: another Kubernetes is used
	Factory  *factory.Factory
	Charts   *charts.Repository
	Registry *charts.Registry
	Git      *gitserver.Server
	SSH      *gitserver.SSH // of a bare host; else nil
	Repo     *gitserver.Repo
	Forge    *forge.Forge

	// Token is the agent's Proxmox VE token, "user@realm!name=secret"; "" on a
	// bare host.
	Token string

	closers []func()
}

// Start opens every service.
func Start(c Config) (*Lab, error) {
	if c.Pool == "" {
		c.Pool = "talos"
	}
	if len(c.Storages) == 0 {
		c.Storages = []string{"local", "local-lvm"}
	}
	if len(c.Bridges) == 0 {
		c.Bridges = []string{"vmbr0", "vmbr1"}
	}
	if c.Forge == "" {
		c.Forge = forge.GitHub
	}
	var network world.Network = world.NewMemory()
	if c.Prefix.IsValid() {
		network = world.Loopback{}
	}
	w, err := world.New(world.Config{Speed: c.Speed, Latency: c.Latency, Network: network, Log: c.Log})
	if err != nil {
		return nil, fmt.Errorf("start lab: %w", err)
	}
	l := &Lab{World: w}
	if err := l.openServices(c); err != nil {
		l.Close()
		return nil, fmt.Errorf("start lab: %w", err)
	}
	return l, nil
}

// openServices opens the services in the order in which they need each other.
func (l *Lab) openServices(c Config) error {
	l.onClose(l.World.Close)
	for _, open := range []func(Config) error{l.openHost, l.openSources, l.openRepository} {
		if err := open(c); err != nil {
			return err
		}
	}
	return nil
}

// openHost opens Proxmox VE and what runs in its guests.
func (l *Lab) openHost(c Config) error {
	var kubernetes world.Kubernetes
	if c.Kubernetes != nil {
		kubernetes = c.Kubernetes(l.World)
	} else {
		l.Kube = kube.New(kube.Config{World: l.World})
		l.onClose(l.Kube.Close)
		kubernetes = nodes{l.Kube}
	}
	var err error
	l.DHCP = dhcp.New(dhcp.Config{Reservations: c.Reservations, From: c.Range})
	if l.Talos, err = talos.New(talos.Config{World: l.World, Kubernetes: kubernetes, Lease: l.DHCP.Lease, Off: func(vmid int) {
		// A guest that switched itself off is off for Proxmox VE too.
		if err := l.PVE.Stop(vmid); err != nil {
			l.World.Log.Warn("a guest switched itself off, and its host did not follow", "vmid", vmid, "err", err)
		}
	}}); err != nil {
		return err
	}
	l.onClose(l.Talos.Close)
	if c.Bare && len(c.Hosts) == 0 {
		c.Hosts = []pve.Host{{Storages: pve.InstalledStorages()}}
	}
	if l.PVE, err = pve.New(pve.Config{World: l.World, Addr: c.serviceAddr("pve", 2, 8006), Hosts: c.Hosts, Flavour: c.Flavour, Guests: l.Talos}); err != nil {
		return err
	}
	l.onClose(l.PVE.Close)
	for path, hosts := range c.Mappings {
		kind, name, _ := strings.Cut(path, "/")
		l.PVE.Map(kind, name, hosts...)
	}
	if !c.Bare {
		l.Token = l.PVE.AgentToken(pve.AgentScope{Pool: c.Pool, Storages: c.Storages, Bridges: c.Bridges, Mappings: slices.Sorted(maps.Keys(c.Mappings)), SeeQuorum: true, HA: c.HA})
	}
	return nil
}

// openSources opens where images and charts come from.
func (l *Lab) openSources(c Config) (err error) {
	if l.Factory, err = factory.New(factory.Config{Service: l.service(c, "factory", 3), Missing: c.MissingExtensions}); err != nil {
		return err
	}
	l.onClose(ignoreError(l.Factory.Close))
	if l.Charts, err = charts.NewRepository(charts.RepositoryConfig{Service: l.service(c, "charts", 4)}); err != nil {
		return err
	}
	l.onClose(ignoreError(l.Charts.Close))
	if l.Registry, err = charts.NewRegistry(charts.RegistryConfig{Service: l.service(c, "registry", 5)}); err != nil {
		return err
	}
	l.onClose(ignoreError(l.Registry.Close))
	return nil
}

// openRepository opens the user's repository, and the forge it is at.
func (l *Lab) openRepository(c Config) (err error) {
	if l.Git, err = gitserver.New(gitserver.Config{Service: l.service(c, "git", 6), Dir: c.GitDir, Token: GitToken}); err != nil {
		return err
	}
	l.onClose(ignoreError(l.Git.Close))
	if l.Repo, err = l.Git.Repository(Repository); err != nil {
		return err
	}
	if c.Bare {
		if l.SSH, err = gitserver.NewSSH(gitserver.SSHConfig{World: l.World, Addr: c.serviceAddr("git", 6, 2222), Server: l.Git, Admits: c.DeployKeys}); err != nil {
			return err
		}
		l.onClose(ignoreError(l.SSH.Close))
	}
	if l.Forge, err = forge.New(forge.Config{Service: l.service(c, "forge", 7), Kind: c.Forge, Repository: Repository, Token: ForgeToken}); err != nil {
		return err
	}
	l.onClose(ignoreError(l.Forge.Close))
	l.Repo.OnPush(func(ref, before, after string) { l.Forge.Pushed(Repository, l.Repo.URL(), ref, before, after) })
	return nil
}

// service is what a service of the lab is opened with.
func (l *Lab) service(c Config, name string, last byte) httpservice.Config {
	return httpservice.Config{World: l.World, Addr: c.serviceAddr(name, last, 8443)}
}

// serviceAddr is where a service listens: a name in memory, an address on loopback.
func (c Config) serviceAddr(name string, last byte, port int) string {
	host := name + ".lab"
	if c.Prefix.IsValid() {
		a := c.Prefix.Masked().Addr().As4()
		a[3] = last
		host = netip.AddrFrom4(a).String()
	}
	return net.JoinHostPort(host, fmt.Sprint(port))
}

func (l *Lab) onClose(f func()) { l.closers = append(l.closers, f) }

// ignoreError drops an error that nobody could act on: the lab is going away.
func ignoreError(f func() error) func() { return func() { _ = f() } }

// Close closes every service, the last opened first.
func (l *Lab) Close() {
	for i := len(l.closers) - 1; i >= 0; i-- {
		l.closers[i]()
	}
	l.closers = nil
}

// CA is the authority, as PEM, that the certificates of all services but Talos
// and Kubernetes are signed by.
func (l *Lab) CA() []byte { return l.World.PKI.PEM }

// DialContext dials into the lab's network.
func (l *Lab) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	return l.World.Net.DialContext(ctx, network, addr)
}

// Broken returns the rules that were broken so far as an error, nil if none was.
func (l *Lab) Broken() error {
	var errs []error
	for _, v := range l.World.Violations() {
		errs = append(errs, errors.New(v))
	}
	return errors.Join(errs...)
}
