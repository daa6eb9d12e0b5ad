package terminal

import (
	"bytes"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

func TestForecastOutput(t *testing.T) {
	var out bytes.Buffer
	p := Printer{w: &out}
	if err := p.PrintJSON("Forecast", cluster.Forecast{Cluster: "dev"}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), `"steps": []`) {
		t.Errorf("programs that walk the steps get no empty list: %s", &out)
	}
	out.Reset()
	p.PrintForecast(cluster.Forecast{Cluster: "dev", Steps: []cluster.Step{{Text: "delete vm 412", Destructive: true, Reboots: true}}})
	if !strings.Contains(out.String(), "1 step, 1 destructive, 1 reboot\n") {
		t.Errorf("one step: %s", &out)
	}
}

// TestColumns: a row whose last cells are empty does not shift the rows below.
func TestColumns(t *testing.T) {
	var out bytes.Buffer
	Printer{w: &out}.PrintRows([][]string{{"NODE", "KUBERNETES", "WAITS FOR"}, {"cp-1", "v1.36.1", ""}, {"wk-1", "-", "boots"}})
	if want := "NODE  KUBERNETES  WAITS FOR\ncp-1  v1.36.1\nwk-1  -           boots\n"; out.String() != want {
		t.Errorf("printed\n%s\nwant\n%s", &out, want)
	}
}

// TestProgress: how far an action is, in words; the name of a task is for programs.
func TestProgress(t *testing.T) {
	for want, r := range map[string]cluster.RunningStatus{
		"50% (1.0 MiB of 2.0 MiB)": {Done: 1 << 20, Total: 2 << 20, Unit: "bytes", UPID: "UPID:pve1:0001:0002:0003:imgcopy::x@pve!y:"},
		"3 steps":                  {Done: 3, Unit: "steps"},
		"task qmcreate on pve1":    {UPID: "UPID:pve1:000003E8:00057E40:69B2C0D1:qmcreate:411:talos-agent@pve!pve1:"},
		"":                         {UPID: "garbage"},
	} {
		if got := formatProgress(r); got != want {
			t.Errorf("%+v: %q, want %q", r, got, want)
		}
	}
}

// TestStatusParagraphs: what a person must read is no row of the table above it.
func TestStatusParagraphs(t *testing.T) {
	var out bytes.Buffer
	Printer{w: &out}.PrintStatus(cluster.Status{
		Cluster: "dev", Condition: cluster.Stalled,
		Nodes:    []cluster.NodeStatus{{Name: "dev-cp-1"}},
		Blocked:  []cluster.Block{{Subject: "dev-cp-1", Message: "a person must act"}},
		Problems: cluster.Problems{{Severity: cluster.Warning, File: "nodes.yaml", Message: "is odd"}},
	})
	if !strings.Contains(out.String(), "\n\n  blocked dev-cp-1: a person must act\n\n  nodes.yaml: warning: is odd\n") {
		t.Errorf("the blocked and the problems are not paragraphs of their own:\n%s", &out)
	}
}

// TestColours: a terminal shows colours, unless it has none or nobody wants them.
func TestColours(t *testing.T) {
	for environment, want := range map[string]bool{
		"TERM=xterm": true, "TERM=linux": true, "TERM=xterm-256color COLORTERM=truecolor": true,
		"TERM=xterm NO_COLOR=": true, "TERM=xterm NO_COLOR=1": false, "TERM=xterm NO_COLOR=please": false,
		"TERM=dumb": false,
	} {
		if got := showsColours(strings.Fields(environment)); got != want {
			t.Errorf("%s: %v", environment, got)
		}
	}
	if got := (Printer{colour: true}).Paint("Ready", Green); got != "\x1b[32mReady\x1b[0m" {
		t.Errorf("painted as %q", got)
	}
}

// TestColumnsOfWideText: what takes two columns, or none, shifts nothing.
func TestColumnsOfWideText(t *testing.T) {
	var out bytes.Buffer
	Printer{w: &out}.PrintRows([][]string{{"A", "B"}, {"世界", "x"}, {"\x1b[31mred\x1b[0m", "x"}, {"\x1b[2Jz", "x"}})
	if want := "A      B\n世界   x\n\x1b[31mred\x1b[0m    x\n?[2Jz  x\n"; out.String() != want {
		t.Errorf("printed\n%q\nwant\n%q", &out, want)
	}
}
