package main

import (
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/talos-agent/talos-agent/internal/repo/validation"
	"github.com/talos-agent/talos-agent/internal/terminal"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/sources/inventory"
)

// addValidationFlags adds the flags that describe what is checked, and with what.
func addValidationFlags(cmd *cobra.Command, f *validation.Config) {
	flags := cmd.Flags()
	flags.StringVar(&f.Cluster, "cluster", "", "look at this cluster only, by the name of its folder")
	flags.StringVar(&f.Folder, "path", "inventory", "the folder of the repository that holds the clusters' folders")
	flags.StringArrayVar(&f.AgeKeys, "age-key", nil, "file with the age key that opens the secrets; may be given several times")
	flags.StringVar(&f.Policy, "policy", "", "file with the policy of the host")
	flags.StringVar(&f.Owner, "owner", inventory.DefaultOwner, "owner in the config of the host; MAC addresses follow from it")
	completeFlag(cmd, "cluster", folderNames)
}

func newValidate(env *environment) *cobra.Command {
	var f validation.Config
	cmd := &cobra.Command{
		Use:   "validate DIR",
		Short: "Check a repository, offline, down to every machine config",
		Long: `Check the clusters of a repository without a network and without a daemon: the
files, their references to each other, the versions, and the machine config of
every node, which is rendered and validated as the agent would. Every problem is
reported at once, as file:line:column: field: what is wrong (what to write).

With the age key the secrets are checked too, and what they are used for.
Without one it is only checked that they are encrypted, placeholders stand for
them, and a warning is printed. With the policy of a host the clusters are
checked against it.

Exit codes: 0 every cluster is valid; 1 at least one is not; 2 wrong usage.`,
		Example: `  talos-agent validate .
  talos-agent validate . --cluster dev --age-key age.key --policy policy.yaml`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeDirectories,
	}
	output := outputFlag(cmd)
	addValidationFlags(cmd, &f)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		p, err := newPrinter(env.stdout, *output)
		if err != nil {
			return err
		}
		v, err := validation.Validate(cmd.Context(), args[0], f, time.Now())
		if err != nil {
			return err
		}
		if p.IsJSON() {
			err = p.PrintJSON("Validation", v)
		} else {
			printValidation(p, v, args[0])
		}
		if err == nil && !v.Valid {
			err = errSilent(exitFailed)
		}
		return err
	}
	return cmd
}

// printValidation prints what was found: problems the way compilers do, then a line
// for each cluster, then what its DHCP server must know.
func printValidation(p terminal.Printer, v validation.Result, dir string) {
	for _, problem := range v.Problems {
		problem.File = filepath.Join(dir, problem.File)
		p.Printf("%s\n", problem)
	}
	for _, c := range v.Clusters {
		if !c.Valid {
			p.Printf("%s: %s\n", c.Cluster, p.Paint("invalid", terminal.Red))
			continue
		}
		p.Printf("%s: %s: %s, %s, Talos %s, Kubernetes %s; %s validated, with placeholders for %s\n", c.Cluster, p.Paint("valid", terminal.Green),
			text.Count(c.ControlPlanes, "control plane"), text.Count(c.Workers, "worker"), c.Talos, c.Kubernetes, text.Count(c.Rendered, "machine config"), formatPlaceholders(c.Placeholders))
	}
	for _, c := range v.Clusters {
		if len(c.Reservations) == 0 {
			continue
		}
		p.Printf("\n# %s, for dnsmasq:\n", c.Cluster)
		for _, r := range c.Reservations {
			p.Printf("dhcp-host=%s,%s,%s\n", strings.ToLower(r.MAC), r.Address, r.Node)
		}
	}
}

func formatPlaceholders(what []string) string {
	if slices.Contains(what, "secrets") {
		return "the image's id and the secrets"
	}
	return "the image's id"
}
