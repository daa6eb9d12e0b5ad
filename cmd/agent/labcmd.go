package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/world"
	"github.com/talos-agent/talos-agent/internal/text"
)

func newLab(env *environment) *cobra.Command {
	var dir, prefix, flavour, ageKey string
	var speed float64
	var clusters []string
	var bare bool
	cmd := &cobra.Command{
		Use:   "lab",
		Short: "Run a make-believe Proxmox VE host on loopback, to try the agent on",
		Long: `Run a make-believe host on this machine's loopback network: Proxmox VE, Talos
machines, Kubernetes, an image factory, a chart repository, a git server and a
forge, each speaking the real protocol. The host's files (config, policy,
tokens) are written to --dir, so that an unmodified agent can run on it; what
happens is told until the command is stopped.

With --bare the host is as the installer of Proxmox VE leaves it, with nothing
for the agent, to try talos-agent init on: --dir gets a stand-in for pvesh
(usr/bin/pvesh), the host's certificates (etc/pve), and the list of deploy keys
of the git server (authorized_keys), which is empty. Its agent and doctor take
their keys from $CREDENTIALS_DIRECTORY, as the command tells.

Linux only: nodes get addresses in 127.0.0.0/8.`,
		Example: `  talos-agent lab --dir /tmp/lab --age-key examples/repo/lab-age-key.txt
  talos-agent run --config /tmp/lab/config.yaml
  talos-agent lab --bare --dir /tmp/bare`,
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.StringVar(&dir, "dir", "", "write the host's files here (default: a temporary directory, removed at the end)")
	flags.StringVar(&prefix, "prefix", world.DefaultPrefix, "the lab's /24 of 127.0.0.0/8; the inventory's addresses lie in it")
	flags.StringVar(&flavour, "flavour", "9.2", "version of Proxmox VE to play: 9.2 or 8.4")
	flags.Float64Var(&speed, "speed", 10, "how many times faster than life")
	flags.StringSliceVar(&clusters, "cluster", []string{demoCluster}, "clusters of the repository that this host looks after")
	flags.StringVar(&ageKey, "age-key", "", "file with the age key the agent decrypts with (required without --bare)")
	flags.BoolVar(&bare, "bare", false, "a host on which nothing is set up for the agent yet")
	complete(cmd, "flavour", flavours)
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if bare {
			return runBareLab(cmd.Context(), env, dir, prefix, flavour, speed)
		}
		if ageKey == "" {
			return &usageError{errors.New("say --age-key FILE: the agent needs it to read the repository's secrets; for examples/repo it is examples/repo/lab-age-key.txt")}
		}
		key, err := os.ReadFile(ageKey)
		if err != nil {
			return err
		}
		if dir == "" {
			if dir, err = os.MkdirTemp("", "talos-agent-lab-"); err != nil {
				return err
			}
			defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
		}
		release, err := holdNetwork(prefix)
		if err != nil {
			return err
		}
		defer release()
		h, err := startLab(dir, prefix, flavour, speed, key, clusters)
		if err != nil {
			return besideAnother(err)
		}
		defer h.Close()
		h.introduce(env)
		tellStory(cmd.Context(), env, h.Lab)
		return nil
	}
	cmd.AddCommand(newLabPvesh(env))
	return cmd
}

// holdNetwork keeps the lab's network from every other lab on this machine, tests
// included, until release is called.
func holdNetwork(prefix string) (release func(), err error) {
	p, err := parsePrefix(prefix)
	if err != nil {
		return nil, err
	}
	release, err = world.HoldPrefix(p)
	return release, besideAnother(err)
}

// parsePrefix reads --prefix.
func parsePrefix(prefix string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(prefix)
	if err != nil || p.Bits() != 24 || !p.Addr().IsLoopback() {
		return netip.Prefix{}, &usageError{fmt.Errorf("--prefix %q: write a /24 of 127.0.0.0/8, like 127.84.7.0/24", prefix)}
	}
	return p, nil
}

// besideAnother adds the cure to the error of a lab whose addresses are taken.
func besideAnother(err error) error {
	if !errors.Is(err, syscall.EADDRINUSE) {
		return err
	}
	return fault.WithHint(err, "stop the lab that runs there, or choose another network with --prefix")
}

// tellStory tells what happens in a lab until the command is stopped.
func tellStory(ctx context.Context, env *environment, l *lab.Lab) {
	l.World.OnEvent(func(e world.Event) {
		_, _ = fmt.Fprintf(env.stdout, "%8s  %s: %s\n", "+"+text.Duration(e.At), e.Subject, e.Text)
	})
	<-ctx.Done()
	_, _ = fmt.Fprintln(env.stdout, "the lab is closed")
}

// host is a lab on loopback with the files of a host's administrator.
type host struct {
	*lab.Lab
	dir    string
	config string
	prefix netip.Prefix
}

// startLab starts a lab on loopback and writes the host's files into dir.
func startLab(dir, prefix, flavour string, speed float64, ageKey []byte, clusters []string) (*host, error) {
	c, abs, err := labConfig(dir, prefix, flavour, speed)
	if err != nil {
		return nil, err
	}
	l, err := lab.Start(c)
	if err != nil {
		return nil, err
	}
	config, err := writeHost(l, abs, ageKey, clusters)
	if err != nil {
		l.Close()
		return nil, err
	}
	return &host{Lab: l, dir: abs, config: config, prefix: c.Prefix.Masked()}, nil
}

// labConfig checks what a lab is asked to be, and makes its folder. It returns
// the folder's absolute path too.
func labConfig(dir, prefix, flavour string, speed float64) (lab.Config, string, error) {
	p, err := parsePrefix(prefix)
	if err != nil {
		return lab.Config{}, "", err
	}
	if flavour != "9.2" && flavour != "8.4" {
		return lab.Config{}, "", &usageError{fmt.Errorf("--flavour %q: write 9.2 or 8.4", flavour)}
	}
	if speed <= 0 {
		return lab.Config{}, "", &usageError{fmt.Errorf("--speed %v: write a number above 0", speed)}
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return lab.Config{}, "", err
	}
	if err := os.MkdirAll(abs, 0o700); err != nil {
		return lab.Config{}, "", err
	}
	return lab.Config{Speed: speed, Prefix: p, Flavour: flavour, GitDir: filepath.Join(abs, "git")}, abs, nil
}

// remote is the repository's URL with the user that git sends the token for.
func (h *host) remote() string {
	return strings.Replace(h.Repo.URL(), "https://", "https://git@", 1)
}

func (h *host) introduce(env *environment) {
	_, _ = fmt.Fprintf(env.stdout, `a make-believe Proxmox VE host is up
  Proxmox VE   %s
  repository   %s  (branch main)
  forge        %s

push a repository:
  cd REPOSITORY && GIT_SSL_CAINFO=%s git -c credential.helper='!printf "password=%s\n"; true' push %s HEAD:main
run the agent on it:
  talos-agent run --config %s
look at it:
  talos-agent status --socket %s

`, h.PVE.URL(), h.Repo.URL(), h.Forge.URL(), filepath.Join(h.dir, "ca.pem"), lab.GitToken, h.remote(), h.config, h.socket())
}

func (h *host) socket() string { return filepath.Join(h.dir, "agent.sock") }

// waitUntil waits until ready says so, or ctx ends.
func waitUntil(ctx context.Context, every time.Duration, ready func() (bool, error)) error {
	for {
		ok, err := ready()
		if err != nil || ok {
			return err
		}
		if err := pause(ctx, every); err != nil {
			return err
		}
	}
}
