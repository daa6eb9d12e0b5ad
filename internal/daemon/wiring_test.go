package daemon

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/talos-agent/talos-agent/internal/daemon/eventlog"
	"github.com/talos-agent/talos-agent/internal/daemon/reporting"
	"github.com/talos-agent/talos-agent/internal/host/state"
)

// TestOnlyJournalsAreJournals: nothing else in the state directory is taken for the
// journal of a cluster.
func TestOnlyJournalsAreJournals(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{reporting.SentFile, eventlog.EventsFile, "history-dev.jsonl", "lock", "dev.json"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if names, err := (state.Dir{Path: dir}).Journals(); err != nil || !slices.Equal(names, []string{"dev"}) {
		t.Errorf("journals of %v, %v", names, err)
	}
}
