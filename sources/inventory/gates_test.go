package inventory

import (
	"os"
	"regexp"
	"testing"

	"github.com/talos-agent/talos-agent/internal/gate"
)

// TestGatesOfDocs: the conditions that the docs show are ones.
func TestGatesOfDocs(t *testing.T) {
	page, err := os.ReadFile("../../docs/how-to/upgrade-talos.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := regexp.MustCompile(`(?m)^    condition: (.+)$`).FindAllStringSubmatch(string(page), -1)
	if len(shown) < 3 {
		t.Errorf("only %d conditions found", len(shown))
	}
	for _, m := range shown {
		if err := gate.Check(m[1]); err != nil {
			t.Errorf("%s: %v", m[1], err)
		}
	}
}
