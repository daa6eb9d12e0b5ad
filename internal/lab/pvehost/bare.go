package pvehost

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/pve"
	"github.com/talos-agent/talos-agent/internal/lab/pvesh"
)

// rootPassword is what root@pam logs in with at a bare lab.
const rootPassword = "lab-root-password"

// Bare is a lab on loopback whose Proxmox VE has nothing for the agent yet.
type Bare struct {
	*lab.Lab
	Dir    string // the host's files lie below it: etc/pve, usr/bin/pvesh
	Access pvesh.Access
}

// StartBare starts one and writes what a fresh host has into c.Dir. program is
// what its pvesh runs. The host is the first of the cluster of Proxmox VE that
// hosts names; none means pve1, by itself.
func StartBare(c Config, program string, hosts ...string) (*Bare, error) {
	l, dir, err := c.prepare()
	if err != nil {
		return nil, err
	}
	keys := filepath.Join(dir, "authorized_keys")
	l.Bare, l.DeployKeys = true, func(key ssh.PublicKey) bool { return isListed(keys, key) }
	for _, name := range hosts {
		l.Hosts = append(l.Hosts, pve.Host{Name: name, Storages: pve.InstalledStorages()})
	}
	started, err := lab.Start(l)
	if err != nil {
		return nil, err
	}
	h := &Bare{Lab: started, Dir: dir, Access: pvesh.Access{URL: started.PVE.URL(), CA: string(started.CA()), Password: rootPassword}}
	if err := h.writeFiles(program); err != nil {
		started.Close()
		return nil, err
	}
	return h, nil
}

// Join is another host of the same cluster of Proxmox VE, with its files in dir.
func (h *Bare) Join(name, dir, program string) (*Bare, error) {
	other := &Bare{Lab: h.Lab, Dir: dir, Access: h.Access}
	other.Access.Host = name
	return other, other.writeFiles(program)
}

// isListed reports whether a file in the format of authorized_keys has a key. It
// is read at each login, as a forge asks its database.
func isListed(file string, key ssh.PublicKey) bool {
	rest, err := os.ReadFile(file)
	for err == nil && len(rest) > 0 {
		var one ssh.PublicKey
		if one, _, _, rest, err = ssh.ParseAuthorizedKey(rest); err == nil && bytes.Equal(one.Marshal(), key.Marshal()) {
			return true
		}
	}
	return false
}

func (h *Bare) writeFiles(program string) error {
	h.PVE.SetPassword("root@pam", rootPassword)
	etc := filepath.Join(h.Dir, "etc", "pve")
	if err := os.MkdirAll(etc, 0o755); err != nil {
		return fmt.Errorf("write the host's files: %w", err)
	}
	errs := []error{pvesh.Install(h.Dir, program, h.Access)}
	for name, text := range map[string]string{
		filepath.Join(etc, "pve-root-ca.pem"):   string(h.CA()),
		filepath.Join(h.Dir, "ca.pem"):          string(h.CA()),
		filepath.Join(h.Dir, "authorized_keys"): "",
		filepath.Join(h.Dir, "known_hosts"):     string(h.SSH.KnownHosts()),
		filepath.Join(h.Dir, "forge.token"):     lab.ForgeToken + "\n",
	} {
		errs = append(errs, os.WriteFile(name, []byte(text), 0o600))
	}
	return errors.Join(errs...)
}

// InitFlags are what init needs to know of this host, besides what it finds
// out by itself and what it asks.
func (h *Bare) InitFlags() []string {
	file := func(name string) string { return filepath.Join(h.Dir, name) }
	return []string{"--proxmox-url", h.PVE.URL(),
		"--repository", h.SSH.URL(lab.Repository), "--known-hosts-file", file("known_hosts"),
		"--forge", "github", "--forge-url", h.Forge.URL(), "--forge-repository", lab.Repository, "--forge-token-file", file("forge.token"),
		"--ca-file", file("ca.pem"), "--mirror-factory", h.Factory.URL(), "--mirror-charts", "https://helm.cilium.io=" + h.Charts.URL()}
}

// Instructions describe what is there and how to go on.
func (h *Bare) Instructions() string {
	words := []string{"talos-agent", "init", "--root", h.Dir}
	for _, f := range h.InitFlags() {
		words = append(words, pvesh.QuoteWord(f))
	}
	return fmt.Sprintf(`a simulated Proxmox VE host is up, as its installer leaves it
  Proxmox VE   %s
  repository   %s  (branch main)
  deploy keys  %s
  forge        %s

set it up:
  %s
push a repository:
  cd REPOSITORY && GIT_SSL_CAINFO=%s git -c credential.helper='!printf "password=%s\n"; true' push %s HEAD:main
run the agent, with its keys as systemd would hand them to it:
  mkdir -m 0700 %[9]s/keys && for f in %[9]s/etc/credstore/talos-agent.*; do cp $f %[9]s/keys/${f##*/talos-agent.}; done
  CREDENTIALS_DIRECTORY=%[9]s/keys talos-agent run --config %[9]s/etc/talos-agent/config.yaml
look, in another terminal:
  talos-agent --socket %[9]s/run/talos-agent/agent.sock status --watch
  talos-agent doctor --root %[9]s

`, h.PVE.URL(), h.SSH.URL(lab.Repository), filepath.Join(h.Dir, "authorized_keys"), h.Forge.URL(),
		strings.Join(words, " "), filepath.Join(h.Dir, "ca.pem"), lab.GitToken, strings.Replace(h.Repo.URL(), "https://", "https://git@", 1), pvesh.QuoteWord(h.Dir))
}
