package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/archive"
	"github.com/talos-agent/talos-agent/internal/host/setup"
	"github.com/talos-agent/talos-agent/internal/retry"
	"github.com/talos-agent/talos-agent/internal/terminal"
	"github.com/talos-agent/talos-agent/internal/text"
)

func newSnapshot(env *environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "snapshot",
		Short: "Take etcd snapshots; get, verify, list, open, add and prune those in a folder",
		Args:  knownCommand,
		RunE:  missingCommand,
	}
	cmd.AddCommand(newSnapshotNow(env), newSnapshotVerify(env), newSnapshotList(env), newSnapshotGet(env), newSnapshotOpen(env), newSnapshotAdd(env), newSnapshotPrune(env))
	return cmd
}

// ageKeysFlag adds the flag that names files of keys.
func ageKeysFlag(cmd *cobra.Command) *[]string {
	keys := cmd.Flags().StringArray("age-key", nil, "file with an age key that opens them; may be given several times")
	completeFlag(cmd, "age-key", cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault))
	return keys
}

// dirFlag adds the flag that names a folder of snapshots.
func dirFlag(cmd *cobra.Command, otherwise string) *string {
	dir := cmd.Flags().String("dir", "", "folder of snapshots ("+otherwise+")")
	completeFlag(cmd, "dir", func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return nil, cobra.ShellCompDirectiveFilterDirs
	})
	return dir
}

// placeFlags adds the flags that name where snapshots are, and what opens them.
func placeFlags(cmd *cobra.Command) func() (archive.Place, error) {
	keys, dir := ageKeysFlag(cmd), dirFlag(cmd, "default: that of this host's agent")
	config := cmd.Flags().String("config", setup.ConfigFile, "the host's config file, which has the agent's folder and key")
	completeFlag(cmd, "config", cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault))
	return func() (in archive.Place, err error) {
		flags := cmd.Flags()
		switch {
		case flags.Changed("socket") && *dir == "" && !flags.Changed("config"): // it would be another agent's folder
			return in, &fault.Usage{Err: fmt.Errorf("%s--socket leads to no snapshots: name the agent's config with --config, or a folder with --dir", nameInError(cmd))}
		case *dir != "":
			in, err = archive.FindPlace(*dir, *keys)
			in.Args = " --dir " + *dir
		default:
			in, err = archive.FindPlaceOfAgent(*config, *keys)
			if flags.Changed("config") {
				in.Args = " --config " + *config
			}
		}
		for _, key := range *keys {
			in.Args += " --age-key " + key
		}
		return in, err
	}
}

func newSnapshotNow(env *environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "now [CLUSTER]",
		Short: "Have the agent take an etcd snapshot now, and wait until it is there",
		Long: `Have the running agent take a snapshot of the etcd of a cluster now, and wait
until it is verified and stored with the others. It is a manual one: the rules
never remove it. It can be taken without a quorum of etcd.

When an attempt fails it ends with 1, and the agent goes on to try; the status
shows that.`,
		Example:           `  sudo talos-agent snapshot now dev`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: clusterNames,
	}
	within := cmd.Flags().Duration("timeout", 30*time.Minute, "how long to wait")
	completeFlag(cmd, "timeout", cobra.NoFileCompletions)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c := newClient(cmd)
		name, err := chooseCluster(cmd.Context(), c, args)
		if err != nil {
			return err
		}
		if err := c.RequestSnapshot(cmd.Context(), name); err != nil {
			return err
		}
		for began := time.Now(); ; {
			s, err := c.Status(cmd.Context(), name)
			switch {
			case err != nil:
				return err
			case s.Snapshots == nil:
				return fmt.Errorf("%s: the agent has stopped to take snapshots of etcd", name)
			case !s.Snapshots.Requested:
				_, _ = fmt.Fprintf(env.stdout, "%s: taken at %s, %s, verified\n", name, s.Snapshots.Verified.UTC().Format(time.DateTime+" UTC"), formatMiB(s.Snapshots.Bytes))
				return nil
			case s.Snapshots.Error != "":
				return fault.WithHint(fmt.Errorf("%s: %s", name, s.Snapshots.Error), "it is tried again; `talos-agent status "+name+"` shows when it is taken")
			case time.Since(began) > *within:
				return fault.WithHint(fmt.Errorf("%s: %w after %s", name, errNotTaken, text.Duration(*within)), "`talos-agent status "+name+"` shows what the agent does")
			}
			if err := retry.Sleep(cmd.Context(), 500*time.Millisecond); err != nil {
				return err
			}
		}
	}
	return cmd
}

