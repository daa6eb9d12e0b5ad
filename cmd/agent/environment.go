package main

import (
	"io"
	"os"

	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/terminal"
)

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
