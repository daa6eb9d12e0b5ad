package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/repo/importing"
	"github.com/talos-agent/talos-agent/internal/terminal"
)

func newImport(env *environment) *cobra.Command {
	var c importing.Config
	cmd := &cobra.Command{
		Use:   "import FILE... --to DIR",
		Short: "Make an inventory out of another tool's description of a cluster",
		Long: `Read another tool's description of a cluster, and write the inventory that comes
closest to it into the repository DIR: cluster.yaml, nodes.yaml and patches. What
kind a file is it sees by itself: cluster.yaml and nodes.yaml of an inventory,
Terraform's *.tfvars and *.tfvars.json, nodes.json, and talconfig.yaml of
talhelper, with the files of patches that it names as further arguments.

It prints every line that was not taken over, with what to do about it, and what
is still wrong or missing, as validate does. What the files do not contain is not
invented: it is left to fill in, or set here with --set.

Nothing but the files is read: no environment, no network, and no secrets, which
` + "`talos-agent secrets new`" + ` takes with --from. Nothing that is there is
overwritten, and all files are written or none. Machines are not adopted: VMs
that another tool made stay its own, and the agent makes new ones.

Exit codes: 0 the inventory is valid; 1 it failed, and nothing was written; 2
wrong usage; 7 it was written, and something has to be filled in or corrected
before it is valid.`,
		Example: `  talos-agent import terraform.tfvars --to infra
  talos-agent import talconfig.yaml patches/common.yaml --to infra --set proxmox.node=pve1
  talos-agent import nodes.json --to infra --cluster home --set proxmox.node=atlas`,
		Args: cobra.MinimumNArgs(1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveDefault
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&c.Dir, "to", "", "the repository that the inventory is written into (required)")
	flags.StringVar(&c.Folder, "path", "inventory", "the folder of the repository that holds the clusters' folders")
	flags.StringVar(&c.Cluster, "cluster", "", "the name of the cluster (default: that in the files)")
	set := flags.StringArray("set", nil, "KEY=VALUE: a value of cluster.yaml, such as network.gateway=10.10.0.1, which wins over that of the files; may be given several times")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if c.Dir == "" {
			return &fault.Usage{Err: errors.New("import: into which repository? use --to DIR")}
		}
		c.Files = args
		var err error
		if c.Set, err = readSet(*set); err != nil {
			return err
		}
		made, err := importing.Import(cmd.Context(), c, time.Now())
		if err != nil {
			return err
		}
		out := terminal.NewCleaner(env.stdout) // it repeats what others have written
		printImported(out, made, c)
		if made.Problems.HasErrors() {
			return errSilent(exitIncomplete)
		}
		return nil
	}
	return cmd
}

// readSet reads the values of --set.
func readSet(all []string) (map[string]string, error) {
	out := map[string]string{}
	for _, written := range all {
		key, value, ok := strings.Cut(written, "=")
		if !ok || key == "" || value == "" || strings.HasPrefix(key, ".") || strings.HasSuffix(key, ".") || strings.Contains(key, "..") {
			return nil, &fault.Usage{Err: fmt.Errorf("--set %q: write KEY=VALUE, like proxmox.node=pve1", written)}
		}
		if _, twice := out[key]; twice {
			return nil, &fault.Usage{Err: fmt.Errorf("--set %s: is given twice", key)}
		}
		out[key] = value
	}
	return out, nil
}

// printImported prints what was written, what was not taken over, and what is left to do.
func printImported(out io.Writer, made importing.Imported, c importing.Config) {
	printf := func(format string, args ...any) { _, _ = fmt.Fprintf(out, format+"\n", args...) }
	for _, path := range made.Written {
		printf("wrote  %s", path)
	}
	if len(made.Left) > 0 {
		printf("Not taken over:")
		for _, p := range made.Left {
			printf("  %s", p)
		}
	}
	for _, severity := range []cluster.Severity{cluster.Error, cluster.Warning} {
		title := map[cluster.Severity]string{cluster.Error: "Fill in or correct:", cluster.Warning: "Warnings:"}[severity]
		for _, p := range made.Problems {
			if p.Severity != severity {
				continue
			}
			if title != "" {
				printf("%s", title)
				title = ""
			}
			p.File, p.Severity = filepath.Join(c.Dir, p.File), cluster.Error // the title has the word
			printf("  %s", p)
		}
	}
	folder := ""
	if c.Folder != "inventory" {
		folder = " --path " + c.Folder
	}
	printf("Next:")
	printf("  talos-agent validate %s --cluster %s%s   # until it is valid", c.Dir, made.Cluster, folder)
	printf("  talos-agent rehearse %s --cluster %s%s   # brings it up on a simulated host", c.Dir, made.Cluster, folder)
	printf("  talos-agent secrets new --cluster %s%s %s   # with --from FILE for those of a cluster that exists", made.Cluster, folder, c.Dir)
}