var errNotTaken = errors.New("no snapshot was taken")

func newSnapshotVerify(env *environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify CLUSTER|FILE",
		Short: "Read etcd snapshots to their end: all of a cluster, or a file",
		Long: `Read the etcd snapshots of a cluster to their end that this host's agent keeps,
or that lie in another folder, and list them as snapshot list does. It ends with
1 unless each of them was verified, and when there is none.

Or read one file to its end, and print what is in it: one of a folder of
snapshots, with an age key that opens it, or one that talosctl etcd snapshot has
written, without a key. It is a file where there is one of that name; with --dir
or --config it is a cluster.

It is verified that its SHA-256 is the one that etcd has put at its end, and that
its database is one of etcd without a contradiction; of an encrypted one also
that nothing of it was changed, and that its header is right. A node that
recovers from a truncated snapshot does not start any more.`,
		Example: `  sudo talos-agent snapshot verify dev
  talos-agent snapshot verify dev --dir /mnt/backup --age-key age.key
  talos-agent snapshot verify db.snapshot
  talos-agent snapshot verify dev-20261127T074500Z-scheduled.etcd --age-key age.key`,
		Args: cobra.ExactArgs(1),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
			names, _ := clusterNames(cmd, args, typed)
			_, files := completeOneFile(cmd, args, typed)
			return names, files
		},
	}
	output, findPlace := outputFlag(cmd), placeFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		p, err := newPrinter(env.stdout, *output)
		if err != nil {
			return err
		}
		if flags := cmd.Flags(); flags.Changed("dir") || flags.Changed("config") || archive.NamesCluster(args[0]) {
			in, err := findPlace()
			if err != nil {
				return err
			}
			return verifyCluster(cmd.Context(), p, in, args[0])
		}
		keys, err := cmd.Flags().GetStringArray("age-key")
		if err != nil {
			return err
		}
		r, err := archive.Verify(cmd.Context(), args[0], keys)
		if err != nil {
			return err
		}
		if p.IsJSON() {
			return p.PrintJSON("Snapshot", r)
		}
		printSnapshot(p, r)
		return nil
	}
	return cmd
}

// verifyCluster verifies all snapshots of a cluster and prints what each is.
func verifyCluster(ctx context.Context, p terminal.Printer, in archive.Place, name string) error {
	now := time.Now()
	l, err := archive.VerifyAll(ctx, in, name, now)
	if err == nil {
		err = printListing(p, l, now)
	}
	if err == nil && !l.AllVerified() {
		return errSilent(exitFailed)
	}
	return err
}

