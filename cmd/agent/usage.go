package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/terminal"
)

// version is set by the linker.
var version = "v0.0.0-unknown"

// environment is what the program takes from outside, so that tests can run
// it whole.
type environment struct {
	stdin          io.Reader
	stdout, stderr io.Writer
}

// osEnvironment is the real one.
func osEnvironment() *environment {
	return &environment{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr}
}

// newPrinter makes a printer for the format of --output.
func newPrinter(w io.Writer, output string) (terminal.Printer, error) {
	p, err := terminal.New(w, output)
	if err != nil {
		return p, &fault.Usage{Err: err}
	}
	return p, nil
}

// missingCommand refuses a command that does nothing without one below it.
func missingCommand(cmd *cobra.Command, _ []string) error {
	var names []string
	for _, c := range cmd.Commands() {
		names = append(names, c.Name())
	}
	return &fault.Usage{Err: fmt.Errorf("%sa command is missing: %s; see `%s --help`", nameInError(cmd), strings.Join(names, ", "), cmd.CommandPath())}
}

// firstOf is the argument that may be left out.
func firstOf(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

// nameInError is how an error begins that a command has with how it was called;
// the name of the program stands before every error.
func nameInError(cmd *cobra.Command) string {
	_, name, below := strings.Cut(cmd.CommandPath(), " ")
	if !below {
		return ""
	}
	return name + ": "
}

// knownCommand refuses what no command is called, and suggests what was probably
// meant.
func knownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	near := "see `" + cmd.CommandPath() + " --help`"
	cmd.SuggestionsMinimumDistance = 2
	if names := cmd.SuggestionsFor(args[0]); len(names) > 0 {
		near = "did you mean " + strings.Join(names, " or ") + "?"
	}
	return &fault.Usage{Err: fault.WithHint(fmt.Errorf("there is no command %q", cmd.CommandPath()+" "+args[0]), near)}
}

// outputFlag adds --output.
func outputFlag(cmd *cobra.Command) *string {
	output := cmd.Flags().StringP("output", "o", "text", "text or json")
	completeFlag(cmd, "output", cobra.FixedCompletions([]cobra.Completion{"text", "json"}, cobra.ShellCompDirectiveNoFileComp))
	return output
}

// completeFlag describes to the shell what a flag takes.
func completeFlag(cmd *cobra.Command, flag string, f cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, f); err != nil {
		panic(err) // the flag was added a line above
	}
}

// completeDirectories completes the one directory a command takes.
func completeDirectories(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return nil, cobra.ShellCompDirectiveFilterDirs
}

// errNoFolder refuses a command that names no folder.
func errNoFolder(cmd *cobra.Command) error {
	return &fault.Usage{Err: fmt.Errorf("%swhich folder? use --dir DIR", nameInError(cmd))}
}

// outFlag adds the flag that names the file to write.
func outFlag(cmd *cobra.Command) *string {
	out := cmd.Flags().String("out", "", "the file to write (required)")
	completeFlag(cmd, "out", cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault))
	return out
}

// errNoOutput refuses a command that names no file to write.
func errNoOutput(cmd *cobra.Command) error {
	return &fault.Usage{Err: fmt.Errorf("%swhere to? use --out FILE", nameInError(cmd))}
}
