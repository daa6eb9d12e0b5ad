package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/repo/validation"
	"github.com/talos-agent/talos-agent/internal/terminal"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/sources/inventory"
)

// addValidationFlags adds the flags that describe what is checked, and with what.
func addValidationFlags(cmd *cobra.Command, f *validation.Config) {
	cmd.Flags().StringVar(&f.Cluster, "cluster", "", "look at this cluster only, by the name of its folder")
	completeFlag(cmd, "cluster", folderNames)
	addCheckoutFlags(cmd, f)
}

// addCheckoutFlags adds the flags that describe how a repository in a directory is read.
func addCheckoutFlags(cmd *cobra.Command, f *validation.Config) {
	flags := cmd.Flags()
	flags.StringVar(&f.Folder, "path", "inventory", "the folder of the repository that holds the clusters' folders")
	flags.StringArrayVar(&f.AgeKeys, "age-key", nil, "file with the age key that opens the secrets; may be given several times")
	flags.StringVar(&f.Policy, "policy", "", "file with the policy of the host")
	flags.StringVar(&f.Owner, "owner", inventory.DefaultOwner, "owner in the config of the host; MAC addresses follow from it")
}

func newValidate(env *environment) *cobra.Command {
	var f validation.Config
	cmd := &cobra.Command{
		Use:   "validate [DIR]",
		Short: "Check a repository, offline, down to every machine config",
		Long: `Check the clusters of a repository without a network and without a daemon: the
files, their references to each other, the versions, and the machine config of
every node, which is rendered and validated as the agent would. Without DIR, the
repository is the current directory.

Every problem is reported at once, the errors last, each with its line: error:
file:line:column: field: what is wrong (what to write). A patch or an addon that
no list names is an error, too; a file that begins with the line "# unused: ok"
is meant to be none's.

With the age key the secrets are checked too, and what they are used for.
Without one it is only checked that they are encrypted, placeholders stand for
them, and a warning is printed. With the policy of a host the clusters are
checked against it. With --strict a warning is as bad as an error: that a chart
has no digest, that the secrets could not be checked.

Forges show problems at their lines: GitHub and Gitea with --annotations, which
prints them as workflow commands, GitLab with --code-quality, which writes a
report besides. Give DIR as seen from the root of the repository, as . in a job.

Exit codes: 0 every cluster is valid; 1 at least one is not; 2 wrong usage; 6 all
are valid, and one has no secrets yet, so that it cannot be made.`,
		Example: `  talos-agent validate
  talos-agent validate . --cluster dev --age-key age.key --policy policy.yaml`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: completeDirectories,
	}
	output := outputFlag(cmd)
	addValidationFlags(cmd, &f)
	cmd.Flags().BoolVar(&f.Strict, "strict", false, "take warnings for errors")
	annotations := cmd.Flags().Bool("annotations", false, "print problems as workflow commands of GitHub Actions")
	report := cmd.Flags().String("code-quality", "", "write the problems to this file as a Code Quality report of GitLab")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		p, err := newPrinter(env.stdout, *output)
		if err != nil {
			return err
		}
		if *annotations && p.IsJSON() {
			return &fault.Usage{Err: errors.New("--annotations and --output json are two forms of one output: choose one")}
		}
		dir := "."
		if len(args) > 0 {
			dir = args[0]
		}
		v, err := validation.Validate(cmd.Context(), dir, f, time.Now())
		if err != nil {
			return err
		}
		if *report != "" {
			if err := writeReport(*report, v, dir); err != nil {
				return err
			}
		}
		if p.IsJSON() {
			err = p.PrintJSON("Validation", v)
		} else {
			printProblems(p, v, dir, *annotations)
			printClusters(p, v, f.Strict)
		}
		switch {
		case err != nil:
			return err
		case !v.Valid:
			return errSilent(exitFailed)
		case slices.ContainsFunc(v.Clusters, func(c validation.Cluster) bool { return c.SecretsMissing }):
			return errSilent(exitNoSecrets)
		}
		return nil
	}
	return cmd
}

// writeReport writes the problems as a Code Quality report.
func writeReport(path string, v validation.Result, dir string) error {
	report, err := v.CodeQuality(filepath.ToSlash(dir))
	if err != nil {
		return err
	}
	return replaceFile(path, append(report, '\n'))
}

// replaceFile puts a new file at a path that everybody may read. What is there is not
// written to: in a checkout it may be a symbolic link to anywhere. Nor is a link
// replaced, which may be /dev/stdout.
func replaceFile(path string, data []byte) error {
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
		return fault.WithHint(fmt.Errorf("write %s: it is there and not a regular file", path), "remove it, or name another file")
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".talos-agent-*") // exclusive
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(f.Name()))
	}
	return nil
}

