package main

import (
	"errors"
	"fmt"
	"testing"

	"github.com/talos-agent/talos-agent/internal/api"
	"github.com/talos-agent/talos-agent/internal/cluster"
)

func TestExitCode(t *testing.T) {
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{errors.New("broken"), 1},
		{cluster.Problems{{Severity: cluster.Error, Message: "wrong"}}, 1},
		{fmt.Errorf("validate: %w", &usageError{errors.New("no such flag")}), 2},
		{errSilent(exitReconciling), 3},
		{errSilent(exitStalled), 4},
		{fmt.Errorf("status: %w", api.ErrNoDaemon), 5},
		{fmt.Errorf("plan: %w", errSilent(exitChanges)), 10},
		{errSilent(exitDestructive), 11},
		{errSilent(exitOK), 0},
		// What a command says of itself counts more than why.
		{&exitError{exitStalled, api.ErrNoDaemon}, 4},
	} {
		if got := exitCode(c.err); got != c.want {
			t.Errorf("%v: %d, want %d", c.err, got, c.want)
		}
	}
}