func newSnapshotList(env *environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list [CLUSTER]",
		Short: "List the etcd snapshots in a folder, and which of them are needed",
		Long: `List the etcd snapshots of this host's agent, or in another folder, by cluster,
the newest first, and why each is
kept: of scheduled ones the newest of four quarters of a day, of seven days and of
four weeks, of those before a kind of work the newest three, and the newest one
that is verified.

With an age key, which the agent has by itself, each is read to its end. Without
one only what they have in clear is shown, and which may be removed is not known.

It ends with 1 when one is damaged.`,
		Example: `  sudo talos-agent snapshot list
  talos-agent snapshot list --dir /mnt/backup
  talos-agent snapshot list --dir /mnt/backup --age-key age.key --output json dev`,
		Args: cobra.MaximumNArgs(1),
	}
	output, findPlace := outputFlag(cmd), placeFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		p, err := newPrinter(env.stdout, *output)
		if err != nil {
			return err
		}
		in, err := findPlace()
		if err != nil {
			return err
		}
		now := time.Now()
		list := archive.List
		if len(args) > 0 {
			list = archive.ListOf
		}
		l, err := list(cmd.Context(), in, firstOf(args), now)
		if err == nil {
			err = printListing(p, l, now)
		}
		if err == nil && slices.ContainsFunc(l.Clusters, func(c archive.Cluster) bool { return c.Damaged > 0 }) {
			return errSilent(exitFailed)
		}
		return err
	}
	return cmd
}

// contentColours are how the state of a snapshot is painted.
func newSnapshotGet(env *environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get CLUSTER --out FILE",
		Short: "Decrypt the newest etcd snapshot of a cluster to a file, as etcd sent it",
		Long: `Verify the newest etcd snapshot of a cluster that this host's agent keeps, or that
lies in another folder, and write it to a new file as snapshot open does. A damaged
one is passed over for the next older one, and named.`,
		Example: `  sudo talos-agent snapshot get dev --out db.snapshot
  talos-agent snapshot get dev --dir /mnt/backup --age-key age.key --out db.snapshot`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: clusterNames,
	}
	findPlace, out := placeFlags(cmd), outFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *out == "" {
			return errNoOutput(cmd)
		}
		in, err := findPlace()
		if err != nil {
			return err
		}
		now := time.Now()
		r, skipped, err := archive.Get(cmd.Context(), in, args[0], *out, now)
		if err != nil {
			return err
		}
		p := terminal.NewPlain(env.stdout)
		p.Printf("wrote %s: %s of %s, %s old, revision %d, %s keys\n", *out, formatMiB(r.Database.Size), r.Header.Cluster, text.Duration(now.Sub(r.Header.At)), r.Database.Revision, formatKeys(r.Database.Keys))
		if skipped > 0 {
			p.Printf("warning: %s that cannot be verified; %s shows why\n", text.Count(skipped, "newer snapshot"), "`talos-agent snapshot list"+in.Args+" "+args[0]+"`")
		}
		return nil
	}
	return cmd
}

func newSnapshotOpen(env *environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "open FILE --out FILE",
		Short: "Decrypt an etcd snapshot to a file, as etcd sent it",
		Long: `Verify an etcd snapshot and write it to a new file, decrypted and as etcd sent
it: what talosctl bootstrap --recover-from and etcdutl take. The file appears when
it is whole. It has every Secret of the cluster that Kubernetes does not encrypt:
only its owner may read it, and it should not stay.`,
		Example:           `  talos-agent snapshot open dev-20261127T074500Z-scheduled.etcd --age-key age.key --out db.snapshot`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeOneFile,
	}
	keys, out := ageKeysFlag(cmd), outFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *out == "" {
			return errNoOutput(cmd)
		}
		r, err := archive.Open(cmd.Context(), args[0], *out, *keys)
		if err != nil {
			return err
		}
		terminal.NewPlain(env.stdout).Printf("wrote %s: %s of %s, revision %d, %s keys\n", *out, formatMiB(r.Database.Size), r.Header.Cluster, r.Database.Revision, formatKeys(r.Database.Keys))
		return nil
	}
	return cmd
}

