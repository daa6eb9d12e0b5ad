package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/talos-agent/talos-agent/internal/api"
	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/retry"
	"github.com/talos-agent/talos-agent/internal/terminal"
	"github.com/talos-agent/talos-agent/internal/text"
)

// newClient makes a client of the daemon that the flags name.
func newClient(cmd *cobra.Command) *api.Client {
	socket, err := cmd.Flags().GetString("socket")
	if err != nil {
		panic(err) // every command inherits the flag
	}
	return api.NewClient(socket)
}

// chooseCluster resolves the cluster a command is about: the argument, or the only one
// there is.
func chooseCluster(ctx context.Context, c *api.Client, args []string) (string, error) {
	if len(args) > 0 {
		return args[0], nil
	}
	all, err := c.StatusAll(ctx)
	if err != nil {
		return "", err
	}
	var names []string
	for _, s := range all {
		names = append(names, s.Cluster)
	}
	switch len(names) {
	case 1:
		return names[0], nil
	case 0:
		return "", fault.WithHint(errors.New("the agent manages no cluster yet"), "`talos-agent status` shows why; `talos-agent reconcile` has the repository fetched at once")
	default:
		return "", &fault.Usage{Err: fmt.Errorf("which cluster? there are %s", strings.Join(names, ", "))}
	}
}

func newPlan(env *environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "plan [CLUSTER]",
		Short: "Show everything that will happen, in order, before it does",
		Long: `Show everything that will happen for the pushed revision, or (with --dir, as
root) what would happen if a local directory were pushed: the same planner that
acts, run forward. Steps that destroy something are marked with "-", those that
take a node down to change it with "~".

What waits for approval, or for a window, counts as any other step. Of a hop of
Kubernetes the steps after the next kube-apiserver are not known before that
runs; the plan notes it.

Exit codes: 0 nothing to do; 10 there are changes; 11 there are destructive
ones; 1 the inventory is invalid, or nothing can be done before a person acts or
what is waited for has come.`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: clusterNames,
	}
	output := outputFlag(cmd)
	dir := cmd.Flags().String("dir", "", "plan this directory instead of the pushed revision")
	completeFlag(cmd, "dir", directoryFlag)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		p, err := newPrinter(env.stdout, *output)
		if err != nil {
			return err
		}
		var files fs.FS
		if *dir != "" {
			if files, err = openDirectory(*dir); err != nil {
				return err
			}
		}
		c := newClient(cmd)
		name, err := chooseCluster(cmd.Context(), c, args)
		if err != nil {
			return err
		}
		var f cluster.Forecast
		if files == nil {
			f, err = c.Forecast(cmd.Context(), name)
		} else {
			f, err = c.ForecastDir(cmd.Context(), name, files)
		}
		if err != nil {
			return err
		}
		if p.IsJSON() {
			if err := p.PrintJSON("Forecast", f); err != nil {
				return err
			}
		} else {
			p.PrintForecast(f)
		}
		return errSilent(planCode(f))
	}
	return cmd
}

func planCode(f cluster.Forecast) int {
	switch {
	case f.Problems.HasErrors() || len(f.Steps) == 0 && len(f.Blocked)+len(f.Waiting) > 0:
		return exitFailed
	case f.Destructive():
		return exitDestructive
	case len(f.Steps) > 0:
		return exitChanges
	default:
		return exitOK
	}
}

// openDirectory opens a local directory for reading.
func openDirectory(path string) (fs.FS, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("--dir: %s does not exist", path)
	case err != nil:
		return nil, fmt.Errorf("--dir: %w", err)
	case !info.IsDir():
		return nil, &fault.Usage{Err: fmt.Errorf("--dir: %s is not a directory", path)}
	}
	return os.DirFS(path), nil
}

// newSimpleCommand makes a command that asks the daemon for one thing about one cluster.
func newSimpleCommand(env *environment, use, short, done string, request func(context.Context, *api.Client, string) error) *cobra.Command {
	return &cobra.Command{Use: use + " [CLUSTER]", Short: short, Args: cobra.MaximumNArgs(1), ValidArgsFunction: clusterNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			c := newClient(cmd)
			name, err := chooseCluster(cmd.Context(), c, args)
			if err != nil {
				return err
			}
			if err := request(cmd.Context(), c, name); err != nil {
				return err
			}
			_, _ = fmt.Fprintf(env.stdout, "%s: %s\n", name, done)
			return nil
		}}
}

