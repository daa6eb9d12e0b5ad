package pvehost

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/talos-agent/talos-agent/internal/lab"
)

// Config describes which host is simulated.
type Config struct {
	Dir     string       // its files are written here
	Prefix  netip.Prefix // the lab's /24 of 127.0.0.0/8
	Flavour string       // the version of Proxmox VE: 9.2 or 8.4
	Speed   float64      // how many times faster than life
}

// prepare makes the host's folder, and what the lab is started with. It returns
// the folder's absolute path too.
func (c Config) prepare() (lab.Config, string, error) {
	dir, err := filepath.Abs(c.Dir)
	if err != nil {
		return lab.Config{}, "", err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return lab.Config{}, "", err
	}
	// The token is let at what the policy allows.
	return lab.Config{Speed: c.Speed, Prefix: c.Prefix, Flavour: c.Flavour, GitDir: filepath.Join(dir, "git"), Bridges: []string{"vmbr1"}}, dir, nil
}

// Host is a lab on loopback with the files of a host's administrator.
type Host struct {
	*lab.Lab
	Dir    string
	Config string // the agent's config file
	Prefix netip.Prefix
}

// Start starts a lab on loopback and writes the host's files into c.Dir: for an
// agent that opens secrets with ageKey and owns the named clusters, or all.
func Start(c Config, ageKey []byte, clusters []string) (*Host, error) {
	l, dir, err := c.prepare()
	if err != nil {
		return nil, err
	}
	started, err := lab.Start(l)
	if err != nil {
		return nil, err
	}
	config, err := WriteFiles(started, dir, ageKey, clusters)
	if err != nil {
		started.Close()
		return nil, err
	}
	return &Host{Lab: started, Dir: dir, Config: config, Prefix: c.Prefix.Masked()}, nil
}

// Remote is the repository's URL with the user that git sends the token for.
func (h *Host) Remote() string {
	return strings.Replace(h.Repo.URL(), "https://", "https://git@", 1)
}

// Socket is where the host's agent listens.
func (h *Host) Socket() string { return filepath.Join(h.Dir, "agent.sock") }

// Instructions describe what is there and how to go on.
func (h *Host) Instructions() string {
	return fmt.Sprintf(`a simulated Proxmox VE host is up
  Proxmox VE   %s
  repository   %s  (branch main)
  forge        %s

push a repository:
  cd REPOSITORY && GIT_SSL_CAINFO=%s git -c credential.helper='!printf "password=%s\n"; true' push %s HEAD:main
run the agent on it:
  talos-agent run --config %s
look at it:
  talos-agent status --socket %s
  talos-agent doctor --config %s

`, h.PVE.URL(), h.Repo.URL(), h.Forge.URL(), filepath.Join(h.Dir, "ca.pem"), lab.GitToken, h.Remote(), h.Config, h.Socket(), h.Config)
}