func newSnapshotAdd(env *environment) *cobra.Command {
	var a archive.Addition
	cmd := &cobra.Command{
		Use:   "add CLUSTER FILE --dir DIR --recipient KEY",
		Short: "Verify and encrypt a snapshot of talosctl, and add it to a folder",
		Long: `Verify an etcd snapshot that talosctl etcd snapshot has written, encrypt it and
add it to a folder of snapshots. CLUSTER is the name of the cluster's folder in
the repository. The snapshot counts as taken when FILE was written last,
and as manual: it is never removed by the rules.

Name two recipients: the key of a host, and one that is kept elsewhere. With an
age key it is verified that this opens the result. FILE is in clear and stays:
remove it when the snapshot was added.`,
		Example: `  talos-agent snapshot add dev db.snapshot --dir /mnt/backup \
    --recipient age1host... --recipient age1offline...`,
		Args: cobra.ExactArgs(2),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			return nil, []cobra.ShellCompDirective{cobra.ShellCompDirectiveNoFileComp, cobra.ShellCompDirectiveDefault, cobra.ShellCompDirectiveNoFileComp}[min(len(args), 2)]
		},
	}
	cmd.Flags().StringArrayVar(&a.Recipients, "recipient", nil, "public key to encrypt to: age1..., or an ssh key; give two")
	completeFlag(cmd, "recipient", cobra.NoFileCompletions)
	keys, dir := ageKeysFlag(cmd), dirFlag(cmd, "required")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *dir == "" {
			return errNoFolder(cmd)
		}
		if len(a.Recipients) == 0 {
			return &fault.Usage{Err: errors.New("snapshot add: who may open it? use --recipient KEY")}
		}
		a.Cluster, a.File, a.AgeKeys = args[0], args[1], *keys
		e, err := archive.Add(cmd.Context(), *dir, a, version)
		if err != nil {
			return err
		}
		p := terminal.NewPlain(env.stdout)
		p.Printf("added %s: %s, revision %d, %s\n", e.File, formatMiB(e.Size), e.Header.Database.Revision, e.State)
		if len(e.Header.Recipients) < 2 {
			p.Printf("warning: one key alone opens it, and without that key it is lost: give a second --recipient\n")
		}
		return nil
	}
	return cmd
}

func newSnapshotPrune(env *environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "prune --dir DIR --age-key FILE [CLUSTER]",
		Short: "Remove the etcd snapshots in a folder that are no longer needed",
		Long: `Remove the etcd snapshots in a folder that snapshot list --age-key shows as no
longer needed. Those that stay are read to their end before, and none is removed
that no verified one is newer than. Manual and damaged ones stay, and so do files
of others. Where no key opens any, or all are damaged, it ends with 1.`,
		Example: `  talos-agent snapshot prune --dir /mnt/backup --age-key age.key dev`,
		Args:    cobra.MaximumNArgs(1),
	}
	output, keys, dir := outputFlag(cmd), ageKeysFlag(cmd), dirFlag(cmd, "required")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		p, err := newPrinter(env.stdout, *output)
		if err != nil {
			return err
		}
		if *dir == "" {
			return errNoFolder(cmd)
		}
		if len(*keys) == 0 {
			return &fault.Usage{Err: errors.New("snapshot prune: with which key? use --age-key FILE")}
		}
		in, err := archive.FindPlace(*dir, *keys)
		if err != nil {
			return err
		}
		kept, err := archive.Prune(cmd.Context(), in, firstOf(args))
		if err != nil {
			return err
		}
		unopened := archive.IsUnverified(kept)
		if p.IsJSON() {
			if err := p.PrintJSON("SnapshotPruning", kept); err != nil || !unopened {
				return err
			}
			return errSilent(exitFailed)
		}
		removed := 0
		for _, k := range kept {
			if k.Prune {
				removed++
				p.Printf("removed %s\n", k.File)
			}
			if k.Problem != "" {
				p.Printf("%s: %s: %s\n", p.Paint("warning", terminal.Yellow), k.File, k.Problem)
			}
		}
		p.Printf("%s removed, %d kept\n", text.Count(removed, "snapshot"), len(kept)-removed)
		if unopened {
			return errSilent(exitFailed)
		}
		return nil
	}
	return cmd
}
