package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/api"
	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/hosttest"
)

func TestExitCode(t *testing.T) {
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{errors.New("broken"), 1},
		{cluster.Problems{{Severity: cluster.Error, Message: "wrong"}}, 1},
		{fmt.Errorf("validate: %w", &fault.Usage{Err: errors.New("no such flag")}), 2},
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

// TestPlanCode: nothing to do is not the same as nothing that can be done; and a step that waits,
// for an approval or a window, is to be done all the same.
func TestPlanCode(t *testing.T) {
	step, removal := cluster.Step{Action: cluster.DrainNode}, cluster.Step{Action: cluster.DeleteVM, Destructive: true}
	wait, block := []cluster.Wait{{Reason: cluster.NodeCordoned}}, []cluster.Block{{Reason: cluster.NodeLocked}}
	for what, c := range map[string]struct {
		f    cluster.Forecast
		want int
	}{
		"it is as it should be":                {cluster.Forecast{}, exitOK},
		"it is, with a warning":                {cluster.Forecast{Problems: cluster.Problems{{Severity: cluster.Warning}}}, exitOK},
		"the inventory is invalid":             {cluster.Forecast{Problems: cluster.Problems{{Severity: cluster.Error}}, Steps: []cluster.Step{step}}, exitFailed},
		"a person has to push something else":  {cluster.Forecast{Blocked: block}, exitFailed},
		"a person has to uncordon a node":      {cluster.Forecast{Waiting: wait}, exitFailed},
		"one node is blocked, another changes": {cluster.Forecast{Blocked: block, Waiting: wait, Steps: []cluster.Step{step}}, exitChanges},
		"a change waits for its window":        {cluster.Forecast{Waiting: []cluster.Wait{{Reason: cluster.WaitingForWindow}}, Steps: []cluster.Step{step}}, exitChanges},
		"a change waits for approval":          {cluster.Forecast{Unapproved: true, Steps: []cluster.Step{step}}, exitChanges},
		"a removal waits for approval":         {cluster.Forecast{Unapproved: true, Steps: []cluster.Step{step, removal}}, exitDestructive},
	} {
		if got := planCode(c.f); got != c.want {
			t.Errorf("%s: %d, want %d", what, got, c.want)
		}
	}
}

// TestCureOfAHostThatIsNotSetUp: starting the unit would do nothing, and init is
// the cure; not for a daemon that somebody named.
func TestCureOfAHostThatIsNotSetUp(t *testing.T) {
	away := fault.WithHint(fmt.Errorf("status: %w", api.ErrNoDaemon), "start it")
	config := filepath.Join(t.TempDir(), "config.yaml")
	if got := hintFor(away, false, config); !strings.Contains(got, "`talos-agent init`") {
		t.Errorf("without a config: %q", got)
	}
	if got := hintFor(away, true, config); got != "start it" {
		t.Errorf("with --socket: %q", got)
	}
	if got := hintFor(fault.WithHint(errors.New("other"), "mend it"), false, config); got != "mend it" {
		t.Errorf("another error: %q", got)
	}
	hosttest.Write(t, config, "owner: mine\n", 0o600)
	if got := hintFor(away, false, config); got != "start it" {
		t.Errorf("with a config: %q", got)
	}
}
