package cluster

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/golden"
)

// TestEveryReasonIsInTheTable: there is a row for every constant, and one only, and
// the code is what the constant is worth.
func TestEveryReasonIsInTheTable(t *testing.T) {
	rows := map[Reason]int{}
	for _, r := range Reasons() {
		rows[r.Reason]++
		if rows[r.Reason] > 1 {
			t.Errorf("%s has two rows", r.Reason)
		}
		if !regexp.MustCompile(`^[A-Z][A-Za-z]+$`).MatchString(string(r.Reason)) {
			t.Errorf("%q is not PascalCase", r.Reason)
		}
		for what, text := range map[string]string{"meaning": r.Meaning, "what to do": r.Do} {
			if !strings.HasSuffix(text, ".") || strings.Contains(text, "|") {
				t.Errorf("%s: its %s is no sentence: %q", r.Reason, what, text)
			}
		}
		if r.Audience != Everyone && r.Audience != Callers {
			t.Errorf("%s: who may see it? %q", r.Reason, r.Audience)
		}
	}
	f, err := parser.ParseFile(token.NewFileSet(), "reason.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	constants := 0
	ast.Inspect(f, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if typ, named := spec.Type.(*ast.Ident); !named || typ.Name != "Reason" {
			return true
		}
		constants++
		code, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil || rows[Reason(code)] == 0 {
			t.Errorf("%s has no row in the table", spec.Names[0].Name)
		}
		return false
	})
	if constants != len(rows) {
		t.Errorf("%d constants, and %d rows", constants, len(rows))
	}
}

// TestReasonsReference keeps docs/reference/reasons.md as the table is.
func TestReasonsReference(t *testing.T) {
	const file = "../../docs/reference/reasons.md"
	var b strings.Builder
	b.WriteString(`# Reasons

<!-- Written by ` + "`make docs`" + ` from internal/cluster/reason_table.go: change that. -->

Every wait, every block, every condition of a cluster and every error of the API has a reason: a code that stays what it is
while sentences are reworded. It is in ` + "`talos-agent status --output json`" + `, in the label ` + "`reason`" + ` of metrics, in notifications and in
the field REASON of the log. Scripts and alerts should go by it, and never by a message.

Everyone who reads the commit statuses, the notifications or the metrics of a cluster may see a reason with its message, or
only whoever made the call that it answers.
`)
	for _, part := range []struct {
		title string
		rows  []ReasonInfo
	}{
		{"Conditions of a cluster", conditionReasons}, {"A cluster as a whole", clusterReasons}, {"Hosts and storages", hostReasons},
		{"Nodes", nodeReasons}, {"Addons", addonReasons}, {"Errors of the API", apiReasons},
	} {
		fmt.Fprintf(&b, "\n## %s\n\n| reason | meaning | what to do | who may see it |\n| --- | --- | --- | --- |\n", part.title)
		for _, r := range part.rows {
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", r.Reason, r.Meaning, r.Do, r.Audience)
		}
	}
	golden.Check(t, file, []byte(b.String()))
}

func TestReasonOf(t *testing.T) {
	err := fmt.Errorf("destroy: %w", WithReason(InventoryUnread, io.EOF))
	if ReasonOf(err) != InventoryUnread || !errors.Is(err, io.EOF) || err.Error() != "destroy: EOF" || ReasonOf(io.EOF) != "" || ReasonOf(nil) != "" {
		t.Errorf("%v: %q", err, ReasonOf(err))
	}
}

// TestReasonsThatHoldUpgrades: what holds an order holds the upgrade, too; what is about an addon alone holds none.
func TestReasonsThatHoldUpgrades(t *testing.T) {
	for reason, want := range map[Reason]Hold{WaitingForGate: HoldsOrder, WaitingForWindow: HoldsOrder, UpgradeFailed: HoldsUpgrade, AddonNotReady: HoldsNothing, "NoSuchReason": HoldsNothing} {
		if got := reason.Holds(); got != want {
			t.Errorf("%s: %v, want %v", reason, got, want)
		}
	}
}
