//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/talos-agent/talos-agent/internal/daemon/support"
	"github.com/talos-agent/talos-agent/internal/host/setup"
	"github.com/talos-agent/talos-agent/internal/text"
)

func newSupportBundle(env *environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "support-bundle",
		Short: "Write a file with everything a maintainer needs, and no secret (root)",
		Long: `Write a file (tar, gzip) with everything that somebody needs who helps: versions,
status, plan, events and history of every cluster, what doctor finds, metrics,
the state of the unit and the end of its journal, what the daemon's goroutines
do, config and policy, and which files there are with which modes.

It holds no secret: of the config only values are shown that are known to be
none. It holds names, addresses and the messages of commits: look at it before
you send it. What could not be had, because the daemon is down or this user may
not, is listed in its README.txt.`,
		Args: cobra.NoArgs,
	}
	file := cmd.Flags().StringP("file", "f", "", "where to write it (default talos-agent-support-TIME.tar.gz)")
	config := cmd.Flags().String("config", setup.ConfigFile, "the host's config file")
	completeFlag(cmd, "file", cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault))
	completeFlag(cmd, "config", cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		name := *file
		if name == "" {
			name = "talos-agent-support-" + time.Now().UTC().Format("20060102-150405") + ".tar.gz"
		}
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return fmt.Errorf("write the bundle: %w", err)
		}
		c := support.Config{Version: version, Path: *config,
			OnStep: func(what string) { _, _ = fmt.Fprintf(env.stderr, "looking at %s\n", what) }}
		if cmd.Flags().Changed("socket") {
			c.Socket, err = cmd.Flags().GetString("socket")
		}
		var b *support.Bundle
		if err == nil {
			b, err = support.Gather(cmd.Context(), c)
		}
		if cmd.Context().Err() != nil {
			err = errStopped
		}
		if err == nil {
			err = b.Write(f)
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return errors.Join(err, os.Remove(name))
		}
		_, _ = fmt.Fprintf(env.stdout, "%s: %s; look at it before you send it\n", name, text.Count(b.Files(), "file"))
		for _, m := range b.Missing() {
			_, _ = fmt.Fprintf(env.stdout, "  without %s\n", m)
		}
		return nil
	}
	return cmd
}
