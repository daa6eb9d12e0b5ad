package plan

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/golden"
)

// TestScenarios runs every script in testdata: a line is a command, the lines
// that begin with ">" are what the command before must print. world_test.go
// lists the commands.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			src, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var got strings.Builder
			w := newWorld(1, 0)
			for _, line := range strings.Split(strings.TrimSuffix(string(src), "\n"), "\n") {
				if strings.HasPrefix(line, ">") {
					continue
				}
				got.WriteString(line + "\n")
				if strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#") {
					continue
				}
				for _, out := range strings.Split(strings.TrimSuffix(w.run(t, line), "\n"), "\n") {
					if out != "" {
						got.WriteString("> " + out + "\n")
					}
				}
			}
			golden.Check(t, file, []byte(got.String()))
		})
	}
}
