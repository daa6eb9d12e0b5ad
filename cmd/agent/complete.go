package main

import (
	"context"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/sources/inventory"
)

// completionWithin is how long the shell may wait for the daemon on a Tab.
const completionWithin = 2 * time.Second

// clusterNames completes the name of a cluster: the daemon knows them.
func clusterNames(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []cobra.Completion
	for _, s := range knownStatuses(cmd) {
		names = append(names, cobra.CompletionWithDesc(s.Cluster, string(s.Condition)))
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// nodeNames completes the name of a node: of the cluster that was named, or of the
// only one.
func nodeNames(cmd *cobra.Command, args []string) []cobra.Completion {
	all := knownStatuses(cmd)
	var names []cobra.Completion
	for _, s := range all {
		if len(args) == 1 && args[0] == s.Cluster || len(args) == 0 && len(all) == 1 {
			for _, n := range s.Nodes {
				names = append(names, cobra.CompletionWithDesc(n.Name, string(n.Phase)))
			}
		}
	}
	return names
}

// knownStatuses asks the daemon how its clusters stand, for the shell.
func knownStatuses(cmd *cobra.Command) []cluster.Status {
	ctx, cancel := context.WithTimeout(cmd.Context(), completionWithin)
	defer cancel()
	all, err := newClient(cmd).StatusAll(ctx)
	if err != nil {
		cobra.CompDebugln(err.Error(), false)
	}
	return all
}

// folderNames completes the name of a cluster where there is no daemon: the
// repository has a folder for each.
func folderNames(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	dir := "."
	if len(args) > 0 {
		dir = args[0]
	}
	path, err := cmd.Flags().GetString("path")
	if err != nil {
		cobra.CompDebugln(err.Error(), false)
	}
	names, problems := inventory.Clusters(os.DirFS(dir), path)
	for _, p := range problems {
		cobra.CompDebugln(p.String(), false)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeOneFile has the shell complete one argument as a file.
func completeOneFile(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return nil, cobra.ShellCompDirectiveDefault
}

// completeFlavours completes the version of Proxmox VE that the lab plays.
func completeFlavours(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return []cobra.Completion{"9.2", "8.4"}, cobra.ShellCompDirectiveNoFileComp
}

// directoryFlag completes a flag that takes a directory.
func directoryFlag(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveFilterDirs
}

// clusterOrNodeNames completes the name of a cluster, or of a node of it.
func clusterOrNodeNames(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	clusters, directive := clusterNames(cmd, args, typed)
	return append(clusters, nodeNames(cmd, args)...), directive
}
