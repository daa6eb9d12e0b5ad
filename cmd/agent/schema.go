package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/sources/inventory"
)

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
