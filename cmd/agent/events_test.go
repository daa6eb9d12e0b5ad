package main

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/coreos/go-systemd/v22/journal"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/eventlog"
)

// maxField is what an event keeps of a field.
const maxField = 2 << 10

// TestEventsAreTheJournal: an event has, word for word, what the journal has of
// the same record.
func TestEventsAreTheJournal(t *testing.T) {
	events := eventlog.NewEvents(fieldName)
	var fields map[string]string
	var message string
	log := slog.New(&handler{level: slog.LevelDebug, also: events.Add, write: writeJournal(func(m string, _ journal.Priority, f map[string]string) error {
		message, fields = m, f
		return nil
	})}).With("cluster", "dev")
	log.Debug("nobody needs it")
	log.With("node", "cp-1", "vmid", 411).Warn("could not create vm 411", "err", errors.New("no room"), "hint", "make room",
		"duration_ms", 12, "token", cluster.SecretString("s3cret"), "upid", "")
	all := events.Select(cluster.EventQuery{})
	if len(all) != 1 {
		t.Fatalf("events %+v", all)
	}
	e := all[0]
	has := map[string]string{"SYSLOG_IDENTIFIER": "talos-agent", "CLUSTER": e.Cluster, "NODE": e.Node, "ERROR": e.Error, "HINT": e.Hint}
	for k, v := range e.Fields {
		has[k] = v
	}
	if e.Level != "warning" || e.Message+": "+e.Error+" ("+e.Hint+")" != message || fmt.Sprint(has) != fmt.Sprint(fields) {
		t.Errorf("event %+v\njournal %q %v", e, message, fields)
	}
	if fields["TOKEN"] != "[redacted]" {
		t.Errorf("a secret is told: %v", fields)
	}
	log.Info(strings.Repeat("x", 2*maxField))
	if all := events.Select(cluster.EventQuery{Last: 1}); len(all[0].Message) > maxField+3 {
		t.Errorf("a message of %d bytes is kept", len(all[0].Message))
	}
}
