//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/talos-agent/talos-agent/examples"
	"github.com/talos-agent/talos-agent/internal/api"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/pvehost"
	"github.com/talos-agent/talos-agent/internal/lab/pvesh"
	"github.com/talos-agent/talos-agent/internal/lab/world"
	"github.com/talos-agent/talos-agent/internal/platform"
	"github.com/talos-agent/talos-agent/internal/repo/demo"
	"github.com/talos-agent/talos-agent/internal/terminal"
	"github.com/talos-agent/talos-agent/internal/text"
)

func newLab(env *environment) *cobra.Command {
	var dir, prefix, flavour, ageKey string
	var speed float64
	var clusters []string
	var bare bool
	cmd := &cobra.Command{
		Use:   "lab",
		Short: "Run a simulated Proxmox VE host on loopback, to try the agent on",
		Long: `Run a simulated host on this machine's loopback network: Proxmox VE, Talos
machines, Kubernetes, an image factory, a chart repository, a git server and a
forge, each speaking the real protocol. The host's files (config, policy,
tokens) are written to --dir, so that an unmodified agent can run on it; what
happens is printed until the command is stopped.

With --bare the host is as the installer of Proxmox VE leaves it, with nothing
for the agent, to try talos-agent init on: --dir gets a stand-in for pvesh
(usr/bin/pvesh), the host's certificates (etc/pve), and the list of deploy keys
of the git server (authorized_keys), which is empty. Its agent takes its keys
from $CREDENTIALS_DIRECTORY, as the command prints.

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
	flags.StringSliceVar(&clusters, "cluster", []string{demo.Cluster}, "clusters of the repository that this host manages")
	flags.StringVar(&ageKey, "age-key", "", "file with the age key the agent decrypts with (required without --bare)")
	flags.BoolVar(&bare, "bare", false, "a host on which nothing is set up for the agent yet")
	completeFlag(cmd, "flavour", completeFlavours)
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if bare {
			return runBareLab(cmd.Context(), env, dir, prefix, flavour, speed)
		}
		if ageKey == "" {
			return &fault.Usage{Err: errors.New("use --age-key FILE: the agent needs it to read the repository's secrets; for examples/repo it is examples/repo/lab-age-key.txt")}
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
		l, err := labConfig(dir, prefix, flavour, speed)
		if err != nil {
			return err
		}
		leave, err := holdDir(dir)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, leave()) }()
		h, err := pvehost.Start(l, key, clusters)
		if err != nil {
			return besideAnother(err)
		}
		defer h.Close()
		_, _ = io.WriteString(env.stdout, h.Instructions())
		printStory(cmd.Context(), env, h.Lab)
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

// holdDir keeps the directory of a lab's files, which it makes if there is none, from every
// other lab until release is called, or the process ends.
func holdDir(dir string) (release func() error, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := platform.Lock(f); err != nil {
		if errors.Is(err, platform.ErrLocked) {
			err = fault.Errorf("stop that lab, or choose another directory with --dir", "--dir %s: another lab has its files there", dir)
		}
		return nil, errors.Join(err, f.Close())
	}
	return f.Close, nil
}

// parsePrefix reads --prefix.
func parsePrefix(prefix string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(prefix)
	if err != nil || p.Bits() != 24 || !p.Addr().IsLoopback() {
		return netip.Prefix{}, &fault.Usage{Err: fmt.Errorf("--prefix %q: write a /24 of 127.0.0.0/8, like 127.84.7.0/24", prefix)}
	}
	return p, nil
}

// besideAnother adds the hint to the error of a lab whose addresses are taken.
func besideAnother(err error) error {
	if !errors.Is(err, syscall.EADDRINUSE) {
		return err
	}
	return fault.WithHint(err, "stop the lab that runs there, or choose another network with --prefix")
}

// printStory prints what happens in a lab until the command is stopped.
func printStory(ctx context.Context, env *environment, l *lab.Lab) {
	l.World.OnEvent(func(e world.Event) {
		_, _ = fmt.Fprintf(env.stdout, "%8s  %s: %s\n", "+"+text.Duration(e.At), e.Subject, e.Text)
	})
	<-ctx.Done()
	_, _ = fmt.Fprintln(env.stdout, "the lab is closed")
}

// labConfig reads what a lab is asked to be.
func labConfig(dir, prefix, flavour string, speed float64) (pvehost.Config, error) {
	p, err := parsePrefix(prefix)
	if err != nil {
		return pvehost.Config{}, err
	}
	if flavour != "9.2" && flavour != "8.4" {
		return pvehost.Config{}, &fault.Usage{Err: fmt.Errorf("--flavour %q: write 9.2 or 8.4", flavour)}
	}
	if speed <= 0 {
		return pvehost.Config{}, &fault.Usage{Err: fmt.Errorf("--speed %v: write a number above 0", speed)}
	}
	return pvehost.Config{Dir: dir, Prefix: p, Flavour: flavour, Speed: speed}, nil
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
	c, err := labConfig(dir, prefix, flavour, speed)
	if err != nil {
		return err
	}
	leave, err := holdDir(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, leave()) }()
	h, err := pvehost.StartBare(c, program)
	if err != nil {
		return besideAnother(err)
	}
	defer h.Close()
	_, _ = io.WriteString(env.stdout, h.Instructions())
	printStory(ctx, env, h.Lab)
	return nil
}

// newLabPvesh is what the pvesh runs that a bare lab host has.
func newLabPvesh(env *environment) *cobra.Command {
	return &cobra.Command{
		Use:                "pvesh DOOR {get|set|create|delete} PATH [--OPTION VALUE]...",
		Short:              "Stand in for pvesh on a simulated host",
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return &fault.Usage{Err: errors.New("lab pvesh: which door?")}
			}
			text, err := os.ReadFile(args[0])
			if err != nil {
				return err
			}
			var access pvesh.Access
			if err := json.Unmarshal(text, &access); err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			err = pvesh.Run(cmd.Context(), env.stdout, env.stderr, access, args[1:])
			var exit pvesh.ExitError
			if errors.As(err, &exit) {
				return errSilent(int(exit))
			}
			return err
		},
	}
}

func newDemo(env *environment) *cobra.Command {
	c := demo.Config{Out: env.stdout, Destroy: func(ctx context.Context, c *api.Client, p terminal.Printer, name string) error {
		return awaitDestroyed(ctx, c, p, name, 2*time.Minute)
	}}
	var flavour, repo string
	var speed float64
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show the main job on the lab: push, Ready cluster, one worker more, destroy",
		Long: `Show the main job from end to end on this machine: start a simulated Proxmox
VE host, run this program as its daemon, push a repository with git, watch a
cluster come up, push a worker more, and destroy everything again.

With --day-two a larger cluster is labelled, reconfigured, resized, edited and
destroyed by hand, made smaller, and a control plane is replaced; the demo fails
if a machine is switched on that need not be, or a rule of safety is broken.
With --upgrade a larger cluster gets another Talos, two minor versions on, one
node at a time, and then the next Kubernetes.

It needs git. The repository is the example that is part of the program.`,
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.StringVar(&repo, "repo", "", "a directory with the example repository, instead of the program's own")
	flags.StringVar(&flavour, "flavour", "9.2", "version of Proxmox VE to play: 9.2 or 8.4")
	flags.Float64Var(&speed, "speed", 10, "how many times faster than life")
	flags.BoolVar(&c.DayTwo, "day-two", false, "change, heal and shrink a cluster that runs, instead")
	flags.BoolVar(&c.Upgrade, "upgrade", false, "upgrade a cluster that runs, instead")
	flags.BoolVar(&c.Keep, "keep", false, "keep the files of the demo's host")
	cmd.MarkFlagsMutuallyExclusive("day-two", "upgrade")
	completeFlag(cmd, "flavour", completeFlavours)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		program, err := os.Executable()
		if err != nil {
			return err
		}
		c.Program, c.Repository = program, examples.Repository()
		if repo != "" {
			c.Repository = os.DirFS(repo)
		}
		if c.Host, err = labConfig("", world.DefaultPrefix, flavour, speed); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), 10*time.Minute)
		defer cancel()
		return demo.Run(ctx, c)
	}
	return cmd
}