func newReconcile(env *environment) *cobra.Command {
	cmd := newSimpleCommand(env, "reconcile", "Fetch the repository, look at everything now, and try again what failed", "", nil)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c := newClient(cmd)
		if len(args) == 0 {
			all, err := c.StatusAll(cmd.Context())
			if err != nil {
				return err
			}
			if len(all) == 0 {
				if err := c.ReconcileAll(cmd.Context()); err != nil {
					return err
				}
				_, _ = fmt.Fprintln(env.stdout, "no cluster is known yet; the repository is fetched now: `talos-agent status` shows what is in it")
				return nil
			}
		}
		name, err := chooseCluster(cmd.Context(), c, args)
		if err != nil {
			return err
		}
		if err := c.Reconcile(cmd.Context(), name); err != nil {
			return err
		}
		_, _ = fmt.Fprintf(env.stdout, "%s: looking now%s\n", name, describeFetch(cmd.Context(), c, name))
		return nil
	}
	return cmd
}

// describeFetch is how old the revision is that a cluster is looked at with, until a
// fetch brings another: a server that is slow delays that alone.
func describeFetch(ctx context.Context, c *api.Client, name string) string {
	s, err := c.Status(ctx, name)
	switch {
	case err != nil || s.Revision == "":
		return ""
	case s.Fetched.IsZero():
		return fmt.Sprintf(", at %s; the repository has not been fetched since the agent started", s.Revision.Short())
	}
	return fmt.Sprintf(", at %s, which was fetched %s ago", s.Revision.Short(), text.Duration(time.Since(s.Fetched)))
}

func newSuspend(env *environment) *cobra.Command {
	return newSimpleCommand(env, "suspend", "Change nothing until resume; what is under way ends", "suspended",
		func(ctx context.Context, c *api.Client, name string) error { return c.Suspend(ctx, name) })
}

func newResume(env *environment) *cobra.Command {
	return newSimpleCommand(env, "resume", "Go on after suspend or destroy", "resumed",
		func(ctx context.Context, c *api.Client, name string) error { return c.Resume(ctx, name) })
}

func newAccept(env *environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "accept [CLUSTER]",
		Short: "Accept a revision that does not descend from the applied one",
		Long: `Accept the newest revision although it does not descend from the one applied
last: the branch was force-pushed or rolled back, and that was meant.

With --bootstrap, declare instead that there is no etcd of this cluster: it was
never bootstrapped, after the agent's own records were lost; or none is left on
a VM that destroy has left because it may be a control plane's. If that is wrong
the cluster may split in two: be sure.`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: clusterNames,
	}
	bootstrap := cmd.Flags().Bool("bootstrap", false, "declare that there is no etcd of this cluster")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c := newClient(cmd)
		name, err := chooseCluster(cmd.Context(), c, args)
		if err != nil {
			return err
		}
		req := api.AcceptRequest{Bootstrap: *bootstrap}
		done := "bootstrap may be sent"
		if !*bootstrap {
			s, err := c.Status(cmd.Context(), name)
			if err != nil {
				return err
			}
			if s.Revision == s.Applied {
				return fmt.Errorf("%s: there is nothing to accept: %s is applied", name, s.Revision.Short())
			}
			req.Revision = s.Revision
			done = "accepted " + s.Revision.Short()
		}
		if err := c.Accept(cmd.Context(), name, req); err != nil {
			return err
		}
		_, _ = fmt.Fprintf(env.stdout, "%s: %s\n", name, done)
		return nil
	}
	return cmd
}

func newApprove(env *environment) *cobra.Command {
	return &cobra.Command{
		Use:   "approve [CLUSTER] DIGEST",
		Short: "Let a plan go that waits for approval",
		Long: `Let a plan go that waits for approval: ` + "`apply: approve`" + ` in cluster.yaml or in
the host's policy has every change of the inventory wait, ` + "`upgrade: approve`" + `
every upgrade, and a push that takes more nodes out of it than the policy's
` + "`removals`" + ` waits as well.

plan shows all of it, and ends with its digest. What is approved is that plan
alone: when somebody has pushed since, or anything else has changed it, approve
refuses, and plan shows what it is now. It holds for later commits as long as
they ask for the same of the cluster.`,
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: clusterNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			c := newClient(cmd)
			last := len(args) - 1
			name, err := chooseCluster(cmd.Context(), c, args[:last])
			if err != nil {
				return err
			}
			if err := c.Approve(cmd.Context(), name, args[last]); err != nil {
				return err
			}
			_, _ = fmt.Fprintf(env.stdout, "%s: approved\n", name)
			return nil
		},
	}
}

