// Command talosctl is Talos' own, without its commands for local clusters, whose modules
// cannot all be had. It is a module of its own because it pins many that the agent does
// not need.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	_ "github.com/siderolabs/talos/cmd/talosctl/acompat"
	"github.com/siderolabs/talos/cmd/talosctl/cmd/common"
	"github.com/siderolabs/talos/cmd/talosctl/cmd/mgmt/gen"
	"github.com/siderolabs/talos/cmd/talosctl/cmd/mgmt/machineconfig"
	"github.com/siderolabs/talos/cmd/talosctl/cmd/talos"
	"github.com/siderolabs/talos/cmd/talosctl/pkg/talos/safeout"
	"github.com/siderolabs/talos/pkg/cli"
)

func main() {
	root := &cobra.Command{Use: "talosctl", SilenceErrors: true, SilenceUsage: true}
	root.SetOut(safeout.Stdout())
	root.SetErr(safeout.Stderr())
	root.AddCommand(gen.Cmd, machineconfig.Cmd)
	root.AddCommand(talos.Commands...)
	_, err := cli.WithContextC(context.Background(), root.ExecuteContextC)
	_ = safeout.Flush() // nowhere is left to report it
	if err != nil {
		if !common.SuppressErrors {
			fmt.Fprintln(os.Stderr, safeout.String(err.Error()))
		}
		os.Exit(1)
	}
}
