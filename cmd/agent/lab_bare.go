package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/pve"
)

// labPassword is what root@pam logs in with at a bare lab.
const labPassword = "lab-root-password"

// bareHost is a lab on loopback whose Proxmox VE has nothing for the agent yet.
type bareHost struct {
	*lab.Lab
	dir  string // the host's files lie below it: etc/pve, usr/bin/pvesh
	door labDoor
}

// startBareLab starts one and writes what a fresh host has into dir. program is
// this program, which its pvesh runs. The host is the first of the cluster of
// Proxmox VE that hosts names; none means pve1, by itself.
func startBareLab(dir, program, prefix, flavour string, speed float64, hosts ...string) (*bareHost, error) {
	c, abs, err := labConfig(dir, prefix, flavour, speed)
	if err != nil {
		return nil, err
	}
	keys := filepath.Join(abs, "authorized_keys")
	c.Bare, c.DeployKeys = true, func(key ssh.PublicKey) bool { return listed(keys, key) }
	for _, name := range hosts {
		c.Hosts = append(c.Hosts, pve.Host{Name: name, Storages: pve.InstalledStorages()})
	}
	l, err := lab.Start(c)
	if err != nil {
		return nil, err
	}
	h := &bareHost{Lab: l, dir: abs, door: labDoor{URL: l.PVE.URL(), CA: string(l.CA()), Password: labPassword}}
	if err := h.writeFiles(program); err != nil {
		l.Close()
		return nil, err
	}
	return h, nil
}

// listed reports whether a file in the format of authorized_keys has a key. It
// is read at each login, as a forge asks its database.
func listed(file string, key ssh.PublicKey) bool {
	rest, err := os.ReadFile(file)
	for err == nil && len(rest) > 0 {
		var one ssh.PublicKey
		if one, _, _, rest, err = ssh.ParseAuthorizedKey(rest); err == nil && bytes.Equal(one.Marshal(), key.Marshal()) {
			return true
		}
	}
	return false
}

func (h *bareHost) writeFiles(program string) error {
	h.PVE.SetPassword("root@pam", labPassword)
	etc := filepath.Join(h.dir, "etc", "pve")
	if err := os.MkdirAll(etc, 0o755); err != nil {
		return fmt.Errorf("write the host's files: %w", err)
	}
	errs := []error{writePvesh(h.dir, program, h.door)}
	for name, text := range map[string]string{
		filepath.Join(etc, "pve-root-ca.pem"):   string(h.CA()),
		filepath.Join(h.dir, "ca.pem"):          string(h.CA()),
		filepath.Join(h.dir, "authorized_keys"): "",
		filepath.Join(h.dir, "known_hosts"):     string(h.SSH.KnownHosts()),
		filepath.Join(h.dir, "forge.token"):     lab.ForgeToken + "\n",
	} {
		errs = append(errs, os.WriteFile(name, []byte(text), 0o600))
	}
	return errors.Join(errs...)
}

// wizard.Flags are what init has to be told of this host, besides what it finds
// out by itself and what it asks.
func (h *bareHost) initFlags() []string {
	file := func(name string) string { return filepath.Join(h.dir, name) }
	return []string{"--proxmox-url", h.PVE.URL(),
		"--repository", h.SSH.URL(lab.Repository), "--known-hosts-file", file("known_hosts"),
		"--forge", "github", "--forge-url", h.Forge.URL(), "--forge-repository", lab.Repository, "--forge-token-file", file("forge.token"),
		"--ca-file", file("ca.pem"), "--mirror-factory", h.Factory.URL(), "--mirror-charts", "https://helm.cilium.io=" + h.Charts.URL()}
}

// instructions say what is there and how to go on.
func (h *bareHost) instructions() string {
	words := []string{"talos-agent", "init", "--root", h.dir}
	for _, f := range h.initFlags() {
		words = append(words, shellWord(f))
	}
	return fmt.Sprintf(`a make-believe Proxmox VE host is up, as its installer leaves it
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
  CREDENTIALS_DIRECTORY=%[9]s/keys talos-agent doctor --config %[9]s/etc/talos-agent/config.yaml

`, h.PVE.URL(), h.SSH.URL(lab.Repository), filepath.Join(h.dir, "authorized_keys"), h.Forge.URL(),
		strings.Join(words, " "), filepath.Join(h.dir, "ca.pem"), lab.GitToken, strings.Replace(h.Repo.URL(), "https://", "https://git@", 1), shellWord(h.dir))
}

// runBareLab is talos-agent lab --bare.
func runBareLab(ctx context.Context, env *environment, dir, prefix, flavour string, speed float64) (err error) {
	if dir == "" {
		if dir, err = os.MkdirTemp("", "talos-agent-lab-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	release, err := holdNetwork(prefix)
	if err != nil {
		return err
	}
	defer release()
	h, err := startBareLab(dir, program, prefix, flavour, speed)
	if err != nil {
		return besideAnother(err)
	}
	defer h.Close()
	_, _ = io.WriteString(env.stdout, h.instructions())
	tellStory(ctx, env, h.Lab)
	return nil
}
