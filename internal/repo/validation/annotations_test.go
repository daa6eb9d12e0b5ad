package validation

import (
	"encoding/json"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

func TestWorkflowCommand(t *testing.T) {
	for want, c := range map[string]struct {
		dir     string
		problem cluster.Problem
	}{
		"::error file=inventory/dev/nodes.yaml,line=3,col=7::nodes[0].cpu: is 400 (write 4)": {".", cluster.Problem{Severity: cluster.Error, File: "inventory/dev/nodes.yaml", Line: 3, Column: 7, Field: "nodes[0].cpu", Message: "is 400", Hint: "write 4"}},
		"::warning file=infra/inventory/a%2Cb%3Ac.yaml::100%25 of it%0Ais wrong":             {"infra", cluster.Problem{Severity: cluster.Warning, File: "inventory/a,b:c.yaml", Message: "100% of it\nis wrong"}},
		"::notice ::by the way": {".", cluster.Problem{Severity: cluster.Note, Message: "by the way"}},
	} {
		if got := WorkflowCommand(c.problem, c.dir); got != want {
			t.Errorf("%s\n%s", got, want)
		}
	}
}

func TestWithoutCommands(t *testing.T) {
	for text, want := range map[string]string{
		"":                            "",
		"dev: valid\n":                "dev: valid\n",
		"error: a::b\n":               "error: a::b\n",
		"::add-mask::a":               ": :add-mask::a",
		"a\n \t::warning::b\n":        "a\n \t: :warning::b\n",
		"a\n\u00a0\v::warning::b\n":   "a\n\u00a0\v: :warning::b\n",
		":::warning::b":               ": ::warning::b",
		"error: ##[group]x ##[group]": "error: ## [group]x ## [group]",
		"###[group]":                  "### [group]",
	} {
		if got := WithoutCommands(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestCodeQuality(t *testing.T) {
	read := func(problems ...cluster.Problem) []finding {
		t.Helper()
		text, err := Result{Problems: problems}.CodeQuality(".")
		if err != nil {
			t.Fatal(err)
		}
		var out []finding
		if err := json.Unmarshal(text, &out); err != nil || out == nil {
			t.Fatal(string(text), err)
		}
		return out
	}
	read() // is a list, too
	p := cluster.Problem{Severity: cluster.Error, File: "inventory/dev/nodes.yaml", Line: 3, Column: 7, Field: "nodes[0].cpu", Message: "is 400", Hint: "write 4"}
	moved := p
	moved.Line = 4
	other := cluster.Problem{Severity: cluster.Warning, File: "inventory", Message: "there is no such folder"}
	first, second := read(p, p, other), read(moved, other)
	if f := first[0]; f.Description != "nodes[0].cpu: is 400 (write 4)" || f.Severity != "critical" || f.Location.Path != "inventory/dev/nodes.yaml" || f.Location.Lines.Begin != 3 {
		t.Errorf("%+v", f)
	}
	if f := first[2]; f.Severity != "minor" || f.Location.Lines.Begin != 1 {
		t.Errorf("%+v", f)
	}
	if first[0].Fingerprint != second[0].Fingerprint || first[0].Fingerprint == first[1].Fingerprint || first[0].Fingerprint == first[2].Fingerprint {
		t.Errorf("%+v, then %+v", first, second)
	}
}