func newDestroy(env *environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "destroy CLUSTER",
		Short: "Delete every VM of a cluster, after showing which and asking",
		Long: `Show exactly what goes, ask for the cluster's name, then suspend the cluster
and delete its VMs with their disks: those that are provably ours, and nothing
else. The image stays. The cluster stays suspended: resume builds it again, with
the same VMIDs, MACs and addresses.

Kept are nodes with ` + "`protect: true`" + `, VMs on which somebody has set Proxmox
VE's Protection (unless --despite-protection names them), VMs under its HA, and
VMs to which volumes of others are attached. Then destroy ends: what was kept is
not deleted later.`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: clusterNames,
	}
	confirm := cmd.Flags().String("confirm", "", "the cluster's name, instead of typing it")
	despite := cmd.Flags().IntSlice("despite-protection", nil, "delete these VMs although Proxmox VE's Protection is on: their VMIDs, with commas")
	wait := cmd.Flags().Duration("wait", 15*time.Minute, "how long to wait for the end; 0: do not wait")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		name, c := args[0], newClient(cmd)
		p, err := newPrinter(env.stdout, "text")
		if err != nil {
			return err
		}
		f, err := c.ForecastDestroy(cmd.Context(), name, *despite...)
		if err != nil {
			return err
		}
		p.PrintForecast(f)
		if len(f.Steps) == 0 && len(f.Blocked) > 0 {
			return fmt.Errorf("destroy %s: nothing would be deleted; nothing was changed", name)
		}
		if err := confirmName(env, "destroy", "cluster", name, *confirm); err != nil {
			return err
		}
		if err := c.Destroy(cmd.Context(), name, f.VMs, *despite...); err != nil {
			return err
		}
		if *wait == 0 {
			p.Printf("%s is suspended and being destroyed; `talos-agent status %s` shows its progress\n", name, name)
			return nil
		}
		return awaitDestroyed(cmd.Context(), c, p, name, *wait)
	}
	return cmd
}

// confirmName wants the name of what a command is about from its flag, or typed.
func confirmName(env *environment, command, kind, name, flag string) error {
	typed := flag
	if typed == "" {
		if f, ok := env.stdin.(*os.File); !ok || !term.IsTerminal(int(f.Fd())) {
			return &fault.Usage{Err: fmt.Errorf("%s %s: not confirmed; use `--confirm %s` where nobody can type it", command, name, name)}
		}
		_, _ = fmt.Fprintf(env.stdout, "Type the name of the %s to %s it: ", kind, command)
		line, err := bufio.NewReader(env.stdin).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		typed = strings.TrimSpace(line)
	}
	if typed != name {
		return fmt.Errorf("%s %s: not confirmed: %q is not its name; nothing was changed", command, name, typed)
	}
	return nil
}

