package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"
)

// complete tells the shell what a flag takes.
func complete(cmd *cobra.Command, flag string, f cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, f); err != nil {
		panic(err) // the flag was added a line above
	}
}

// completionWithin is how long the shell may wait for the daemon on a Tab.
const completionWithin = 2 * time.Second

// clusterNames completes the name of a cluster: the daemon knows them.
func clusterNames(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionWithin)
	defer cancel()
	all, err := client(cmd).StatusAll(ctx)
	if err != nil {
		cobra.CompDebugln(err.Error(), false)
	}
	var names []cobra.Completion
	for _, s := range all {
		names = append(names, cobra.CompletionWithDesc(s.Cluster, string(s.Condition)))
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// directoryFlag completes a flag that takes a directory.
func directoryFlag(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveFilterDirs
}

// directories completes the one directory a command takes.
func directories(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return nil, cobra.ShellCompDirectiveFilterDirs
}
