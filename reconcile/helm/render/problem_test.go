package render

import (
	"strings"
	"testing"
)

// TestLongProblems: of what a template makes an error of, its ends are reported.
func TestLongProblems(t *testing.T) {
	got, err := renderWeb(t.Context(), webOf(map[string]string{"templates/x.yaml": `{{ fail (printf "begin%send" (repeat 200000 "x")) }}`}), nil)
	if err == nil || len(err.Error()) > 3*maxProblem || !strings.Contains(err.Error(), "xend") {
		t.Errorf("%v, %d bytes: %.300v", got, len(err.Error()), err)
	}
}