// printProblems prints the problems, the errors last; or all of them as workflow
// commands.
func printProblems(p terminal.Printer, v validation.Result, dir string, commands bool) {
	for _, severity := range []cluster.Severity{cluster.Note, cluster.Warning, cluster.Error} {
		for _, problem := range v.Problems {
			switch {
			case problem.Severity != severity:
			case commands:
				p.Printf("%s\n", validation.WorkflowCommand(problem, filepath.ToSlash(dir)))
			default:
				printProblem(p, v, problem, dir)
			}
		}
	}
}

// printText prints what is for people. In a job it is a command of nothing, whatever
// the files of the repository are called.
func printText(p terminal.Printer, format string, args ...any) {
	p.Printf("%s", validation.WithoutCommands(fmt.Sprintf(format, args...)))
}

// printClusters prints a line for each cluster, then what its DHCP server must know.
func printClusters(p terminal.Printer, v validation.Result, strict bool) {
	for _, c := range v.Clusters {
		if !c.Valid {
			printText(p, "%s: %s\n", c.Cluster, p.Paint("invalid", terminal.Red))
			continue
		}
		state := p.Paint("valid", terminal.Green)
		if c.SecretsMissing {
			state = p.Paint("valid, and without secrets", terminal.Yellow)
		}
		printText(p, "%s: %s: %s, %s, Talos %s, Kubernetes %s; %s validated, with placeholders for %s\n", c.Cluster, state,
			text.Count(c.ControlPlanes, "control plane"), text.Count(c.Workers, "worker"), c.Talos, c.Kubernetes, text.Count(c.Rendered, "machine config"), formatPlaceholders(c.Placeholders))
	}
	if strict && !v.Valid && !v.Problems.HasErrors() {
		printText(p, "%s: --strict takes warnings for errors\n", p.Paint("invalid", terminal.Red))
	}
	for _, c := range v.Clusters {
		if len(c.Reservations) == 0 {
			continue
		}
		printText(p, "\n# %s, for dnsmasq:\n", c.Cluster)
		for _, r := range c.Reservations {
			printText(p, "dhcp-host=%s,%s,%s\n", strings.ToLower(r.MAC), r.Address, r.Node)
		}
	}
}

// severities are how the word before a problem is painted.
var severities = map[cluster.Severity]terminal.Colour{cluster.Error: terminal.Red, cluster.Warning: terminal.Yellow, cluster.Note: terminal.Faint}

// printProblem prints a problem, an error with the line that it is about.
func printProblem(p terminal.Printer, v validation.Result, problem cluster.Problem, dir string) {
	shown := problem
	shown.File, shown.Severity = filepath.Join(dir, problem.File), cluster.Error // the word stands first
	printText(p, "%s %s\n", p.Paint(string(problem.Severity)+":", severities[problem.Severity]), shown)
	if problem.Severity != cluster.Error {
		return
	}
	if line, column, ok := v.Excerpt(problem); ok {
		number := strconv.Itoa(problem.Line)
		printText(p, "  %s | %s\n  %s | %s%s\n", number, line, strings.Repeat(" ", len(number)), strings.Repeat(" ", column-1), p.Paint("^", terminal.Red))
	}
}

func formatPlaceholders(what []string) string {
	if slices.Contains(what, "secrets") {
		return "the image's id and the secrets"
	}
	return "the image's id"
}

// schemaNames are the kinds of files that have a schema.
func schemaNames() []string {
	return append(inventory.SchemaNames(), config.SchemaNames()...)
}

// writeSchema returns the JSON Schema of one kind of file.
func writeSchema(which string) ([]byte, error) {
	if slices.Contains(config.SchemaNames(), which) {
		return config.Schema(which)
	}
	return inventory.Schema(which)
}

func newSchema(env *environment) *cobra.Command {
	names := schemaNames()
	return &cobra.Command{
		Use:   "schema [" + strings.Join(names, "|") + "]",
		Short: "Print the JSON Schema of a kind of file, for editors and CI",
		Long: `Print the JSON Schema (draft 2020-12) of a kind of file; without an argument,
the kinds there are. An editor with a YAML language server completes and checks
a file whose first line names its schema:

  # yaml-language-server: $schema=../../.schema/cluster.json`,
		Example: `  talos-agent schema cluster > .schema/cluster.json`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && !slices.Contains(names, args[0]) {
				return fmt.Errorf("there is no schema %q: known are %s", args[0], strings.Join(names, ", "))
			}
			return cobra.MaximumNArgs(1)(cmd, args)
		},
		ValidArgs: names,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				_, err := fmt.Fprintln(env.stdout, strings.Join(names, "\n"))
				return err
			}
			b, err := writeSchema(args[0])
			if err != nil {
				return err
			}
			_, err = env.stdout.Write(b)
			return err
		},
	}
}
