package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/repo/sealed"
)

func newSecrets(env *environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "secrets",
		Short: "Make the secrets of a cluster",
		Args:  knownCommand,
		RunE:  missingCommand,
	}
	cmd.AddCommand(newSecretsNew(env))
	return cmd
}

func newSecretsNew(env *environment) *cobra.Command {
	f := sealed.Config{Stdin: env.stdin}
	cmd := &cobra.Command{
		Use:   "new --cluster NAME DIR",
		Short: "Make the secrets of a new cluster, encrypted to the recipients in .sops.yaml",
		Long: `Make the secrets that a cluster begins with: its authorities, keys and tokens, in
the shape of talosctl gen secrets, encrypted with SOPS to the age recipients that
.sops.yaml has for the file. They are the cluster's for life, so that a file that
is there already is never replaced. Nothing is written in clear.

Values for patches and addons (${values.NAME}) can be added right away from
files, or from standard input as NAME=-, and later with sops.`,
		Example: `  talos-agent secrets new --cluster dev .
  talos-agent secrets new --cluster dev --value-file tailscale_authkey=- . < authkey
  talos-agent secrets new --cluster old --from secrets.yaml .`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeDirectories,
	}
	flags := cmd.Flags()
	flags.StringVar(&f.Cluster, "cluster", "", "the cluster, by the name of its folder (required)")
	flags.StringVar(&f.Folder, "path", "inventory", "the folder of the repository that holds the clusters' folders")
	flags.StringVar(&f.From, "from", "", "file with the secrets of a cluster that exists, as talosctl gen secrets wrote them")
	flags.StringArrayVar(&f.Values, "value-file", nil, "NAME=FILE: a value for patches and addons; may be given several times")
	flags.StringArrayVar(&f.AgeKeys, "age-key", nil, "file with an age key that must be able to open the result")
	completeFlag(cmd, "cluster", folderNames)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if f.Cluster == "" {
			return &fault.Usage{Err: errors.New("secrets new: which cluster? use --cluster NAME")}
		}
		made, err := sealed.Make(cmd.Context(), args[0], f, time.Now())
		if err != nil {
			return err
		}
		printSecrets(env.stdout, made, args[0], f.Cluster)
		return nil
	}
	return cmd
}

// printSecrets prints what was written, and what to do next.
func printSecrets(w io.Writer, made sealed.Secrets, dir, name string) {
	printf := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) }
	printf("wrote %s, encrypted to", made.File)
	for _, r := range made.Recipients {
		printf("  %s", r)
	}
	if slices.Contains(made.Recipients, sealed.ExampleRecipient) {
		printf("warning: %s is the public example key of talos-agent: everybody can read this file", sealed.ExampleRecipient)
	}
	printf("Next:")
	printf("  talos-agent validate %s --cluster %s --age-key FILE", dir, name)
	printf("  sops %s   # to add values for patches and addons under values:", made.File)
	printf("  then commit %s and push", made.Name)
}
