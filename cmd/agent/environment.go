package main

import (
	"io"
	"os"
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