// awaitDestroyed waits until the destruction of a cluster has ended, prints each VM
// that is deleted, and what keeps it from going on.
func awaitDestroyed(ctx context.Context, c *api.Client, p terminal.Printer, name string, within time.Duration) error {
	phases, stalled := map[string]cluster.Phase{}, cluster.Key{}
	for deadline := time.Now().Add(within); ; {
		s, err := c.Status(ctx, name)
		if err != nil {
			return err
		}
		for _, n := range s.Nodes {
			if before, ok := phases[n.Name]; ok && before != n.Phase && n.Phase == cluster.PhaseAbsent {
				p.Printf("  vm %d (%s) is deleted\n", n.VMID, n.Name)
			}
			phases[n.Name] = n.Phase
		}
		switch {
		case !s.Destroying && s.Condition == cluster.Suspended && len(s.Running) == 0:
			p.Printf("%s is destroyed, and suspended until `talos-agent resume %s`\n", name, name)
			return nil
		case !s.Destroying && !s.Suspended:
			return fmt.Errorf("destroy %s: given up, because the cluster was resumed", name)
		case !s.Destroying && s.Condition == cluster.Stalled:
			p.PrintLeft(s.Blocked)
			return fmt.Errorf("destroy %s: it has ended, and not everything is deleted; %s stays suspended", name, name)
		case s.Condition == cluster.Stalled && s.Reason == cluster.PolicyUnknown:
			// It does not go on before somebody has corrected the policy.
			return fault.WithHint(fmt.Errorf("destroy %s: %s", name, s.Message), s.Hint)
		case s.Condition == cluster.Stalled && s.Cause() != stalled:
			stalled = s.Cause()
			p.Printf("  %s\n", s.Message)
			if s.Hint != "" {
				p.Printf("    -> %s\n", s.Hint)
			}
		case time.Now().After(deadline):
			return fault.WithHint(fmt.Errorf("destroy %s: not done within %v: %s", name, within, s.Message), "the daemon goes on: `talos-agent status "+name+"`; `talos-agent resume "+name+"` has it stop and build the cluster again")
		}
		if err := sleepOrStop(ctx, 300*time.Millisecond); err != nil {
			return err
		}
	}
}

func newKubeconfig(env *environment) *cobra.Command {
	return newCredentialCommand(env, "kubeconfig", "Write a kubeconfig for people, freshly minted, good for 30 days",
		func(ctx context.Context, c *api.Client, name string) ([]byte, error) { return c.Kubeconfig(ctx, name) })
}

func newTalosconfig(env *environment) *cobra.Command {
	return newCredentialCommand(env, "talosconfig", "Write a talosconfig for people, freshly minted, good for 30 days",
		func(ctx context.Context, c *api.Client, name string) ([]byte, error) { return c.Talosconfig(ctx, name) })
}

func newCredentialCommand(env *environment, use, short string, ask func(context.Context, *api.Client, string) ([]byte, error)) *cobra.Command {
	cmd := &cobra.Command{Use: use + " [CLUSTER]", Short: short, Args: cobra.MaximumNArgs(1), ValidArgsFunction: clusterNames,
		Long: short + `.

With --file it is written to a file. One that holds contexts of others is
replaced only after it was asked for; with --merge they stay, and the cluster's
context becomes the one in use. A cluster of the same name with another
authority is another: --merge does not replace it.`,
		Example: "  talos-agent " + use + " dev --file dev." + use + "\n  talos-agent " + use + " dev --file config --merge"}
	file := cmd.Flags().StringP("file", "f", "", "write to this file (mode 0600) instead of standard output")
	merge := cmd.Flags().Bool("merge", false, "keep the other contexts of the file")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *merge && *file == "" {
			return &fault.Usage{Err: fmt.Errorf("%s: --merge needs --file", use)}
		}
		c := newClient(cmd)
		name, err := chooseCluster(cmd.Context(), c, args)
		if err != nil {
			return err
		}
		b, err := ask(cmd.Context(), c, name)
		if err != nil {
			return err
		}
		if *file == "" {
			_, err = env.stdout.Write(b)
			return err
		}
		return saveSecret(env, *file, b, *merge)
	}
	return cmd
}

func newVersion(env *environment) *cobra.Command {
	cmd := &cobra.Command{Use: "version", Short: "Print the version of this program, and the daemon's if one runs", Args: cobra.NoArgs}
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		p, err := newPrinter(env.stdout, *output)
		if err != nil {
			return err
		}
		v := struct {
			Client string `json:"client"`
			Daemon string `json:"daemon,omitempty"`
		}{Client: version}
		if about, err := newClient(cmd).About(cmd.Context()); err == nil {
			v.Daemon = about.Version
		}
		if p.IsJSON() {
			return p.PrintJSON("Version", v)
		}
		p.Printf("talos-agent %s\n", v.Client)
		if v.Daemon != "" && v.Daemon != v.Client {
			p.Printf("the daemon runs %s: restart it\n", v.Daemon)
		}
		return nil
	}
	return cmd
}

// sleepOrStop waits for d, or until the command is stopped.
func sleepOrStop(ctx context.Context, d time.Duration) error {
	if retry.Sleep(ctx, d) != nil {
		return errStopped
	}
	return nil
}
