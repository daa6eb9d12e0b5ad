package demo

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/pvehost"
	"github.com/talos-agent/talos-agent/internal/lab/world"
	"github.com/talos-agent/talos-agent/internal/terminal"
)

// TestStoryFailsWithAPart plays parts in which the machines of the lab do what must not be: the
// story ends with the first of them, and names it.
func TestStoryFailsWithAPart(t *testing.T) {
	for name, tc := range map[string]struct {
		events []string // subject: text
		want   string
	}{
		"one at a time": {[]string{
			"541: vm 541 (lab-wk-1) is off", "541: vm 541 (lab-wk-1) runs", "lab-wk-1: is Ready",
			"542: vm 542 (lab-wk-2) is off", "lab-cp-1: is Ready", "542: vm 542 (lab-wk-2) runs", "lab-wk-2: is Ready",
		}, ""},
		"two at once": {[]string{
			"541: vm 541 (lab-wk-1) is off", "541: vm 541 (lab-wk-1) runs", "542: vm 542 (lab-wk-2) is off", "lab-wk-1: is Ready", "542: vm 542 (lab-wk-2) runs", "lab-wk-2: is Ready",
		}, "a part: lab-wk-2 went down while lab-wk-1 was"},
		"another order": {[]string{
			"542: vm 542 (lab-wk-2) is off", "542: vm 542 (lab-wk-2) runs", "lab-wk-2: is Ready",
			"541: vm 541 (lab-wk-1) is off", "541: vm 541 (lab-wk-1) runs", "lab-wk-1: is Ready",
		}, "a part: down one after the other: [lab-wk-2 lab-wk-1], want [lab-wk-1 lab-wk-2]"},
		"one does not come back": {[]string{
			"541: vm 541 (lab-wk-1) is off", "541: vm 541 (lab-wk-1) runs", "lab-wk-1: is Ready", "542: vm 542 (lab-wk-2) is off", "542: vm 542 (lab-wk-2) runs",
		}, "a part: lab-wk-2 went down and is not Ready"},
		"one more machine": {[]string{
			"541: vm 541 (lab-wk-1) is off", "541: vm 541 (lab-wk-1) runs", "lab-wk-1: is Ready",
			"542: vm 542 (lab-wk-2) is off", "542: vm 542 (lab-wk-2) runs", "lab-wk-2: is Ready", "543: vm 543 (lab-wk-3) runs",
		}, "a part: these machines were switched on: [lab-wk-1 lab-wk-2 lab-wk-3], want [lab-wk-1 lab-wk-2]"},
		"a rule": {nil, "a part: the agent broke a rule: "},
	} {
		t.Run(name, func(t *testing.T) {
			w, err := world.New(world.Config{Network: world.NewMemory()})
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			d := &demo{line: terminal.NewLiveLine(io.Discard), host: &pvehost.Host{Lab: &lab.Lab{World: w}}}
			began, wentOn := d.eventsSoFar(), false
			boots := d.boots()
			err = d.play(t.Context(), []chapter{
				{"a part", func(context.Context) error {
					if tc.events == nil {
						w.Violate("secrets", "a config was sent to another machine")
						return nil
					}
					for _, e := range tc.events {
						subject, text, _ := strings.Cut(e, ": ")
						w.Report(subject, "%s", text)
					}
					if err := d.wantTurns(began, "lab-wk-1", "lab-wk-2"); err != nil {
						return err
					}
					return d.wantBoots(boots, []string{"lab-wk-1", "lab-wk-2"})
				}},
				{"the next", func(context.Context) error { wentOn = true; return nil }},
			})
			switch {
			case tc.want == "" && (err != nil || !wentOn):
				t.Errorf("%v, went on: %v", err, wentOn)
			case tc.want != "" && (err == nil || !strings.HasPrefix(err.Error(), tc.want) || wentOn):
				t.Errorf("%v, went on: %v, want %q", err, wentOn, tc.want)
			}
		})
	}
}
